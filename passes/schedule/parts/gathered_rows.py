"""Keys in rows that lists name, for each query its own: copied by threads, 16 bytes each.

What lists say decides over no address by itself: a number that is no row stands for zeros, as the mask
hides its score. Entries are read a tile ahead of their rows.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from . import builder as b
from .sequences import Sequence

if TYPE_CHECKING:
    from .problem import Problem, WorkTile
    from .visited import VisitedTiles

Value = Any

NOWHERE = -1  # a row that no tensor has


@dataclass(frozen=True)
class GatheredRows:
    """The lists as sequences of keys: one for each query.

    Attributes:
      rows: [rows, columns].
      indices: [batch, sq, topk], i32.
      lengths: [batch, sq], i32; None where all entries count.
    """

    rows: Value
    indices: Value
    lengths: Value | None
    differ = True

    @property
    def lists(self) -> tuple[Value, ...]:
        """None: they are read entry by entry."""
        return ()

    def count(self) -> Value:
        """The first extent of the lists."""
        return b.extent(self.indices, 0)

    def longest(self) -> Value:
        """Entries of a list."""
        return b.extent(self.indices, 2)

    def packed(self) -> tuple[Value, Value]:
        """Never of queries, whose order it would tell."""
        raise AssertionError("queries are not gathered")

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """All entries of a list."""
        return Sequence((), None, self.longest(), False)

    def of_query(self, batch: Value, position: Value) -> Sequence:
        """The entries of one query's list that count."""
        length = self.longest()
        if self.lengths is not None:
            own = b.element(self.lengths, [batch, position])
            length = b.INT.min(b.INT.max(own, 0), length)
        return Sequence((), None, length, False)


class GatheredKV:
    """Keys and values in rows that lists name; a work tile has the heads of one query."""

    reads: ClassVar[bool] = False

    def __init__(self, problem: "Problem", lists: GatheredRows):
        self._problem, self._lists = problem, lists

    @property
    def lists(self) -> tuple[Value, ...]:
        """None."""
        return ()

    def fetch(self, tile: "WorkTile", first_column: Value) -> None:
        """Nothing: where rows lie is in lists."""

    def entries(self, tile: "WorkTile", first_column: Value) -> Value:
        """The rows of a tile of keys: a fragment [tile_n], `NOWHERE` for entries that do not count.

        Any rows for a tile in front of the first one.
        """
        first_column = b.INT.max(first_column, 0)
        count, indices = self._problem.config.tile_n, self._lists.indices
        rows, length = b.extent(self._lists.rows, 0), tile.keys.length
        position = self._problem.first_position(tile, 0)

        def kept(entry: Value, place: Value) -> Value:
            exists = b.compare("ult", entry, rows)
            counts = b.compare("slt", b.INT.add(first_column, place), length)
            return b.select(b.INT.both(exists, counts), entry, b.constant(NOWHERE))

        found = b.load_global(indices, [count], [tile.batch, position, first_column], [2])
        return b.map_rows(kept, found)

    def gather(self, slot: Value, entries: Value) -> None:
        """Fills a ring slot [tile_n, columns] with these rows; to be committed by `thread_copies`."""
        b.copy_rows(self._lists.rows, slot, [0, 0], [0, 1], lambda _, entry: entry, entries)

    def find(self, tile: "WorkTile", keys: "VisitedTiles", turn: Value | int) -> list[Value]:
        """Nothing: `entries` reads them."""
        return []

    def load(self, *_: Any, **__: Any) -> None:
        """Never called: threads `gather` keys."""
        raise AssertionError("rows by lists are copied by threads")
