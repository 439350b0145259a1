"""The instances (ways) of a ring that the groups of a role use, and their pipeline states.

All groups of a role run the same code, and a cursor is the stage and phase that code keeps for a
ring. Two operations share a cursor if they use the same way in every group, however it is computed;
they have separate cursors if their ways differ in every group.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.passes.analysis.protocol.skeleton import Step, fixed_way, processes, steps
from attn_mlir.passes.infrastructure.analyses import analysed

Ways = tuple[int, ...]  # the ways of groups 0, 1, ...
_SIDES = ("acquire", "wait")


def ways_of(kernel: ws.KernelOp) -> dict[Any, Ways]:
    """The ways that each `ws.acquire` and `ws.wait` of a kernel uses, by its slot.

    Raises:
      VerifyError: a way is no compile-time constant or not one of the ring's, or two operations of
        a role use the same way in some groups and not in others.
    """
    ways: dict[Any, Ways] = {}
    sides: dict[tuple[Any, Any, str], dict[Any, Step]] = {}
    for process in analysed(processes, kernel):
        if process.rank != process.role.ranks[0]:
            continue  # the same in every CTA
        for step in reversed(list(steps(process))):  # in the order of the text
            if step.kind in _SIDES:
                way = fixed_way(process, step)
                _check_range(step, way)
                ways[step.slot] = (*ways.get(step.slot, ()), way)
                sides.setdefault((process.role, step.ring, step.kind), {})[step.slot] = step
    for slots in sides.values():
        earlier: dict[Ways, None] = {}
        for slot, step in slots.items():
            for other in earlier:
                _check_apart(step, ways[slot], other)
            earlier[ways[slot]] = None
    return ways


def _check_range(step: Step, way: int) -> None:
    ways = ws.RingType(step.ring.type).ways
    if not 0 <= way < ways:
        label = step.ring.owner.label
        raise op_error(step.op, f"expects one of the ways 0..{ways - 1} of ring {label}, got {way}")


def _check_apart(step: Step, mine: Ways, other: Ways) -> None:
    if mine != other and any(a == b for a, b in zip(mine, other, strict=True)):
        label = step.ring.owner.label
        raise op_error(
            step.op,
            f"names ways {list(mine)} of ring {label} in the role's groups where another names "
            f"{list(other)}: expects the same way in every group or in none",
        )
