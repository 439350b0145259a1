"""Functions with which schedules emit `ws` operations.

The scalar vocabulary of `dialect.scalars` is re-exported, so that a schedule needs one import. It is
longer than other modules for that: it has a short function for each operation.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.scalars import (
    INT,
    IntOps,
    chosen,
    compare,
    constant,
    either,
    exp2,
    f32_constant,
    fabs,
    fadd,
    fcompare,
    fdiv,
    fma,
    fmax,
    fmul,
    fneg,
    fsub,
    i1,
    i32,
    is_constant,
    log2,
    loop,
    select,
    truncate,
    turns,
    when,
)
from attn_mlir.dialect.ws.compute import WORD_BITS

Value = Any

__all__ = [
    "INT",
    "Argument",
    "Buffer",
    "IntOps",
    "Ring",
    "any_in_group",
    "any_row",
    "arrive_last",
    "barrier",
    "bits",
    "broadcast",
    "broadcast_down",
    "chosen",
    "claim",
    "columns",
    "commit",
    "compare",
    "constant",
    "copy_across",
    "copy_in",
    "copy_out",
    "copy_rows",
    "declare_kernel",
    "dot",
    "draw",
    "either",
    "element",
    "entry",
    "exp2",
    "exp2_tile",
    "expand",
    "extent",
    "f32_constant",
    "fabs",
    "fadd",
    "false",
    "fcompare",
    "fdiv",
    "fill",
    "fma",
    "fmax",
    "fmul",
    "fneg",
    "fold",
    "fsub",
    "gather_in",
    "generate",
    "grid_dependency_wait",
    "i1",
    "i32",
    "is_constant",
    "keep",
    "launch_dependents",
    "limit",
    "load",
    "load_global",
    "load_rows",
    "log2",
    "loop",
    "map_coordinates",
    "map_elements",
    "map_rows",
    "mma",
    "product",
    "rank",
    "reduce_group",
    "reduce_rows",
    "release",
    "role",
    "rounded",
    "rows",
    "select",
    "settle",
    "spread",
    "store",
    "store_global",
    "store_rows",
    "tile",
    "tiles",
    "times_columns",
    "times_rows",
    "truncate",
    "turned",
    "turns",
    "view",
    "when",
]


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel.

    Attributes:
      name: by which the caller passes it.
      role: `in`, `out` or `scalar`.
      kind: a memref type, or the scalar's type.
      dims: for a tensor the name of each dimension's run-time size, "" where it is static.
    """

    name: str
    role: str
    kind: Any
    dims: Sequence[str]


def declare_kernel(name: str, arguments: Sequence[Argument], *, cluster: int = 1) -> ws.KernelOp:
    """A `ws.kernel` with its arguments and an empty body; `cluster` is the CTAs of a cluster."""

    def strings(items: Iterable[str]) -> Any:
        return ir.ArrayAttr.get([ir.StringAttr.get(item) for item in items])

    kernel = ws.KernelOp(
        ir.StringAttr.get(name),
        strings(argument.name for argument in arguments),
        strings(argument.role for argument in arguments),
        ir.ArrayAttr.get([strings(argument.dims) for argument in arguments]),
    )
    if cluster > 1:
        kernel.operation.attributes["cluster"] = _i64(cluster)
    kernel.body.blocks.append(*[argument.kind for argument in arguments])
    return kernel


@contextmanager
def role(
    name: str,
    *,
    first: int,
    warps: int,
    registers: int = 0,
    groups: int = 1,
    lanes: int = 32,
    ranks: Sequence[int] | None = None,
) -> Generator[Value]:
    """A `ws.role`, in the CTAs of a cluster with these ranks, or in all; yields the group's number."""
    i64 = ir.IntegerType.get_signless(64)
    op = ws.RoleOp(
        ir.StringAttr.get(name),
        ir.DenseI32ArrayAttr.get([first, warps]),
        *(ir.IntegerAttr.get(i64, value) for value in (groups, lanes, registers)),
    )
    if ranks is not None:
        op.operation.attributes["ranks"] = ir.DenseI32ArrayAttr.get(list(ranks))
    block = op.body.blocks.append(i32())
    with ir.InsertionPoint(block):
        yield block.arguments[0]


@contextmanager
def tiles(
    extents: Sequence[Value],
    order: str,
    *,
    ends: Sequence[Value] = (),
    packing: Sequence[Value] = (),
    answers: "Ring | None" = None,
) -> Generator[Sequence[Value]]:
    """A `ws.tiles`; yields the coordinates of the work tile.

    With the orders `clc` and `counter`, the coordinates of the next work tile are read from the ring
    `answers`, which `claim` or `draw` fills. The order `ragged` needs `ends` and `packing`, `counter`
    the second.
    """
    op = ws.TilesOp(list(extents), list(ends), list(packing), ir.StringAttr.get(order))
    block = op.body.blocks.append(*[i32() for _ in extents])
    with ir.InsertionPoint(block):
        yield list(block.arguments)
        if answers is not None:
            slot = answers.wait()
            ws.NextTileOp(slot)
            release(slot, "threads")


def claim(answers: "Ring") -> None:
    """Takes over the work tile of a CTA that has not started; the answer arrives in a slot."""
    slot = answers.acquire()
    ws.ClaimOp(slot)
    commit(slot, "copy_engine")


def draw(answers: "Ring", counter: Value) -> None:
    """Asks for the next work tile by a counter [1] in global memory."""
    slot = answers.acquire()
    ws.DrawOp(slot, counter)
    commit(slot, "threads")


class Ring:
    """A declared ring, whose slots hold a tile each, or nothing in a ring of tokens.

    It may borrow the place of another ring, `inside`. `producers` are the agents by which several
    roles fill a slot together. `commit` and `release` hand its slots over.
    """

    def __init__(
        self,
        name: str,
        tile: ws.TileType | None,
        *,
        stages: int = 1,
        ways: int = 1,
        full_at: Sequence[Sequence[int]] | None = None,
        empty_at: Sequence[Sequence[int]] | None = None,
        inside: "Ring | None" = None,
        producers: Sequence[str] = (),
    ):
        self.tile = ir.NoneType.get() if tile is None else tile
        kind = ws.ring_type(tile, stages=stages, ways=ways)
        label = ir.StringAttr.get(name)
        if inside is None:
            op = ws.AllocRingOp(label, kind)
        else:
            op = ws.AllocInsideOp(label, kind, inside.value)
        if producers:
            agents = [ir.StringAttr.get(agent) for agent in producers]
            op.operation.attributes["producers"] = ir.ArrayAttr.get(agents)
        for edge, lists in (("full_at", full_at), ("empty_at", empty_at)):
            if lists is not None:
                op.operation.attributes[edge] = ws.targets_attribute(lists)
        self.value = op.ring

    @staticmethod
    def _way(way: Value | int) -> Value:
        return constant(way) if isinstance(way, int) else way

    def acquire(self, way: Value | int = 0) -> Value:
        """Producer: blocks until a slot is empty and returns it."""
        return ws.AcquireOp(self.value, self._way(way), self.tile).slot

    def wait(self, way: Value | int = 0) -> Value:
        """Consumer: blocks until a slot is full and returns it."""
        return ws.WaitOp(self.value, self._way(way), self.tile).slot


def commit(slot: Value, by: str) -> None:
    """Producer: hands a full slot over to the consumers, by an agent."""
    ws.CommitOp(slot, ir.StringAttr.get(by))


def release(slot: Value, by: str) -> None:
    """Consumer: hands an empty slot back to the producers, by an agent."""
    ws.ReleaseOp(slot, ir.StringAttr.get(by))


class Buffer:
    """Declared tiles without barriers."""

    def __init__(self, name: str, tile: ws.TileType, *, ways: int = 1):
        self.tile = tile
        kind = ws.buffer_type(tile, ways=ways)
        self.value = ws.AllocBufferOp(ir.StringAttr.get(name), kind).buffer

    def at(self, way: Value | int = 0) -> Value:
        """The tile of one way."""
        way = constant(way) if isinstance(way, int) else way
        return ws.AtOp(self.value, way, self.tile).tile


def extent(tensor: Value, dim: int) -> Value:
    """Run-time size of a tensor's dimension."""
    return ws.ExtentOp(tensor, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)).size


def expand(tensor: Value, dim: int, inner: int) -> Value:
    """A view of a tensor with a static dimension split in two, the inner one of extent `inner`."""
    kind = ir.MemRefType(tensor.type)
    shape = list(kind.shape)
    shape[dim : dim + 1] = [shape[dim] // inner, inner]
    i64 = ir.IntegerType.get_signless(64)
    numbers = (ir.IntegerAttr.get(i64, dim), ir.IntegerAttr.get(i64, inner))
    return ws.ExpandOp(tensor, *numbers, ir.MemRefType.get(shape, kind.element_type)).view


def element(tensor: Value, coords: Sequence[Value | int]) -> Value:
    """One element of an input; coordinates outside are clamped to the tensor."""
    return ws.ElementOp(tensor, _coords(coords), ir.MemRefType(tensor.type).element_type).value


def entry(line: Value, row: Value) -> Value:
    """One element of a shared tile [rows]."""
    return ws.EntryOp(line, row, ws.TileType(line.type).element).value


def limit(tensor: Value, end: Value, dim: int) -> Value:
    """A view of a tensor whose dimension `dim` ends at `end`."""
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
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
    op = ws.CopyInOp(source, target, _coords(coords), ir.DenseI32ArrayAttr.get(list(dims)))
    if receivers is not None:
        op.operation.attributes["receivers"] = ws.targets_attribute(receivers)


def copy_across(source: Value, target: Value, receivers: Sequence[Sequence[int]]) -> None:
    """Copies a slot into another CTA's; `receivers` lists which one, by the rank that copies."""
    ws.CopyAcrossOp(source, target, ws.targets_attribute(receivers))


def copy_out(
    source: Value, target: Value, coords: Sequence[Value | int], dims: Sequence[int]
) -> None:
    """Writes a shared tile to a box of a tensor; dimensions `dims` run along its rows and columns."""
    ws.CopyOutOp(source, target, _coords(coords), ir.DenseI32ArrayAttr.get(list(dims)))


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
    """Fills a shared tile with rows of a tensor, chosen one by one.

    Args:
      row: returns the tensor's row for a row of the tile, given its number and its element of
        each of `entries`.
      entries: fragments [rows].
    """
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    op = ws.CopyRowsOp(source, target, _coords(coords), list(entries), numbers)
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
    """Fills a shared tile with rows of a tensor [rows, columns], each from where `row` says."""
    op = ws.GatherInOp(source, target, _coords(coords), ir.DenseI32ArrayAttr.get([0, 1]))
    block = op.body.blocks.append(i32())
    with ir.InsertionPoint(block):
        ws.YieldOp(row(*block.arguments))


def store_global(
    fragment: Value, target: Value, coords: Sequence[Value | int], dims: Sequence[int]
) -> None:
    """Writes a fragment to a tensor; rows outside the tensor are dropped."""
    ws.StoreGlobalOp(fragment, target, _coords(coords), ir.DenseI32ArrayAttr.get(list(dims)))


def load_global(
    source: Value, shape: Sequence[int], coords: Sequence[Value | int], dims: Sequence[int]
) -> Value:
    """A fragment of a tensor's elements, with zeros outside the tensor."""
    kind = ws.fragment_type(shape, ir.MemRefType(source.type).element_type)
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    return ws.LoadGlobalOp(source, _coords(coords), numbers, kind).fragment


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
    return ws.LoadRowsOp(source, rows, _coords(coords), numbers, kind).fragment


def store_rows(
    fragment: Value,
    rows: Value,
    target: Value,
    coords: Sequence[Value | int],
    dims: Sequence[int],
) -> None:
    """Writes a fragment to the tensor's rows that the fragment `rows` lists by number."""
    numbers = ir.DenseI32ArrayAttr.get(list(dims))
    ws.StoreRowsOp(fragment, rows, target, _coords(coords), numbers)


def arrive_last(counter: Value, coords: Sequence[Value | int], count: Value) -> Value:
    """Arrives at a counter in global memory; i1: whether this was the last of `count` arrivals."""
    return ws.ArriveLastOp(counter, _coords(coords), count).is_last


def grid_dependency_wait() -> None:
    """Waits until the kernels before this one in the stream are done, if launches overlap."""
    ws.GridDependencyWaitOp()


def launch_dependents() -> None:
    """Lets the next kernel in the stream start early, if launches overlap."""
    ws.LaunchDependentsOp()


def _coords(coords: Sequence[Value | int]) -> list[Value]:
    return [constant(x) if isinstance(x, int) else x for x in coords]


def mma(
    d: Value,
    a: Value,
    b: Value,
    *,
    accumulate: Value | bool,
    b_layout: str,
    a_layout: str = "mk",
    ctas: int = 1,
) -> None:
    """D = A B, plus D where `accumulate` holds, in tensor memory; by one CTA or a pair (`ctas`)."""
    if isinstance(accumulate, bool):
        accumulate = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), int(accumulate))).result
    op = ws.MmaOp(d, a, b, accumulate, ir.StringAttr.get(b_layout))
    if a_layout != "mk":
        op.operation.attributes["a_layout"] = ir.StringAttr.get(a_layout)
    if ctas > 1:
        op.operation.attributes["ctas"] = _i64(ctas)


def product(sums: Value, a: Value, b: Value, *, accumulate: Value | bool, b_layout: str) -> Value:
    """A B, plus `sums` where `accumulate` holds, in registers; the result is pending until `settle`."""
    if isinstance(accumulate, bool):
        accumulate = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), int(accumulate))).result
    kind = ws.pending_type(ws.FragmentType(sums.type))
    return ws.ProductOp(sums, a, b, accumulate, ir.StringAttr.get(b_layout), kind).pending


def settle(pending: Value, *, newest: int = 0) -> Value:
    """Waits for a pending product; the `newest` products after it may still run. Returns its sums."""
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), newest)
    return ws.SettleOp(pending, number, ws.PendingType(pending.type).fragment).sums


def dot(sums: Value, a: Value, b: Value, *, b_layout: str, widened: bool = False) -> Value:
    """`sums` + A B, of fragments of one warp; `widened` says that B's elements had 8 bits in memory."""
    op = ws.DotOp(sums, a, b, ir.StringAttr.get(b_layout), sums.type)
    if widened:
        op.operation.attributes[ws.WIDENED] = ir.UnitAttr.get()
    return op.totals


def tile(shape: Sequence[int], element: Any, space: str) -> ws.TileType:
    """The type of a tile [rows, columns] or [rows] in `shared` or `tensor` memory."""
    return ws.tile_type(shape, element, space)


def view(tile: Value, shape: Sequence[int], element: Any) -> Value:
    """The first bytes of a tile as a tile of another shape or element, or the tile itself if equal."""
    kind = ws.TileType(tile.type)
    if (kind.shape, kind.element) == (list(shape), element):
        return tile
    return ws.ViewOp(tile, ws.tile_type(shape, element, ws.TileType(tile.type).space)).view


def columns(tile: Value, first: int, count: int) -> Value:
    """Columns `first` to `first + count - 1` of a tile."""
    kind = ws.TileType(tile.type)
    result = ws.tile_type([kind.shape[0], count], kind.element, kind.space)
    return ws.ColumnsOp(
        tile, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), first), result
    ).part


def rows(tile: Value, first: Value | int, count: int) -> Value:
    """Rows `first` to `first + count - 1` of a shared tile; the tile itself if it has no others."""
    kind = ws.TileType(tile.type)
    if count == kind.shape[0]:
        return tile
    result = ws.tile_type([count, kind.shape[1]], kind.element, kind.space)
    return ws.RowsOp(tile, constant(first) if isinstance(first, int) else first, result).part


def rank() -> Value:
    """The number of this CTA in its cluster."""
    return ws.RankOp().rank


def _i64(number: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def load(tile: Value) -> Value:
    """Reads a tile into a fragment."""
    kind = ws.TileType(tile.type)
    return ws.LoadOp(tile, ws.fragment_type(kind.shape, kind.element)).fragment


def store(fragment: Value, tile: Value) -> None:
    """Writes a fragment into a tile."""
    ws.StoreOp(fragment, tile)


def spread(lanes: Value) -> Value:
    """Elements [N], held by one lane each, in the layout that their users need."""
    return ws.SpreadOp(lanes, lanes.type).line


def fill(shape: Sequence[int], value: Value) -> Value:
    """A fragment with the same value in every element."""
    return ws.FillOp(value, ws.fragment_type(shape, value.type)).fragment


@overload
def map_elements(body: Callable[[Value], Value], a: Value, /, *, element: Any = None) -> Value: ...
@overload
def map_elements(
    body: Callable[[Value, Value], Value], a: Value, b: Value, /, *, element: Any = None
) -> Value: ...
@overload
def map_elements(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value: ...
def map_elements(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value:
    """A `ws.map` that ignores coordinates: `body(*elements)` returns the new element.

    `element` is the result's element type, that of the first input when absent.
    """
    kind = ws.FragmentType(inputs[0].type)
    element = kind.element if element is None else element
    return _map(lambda *arguments: body(*arguments[: len(inputs)]), inputs, kind.shape, element)


def map_coordinates(
    body: Callable[[Value, Value, Value], Value], fragment: Value, *, element: Any = None
) -> Value:
    """A `ws.map` of a 2-D fragment: `body(element, row, column)` returns the new element.

    `element` is the result's element type, that of the fragment when absent.
    """
    kind = ws.FragmentType(fragment.type)
    return _map(body, [fragment], kind.shape, kind.element if element is None else element)


def generate(body: Callable[..., Value], shape: Sequence[int], element: Any) -> Value:
    """A `ws.map` without inputs: `body(*coordinates)` returns the element."""
    return _map(body, [], shape, element)


@overload
def map_rows(
    body: Callable[[Value, Value], Value], a: Value, /, *, element: Any = None
) -> Value: ...
@overload
def map_rows(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value: ...
def map_rows(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value:
    """A `ws.map` of fragments [rows]: `body(*elements, row)` returns the new element.

    `element` as in `map_elements`.
    """
    kind = ws.FragmentType(inputs[0].type)
    return _map(body, inputs, kind.shape, kind.element if element is None else element)


def _map(
    body: Callable[..., Value], inputs: Sequence[Value], shape: Sequence[int], element: Any
) -> Value:
    op = ws.MapOp(list(inputs), ws.fragment_type(shape, element))
    kinds = [ws.FragmentType(value.type).element for value in inputs]
    block = op.body.blocks.append(*kinds, *[i32() for _ in shape])
    with ir.InsertionPoint(block):
        ws.YieldOp(body(*block.arguments))
    return op.fragment


def reduce_rows(kind: str, fragment: Value, init: Value) -> Value:
    """[rows]: the sum (`add`) or maximum (`max`) of each row and of its element of `init`."""
    return ws.ReduceOp(fragment, init, ir.StringAttr.get(kind), init.type).totals


def reduce_group(kind: str, fragment: Value, init: Value, scratch: Value) -> Value:
    """As `reduce_rows`, of rows that several warps have columns of; they meet in `scratch`."""
    return ws.ReduceGroupOp(fragment, init, scratch, ir.StringAttr.get(kind), init.type).totals


def turned(fragment: Value) -> Value:
    """A fragment with its axes exchanged."""
    kind = ws.FragmentType(fragment.type)
    return ws.TurnOp(fragment, ws.fragment_type(kind.shape[::-1], kind.element)).turned


def fold(fragment: Value, init: Value) -> Value:
    """Folds [rows, N] onto `init` [rows, n]: its column i plus columns i, i + n, i + 2 n, ..."""
    return ws.FoldOp(fragment, init, init.type).totals


def bits(rows: Value) -> Value:
    """The truth values of 32 rows each as a word."""
    (count,) = ws.FragmentType(rows.type).shape
    return ws.BitsOp(rows, words=ws.fragment_type([count // WORD_BITS], i32())).words


def broadcast(rows: Value, column_count: int) -> Value:
    """[rows, column_count]: each element of `rows` [rows] repeated along its row."""
    kind = ws.FragmentType(rows.type)
    full = ws.fragment_type([kind.shape[0], column_count], kind.element)
    return ws.BroadcastOp(rows, full).fragment


def times_rows(fragment: Value, rows: Value) -> Value:
    """A fragment [rows, columns] of f32 with row r multiplied by rows[r]."""
    columns = ws.FragmentType(fragment.type).shape[1]
    return map_elements(fmul, fragment, broadcast(rows, columns))


def broadcast_down(columns: Value, row_count: int) -> Value:
    """[row_count, columns]: each element of `columns` [columns] repeated along its column."""
    kind = ws.FragmentType(columns.type)
    op = ws.BroadcastOp(columns, ws.fragment_type([row_count, kind.shape[0]], kind.element))
    op.operation.attributes["axis"] = ir.StringAttr.get("rows")
    return op.fragment


def times_columns(fragment: Value, columns: Value) -> Value:
    """A fragment [rows, columns] of f32 with column c multiplied by columns[c]."""
    rows = ws.FragmentType(fragment.type).shape[0]
    return map_elements(fmul, fragment, broadcast_down(columns, rows))


def rounded(fragment: Value, element: Any) -> Value:
    """A fragment of f32 rounded to an element type; the fragment itself for f32."""
    if isinstance(element, ir.F32Type):
        return fragment
    return map_elements(lambda x: truncate(x, element), fragment, element=element)


def keep(fragment: Value, words: Value, other: Value) -> Value:
    """The elements whose bit is set; `other` in the place of the rest."""
    return ws.KeepOp(fragment, words, other, fragment.type).kept


def exp2_tile(exponent: Value, *, period: int, count: int, begin: int, end: int) -> Value:
    """2 to the power of each element.

    From column `begin` to before `end`, the last `count` of every `period` columns are computed on the
    multiply-add units, all others on the special-function unit.
    """
    i64 = ir.IntegerType.get_signless(64)
    attributes = [ir.IntegerAttr.get(i64, number) for number in (period, count, begin, end)]
    return ws.Exp2Op(exponent, *attributes, exponent.type).fragment


def barrier() -> None:
    """All threads of the group wait for one another."""
    ws.BarrierOp()


def false() -> Value:
    """The constant false, i1."""
    return arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), 0)).result


def any_row(rows: Value) -> Value:
    """i1: whether the condition [rows] holds for any row of this warp."""
    return ws.AnyOp(rows).holds


def any_in_group(conditions: Value) -> Value:
    """Whether a condition holds anywhere in this group, whose threads meet."""
    op = ws.AnyOp(conditions)
    op.operation.attributes["scope"] = ir.StringAttr.get("group")
    return op.holds
