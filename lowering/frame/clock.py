"""Reads of an SM's cycle counter, and stores of single values by one thread of a group."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import llvm
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import constant, i32, select

from ..state.checks import OpContext, legality_check
from ..state.lowering import Lowering, element_pointer, lowers
from ..state.tensors import view_of

Value = Any


@lowers(ws.ClockOp)
def _clock(low: Lowering, op: ws.ClockOp) -> None:
    """Emits text: a read by `nvvm.read.ptx.sreg.clock` may be moved past asynchronous products."""
    low[op.cycles] = llvm.InlineAsmOp(
        i32(), [], "mov.u32 $0, %clock;", "=r,~{memory}", has_side_effects=True
    ).result


@lowers(ws.StoreEntryOp)
def _store_entry(low: Lowering, op: ws.StoreEntryOp) -> None:
    """Emits no branch: after a branch on the thread, ptxas keeps no descriptors in uniform
    registers.
    """
    pointer = element_pointer(low, op.target, [low[coord] for coord in op.coords])
    elected = low.active.elected
    if elected is None and low.active.op.lane_count == 1:
        llvm.StoreOp(low[op.value], pointer)
        return
    thread = low.active.thread if elected is None else select(elected, constant(0), constant(1))
    text = "{ .reg .pred first; setp.eq.u32 first, $2, 0; @first st.global.u32 [$0], $1; }"
    operands = [pointer, low[op.value], thread]
    llvm.InlineAsmOp(None, operands, text, "l,r,r,~{memory}", has_side_effects=True)


@legality_check(ws.StoreEntryOp)
def _check_store_entry(context: OpContext, op: ws.StoreEntryOp) -> None:
    kernel: Any = context.role.operation.parent.opview
    argument = view_of(kernel, op.target).argument
    role = kernel.io_roles[kernel.names.index(argument)]
    if role not in ("out", "inout"):
        raise op_error(
            op, f"expects an argument of role out or inout, {argument} is of role {role}"
        )
