"""Functions that emit accesses to tensors, tiles and parts of tiles."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.scalars import (
    constant,
    i32,
)

Value = Any


def extent(tensor: Value, dim: int) -> Value:
    """Run-time size of a tensor's dimension."""
    return ws.ExtentOp(tensor, i64_attr(dim)).size


def expand(tensor: Value, dim: int, inner: int) -> Value:
    """A view of a tensor with a static dimension split in two, the inner one of extent `inner`."""
    kind = ir.MemRefType(tensor.type)
    shape = list(kind.shape)
    shape[dim : dim + 1] = [shape[dim] // inner, inner]
    numbers = (i64_attr(dim), i64_attr(inner))
    return ws.ExpandOp(tensor, *numbers, ir.MemRefType.get(shape, kind.element_type)).view


def element(tensor: Value, coords: Sequence[Value | int]) -> Value:
    """One element of an input; coordinates outside are clamped to the tensor."""
    kind = ws.signless(ir.MemRefType(tensor.type).element_type)
    return ws.ElementOp(tensor, coordinates(coords), kind).value


def entry(line: Value, row: Value) -> Value:
    """One element of a shared tile [rows]."""
    return ws.EntryOp(line, row, ws.TileType(line.type).element).value


def limit(tensor: Value, end: Value, dim: int) -> Value:
    """A view of a tensor whose dimension `dim` ends at `end`."""
    number = i64_attr(dim)
    return ws.LimitOp(tensor, end, number, tensor.type).view


def copy_in(
    source: Value,
    target: Value,
    coords: Sequence[Value | int],
    dims: Sequence[int],
    *,
    receivers: Sequence[Sequence[int]] | None = None,
) -> None:
    """Fills a shared tile from a box of a tensor.

    The tensor's dimensions `dims` run along the tile's rows and columns. `receivers` lists, for the
    rank of the CTA that copies, the CTAs whose tile is filled; by default its own.
    """
    op = ws.CopyInOp(source, target, coordinates(coords), ir.DenseI32ArrayAttr.get(list(dims)))
    if receivers is not None:
        op.operation.attributes["receivers"] = ws.targets_attribute(receivers)


def reduce_out(
    source: Value, target: Value, coords: Sequence[Value | int], dims: Sequence[int]
) -> None:
    """Adds a shared tile to a box of a tensor, whose dimensions `dims` are rows and columns."""
    ws.ReduceOutOp(
        source,
        target,
        coordinates(coords),
        ir.DenseI32ArrayAttr.get(list(dims)),
        ir.StringAttr.get("add"),
    )


def prefetch_line(source: Value, coords: Sequence[Value | int], count: Value) -> None:
    """Prefetches `count` elements along a tensor's last dimension, within it, to L2."""
    ws.PrefetchLineOp(source, coordinates(coords), count)


def prefetch_box(
    source: Value, tile: ws.TileType, coords: Sequence[Value | int], dims: Sequence[int]
) -> None:
    """Prefetches the box that `copy_in` to a tile of this type would read to L2."""
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    ws.PrefetchBoxOp(source, coordinates(coords), numbers, ir.TypeAttr.get(tile))


def copy_across(source: Value, target: Value, receivers: Sequence[Sequence[int]]) -> None:
    """Copies a slot into another CTA's; `receivers` lists which one, by the rank that copies."""
    ws.CopyAcrossOp(source, target, ws.targets_attribute(receivers))


def copy_out(
    source: Value, target: Value, coords: Sequence[Value | int], dims: Sequence[int]
) -> None:
    """Writes a shared tile to a box of a tensor, whose dimensions `dims` are rows and columns."""
    ws.CopyOutOp(source, target, coordinates(coords), ir.DenseI32ArrayAttr.get(list(dims)))


@overload
def copy_rows(
    source: Value,
    target: Value,
    coords: Sequence[Value | int],
    dims: Sequence[int],
    row: Callable[[Value], Value],
) -> None: ...


@overload
def copy_rows(
    source: Value,
    target: Value,
    coords: Sequence[Value | int],
    dims: Sequence[int],
    row: Callable[[Value, Value], Value],
    entry: Value,
    /,
) -> None: ...


def copy_rows(
    source: Value,
    target: Value,
    coords: Sequence[Value | int],
    dims: Sequence[int],
    row: Callable[..., Value],
    *entries: Value,
) -> None:
    """Fills a shared tile with indexed rows of a tensor.

    Args:
      row: returns the tensor's row for a row of the tile, given its number and its element of
        each of `entries`.
      entries: fragments [rows].
    """
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    op = ws.CopyRowsOp(source, target, coordinates(coords), list(entries), numbers)
    kinds = [ws.FragmentType(value.type).element for value in entries]
    block = op.body.blocks.append(i32(), *kinds)
    with ir.InsertionPoint(block):
        ws.YieldOp(row(*block.arguments))


def gather_in(
    source: Value,
    target: Value,
    coords: Sequence[Value | int],
    row: Callable[[Value], Value],
) -> None:
    """Fills a shared tile with rows of a tensor [rows, columns], whose indices `row` returns."""
    op = ws.GatherInOp(source, target, coordinates(coords), ir.DenseI32ArrayAttr.get([0, 1]))
    block = op.body.blocks.append(i32())
    with ir.InsertionPoint(block):
        ws.YieldOp(row(*block.arguments))


def store_global(
    fragment: Value, target: Value, coords: Sequence[Value | int], dims: Sequence[int]
) -> None:
    """Writes a fragment to a tensor; rows outside the tensor are dropped."""
    ws.StoreGlobalOp(fragment, target, coordinates(coords), ir.DenseI32ArrayAttr.get(list(dims)))


def load_global(
    source: Value, shape: Sequence[int], coords: Sequence[Value | int], dims: Sequence[int]
) -> Value:
    """A fragment of a tensor's elements, with zeros outside the tensor."""
    kind = ws.fragment_type(shape, ir.MemRefType(source.type).element_type)
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    return ws.LoadGlobalOp(source, coordinates(coords), numbers, kind).fragment


def load_rows(
    source: Value,
    rows: Value,
    columns: int,
    coords: Sequence[Value | int],
    dims: Sequence[int],
) -> Value:
    """A fragment [rows, columns] of the tensor's rows that the fragment `rows` lists by number."""
    shape = [ws.FragmentType(rows.type).shape[0], columns]
    kind = ws.fragment_type(shape, ir.MemRefType(source.type).element_type)
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    return ws.LoadRowsOp(source, rows, coordinates(coords), numbers, kind).fragment


def store_rows(
    fragment: Value,
    rows: Value,
    target: Value,
    coords: Sequence[Value | int],
    dims: Sequence[int],
) -> None:
    """Writes a fragment to the tensor's rows that the fragment `rows` lists by number."""
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    ws.StoreRowsOp(fragment, rows, target, coordinates(coords), numbers)


def scatter(fragment: Value, positions: Value, target: Value, *, adds: bool) -> None:
    """Writes elements to a dense tensor, or adds them; `positions` has a place for each."""
    ws.ScatterOp(fragment, positions, target, ir.StringAttr.get("add" if adds else "store"))


def coordinates(coords: Sequence[Value | int]) -> list[Value]:
    """Coordinates as values; numbers become constants."""
    return [constant(x) if isinstance(x, int) else x for x in coords]


def tile(
    shape: Sequence[int], element: Any, space: str, line_bytes: int = ws.LINE_BYTES
) -> ws.TileType:
    """The type of a tile [rows, columns] or [rows] in `shared` or `tensor` memory."""
    return ws.tile_type(shape, element, space, line_bytes)


def _like(kind: ws.TileType, shape: Sequence[int], element: Any = None) -> ws.TileType:
    """The type of a part or view of a tile."""
    return ws.tile_type(shape, element or kind.element, kind.space, kind.line_bytes)


def view(tile: Value, shape: Sequence[int], element: Any) -> Value:
    """The first bytes of a tile as a tile of another shape or element; the tile itself if equal."""
    kind = ws.TileType(tile.type)
    if (kind.shape, kind.element) == (list(shape), element):
        return tile
    return ws.ViewOp(tile, _like(kind, shape, element)).view


def columns(tile: Value, first: int, count: int) -> Value:
    """Columns `first` to `first + count - 1` of a tile; the tile itself if it has no others."""
    kind = ws.TileType(tile.type)
    if count == kind.shape[1]:
        return tile
    result = _like(kind, [kind.shape[0], count])
    return ws.ColumnsOp(
        tile, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), first), result
    ).part


def columns_at(tile: Value, first: Value, count: int) -> Value:
    """Columns of a tile from a computed one on: a multiple of a line of a shared tile, which are
    only loaded, or of 32 bits in tensor memory.
    """
    kind = ws.TileType(tile.type)
    result = _like(kind, [kind.shape[0], count])
    return ws.ColumnsAtOp(tile, first, result).part


def rows(tile: Value, first: Value | int, count: int) -> Value:
    """Rows `first` to `first + count - 1` of a shared tile; the tile itself if it has no others."""
    kind = ws.TileType(tile.type)
    if count == kind.shape[0]:
        return tile
    result = _like(kind, [count, *kind.shape[1:]])
    return ws.RowsOp(tile, constant(first) if isinstance(first, int) else first, result).part


def i64_attr(number: int) -> Any:
    """The attribute of a number, i64."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def load(tile: Value) -> Value:
    """Reads a tile into a fragment."""
    kind = ws.TileType(tile.type)
    return ws.LoadOp(tile, ws.fragment_type(kind.shape, kind.element)).fragment


def store(fragment: Value, tile: Value) -> None:
    """Writes a fragment into a tile."""
    ws.StoreOp(fragment, tile)
