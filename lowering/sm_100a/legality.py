"""Legality checks of tensor memory, and of products that accumulate in it.

Sources of the numbers: PTX ISA, tcgen05.mma (shapes), tcgen05.ld (.num).
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import FOLD_COLUMNS, HALF_ROWS
from attn_mlir.passes.infrastructure.analyses import analysed

from ..access.tensor_memory import products_of
from ..layouts import PART_ELEMENTS, line_elements, mma_k
from ..state.checks import (
    COLUMN_BITS,
    FP8_BITS,
    MMA_MAX_COLUMNS,
    OpContext,
    check_all_rows,
    check_line,
    check_one_thread,
    check_warpgroups,
    check_whole,
    cut_from,
    legality_check,
)
from .descriptors import ELEMENT_CODES

MMA_ROWS = 128
HALF_STEP = 8  # columns of an access to a tile of 64 rows
MMA_COLUMN_STEP = 8
PAIR_TENSOR_STEP = 32  # N of a pair is a multiple of it if a is in tensor memory
FP8_MN_STEP = 16  # N is a multiple of it if b has 8-bit elements and layout kn
REGISTER_BITS = 32


@legality_check(ws.MmaOp)
def _check_mma(context: OpContext, op: ws.MmaOp) -> None:
    check_one_thread(context, op)
    for tile, is_mn_major in ((op.a, op.a_order == "km"), (op.b, op.b_layout.value == "kn")):
        if not is_mn_major:
            check_line(op, tile)
            continue
        check_whole(op, tile)
        if tile is op.a:  # b may be some rows, which are K
            check_all_rows(op, tile)
        if (line := ws.TileType(tile.type).line_bytes) != ws.LINE_BYTES:
            raise op_error(op, f"expects K along lines of {line} bytes, got it along rows")
    a, d = ws.TileType(op.a.type), ws.TileType(op.d.type)
    if str(a.element) not in ELEMENT_CODES:
        raise op_error(op, f"expects a and b of {' or '.join(ELEMENT_CODES)}, got {a.element}")
    (rows, columns), k = d.shape, a.shape[op.a_order == "mk"]
    if rows not in (HALF_ROWS, MMA_ROWS):
        raise op_error(op, f"expects M of {HALF_ROWS} or {MMA_ROWS}, got {rows}")
    if op.is_stacked and rows != MMA_ROWS:
        raise op_error(
            op, f"expects accumulators of {MMA_ROWS} rows, two for each of a, got {rows}"
        )
    line = line_elements(ws.element_bits(a.element))
    if op.a_order == "km" and a.shape[1] not in (line, rows):
        raise op_error(op, f"expects {line} or {rows} columns of a as km, got {a.shape[1]}")
    _check_pair(context, op)
    most = MMA_MAX_COLUMNS
    if rows == HALF_ROWS:
        _check_half(op, a, d)
        most *= 2
    transposed = op.b_layout.value == "kn" and ws.element_bits(a.element) == FP8_BITS
    step = (FP8_MN_STEP if transposed else MMA_COLUMN_STEP) * op.cta_count
    if op.cta_count == ws.PAIR and a.space == "tensor":
        step = PAIR_TENSOR_STEP
    if op.is_stacked:
        columns, most = columns * ws.PAIR, most * ws.PAIR
    if columns % step or columns > most:
        raise op_error(op, f"expects N a multiple of {step} to {most}, got {columns}")
    step = mma_k(ws.element_bits(a.element))
    if k % step:
        raise op_error(op, f"expects K a multiple of {step}, got {k}")


def _check_half(op: ws.MmaOp, a: ws.TileType, d: ws.TileType) -> None:
    """Checks a product of 64 rows: a in shared memory, one CTA, d from a first column of lanes."""
    if a.space != "shared":
        raise op_error(op, f"expects a of {HALF_ROWS} rows in shared memory, got {a}")
    if op.cta_count > 1:
        raise op_error(op, f"expects M of {MMA_ROWS} in each CTA of a pair, got {HALF_ROWS}")
    left, _ = cut_from(op.d)
    if left % FOLD_COLUMNS:
        raise op_error(
            op, f"expects d of {HALF_ROWS} rows from a column in {FOLD_COLUMNS}s on, got {left}"
        )


def _first_cta_count(kernel: ws.KernelOp) -> int:
    """The CTAs of a kernel's first product."""
    return next(products_of(kernel)).cta_count


def _check_pair(context: OpContext, op: ws.MmaOp) -> None:
    """Checks a product of a pair: the first CTA issues it, and all products are of pairs."""
    role, kernel = context.role, context.role.operation.parent.opview
    if op.cta_count != analysed(_first_cta_count, kernel):
        raise op_error(op, "expects products of one CTA or of pairs in a kernel, not both")
    if op.cta_count == 1:
        return
    if ws.cta_count(kernel) % ws.PAIR:
        raise op_error(op, f"expects a cluster of pairs, got {ws.cta_count(kernel)} CTAs")
    if any(rank % ws.PAIR for rank in role.ranks):
        raise op_error(op, f"expects a role of even ranks, got {role.ranks} in {role.label}")


@legality_check(ws.LoadOp)
def _check_load(context: OpContext, op: ws.LoadOp) -> None:
    _check_tensor_access(context, op, op.source)


@legality_check(ws.StoreOp)
def _check_store(context: OpContext, op: ws.StoreOp) -> None:
    _check_tensor_access(context, op, op.target)


def _check_tensor_access(context: OpContext, op: Any, accessed: Any) -> None:
    tile, left = ws.TileType(accessed.type), cut_from(accessed)[0]
    if tile.space != "tensor":
        return
    check_warpgroups(context, op, "a fragment of tensor memory")
    bits = ws.element_bits(tile.element)
    if tile.shape[0] == HALF_ROWS:
        _check_half_access(op, tile, left)
        return
    if bits not in COLUMN_BITS:
        raise op_error(op, f"expects tensor-memory columns of 8, 16 or 32 bits, got {tile}")
    registers, odd = divmod(tile.shape[1] % PART_ELEMENTS * bits, REGISTER_BITS)
    if odd or left * bits % REGISTER_BITS:
        raise op_error(op, f"expects columns that fill registers, got {tile} from column {left}")
    if registers == 1 or registers & registers - 1:
        raise op_error(
            op,
            f"expects columns in {PART_ELEMENTS}s and a rest of 0, 2, 4, 8 or 16 registers, "
            f"got {tile}",
        )


def _check_half_access(op: Any, tile: ws.TileType, left: int) -> None:
    """Checks an access to a tile of 64 rows: f32, and not across the column where lanes change."""
    columns = tile.shape[1]
    if not isinstance(tile.element, ir.F32Type):
        raise op_error(op, f"expects f32 in a tile of {HALF_ROWS} rows, got {tile}")
    if left % HALF_STEP:
        raise op_error(
            op, f"expects columns from one in {HALF_STEP}s on, got {tile} from column {left}"
        )
    if left // FOLD_COLUMNS != (left + columns - 1) // FOLD_COLUMNS:
        raise op_error(
            op, f"expects columns on one side of {FOLD_COLUMNS}, got {tile} from column {left}"
        )
