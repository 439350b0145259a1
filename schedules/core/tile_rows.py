"""The rows of a kernel's tiles of scores: which position and head each has.

Rows are queries; or keys, which are never packed. With `packed` query heads
of one group in a tile, row r of a tile that starts at position p is the query at p + r / packed of
head `packed` x (the tile's head) + r mod packed. Packing fills a tile where there are few
positions, as in decoding, and reads K and V once for the whole group. Where `packed` does not
divide the tile's rows, the last rows are unused: they are loaded with heads of the next position,
and their results are not written. The tiles of rows of a work tile follow one another along the
positions, or along the heads of a group.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir

from .. import emit as b
from ..operands.sequences import Sequence, Sequences
from .config import Config

Value = Any


@dataclass(frozen=True)
class TileRows:
    """Layout of the rows.

    Attributes:
      operands: memrefs, rows by heads by columns, whose columns are concatenated in a tile,
        whatever their types. A tensor with one head serves all heads of the other tensors.
      result: memref, likewise, that the kernel writes; lse: heads by rows, or None. A dimension for
        the sequence comes first where it has one.
      sequences: where the rows of each sequence lie.
      heads: of the rows.
      group: heads of rows per head of the columns that they meet; 1 where that has several.
      config: tile sizes, and how many heads a tile packs.
    """

    operands: tuple[Value, ...]
    result: Value
    lse: Value | None
    sequences: Sequences
    heads: int
    group: int
    config: Config

    @property
    def packed(self) -> int:
        """Query heads in a tile."""
        return self.config.packed_heads

    @property
    def positions_per_tile(self) -> int:
        """Query positions in a tile."""
        return self.config.tile_m // self.packed

    @property
    def rows(self) -> int:
        """Used rows of a tile: those of whole positions that fit."""
        return self.positions_per_tile * self.packed

    @property
    def loaded_rows(self) -> int:
        """Rows of the box that is loaded from Q: whole positions, as many as fill a tile."""
        return -(-self.config.tile_m // self.packed) * self.packed

    @property
    def head_tiles(self) -> int:
        """Tiles of rows of a work tile along the heads; 1 if they lie along positions."""
        return self.config.heads_per_cta // self.packed

    @property
    def positions_per_work_tile(self) -> int:
        """Query positions in a work tile."""
        return self.positions_per_tile * (self.config.q_tiles // self.head_tiles)

    def tile_space(self) -> list[Value]:
        """Extents of the tile space: blocks of positions, heads that work tiles start at, batch."""
        blocks = b.INT.ceildiv(self.sequences.longest(), self.positions_per_work_tile)
        heads = b.constant(self.heads // self.config.heads_per_cta)
        return [blocks, heads, self.sequences.count()]

    def first_position(self, block: Value, row_tile: Value | int) -> Value:
        """Position of the first row of tile number `row_tile` of a work tile in this block."""
        base = b.INT.mul(block, self.positions_per_work_tile)
        if self.head_tiles > 1 or (isinstance(row_tile, int) and row_tile == 0):
            return base
        return b.INT.add(base, b.INT.mul(row_tile, self.positions_per_tile))

    def position(self, row: Value) -> Value:
        """Position of a row, relative to the tile's first."""
        return b.INT.floordiv(row, self.packed) if self.packed > 1 else row

    def head(self, tile_head: Value, row: Value) -> Value:
        """Query head of a row."""
        if self.packed == 1:
            return tile_head
        inner = b.INT.sub(row, b.INT.mul(self.position(row), self.packed))
        return b.INT.add(b.INT.mul(tile_head, self.packed), inner)

    def kv_head(self, tile_head: Value) -> Value:
        """Key-value head of a tile."""
        tiles_per_group = self.group // self.packed
        return b.INT.floordiv(tile_head, tiles_per_group) if tiles_per_group > 1 else tile_head

    def load(
        self,
        slot: Value,
        sequence: Sequence,
        head: Value,
        position: Value,
        *,
        column: int = 0,
        to_end: bool = False,
    ) -> None:
        """Fills a shared tile with rows of the operands.

        Rows past the end of the sequence get any values, rows outside the tensor zeros.

        The slot has `loaded_rows` rows, or those of a tile: rows after the last whole position
        then get some heads of the first one.

        Args:
          column: first column of the operands' rows that the slot holds.
          to_end: whether rows past the end of the sequence get zeros.
        """
        if not to_end or sequence.is_whole:
            self._load(slot, sequence, head, position, column)
            return
        with b.either(b.compare("sgt", sequence.length, position)) as (is_there, is_not):
            with is_there:
                self._load(slot, sequence, head, position, column, sequence.within)
            with is_not:
                self._load(slot, sequence, head, self._nowhere(sequence), column)

    def _nowhere(self, sequence: Sequence) -> Value:
        """A position whose row lies outside the operands."""
        _, dims = self._coordinates(sequence, b.constant(0), b.constant(0))
        return b.INT.sub(b.extent(self.operands[0], dims[0]), sequence.row(b.constant(0)))

    def _load(
        self,
        slot: Value,
        sequence: Sequence,
        head: Value,
        position: Value,
        column: int,
        limited: Callable[[Value, int], Value] = lambda tensor, _: tensor,
    ) -> None:
        """Copies the boxes of a tile; arguments as `load`.

        Args:
          limited: the view of a tensor that is copied from, given the dimension of its rows.
        """
        coords, dims = self._coordinates(sequence, head, position)
        (slot_rows, _), heads = ws.TileType(slot.type).shape, len(sequence.lead) + 1
        boxes = [(0, self.loaded_rows, dims)]
        if slot_rows < self.loaded_rows:
            boxes = [(0, self.rows, dims), (self.rows, slot_rows - self.rows, dims[1:])]
        for first, count, along in boxes:
            rows = b.rows(slot, first, count)
            for tensor, first_column, part in column_boxes(rows, self.operands, column):
                of_head = head_in(tensor, self.operands, coords[heads])
                target_coords = [*coords[:heads], of_head, *coords[heads + 1 : -1], first_column]
                source = limited(self._by_heads(tensor, heads), dims[0])
                b.copy_in(source, part, target_coords, along)

    def store(self, slot: Value, sequence: Sequence, head: Value, position: Value) -> None:
        """Writes a shared tile to O; rows past the end are dropped."""
        coords, dims = self._coordinates(sequence, head, position)
        o = self._by_heads(self.result, len(sequence.lead) + 1)
        rows = b.rows(slot, 0, self.rows)
        if sequence.is_whole:
            b.copy_out(rows, o, coords, dims)
            return
        with b.when(b.compare("sgt", sequence.length, position)):
            b.copy_out(rows, sequence.within(o, dims[0]), coords, dims)

    def store_columns(
        self, rows: Value, sequence: Sequence, head: Value, position: Value, column: Value
    ) -> None:
        """Writes a fragment [rows, columns] to O from `column` on; drops rows past the end."""
        coords, dims = self._coordinates(sequence, head, position)
        o = self._by_heads(self.result, len(sequence.lead) + 1)
        o = self._within(o, sequence, position, dims[0])
        b.store_global(rows, o, [*coords[:-1], column], dims)

    def store_lse(
        self, rows: Value, sequence: Sequence, head: Value, position: Value, *term: int
    ) -> None:
        """Writes one value per row to LSE; rows past the end are dropped.

        `term` is its number where the LSE is stored as a sum of terms.
        """
        first = len(term) + len(sequence.lead)
        inner = [0] if self.packed > 1 else []
        dims = [first + 2, first + 1] if inner else [first + 1]
        coords = [*term, *sequence.lead, head, *inner, sequence.row(position)]
        lse = self._within(self._by_heads(self.lse, first), sequence, position, dims[0])
        b.store_global(rows, lse, coords, dims)

    def _within(self, tensor: Value, sequence: Sequence, position: Value, dim: int) -> Value:
        """A view of the tensor that ends with the sequence, or with the tile's last used row."""
        if self.rows == self.config.tile_m:
            return sequence.within(tensor, dim)
        end = b.INT.min(b.INT.add(position, self.positions_per_tile), sequence.length)
        return b.limit(tensor, sequence.row(end), dim)

    def _by_heads(self, tensor: Value, dim: int) -> Value:
        """A view of the tensor in which the packed heads have their own dimension."""
        return b.expand(tensor, dim, self.packed) if self.packed > 1 else tensor

    def _coordinates(
        self, sequence: Sequence, head: Value, position: Value
    ) -> tuple[list[Value | int], list[int]]:
        """Coordinates of a tile of Q or O, and the dimensions of its rows and columns."""
        first = len(sequence.lead)
        inner = [0] if self.packed > 1 else []
        coords = [*sequence.lead, sequence.row(position), head, *inner, 0]
        return coords, [first, *([first + 2] if inner else []), first + 2 + len(inner)]


def column_boxes(
    tile: Value, tensors: tuple[Value, ...], column: int = 0
) -> list[tuple[Value, int, Value]]:
    """The columns of a tile that come from each tensor.

    Args:
      tensors: their columns are concatenated in a row; a single one has all columns of the tile.
      column: first column of such rows in the tile, in elements of the tile.

    Returns:
      For each tensor: the tensor, its first column in the tile, and the tile's columns viewed with
      its element type.
    """
    if len(tensors) == 1:
        return [(tensors[0], column, tile)]
    kind = ws.TileType(tile.type)
    bits, (rows, columns) = ws.element_bits(kind.element), kind.shape
    matches: list[tuple[Value, int, Value]] = []
    first = 0
    for tensor in tensors:
        tensor_bits = ws.element_bits(element_of(tensor))
        end = first + columns_of(tensor) * tensor_bits // bits
        span = range(max(first, column), min(end, column + columns))
        if span:
            part = b.columns(tile, span.start - column, len(span))
            part = b.view(part, [rows, len(span) * bits // tensor_bits], element_of(tensor))
            matches.append((tensor, (span.start - first) * bits // tensor_bits, part))
        first = end
    return matches


def head_in(tensor: Value, tensors: tuple[Value, ...], head: Value) -> Value:
    """The coordinate of a head in one of the tensors that make up rows, as of `TileRows`."""
    own, others = (ir.MemRefType(x.type).shape[-2] for x in (tensor, tensors[0]))
    return head if own == others else 0


def product_operands(tile: Value, tensors: tuple[Value, ...], column: int = 0) -> list[Value]:
    """The parts of a tile of rows of these tensors of which each is one operand of a product: those
    whose elements are of one type are one; `column` is as of `column_boxes`."""
    if len({str(element_of(tensor)) for tensor in tensors}) == 1:
        return [tile]
    return [part for _, _, part in column_boxes(tile, tensors, column)]


def element_of(tensor: Value) -> Any:
    """The element type of a memref."""
    return ir.MemRefType(tensor.type).element_type


def columns_of(tensor: Value) -> int:
    """Columns of a memref, which run along its last dimension."""
    kind = ir.MemRefType(tensor.type)
    return kind.get_dim_size(kind.rank - 1)
