"""Legality checks of a warpgroup's products. Numbers: PTX ISA, wgmma."""

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error

from ..layouts import mma_k
from ..state.checks import (
    FP8_BITS,
    MMA_MAX_COLUMNS,
    OpContext,
    check_line,
    check_warpgroups,
    legality_check,
)
from .descriptors import ELEMENT_NAMES, ROWS


@legality_check(ws.ProductOp)
def _check_product(context: OpContext, op: ws.ProductOp) -> None:
    check_warpgroups(context, op, "a product")
    for operand in (op.a, op.b):
        if isinstance(operand.type, ws.TileType):
            check_line(op, operand)
    element = ws.TileType(op.b.type).element
    if str(element) not in ELEMENT_NAMES:
        raise op_error(op, f"expects a and b of {' or '.join(ELEMENT_NAMES)}, got {element}")
    rows, columns = ws.PendingType(op.pending.type).fragment.shape
    if rows != ROWS:
        raise op_error(op, f"expects M of {ROWS}, got {rows}")
    if columns > MMA_MAX_COLUMNS:
        raise op_error(op, f"expects N of at most {MMA_MAX_COLUMNS}, got {columns}")
    bits, b_layout = ws.element_bits(element), op.b_layout.value
    k = ws.TileType(op.b.type).shape[b_layout == "nk"]
    if k % mma_k(bits):
        raise op_error(op, f"expects K a multiple of {mma_k(bits)}, got {k}")
    if bits == FP8_BITS and (op.a_order, b_layout) != ("mk", "nk"):
        raise op_error(
            op, f"expects a of {bits} bits as mk and b as nk, got {op.a_order} and {b_layout}"
        )
