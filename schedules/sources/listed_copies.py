"""Keys and values in indexed rows: threads copy them, 16 bytes each."""

from collections.abc import Callable
from typing import ClassVar

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from ..operands.gathered import IndirectRows
from ..operands.storage import StoredKeys
from .kv_source import Streamed, StreamedKV, copied_kv

NOWHERE = -1  # a row that no tensor has


class IndirectKV:
    """Keys and values in indexed rows; a work tile has the heads of one query."""

    by_threads: ClassVar[bool] = True

    def __init__(self, problem: Problem, lists: IndirectRows):
        self._problem, self._lists = problem, lists

    @property
    def box_rows(self) -> int:
        """Those of a tile."""
        return self._problem.config.tile_n

    @property
    def lists(self) -> tuple[Value, ...]:
        """None: they are read entry by entry."""
        return ()

    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Does nothing: rows are located by entries."""

    def fill(self, rings: Streamed, tile: WorkTile, begin: Callable[[], None]) -> None:
        """Copies the rows, which are keys and values, by some warps; entries are prefetched."""
        problem = self._problem
        config, tiles = problem.config, problem.column_tiles(tile)

        def entries(index: Value | int) -> Value:
            return self._entries(tile, tiles.first_column(index))

        def iteration(index: Value, entry_values: Value) -> list[Value]:
            slot = rings.k.acquire()
            rows = b.view(slot, [config.tile_n, problem.columns], problem.stored)
            b.copy_rows(
                self._lists.rows, rows, [0, 0], [0, 1], lambda _, entry: entry, entry_values
            )
            b.commit(slot, "thread_copies")
            return [entries(b.INT.add(index, 1))]

        begin()
        b.loop(0, tiles.count, [entries(0)], iteration)

    def _entries(self, tile: WorkTile, first_column: Value) -> Value:
        """The rows of a tile of keys: a fragment [tile_n], `NOWHERE` for entries that do not count.

        Any rows for a tile in front of the first one.
        """
        first_column = b.INT.max(first_column, 0)
        count, indices = self._problem.config.tile_n, self._lists.indices
        rows, length = b.extent(self._lists.rows, 0), tile.keys.length
        position = self._problem.first_position(tile, 0)

        def masked(entry: Value, offset: Value) -> Value:
            exists = b.compare("ult", entry, rows)
            counts = b.compare("slt", b.INT.add(first_column, offset), length)
            return b.select(b.INT.both(exists, counts), entry, b.constant(NOWHERE))

        entry_values = b.load_global(indices, [count], [tile.batch, position, first_column], [2])
        return b.map_rows(masked, entry_values)


def streamed_kv(problem: Problem, keys: StoredKeys, values: StoredKeys) -> StreamedKV:
    """The source of keys and values that fill their rings: indexed rows, or `copied_kv`."""
    if keys.lists is not None:
        return IndirectKV(problem, keys.lists)
    return copied_kv(problem, keys, values)
