"""Keys and values in rows that lists name: a source whose rows threads copy, 16 bytes each."""

from typing import Any, ClassVar

from .. import emit as b
from ..core.kv_tiles import VisitedTiles
from ..core.problem import Problem, Value, WorkTile
from ..operands.gathered import GatheredRows

NOWHERE = -1  # a row that no tensor has


class GatheredKV:
    """Keys and values in rows that lists name; a work tile has the heads of one query."""

    reads: ClassVar[bool] = False

    def __init__(self, problem: Problem, lists: GatheredRows):
        self._problem, self._lists = problem, lists

    @property
    def lists(self) -> tuple[Value, ...]:
        """None."""
        return ()

    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Nothing: where rows lie is in lists."""

    def entries(self, tile: WorkTile, first_column: Value) -> Value:
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

    def find(self, tile: WorkTile, keys: VisitedTiles, turn: Value | int) -> list[Value]:
        """Nothing: `entries` reads them."""
        return []

    def load(self, *_: Any, **__: Any) -> None:
        """Never called: threads `gather` keys."""
        raise AssertionError("rows by lists are copied by threads")
