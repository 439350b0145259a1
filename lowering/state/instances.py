"""The instances of a ring that the groups of a role use, and their pipeline states.

All groups of a role run the same code, and a cursor is the stage and phase that code keeps for a
ring. Two operations share a cursor if they use the same instance in every group, however it is
computed; they have separate cursors if their instances differ in every group.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.passes.analysis.protocol.skeleton import Step, fixed_instance, processes, steps
from attn_mlir.passes.infrastructure.analyses import analysed

Instances = tuple[int, ...]  # the instances of groups 0, 1, ...
_SIDES = ("acquire", "wait")


def instances_of(kernel: ws.KernelOp) -> dict[Any, Instances]:
    """The instances that each `ws.acquire` and `ws.wait` of a kernel uses, by its slot.

    Raises:
      VerifyError: an instance is no compile-time constant or not one of the ring's, or two
        operations of a role use the same instance in some groups and not in others.
    """
    instances: dict[Any, Instances] = {}
    sides: dict[tuple[Any, Any, str], dict[Any, Step]] = {}
    for process in analysed(processes, kernel):
        if process.rank != process.role.ranks[0]:
            continue  # the same in every CTA
        for step in reversed(list(steps(process))):  # in the order of the text
            if step.kind in _SIDES:
                instance = fixed_instance(process, step)
                _check_range(step, instance)
                instances[step.slot] = (*instances.get(step.slot, ()), instance)
                sides.setdefault((process.role, step.ring, step.kind), {})[step.slot] = step
    for slots in sides.values():
        earlier: dict[Instances, None] = {}
        for slot, step in slots.items():
            for other in earlier:
                _check_apart(step, instances[slot], other)
            earlier[instances[slot]] = None
    return instances


def _check_range(step: Step, instance: int) -> None:
    instances = ws.RingType(step.ring.type).instances
    if not 0 <= instance < instances:
        label = step.ring.owner.label
        raise op_error(
            step.op,
            f"expects one of the instances 0..{instances - 1} of ring {label}, got {instance}",
        )


def _check_apart(step: Step, mine: Instances, other: Instances) -> None:
    if mine != other and any(a == b for a, b in zip(mine, other, strict=True)):
        label = step.ring.owner.label
        raise op_error(
            step.op,
            f"names instances {list(mine)} of ring {label} in the role's groups, another names "
            f"{list(other)}: expects the same instance in every group or in none",
        )
