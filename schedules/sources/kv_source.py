"""Where the tiles of keys and values come from."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Protocol

from .. import emit as b
from ..core.kv_tiles import VisitedTiles
from ..core.problem import Problem, Value, WorkTile
from ..operands.pages import Pages
from .paged_rows import PagedRows

Side = Literal["keys", "values", "rope"]
KEYS: Side = "keys"
VALUES: Side = "values"
ROPE: Side = "rope"  # the columns of keys that all heads share, where a source has them apart


class KVSource(Protocol):
    """Where keys and values come from.

    What has to be read to find a tile is read before its copies wait for their slots: `find` reads it,
    and hands it to the copies of its turn.

    Attributes:
      reads: whether anything has to be; only where there are tiles may it be.
    """

    reads: ClassVar[bool]

    def find(self, tile: WorkTile, keys: VisitedTiles, turn: Value | int) -> list[Value]:
        """Where the tile of a turn lies, i32 each; anything for a turn that does not come."""
        ...

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
        """Fills a ring slot [tile_n, columns] with the keys or values from `first_column` on.

        Args:
          found: what `find` found.
          is_whole: all of these exist.
          column: of their rows at which those of the slot begin.
        """
        ...


class FetchedKV(KVSource, Protocol):
    """A source of which something can be asked for ahead; see `ahead`."""

    @property
    def lists(self) -> tuple[Value, ...]:
        """The index arrays that `find` reads."""
        ...

    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Asks the L2 cache for keys and values from `first_column` on, where that reads nothing."""
        ...


class TensorKV:
    """Keys and values as rows of tensors, sequence by sequence; past a sequence's end reads 0."""

    reads: ClassVar[bool] = False

    def __init__(self, problem: Problem):
        self._problem = problem

    @property
    def lists(self) -> tuple[Value, ...]:
        """None."""
        return ()

    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Boxes of K and V."""
        problem, keys = self._problem, tile.keys
        head, row = problem.queries.kv_head(tile.head), len(keys.lead)
        coords = [*keys.lead, keys.row(first_column), head, 0]
        for source, columns in ((problem.k, problem.columns), (problem.v, problem.v_columns)):
            kind = b.tile([problem.config.tile_n, columns], problem.stored, "shared")
            b.prefetch_box(source, kind, coords, [row, row + 2])

    def find(self, tile: WorkTile, keys: VisitedTiles, turn: Value | int) -> list[Value]:
        """Nothing has to be read."""
        return []

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
        """Copies a box of K or V; past the end of the sequence, and past the head size, it is zero."""
        problem, keys = self._problem, tile.keys
        source = problem.k if side == KEYS else problem.v
        head, row = problem.queries.kv_head(tile.head), len(keys.lead)
        coords = [*keys.lead, keys.row(first_column), head, column]
        b.copy_in(keys.within(source, row), slot, coords, [row, row + 2])


class PagedKV:
    """Keys and values in pages. Keys behind the sequence may be anything, since the mask hides their
    scores; values there are zero, whose product with a probability of 0 has to be 0."""

    reads: ClassVar[bool] = True

    def __init__(self, problem: Problem, keys: Pages, values: Pages):
        """Of the pages of keys and of values, which have one size."""
        self._queries = problem.queries
        self._keys, self._values = (PagedRows(x, problem.config.tile_n) for x in (keys, values))
        self._lists = (*keys.lists, *values.lists)
        self._are_together = keys.lists == values.lists

    @property
    def box_rows(self) -> int:
        """Rows of each copy."""
        return self._keys.box_rows

    @property
    def lists(self) -> tuple[Value, ...]:
        """Those of keys and of values."""
        return self._lists

    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Nothing: where they lie has to be read."""

    def find(self, tile: WorkTile, keys: VisitedTiles, turn: Value | int) -> list[Value]:
        """The entry for each copy of keys, then of values unless both are listed together.

        As the list has them: nothing waits for an entry before the copy that it is for.
        """
        column = keys.first_column(turn)
        found = self._keys.find(tile, column)
        return found if self._are_together else found + self._values.find(tile, column)

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
        """Copies boxes of K, whole ones, or of V that end with the sequence."""
        head = self._head(tile)
        if side == KEYS:
            entries = found[: self._keys.copies]
            self._keys.load(
                slot, tile, head, first_column, entries, is_whole=is_whole, column=column
            )
            return
        values, entries = self._values, found[-self._values.copies :]
        if is_whole:
            values.load(slot, tile, head, first_column, entries, is_whole=True)
        else:
            values.load_until_end(slot, tile, head, first_column, entries)

    def _head(self, tile: WorkTile) -> Callable[[], Value]:
        return lambda: self._queries.kv_head(tile.head)
