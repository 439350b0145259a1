"""From `attn.append` to a `ws.kernel`: threads move rows, 16 bytes at a time.

A work tile is a block of tokens and one head. Its threads compute each token's destination, load
the keys and values of the block, rotate and convert them in registers, and store each row to its
destination. Scales per position are computed from the row, by the threads that have it. The 16-byte
units of a row are in adjacent threads, so that accesses are whole lines of memory; K and V are both
loaded before either is stored, which keeps more loads in flight.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.names import names_of
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.append.destinations import NOWHERE, Destination
from attn_mlir.schedules.append.narrowing import divisors, stored
from attn_mlir.schedules.append.policy import APPEND
from attn_mlir.schedules.append.roles import WARPS, Problem, RowState, WorkTile, each_row, tokens_of
from attn_mlir.schedules.append.rotation import rotated
from attn_mlir.schedules.operands.storage import OperandStorage
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

STORAGE = (
    attn.LimitedOp,
    attn.SelectedOp,
    attn.TrimmedOp,
    attn.PagedOp,
    attn.PagedCsrOp,
    attn.ScaledOp,
)


@register
class Append:
    """New tokens into a cache, by threads alone."""

    policy: ClassVar[Policy] = APPEND

    def build(self, function: Any, op: attn.AppendOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one `attn.append`.

        Raises:
          VerifyError: the function computes something else as well, or the caches lie in views that
            no kernel writes to.
        """
        keys, values = (OperandStorage.of(cache) for cache in (op.k_cache, op.v_cache))
        _check(function, op, (keys, values))
        arguments = _arguments(function, op, (keys, values))
        kernel = b.declare_kernel(function.sym_name.value, arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            args = dict(zip(function.arguments, kernel.body.blocks[0].arguments, strict=True))
            _emit(Problem.of(op, keys, values, args))
        return kernel


def _check(function: Any, op: attn.AppendOp, caches: Sequence[OperandStorage]) -> None:
    """Raises VerifyError for a function that the kernel does not support."""
    block = list(function.body.blocks[0].operations)
    operations = [other for other in block if not isinstance(other, STORAGE)]
    if len(operations) != 2 or list(operations[1].operation.operands):
        names = ", ".join(other.operation.name for other in operations)
        raise op_error(function, f"expects one attn.append and an empty func.return, got {names}")
    tensors = [storage.root for storage in caches]
    if [*tensors, op.k_new, op.v_new] != list(function.arguments)[:4]:
        raise op_error(op, "expects the function's first arguments as its first operands, in order")
    for storage in caches:
        steps: list[Any] = [type(step) for step in storage.steps]
        if len(set(steps)) != len(steps) or storage.offsets is not None:
            raise op_error(
                op, "expects caches that each storage operation looks at once, not ragged"
            )
        if len(op.slots) and set(steps) - {attn.ScaledOp}:
            raise op_error(op, "expects slots of caches as they are stored")
        scales, logical = storage.position_scales, attn.logical_type(storage.operand)
        if scales is not None and attn.logical_type(scales.scales).shape[2] != logical.shape[2]:
            raise op_error(op, "expects scales of positions for each head")
        is_selected = storage.selection is not None or storage.padding is not None
        if storage.pages is not None and is_selected:
            raise op_error(op, "expects sequences in pages to be neither selected nor trimmed")


def _arguments(
    function: Any, op: attn.AppendOp, caches: Sequence[OperandStorage]
) -> list[b.Argument]:
    """The function's arguments; extents of one name are equal."""
    pool = caches[0].root.type
    written = [cache.root for cache in caches]
    scales = [cache.position_scales for cache in caches]
    written += [OperandStorage.of(step.scales).root for step in scales if step is not None]
    is_batch = op.k_new.type.rank > 3
    if not pool.is_dynamic_dim(1):
        cache = ("pages", "", "", "")
    else:
        has_row_per_sequence = is_batch and caches[0].selection is None
        cache = ("batch" if has_row_per_sequence else "rows", "sk", "", "")
    tokens = ("batch", "sq") if is_batch else ("tokens",)
    per_token = [x for values in (op.slots, op.positions, op.sequences) for x in values]
    names = names_of(function)
    declared: list[b.Argument] = []
    for number, value in enumerate(function.arguments):
        name, kind = names[number] or f"capture{number}", value.type
        dims = tuple(f"{name}_{i}" if kind.is_dynamic_dim(i) else "" for i in range(kind.rank))
        if number < 2:
            dims = cache
        elif number < 4:
            dims = (*tokens, "", "")
        elif value in per_token:
            dims = tokens
        elif value in list(op.angles):
            dims = ("angles", "")
        memref = ir.MemRefType.get(list(kind.shape), kind.element_type)
        declared.append(b.Argument(name, "inout" if value in written else "in", memref, dims))
    return declared


def _emit(problem: Problem) -> None:
    heads = b.constant(ir.MemRefType(problem.k_new.type).shape[-2])
    total, size = problem.token_count(), problem.tokens
    ends = problem.arrays.offsets

    def each_tile(_: Value) -> None:
        with b.tiles([b.INT.ceildiv(total, size), heads], "single") as (block, head):
            first = b.INT.mul(block, size)
            _append(problem, WorkTile(first, first, total, head, None))

    def each_tile_of_sequences(_: Value) -> None:
        count = b.INT.sub(b.extent(ends, 0), 1)
        space = [b.INT.ceildiv(total, size), heads, count]
        packing = [count, total, b.constant(size)]
        with b.tiles(space, "ragged", ends=[ends], packing=packing) as (block, head, sequence):
            begin, end = (b.element(ends, [x]) for x in (sequence, b.INT.add(sequence, 1)))
            begin = b.INT.min(b.INT.max(begin, 0), total)
            end = b.INT.min(b.INT.max(end, begin), total)
            first = b.INT.add(begin, b.INT.mul(block, size))
            _append(problem, WorkTile(first, begin, end, head, sequence))

    run = each_tile if ends is None else each_tile_of_sequences
    b.emit_roles([b.Role("append", run, warps=WARPS)])


def _append(problem: Problem, tile: WorkTile) -> None:
    """Appends the tokens of one work tile."""
    arrays, token = problem.arrays, problem.token

    def rows_of(of: Destination) -> tuple[Value, Value]:
        rows = each_row(problem, lambda row: of.row(arrays, token(tile, row)))
        if not problem.has_scale_pages:
            return rows, rows
        return _valid_in_both(problem, of, tile, rows)

    k_rows, k_scale_rows = rows_of(problem.k)
    v_rows, v_scale_rows = k_rows, k_scale_rows
    if problem.has_own_value_lists:
        v_rows, v_scale_rows = rows_of(problem.v)

    def read(k: Value, v: Value, row: Value) -> Value:
        nowhere = b.constant(NOWHERE)
        is_stored = b.INT.either(b.compare("sge", k, 0), b.compare("sge", v, 0))
        return b.select(is_stored, b.INT.add(tile.first, row), nowhere)

    rows = RowState(k_rows, v_rows, b.map_rows(read, k_rows, v_rows))
    width, (k_columns, v_columns) = problem.width, problem.columns
    keys = [tokens_of(problem, problem.k_new, rows, tile, c) for c in range(0, k_columns, width)]
    values = [tokens_of(problem, problem.v_new, rows, tile, c) for c in range(0, v_columns, width)]
    if problem.angles:
        keys = rotated(problem, tile, rows, keys)
    destinations = (
        (problem.k, rows.k, k_scale_rows, keys),
        (problem.v, rows.v, v_scale_rows, values),
    )
    for of, to, scale_rows, chunks in destinations:
        element = ir.MemRefType(of.tensor.type).element_type
        for number, divisor in enumerate(divisors(problem, of, tile, scale_rows, chunks)):
            chunk = stored(chunks[number], divisor, element)
            b.store_rows(chunk, to, of.tensor, [0, 0, tile.head, number * width], [0, 1, 3])


def _valid_in_both(
    problem: Problem, of: Destination, tile: WorkTile, rows: Value
) -> tuple[Value, Value]:
    """The rows of tokens and those of their scales, which have their own pages; both or neither."""
    scales = of.scales
    assert scales is not None

    def scale_row(row: Value) -> Value:
        token = problem.token(tile, row)
        return scales.row_at(token, *of.place(problem.arrays, token))

    def where(row: Value, other: Value, _: Value) -> Value:
        return b.select(b.compare("sge", other, 0), row, b.constant(NOWHERE))

    scale_rows = each_row(problem, scale_row)
    return b.map_rows(where, rows, scale_rows), b.map_rows(where, scale_rows, rows)
