"""Copies of indexed rows by threads: `cp.async` of 16 bytes each, into swizzled shared tiles.

The 16-byte units of a tile are numbered along its rows, and thread t of T copies the units t, t +
T, t + 2 T, ..., so that accesses coalesce along a row. If a row is several whole lines of 128
bytes, the units of its first line are numbered, and a thread copies the same unit of each line: the
addresses differ by constants, and the row's index is computed once.

Each warp has prefetched table entries in registers, one lane per row, and shuffles them to the
lanes that copy the row. Copies that threads wait for have another order, in which each thread has
the entries of its rows (`awaited_copies`).
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, nvvm
from attn_mlir.dialect.scalars import INT, compare, constant, i32, select
from attn_mlir.dialect.targets.limits import WARP_THREADS

from ..access.lanes import from_lane
from ..layouts.fragments import row_per_lane
from ..layouts.inference import Constraints, constrains
from ..layouts.shared import ATOM_ROWS, SWIZZLE_BYTES, UNIT_BYTES, line_elements, unit_elements
from ..rings.awaited_copies import copy_lines, is_awaited, rows_of_threads
from ..rings.clusters import number_in
from ..state.handles import Fragment, TileRef
from ..state.lowering import Lowering, element_pointer, lowers, offset_pointer

Value = Any

_LINE_UNITS = SWIZZLE_BYTES // UNIT_BYTES


@constrains(ws.CopyRowsOp)
def _constrain(c: Constraints, op: ws.CopyRowsOp) -> None:
    scheme = rows_of_threads(op, c.warps) if is_awaited(op) else row_per_lane(c.warps)
    for entry in op.entries:
        c.fixes(op, entry, scheme)


@lowers(ws.CopyRowsOp)
def _copy_rows(low: Lowering, op: ws.CopyRowsOp) -> None:
    if is_awaited(op):
        copy_lines(low, op)
        return
    tile = low.tile(op.target)
    rows, columns = tile.kind.shape
    width = columns // unit_elements(ws.element_bits(tile.kind.element))
    threads = low.active.op.threads_per_group
    lines = _lines(low, op, tile, threads)
    width //= lines
    for number in range(rows * width // threads):
        row, unit = _unit(low.active.thread, number * threads, width, threads)
        first, last = number * threads // width, ((number + 1) * threads - 1) // width
        entries = [_entry(low[entry], row, range(first, last + 1)) for entry in op.entries]
        _copy(low, op, tile, row, unit, entries, lines)


def _lines(low: Lowering, op: ws.CopyRowsOp, tile: TileRef, threads: int) -> int:
    """The lines of a row of which a thread copies the same units; 1 if the units differ."""
    line = line_elements(ws.element_bits(tile.kind.element))
    has_whole_lines = tile.kind.shape[1] % line == tile.first_column % line == 0
    fills_threads = tile.kind.shape[0] * _LINE_UNITS % threads == 0
    if not has_whole_lines or not fills_threads or _may_exceed(low, op, tile):
        return 1
    return tile.kind.shape[1] // line


def _may_exceed(low: Lowering, op: ws.CopyRowsOp, tile: TileRef) -> bool:
    """Whether columns of the tile may lie beyond those of the tensor."""
    column_dim, tensor = list[int](op.dims)[-1], ir.MemRefType(op.source.type)
    if tensor.is_dynamic_dim(column_dim):
        return True
    begins = [number_in(op.coords[column_dim], rank) or 0 for rank in low.active.op.ranks]
    return max(begins) + tile.kind.shape[1] > tensor.get_dim_size(column_dim)


def _entry(entries: Fragment, row: Value, rows: range) -> Value:
    """The entry of a row, one of `rows`, shuffled from the lane that holds it."""
    lane = arith.AndIOp(row, constant(WARP_THREADS - 1)).result
    entry: Value = None
    for number in range(rows.start // WARP_THREADS, (rows.stop - 1) // WARP_THREADS + 1):
        candidate = from_lane(entries.parts[number], lane)
        if entry is None:
            entry = candidate
        else:
            entry = select(compare("sge", row, number * WARP_THREADS), candidate, entry)
    return entry


def _unit(thread: Value, first: int, width: int, threads: int) -> tuple[Value, Value]:
    """Row of unit number `thread + first`, and the unit's number in that row; i32.

    Args:
      thread: i32, the thread's number among `threads`.
      first: number of units before this iteration's.
      width: units in a row.
      threads: of the group.
    """

    def quotient(value: Value) -> Value:
        return arith.DivUIOp(value, constant(width)).result

    def remainder(value: Value) -> Value:
        return arith.RemUIOp(value, constant(width)).result

    if threads % width == 0:  # the unit's number in its row is the same in every iteration
        return INT.add(quotient(thread), first // width), remainder(thread)
    number = INT.add(thread, first)
    return quotient(number), remainder(number)


def _copy(
    low: Lowering,
    op: ws.CopyRowsOp,
    tile: TileRef,
    row: Value,
    unit: Value,
    entries: Sequence[Value],
    lines: int,
) -> None:
    """Copies one unit of each line of the row that the region computes; zeros past the tensor."""
    row_dim, *inner_dims, column_dim = list[int](op.dims)
    block = op.body.blocks[0]
    for argument, value in zip(block.arguments, [row, *entries], strict=True):
        low[argument] = value
    *body, last = block.operations
    low.lower_block(body)
    per_unit = unit_elements(ws.element_bits(tile.kind.element))
    coords = [low[coord] for coord in op.coords]
    chosen, count = low[last.value], low.extent(op.source, row_dim)
    first = coords[row_dim]
    for dim in inner_dims:
        extent = ir.MemRefType(op.source.type).get_dim_size(dim)
        first, count = INT.add(INT.mul(first, extent), coords[dim]), INT.mul(count, extent)
    chosen = INT.add(first, chosen)
    exists = INT.both(compare("sge", chosen, 0), compare("slt", chosen, count))
    coords[column_dim] = INT.add(coords[column_dim], INT.mul(unit, per_unit))
    if _may_exceed(low, op, tile):
        end = low.extent(op.source, column_dim)
        exists = INT.both(exists, compare("slt", coords[column_dim], end))
        coords[column_dim] = select(exists, coords[column_dim], constant(0))
    coords[row_dim] = select(exists, chosen, constant(0))
    for dim in inner_dims:
        extent = constant(ir.MemRefType(op.source.type).get_dim_size(dim))
        coords[dim] = arith.RemUIOp(coords[row_dim], extent).result
        coords[row_dim] = arith.DivUIOp(coords[row_dim], extent).result
    offset, start = _unit_offset(tile, row, unit), element_pointer(low, op.source, coords)
    size = select(exists, constant(UNIT_BYTES), constant(0))
    for line in range(lines):
        nvvm.CpAsyncOp(
            low.shared_pointer(offset, line * tile.pitch * SWIZZLE_BYTES),
            offset_pointer(start, line * SWIZZLE_BYTES),
            ir.IntegerAttr.get(i32(), UNIT_BYTES),
            ir.Attribute.parse("#nvvm<load_cache_modifier cg>"),
            cpSize=size,
        )


def _unit_offset(tile: TileRef, row: Value, unit: Value) -> Value:
    """i32: byte offset of a unit of a swizzled tile; see `layouts.shared`."""
    first = tile.first_column // unit_elements(ws.element_bits(tile.kind.element))
    column = INT.add(unit, first) if first else unit
    chunk = arith.DivUIOp(column, constant(_LINE_UNITS)).result
    inner = arith.RemUIOp(column, constant(_LINE_UNITS)).result
    flipped = arith.XOrIOp(inner, arith.AndIOp(row, constant(ATOM_ROWS - 1)).result).result
    line = INT.add(INT.mul(chunk, tile.pitch), row)
    return INT.add(
        INT.add(tile.address, INT.mul(line, SWIZZLE_BYTES)), INT.mul(flipped, UNIT_BYTES)
    )
