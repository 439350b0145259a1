"""The cycle counter of a multiprocessor, and numbers that one thread of a group writes to
memory.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import llvm
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import constant, i32, select

from ..state.checks import Site, covers
from ..state.lowering import Lowering, element_pointer, lowers
from ..state.tensors import view_of

Value = Any


@lowers(ws.ClockOp)
def _clock(low: Lowering, op: ws.ClockOp) -> None:
    """As text, since a read by `nvvm.read.ptx.sreg.clock` may be moved past asynchronous
    products.
    """
    low[op.cycles] = llvm.InlineAsmOp(
        i32(), [], "mov.u32 $0, %clock;", "=r,~{memory}", has_side_effects=True
    ).result


@lowers(ws.StoreEntryOp)
def _store_entry(low: Lowering, op: ws.StoreEntryOp) -> None:
    """Without a branch: behind one on the thread, the assembler has no uniform registers for
    descriptors.
    """
    place = element_pointer(low, op.target, [low[coord] for coord in op.coords])
    elected = low.active.elected
    if elected is None and low.active.op.lane_count == 1:
        llvm.StoreOp(low[op.value], place)
        return
    thread = low.active.thread if elected is None else select(elected, constant(0), constant(1))
    text = "{ .reg .pred first; setp.eq.u32 first, $2, 0; @first st.global.u32 [$0], $1; }"
    operands = [place, low[op.value], thread]
    llvm.InlineAsmOp(None, operands, text, "l,r,r,~{memory}", has_side_effects=True)


@covers(ws.StoreEntryOp)
def _check_store_entry(site: Site, op: ws.StoreEntryOp) -> None:
    kernel: Any = site.role.operation.parent.opview
    argument = view_of(kernel, op.target).argument
    role = kernel.io_roles[kernel.names.index(argument)]
    if role not in ("out", "inout"):
        raise op_error(
            op, f"expects an argument of role out or inout, {argument} is of role {role}"
        )
