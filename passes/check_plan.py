"""Checks the memory plan of a module, as `ws-plan-memory` attaches it.

Lowering may start from a planned kernel whose plan was written or changed by hand. The rings are
not proved again. The checks: all entries are present; offsets are aligned and within the kernel's
memory; barriers expect the number of arrivals that the roles make.
"""

from collections.abc import Iterable
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.passes.analysis.protocol.skeleton import Process, processes
from attn_mlir.passes.infrastructure.analyses import analysed

from .check_registers import check_registers
from .plan_memory import (
    ADDRESS_CELL_BYTES,
    BARRIER_BYTES,
    MIN_TENSOR_COLS,
    PLAN,
    Item,
    arrivals,
    check_cluster,
    placed_item,
    planned_offset,
    sides,
)

_ITEM_ENTRIES = ("offset", "slot_step")
_KERNEL_ENTRIES = ("smem_bytes", "tensor_cols", "tensor_address")
MAX_ARRIVALS = (1 << 20) - 1  # PTX ISA, mbarrier object


def check_plan(kernel: ws.KernelOp, target: Target) -> None:
    """Checks the plan of a kernel, its rings and its buffers.

    Raises:
      VerifyError: on the operation whose plan is absent, incomplete or impossible.
      ResourceError: the roles ask for more registers than a CTA has.
    """
    check_cluster(kernel, target)
    check_registers(kernel, target)
    kernel_plan = _entries(kernel, _KERNEL_ENTRIES)
    for name, limit in (("smem_bytes", target.smem_bytes), ("tensor_cols", target.tensor_columns)):
        if kernel_plan[name] > limit:
            raise _impossible(kernel, name, f"at most {limit}", kernel_plan[name])
    cols = kernel_plan["tensor_cols"]
    if cols and (cols < MIN_TENSOR_COLS or cols & (cols - 1)):
        raise _impossible(
            kernel, "tensor_cols", f"0 or a power of two from {MIN_TENSOR_COLS}", cols
        )
    _check_bytes(
        kernel, "tensor_address", kernel_plan, ADDRESS_CELL_BYTES, kernel_plan["smem_bytes"]
    )
    members = analysed(processes, kernel)
    for op in kernel.body.blocks[0].operations:
        item = placed_item(op)
        if item is not None:
            _check_item(item, kernel_plan, members)


def _check_item(item: Item, kernel_plan: dict[str, int], members: list[Process]) -> None:
    barriers = sides(item.op) if isinstance(item.op, ws.AllocRingOp) else ()
    plan = _entries(item.op, (*_ITEM_ENTRIES, *barriers, *(f"{side}_count" for side in barriers)))
    if plan["slot_step"] != item.step:
        raise _impossible(item.op, "slot_step", str(item.step), plan["slot_step"])
    if plan["offset"] % item.alignment:
        raise _impossible(item.op, "offset", f"a multiple of {item.alignment}", plan["offset"])
    limit = kernel_plan["smem_bytes" if item.space == "shared" else "tensor_cols"]
    if plan["offset"] + item.total > limit:
        raise _impossible(item.op, "offset", f"at most {limit - item.total}", plan["offset"])
    if item.lender is not None:
        place = planned_offset(item.lender) + item.first
        if plan["offset"] != place:
            allowed = f"{place}, in the place of ring {item.lender.label}"
            raise _impossible(item.op, "offset", allowed, plan["offset"])
    counts = arrivals(item.value, members) if barriers else ()
    for side, count in zip(barriers, counts, strict=False):
        name = f"{side}_count"
        if plan[name] != count or not 0 < count <= MAX_ARRIVALS:
            raise _impossible(item.op, name, str(count), plan[name])
    for side in barriers:
        _check_bytes(item.op, side, plan, item.count * BARRIER_BYTES, kernel_plan["smem_bytes"])


def _check_bytes(op: Any, name: str, plan: dict[str, int], length: int, limit: int) -> None:
    """Checks that barriers from a planned offset on lie within shared memory, and are aligned."""
    if plan[name] % BARRIER_BYTES or plan[name] + length > limit:
        allowed = f"a multiple of {BARRIER_BYTES}, at most {limit - length}"
        raise _impossible(op, name, allowed, plan[name])


def _entries(op: Any, names: Iterable[str]) -> dict[str, int]:
    """The entries of a plan with these names, each of them at least 0."""
    attributes = op.operation.attributes
    if PLAN not in attributes:
        raise op_error(op, f"has no '{PLAN}': run ws-plan-memory first")
    plan = attributes[PLAN]
    if not isinstance(plan, ir.DictAttr):
        raise op_error(op, f"expects '{PLAN}' to be a dictionary, got {plan}")
    names = tuple(names)
    unknown = [entry.name for entry in plan if entry.name not in names]
    if unknown:
        allowed = ", ".join(names)
        raise op_error(op, f"has unknown entry '{unknown[0]}' in '{PLAN}': known are {allowed}")
    numbers: dict[str, int] = {}
    for name in names:
        entry = plan[name] if name in plan else None
        if not isinstance(entry, ir.IntegerAttr) or entry.value < 0:
            got = "nothing" if entry is None else entry
            raise op_error(op, f"expects '{PLAN}' to say {name}, a number from 0 on, got {got}")
        numbers[name] = entry.value
    return numbers


def _impossible(op: Any, name: str, allowed: str, got: int) -> Any:
    return op_error(op, f"expects {name} of '{PLAN}' to be {allowed}, got {got}")
