"""Legality checks of copies between global and shared memory.

Source of the numbers: CUDA driver API, cuTensorMapEncodeTiled (box extents).
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import multiple_of
from attn_mlir.passes.plan_memory import BY_EVERY_THREAD

from ..layouts import ATOM_ROWS, UNIT_BYTES, line_elements, unit_elements
from ..rings.awaited_copies import is_awaited
from ..rings.clusters import number_in
from ..rings.slot_users import slot_of
from ..state.checks import (
    COLUMN_BITS,
    OpContext,
    check_dense_columns,
    check_one_thread,
    cut_from,
    legality_check,
)
from ..state.tensors import MAX_MAP_RANK

MAX_BOX_ROWS = 256
REDUCED = ("f32", "f16", "bf16", "i32")  # element types; PTX ISA, cp.reduce.async.bulk.tensor


def _check_limit(op: Any, tensor: Any) -> None:
    """Checks that only the rows' dimension ends early, and that the map has a free dimension."""
    owner = tensor.owner
    if not isinstance(owner, ws.LimitOp):
        return
    first, rank = list[int](op.dims)[0], ir.MemRefType(tensor.type).rank
    if owner.dim.value != first:
        raise op_error(op, f"expects a limit of dim {first}, got one of {owner.dim.value}")
    if not isinstance(op, ws.StoreGlobalOp | ws.LoadGlobalOp) and rank >= MAX_MAP_RANK:
        raise op_error(op, f"expects a limited tensor of at most 4 dimensions, got {rank}")


@legality_check(ws.CollapseOp)
def _check_collapse(_: OpContext, op: ws.CollapseOp) -> None:
    """Checks a merge of an argument's dimensions: only TMA copies use it, others have no bounds."""
    if not isinstance(op.source.owner, ir.Block):
        raise op_error(op, "expects a tensor argument, got a view of one")
    if op.dim.value + 2 == ir.MemRefType(op.source.type).rank:
        raise op_error(op, "expects columns behind the dimensions that are walked as one")
    for use in op.view.uses:
        if not isinstance(use.owner, ws.CopyInOp | ws.GatherInOp | ws.CopyOutOp | ws.ReduceOutOp):
            name = use.owner.operation.name
            raise op_error(op, f"expects uses by copies of the copy engine, got {name}")


@legality_check(ws.PitchOp)
def _check_pitch(_: OpContext, op: ws.PitchOp) -> None:
    if not isinstance(op.source.owner, ir.Block):
        raise op_error(op, "expects a tensor argument, got a view of one")


@legality_check(ws.StoreGlobalOp)
def _check_store_global(_: OpContext, op: ws.StoreGlobalOp) -> None:
    _check_fragment(op, op.target)


@legality_check(ws.LoadGlobalOp)
def _check_load_global(_: OpContext, op: ws.LoadGlobalOp) -> None:
    _check_fragment(op, op.source)
    kind, dims = ws.FragmentType(op.fragment.type), list[int](op.dims)
    if len(dims) != len(kind.shape):
        raise op_error(op, f"expects {len(kind.shape)} dims, got {dims}")


def _check_fragment(op: Any, tensor: Any) -> None:
    _check_limit(op, tensor)
    kind = ws.FragmentType(op.fragment.type)
    if len(kind.shape) == 2 and kind.shape[1] * ws.element_bits(kind.element) % (UNIT_BYTES * 8):
        raise op_error(op, f"expects rows of whole {UNIT_BYTES}-byte units, got {kind}")
    if len(kind.shape) == 2:
        check_dense_columns(op, tensor)


def _check_copy(context: OpContext, op: Any, tensor: Any, tile: Any) -> None:
    check_one_thread(context, op)
    _check_limit(op, tensor)
    kind = ws.TileType(tile.type)
    if len(kind.shape) != 2 or ws.element_bits(kind.element) not in COLUMN_BITS:
        raise op_error(
            op, f"expects a tile of two dimensions and 8, 16 or 32-bit elements, got {kind}"
        )
    check_dense_columns(op, tensor)
    rows = kind.shape[0]
    in_patterns = rows if isinstance(op, ws.GatherInOp) else ws.pitch_rows(tile)
    if in_patterns % ATOM_ROWS or rows > MAX_BOX_ROWS:
        raise op_error(op, f"expects rows a multiple of {ATOM_ROWS} to {MAX_BOX_ROWS}, got {rows}")
    left, whole = cut_from(tile)
    columns, all_columns = kind.shape[1], ws.TileType(whole.type).shape[1]
    line = line_elements(ws.element_bits(kind.element), kind.line_bytes)
    cuts_a_line = columns % line and left + columns < all_columns
    if left % line or cuts_a_line:
        raise op_error(
            op,
            f"expects columns in {line}s, a line of {kind.line_bytes} bytes each, got "
            f"{left}..{left + columns} of {all_columns}",
        )


@legality_check(ws.CopyInOp)
def _check_copy_in(context: OpContext, op: Any) -> None:
    _check_copy(context, op, op.source, op.target)
    slot = slot_of(op.target)
    if not isinstance(slot.owner, ws.AcquireOp):
        raise op_error(op, "expects a slot from ws.acquire, whose barrier counts the bytes")
    _check_copy_engine_slot(op, slot)


@legality_check(ws.GatherInOp)
def _check_gather_in(context: OpContext, op: ws.GatherInOp) -> None:
    _check_copy_in(context, op)
    if not isinstance(op.source.owner, ir.Block | ws.CollapseOp):
        raise op_error(op, "expects a tensor argument or its ws.collapse, got another view of one")


def _check_copy_engine_slot(op: Any, slot: Any) -> None:
    """Checks that a slot is committed by the copy engine, after every copy that fills it."""
    for commit in (use.owner for use in slot.uses if isinstance(use.owner, ws.CommitOp)):
        if commit.by.value != "copy_engine":
            raise op_error(
                op, f"expects a slot that is committed by copy_engine, got {commit.by.value}"
            )
        if _precedes(commit, op):
            raise op_error(op, "expects a slot that has not been committed")


def _precedes(first: Any, second: Any) -> bool:
    """Whether an operation, or one that encloses it, precedes another in the same block.

    Operations in different branches of one `scf.if` do not.
    """
    around: list[Any] = []
    op = first.operation
    while op.parent is not None:
        around.append(op)
        op = op.parent
    op = second.operation
    while op.parent is not None:
        for other in around:
            if other.block == op.block:
                return other != op and other.is_before_in_block(op)
        op = op.parent
    return False


@legality_check(ws.CopyRowsOp)
def _check_copy_rows(context: OpContext, op: ws.CopyRowsOp) -> None:
    role, kind = context.role, ws.TileType(op.target.type)
    if role.lane_count == 1:
        raise op_error(op, "expects a role of whole warps, got one thread")
    bits = ws.element_bits(kind.element)
    if bits not in COLUMN_BITS:
        raise op_error(op, f"expects elements of 8, 16 or 32 bits, got {kind.element}")
    left, slot = cut_from(op.target)[0], slot_of(op.target)
    step = unit_elements(bits)
    if kind.shape[1] % step or left % step:
        raise op_error(op, f"expects shared columns in {step}s, got {kind} from column {left}")
    units, threads = kind.shape[0] * kind.shape[1] // step, role.threads_per_group
    if units % threads:
        raise op_error(
            op, f"expects a multiple of {threads} units of {UNIT_BYTES} bytes, as many as threads "
            f"of the group, got {units} in {kind}",
        )  # fmt: skip
    commits = [use.owner for use in slot.uses if isinstance(use.owner, ws.CommitOp)]
    agents = {commit.by.value for commit in commits}
    if not isinstance(slot.owner, ws.AcquireOp) or not agents <= {*BY_EVERY_THREAD, "warps"}:
        raise op_error(op, "expects a slot from ws.acquire that is committed by threads")
    if is_awaited(op):
        _check_lines(op, kind, threads)
    _check_limit(op, op.source)
    check_dense_columns(op, op.source)
    _check_units_of_rows(context, op, kind, step)


def _check_lines(op: ws.CopyRowsOp, kind: ws.TileType, threads: int) -> None:
    """Checks copies that threads wait for: static columns, and equally many rows per thread."""
    bits = ws.element_bits(kind.element)
    line, (left, whole) = line_elements(bits), cut_from(op.target)
    cuts_a_line = left + kind.shape[1] < ws.TileType(whole.type).shape[1]
    if left % line or (cuts_a_line and kind.shape[1] % line):
        raise op_error(op, f"expects columns in {line}s where threads wait for copies, got {kind}")
    if kind.shape[0] * line // unit_elements(bits) % threads:
        raise op_error(
            op,
            f"expects rows in {threads * unit_elements(bits) // line}s where {threads} threads "
            f"wait for copies, got {kind}",
        )  # fmt: skip
    if len(dims := list[int](op.dims)) > len(kind.shape):
        raise op_error(op, f"expects 2 dims where threads wait for copies, got {dims}")
    if ir.MemRefType(op.source.type).is_dynamic_dim(list[int](op.dims)[-1]):
        raise op_error(op, "expects a static number of columns where threads wait for copies")


def _check_units_of_rows(
    context: OpContext, op: ws.CopyRowsOp, kind: ws.TileType, step: int
) -> None:
    """Checks that columns are whole 16-byte units, and within a tensor of static extent."""
    tensor, column_dim = ir.MemRefType(op.source.type), list[int](op.dims)[-1]
    first = op.coords[column_dim]
    if (multiple := multiple_of(first)) % step:
        raise op_error(
            op,
            f"expects a first column that is known to be a multiple of {step}, got one of "
            f"{multiple}",
        )
    if tensor.is_dynamic_dim(column_dim):
        return
    columns = tensor.get_dim_size(column_dim)
    begins = [number_in(first, rank) for rank in context.role.ranks]
    static_begins = [begin for begin in begins if begin is not None and begin >= 0]
    if len(static_begins) < len(begins):
        got = "a value that is computed" if None in begins else min(filter(None, begins))
        raise op_error(op, f"expects a constant first column of {columns} static ones, got {got}")
    if is_awaited(op) and columns < (end := max(static_begins) + kind.shape[1]):
        raise op_error(op, f"expects at least {end} columns of static extent, got {tensor}")
    if columns % step:
        raise op_error(op, f"expects rows of whole {UNIT_BYTES}-byte units, got {tensor}")


@legality_check(ws.CopyOutOp)
def _check_copy_out(context: OpContext, op: ws.CopyOutOp) -> None:
    _check_boxes_out(context, op)


@legality_check(ws.ReduceOutOp)
def _check_reduce_out(context: OpContext, op: ws.ReduceOutOp) -> None:
    _check_boxes_out(context, op)
    context.check_inout(op, op.target)
    element = str(ws.TileType(op.source.type).element)
    if element not in REDUCED:
        raise op_error(op, f"expects elements of {', '.join(REDUCED)}, got {element}")


def _check_boxes_out(context: OpContext, op: Any) -> None:
    """Checks that columns of a box's last line that are not the tile's lie outside the tensor."""
    _check_copy(context, op, op.target, op.source)
    kind, tensor = ws.TileType(op.source.type), ir.MemRefType(op.target.type)
    columns, line = kind.shape[1], line_elements(ws.element_bits(kind.element), kind.line_bytes)
    last = tensor.rank - 1
    if columns % line and (tensor.is_dynamic_dim(last) or columns < tensor.get_dim_size(last)):
        raise op_error(
            op,
            f"expects columns in {line}s, a line of {kind.line_bytes} bytes each, or all that the "
            f"tensor has, got {columns} of {tensor}",
        )


@legality_check(ws.ClaimOp)
def _check_claim(context: OpContext, op: ws.ClaimOp) -> None:
    check_one_thread(context, op)
    _check_copy_engine_slot(op, op.slot)
