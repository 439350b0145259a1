"""Keys of two tensors side by side in one tile: nope of each head, and rope that all heads share.

```text
slot of K [tile_n, nope + rope]:  | nope: columns of k_nope, of the head | rope: of k_rope, head 0 |
```
Rope of 16 bits beside nope of 8 takes as many columns of a slot as it has bytes.
Tiles lie in lines of 128 bytes, one block of rows after the other for each line of columns: where
the nope columns are whole lines, the two copies fill what one copy of all columns would, and one
product of nope + rope columns reads the slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.core.tile_rows import side_by_side
from attn_mlir.schedules.core.visited_tiles import VisitedTiles
from attn_mlir.schedules.operands.sequences import KeySequences, Shortened
from attn_mlir.schedules.operands.sequences import Sequence as Positions
from attn_mlir.schedules.sources.kv_source import KEYS, ROPE, VALUES, Side, TensorRows
from attn_mlir.schedules.sources.paged_rows import PagedRows


@dataclass(frozen=True)
class Common(Shortened):
    """Sequences of one operand, as long as another one has them as well.

    Attributes:
      other: sequences of that one.
    """

    other: KeySequences

    @property
    def lists(self) -> tuple[Value, ...]:
        """Those of both."""
        return (*self.inner.lists, *self.other.lists)

    def of(self, batch: Value, queries: Positions | None = None) -> Positions:
        """Where it lies is not asked for: the shorter of the two lengths."""
        found = self.inner.of(batch, queries)
        length = b.INT.min(found.length, self.other.of(batch, queries).length)
        return Positions(found.lead, found.start, length, False)


class Rope(Protocol):
    """Where the columns that all heads share come from."""

    def find(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """What has to be read before a tile can be copied, i32 each."""
        ...

    def load(
        self,
        slot: Value,
        tile: WorkTile,
        first_key: Value,
        found: Sequence[Value],
        *,
        column: int = 0,
    ) -> None:
        """Fills a tile from a key and a column of rope on; behind the end of the sequence it may
        hold anything.
        """
        ...


@dataclass(frozen=True)
class RopeRows:
    """Rows of a tensor.

    Attributes:
      tensor: [sequences, rows, 1, columns], or [rows, 1, columns] of all sequences.
      first_column: where those of rope begin.
      sequences: where they lie in it; None where they do as those of k_nope.
    """

    tensor: Value
    first_column: int
    sequences: KeySequences | None

    def find(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """The coordinates of the tile's first row, where index arrays may say them."""
        if self.sequences is None:
            return []
        keys = self.sequences.of(tile.batch, tile.queries)
        return [*keys.lead, keys.row(first_key)]

    def load(
        self,
        slot: Value,
        tile: WorkTile,
        first_key: Value,
        found: Sequence[Value],
        *,
        column: int = 0,
    ) -> None:
        """One box."""
        place = found or [*tile.keys.lead, tile.keys.row(first_key)]
        row = len(place) - 1
        b.copy_in(self.tensor, slot, [*place, 0, self.first_column + column], [row, row + 2])


@dataclass(frozen=True)
class RopePages:
    """Rows in pages of a pool.

    Attributes:
      rows: of the one head, whose columns begin where those of rope do.
    """

    rows: PagedRows

    def find(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """An entry for each page of the tile."""
        return self.rows.find(tile, first_key)

    def load(
        self,
        slot: Value,
        tile: WorkTile,
        first_key: Value,
        found: Sequence[Value],
        *,
        column: int = 0,
    ) -> None:
        """A box for each page."""
        self.rows.load(slot, tile, lambda: 0, first_key, found, column=column)


class LatentKV:
    """Keys as nope and rope, and values, of which k_nope and v lie as tensors."""

    def __init__(self, problem: Problem, rope: Rope):
        """Of a problem whose K is k_nope."""
        self._problem, self._tensors, self._rope = problem, TensorRows(problem), rope

    def find(self, tile: WorkTile, keys: VisitedTiles, turn: Value | int) -> list[Value]:
        """What rope needs."""
        return self._rope.find(tile, keys.first_column(turn))

    def load(
        self,
        side: Side,
        slot: Value,
        tile: WorkTile,
        first_column: Value,
        found: Sequence[Value],
        *,
        is_whole: bool = False,
        column: int = 0,
    ) -> None:
        """Copies a box of V or of rope; of keys, boxes for whose bytes together the slot's barrier
        waits.
        """
        if side == ROPE:
            self._rope.load(slot, tile, first_column, found, column=column)
            return
        if side == VALUES:
            self._tensors.load(side, slot, tile, first_column, found, is_whole=is_whole)
            return
        nope, rope = self._problem.q  # whose columns lie as those of keys do
        for tensor, first, part in side_by_side(slot, (nope, rope), column):
            if tensor is nope:
                self._tensors.load(KEYS, part, tile, first_column, [], column=first)
            else:
                self.load(ROPE, part, tile, first_column, found, column=first)
