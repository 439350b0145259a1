"""Keys of two tensors in one tile: nope of each head, and rope that all heads share.

```text
slot of K [tile_n, nope + rope]:  | nope: columns of k_nope, of the head | rope: of k_rope, head 0 |
```
Rope of 16 bits with nope of 8 has as many columns of a slot as bytes. Tiles are stored in lines of
128 bytes, a block of rows for each line of columns: if the nope columns are whole lines, the two
copies fill the same bytes as one copy of all columns, and one product of nope + rope columns reads
the slot.
"""

from dataclasses import dataclass
from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.core.tile_rows import column_boxes
from attn_mlir.schedules.operands.sequences import KeySequences, Shortened
from attn_mlir.schedules.operands.sequences import Sequence as Positions
from attn_mlir.schedules.sources.kv_source import KEYS, ROPE, VALUES, Operand, TensorRows
from attn_mlir.schedules.sources.paged_rows import CopiedTile, PagedRows


@dataclass(frozen=True)
class ShorterOf(Shortened):
    """Sequences of one operand, with the shorter length of two operands.

    Attributes:
      other: the other operand's sequences.
    """

    other: KeySequences

    @property
    def lists(self) -> tuple[Value, ...]:
        """The lists of both."""
        return (*self.inner.lists, *self.other.lists)

    def of(self, batch: Value, queries: Positions | None = None) -> Positions:
        """The sequence of the first operand, with the shorter length."""
        sequence = self.inner.of(batch, queries)
        length = b.INT.min(sequence.length, self.other.of(batch, queries).length)
        return Positions(sequence.lead, sequence.start, length, False)


class Rope(Protocol):
    """The source of the columns that all heads share."""

    def read_entries(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """The indices to load before a tile is copied, i32 each."""
        ...

    def load(self, slot: Value, tile: CopiedTile, *, column: int = 0) -> None:
        """Fills a slot with a tile, from a column of rope on; rows past the end may be anything."""
        ...


@dataclass(frozen=True)
class RopeRows:
    """Rows of a tensor.

    Attributes:
      tensor: [sequences, rows, 1, columns], or [rows, 1, columns] of all sequences.
      first_column: of rope.
      sequences: its sequences; None if they are those of k_nope.
    """

    tensor: Value
    first_column: int
    sequences: KeySequences | None

    def read_entries(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """The coordinates of the tile's first row, if index arrays may determine them."""
        if self.sequences is None:
            return []
        keys = self.sequences.of(tile.batch, tile.queries)
        return [*keys.lead, keys.row(first_key)]

    def load(self, slot: Value, tile: CopiedTile, *, column: int = 0) -> None:
        """One box."""
        keys = tile.work.keys
        place = tile.entries or [*keys.lead, keys.row(tile.first_column)]
        row = len(place) - 1
        b.copy_in(self.tensor, slot, [*place, 0, self.first_column + column], [row, row + 2])


@dataclass(frozen=True)
class RopePages:
    """Rows in pages of a pool.

    Attributes:
      rows: of the one head, from the first column of rope on.
    """

    rows: PagedRows

    def read_entries(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """An entry per page of the tile."""
        return self.rows.read_entries(tile, first_key)

    def load(self, slot: Value, tile: CopiedTile, *, column: int = 0) -> None:
        """A box per page."""
        self.rows.load(slot, tile, lambda: 0, column=column)


class LatentKV:
    """Keys as nope and rope, and values; k_nope and v are tensors."""

    def __init__(self, problem: Problem, rope: Rope):
        """For a problem whose K is k_nope."""
        self._problem, self._tensors, self._rope = problem, TensorRows(problem), rope

    def read_entries(self, tile: WorkTile, keys: ColumnTiles, index: Value | int) -> list[Value]:
        """The entries of rope."""
        return self._rope.read_entries(tile, keys.first_column(index))

    def load(self, operand: Operand, slot: Value, tile: CopiedTile, *, column: int = 0) -> None:
        """Copies a box of V or of rope, or the boxes of keys that the slot's barrier expects."""
        if operand == ROPE:
            self._rope.load(slot, tile, column=column)
            return
        if operand == VALUES:
            self._tensors.load(operand, slot, tile)
            return
        nope, rope = self._problem.q  # whose columns lie as those of keys do
        for tensor, first, part in column_boxes(slot, (nope, rope), column):
            if tensor is nope:
                self._tensors.load(KEYS, part, tile, column=first)
            else:
                self.load(ROPE, part, tile, column=first)
