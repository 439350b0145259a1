"""Copies of rows that a region chooses one by one: pages, gathered keys, the heads of a group."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, ext

from .compute import ElementOp, YieldOp
from .dialect import WS, FragmentType, TileType, fail
from .memory import DIMS, check_global
from .structure import ExtentOp


class CopyRowsOp(WS.Operation, name="copy_rows"):
    """Copies by threads, asynchronously: fills a shared tile with rows that a region chooses.

    The region's block receives the number of a row of the tile, i32, and for each fragment of
    `entries` its element for that row: table entries, for example, that have been read ahead. It
    yields the number of the tensor's row, i32. It may use values defined outside and elements of
    inputs, but takes no steps of rings. Rows that the tensor does not have, such as those below 0,
    and columns beyond the tensor's are zeros. The region may run several times for a row, in any
    thread.

    Operands:
      source: tensor argument.
      target: shared tile, a slot of a ring whose commit is `by = "thread_copies"`, or part of one.
        Where it is `by = "warps"` or `"threads"`, these wait for their copies before; so may slots
        of clusters be filled.
      coords: i32 start coordinates, one per tensor dimension; the row that the region yields is
        added to that of the rows, or to their number (see `dims`).
      entries: fragments [R], with R the rows of the tile.

    Attributes:
      dims: the tensor dimensions along which rows and columns run. Rows may run along two, such as
        pages and positions of a page, of which the second is static: row r is row r % n of r / n.

    Memory effects: reads the tensor, writes the tile, asynchronously. Hardware: any from sm_80 on.

    Example:
      "ws.copy_rows"(%k, %slot, %zero, %head, %zero, %pages) ({
      ^bb0(%row: i32, %page: i32):
        %two = arith.constant 2 : i32
        %first = arith.muli %page, %two : i32
        %odd = arith.remui %row, %two : i32
        %from = arith.addi %first, %odd : i32
        "ws.yield"(%from) : (i32) -> ()
      }) {dims = array<i32: 0, 2>, operandSegmentSizes = array<i32: 1, 1, 3, 1>}
        : (memref<?x4x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32, i32,
          !ws.frag<vector<128xi32>>) -> ()
    """

    source: ext.Operand[Any]
    target: ext.Operand[TileType]
    coords: Sequence[ext.Operand[I32]]
    entries: Sequence[ext.Operand[FragmentType]]
    dims: Any
    body: ext.Region

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_region_invariants(op: "CopyRowsOp") -> bool:
        """Checks shared tile, coordinates and dims,
        and that the region computes a row from a row.
        """
        if not _fills_rows(op, by_rows=True):
            return False
        rows = [TileType(op.target.type).shape[0]]
        for entry in map(FragmentType, (value.type for value in op.entries)):
            if entry.shape != rows:
                return fail(op, f"expects entries of shape {rows}, one per row, got {entry}")
        return _chooses(op, [FragmentType(value.type).element for value in op.entries])


class EntryOp(WS.Operation, name="entry"):
    """One element of a shared tile [R], read by a thread; for regions that choose rows.

    Operands:
      line: shared tile [R], of a table whose entries another role has left there, say.
      row: i32, below R.

    Results:
      value: of the element type.

    Memory effects: reads the tile. Hardware: any.

    Example:
      %from = "ws.entry"(%rows, %row) : (!ws.tile<vector<64xi32>, "shared">, i32) -> i32
    """

    line: ext.Operand[TileType]
    row: ext.Operand[I32]
    value: ext.Result[Any]

    def verify_invariants(self) -> bool:
        """A shared tile of one dimension; the result has its element type."""
        tile = TileType(self.line.type)
        if tile.space != "shared" or len(tile.shape) != 1:
            return fail(self, f"expects a shared tile of one dimension, got {tile}")
        if self.value.type != tile.element:
            return fail(self, f"expects a result of {tile.element}, got {self.value.type}")
        return True


class GatherInOp(WS.Operation, name="gather_in"):
    """Copy engine: fills a shared tile with rows that a region chooses, four in each copy.

    The region's block receives a row of the tile as i32 and yields the row of the tensor, as that
    of `ws.copy_rows` does; where entries of a table have been read ahead, into a slot of another
    ring, `ws.entry` has them. A row that does not exist, such as one below 0, stands for zeros, and
    so does what lies beyond the tensor's columns.

    Operands:
      source: tensor argument [rows, columns].
      target: shared tile, a slot of a ring whose commit is `by = "copy_engine"`, or part of one.
      coords: i32 row and column to start at; the row that the region yields is added to the first.

    Attributes:
      dims: the tensor dimensions along which rows and columns run, 0 and 1.

    Memory effects: reads the tensor, writes the tile, asynchronously. Hardware: sm_100a,
    `tile::gather4` of the copy engine.

    Example:
      "ws.gather_in"(%k, %slot, %zero, %zero) ({
      ^bb0(%row: i32):
        %from = "ws.element"(%table, %row) {operandSegmentSizes = array<i32: 1, 1>}
          : (memref<?xi32>, i32) -> i32
        "ws.yield"(%from) : (i32) -> ()
      }) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
        : (memref<?x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32) -> ()
    """

    source: ext.Operand[Any]
    target: ext.Operand[TileType]
    coords: Sequence[ext.Operand[I32]]
    dims: Any
    body: ext.Region

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_region_invariants(op: "GatherInOp") -> bool:
        """Checks the shared tile, the tensor, and that the region computes a row from a row."""
        if not _fills_rows(op):
            return False
        if (rank := len(op.coords)) != 2:
            return fail(op, f"expects a tensor of 2 dimensions, got {rank}")
        return _chooses(op, [])


def _fills_rows(op: Any, *, by_rows: bool = False) -> bool:
    """Whether the target is a shared tile whose rows fit the tensor's; reports it if not."""
    tile = TileType(op.target.type)
    if tile.space != "shared" or len(tile.shape) != 2:
        return fail(op, f"expects a shared tile of two dimensions, got {tile}")
    return check_global(op, op.source, tile.shape, tile.element, by_rows=by_rows)


def _chooses(op: CopyRowsOp | GatherInOp, elements: Sequence[Any]) -> bool:
    """Whether a region computes a tensor's row from a tile's row and its entries; reports it if
    not.
    """
    if len(op.body.blocks) != 1:
        return fail(op, f"expects one block, got {len(op.body.blocks)}")
    block = op.body.blocks[0]
    expected = ["i32", *map(str, elements)]
    if (got := [str(argument.type) for argument in block.arguments]) != expected:
        return fail(op, f"expects block arguments {expected}, got {got}")
    *body, last = block.operations
    if not isinstance(last, YieldOp):
        return fail(op, "expects ws.yield at the end of its region")
    if str(last.value.type) != "i32":
        return fail(op, f"expects to yield i32, got {last.value.type}")
    for inner in body:
        name = inner.operation.name
        reads = isinstance(inner, ElementOp | EntryOp | ExtentOp)
        if len(inner.operation.regions) or (name.startswith("ws.") and not reads):
            return fail(op, f"expects a region of scalar operations, got {name}")
    return True
