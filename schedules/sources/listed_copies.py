"""Keys and values in rows that lists or pages locate one by one: threads copy them, 16 bytes each.

A tile's row numbers are a fragment, read one tile ahead of its copies. No address depends on an
unchecked entry: a row that a list or a table names and no tensor has reads as zeros.
"""

from collections.abc import Callable
from typing import ClassVar, Protocol

from attn_mlir.schedules.policy.tiling import goes_with_pages

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from ..operands.gathered import IndirectRows
from ..operands.pages import Pages, page_size
from ..operands.storage import StoredKeys
from .kv_source import Streamed, StreamedKV, copied_kv

NOWHERE = -1  # a row that no tensor has


class RowNumbers(Protocol):
    """The rows of keys or values by number.

    Attributes:
      dims: the dimensions of their tensor along which rows and columns run, as of `ws.copy_rows`.
    """

    dims: ClassVar[list[int]]

    def coords(self, tile: WorkTile) -> list[Value | int]:
        """The coordinates of row 0."""
        ...

    def read(self, tile: WorkTile, first_column: Value) -> Value:
        """The rows of a tile of keys: a fragment [tile_n], `NOWHERE` for those that do not count.

        Any rows for a tile in front of the first one.
        """
        ...


class ListedRows:
    """Indexed rows, which are keys and values; a work tile has the heads of one query."""

    dims: ClassVar[list[int]] = [0, 1]

    def __init__(self, problem: Problem, lists: IndirectRows):
        self._problem, self._lists = problem, lists

    def coords(self, tile: WorkTile) -> list[Value | int]:
        """Rows have no heads."""
        return [0, 0]

    def read(self, tile: WorkTile, first_column: Value) -> Value:
        """The entries of a query's list."""
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


class PagePositions:
    """Positions in pages of a pool [pages, page, heads, columns]: page x size + offset."""

    dims: ClassVar[list[int]] = [0, 1, 3]

    def __init__(self, problem: Problem, pages: Pages):
        self._problem, self._pages = problem, pages

    def coords(self, tile: WorkTile) -> list[Value | int]:
        """The pool's head."""
        return [0, 0, self._problem.column_head(tile), 0]

    def read(self, tile: WorkTile, first_column: Value) -> Value:
        """The places of a sequence's positions; behind its end there are none."""
        first_column, pages = b.INT.max(first_column, 0), self._pages
        size, count, length = page_size(pages.pool), b.extent(pages.pool, 0), tile.keys.length

        def row(offset: Value) -> Value:
            position = b.INT.add(first_column, offset)
            number = b.INT.floordiv(position, size)
            page = pages.entry(tile.batch, number)
            inside = b.INT.sub(position, b.INT.mul(number, size))
            exists = b.INT.both(b.compare("ult", page, count), b.compare("slt", position, length))
            found = b.INT.add(b.INT.mul(page, size), inside)
            return b.select(exists, found, b.constant(NOWHERE))

        return b.generate(row, [self._problem.config.tile_n], b.i32())


class RowsByThreads:
    """Keys and values in rows by number, of which some warps copy them."""

    by_threads: ClassVar[bool] = True

    def __init__(self, problem: Problem, keys: RowNumbers, values: RowNumbers | None = None):
        """Without `values`, those lie in the rows, or under the numbers, of keys."""
        self._problem = problem
        self._numbers = [keys] if values is None else [keys, values]

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
        """Copies the rows; their numbers are prefetched."""
        problem = self._problem
        config, tiles = problem.config, problem.column_tiles(tile)
        keys, values = self._numbers[0], self._numbers[-1]
        filled = [(keys, problem.k, rings.k, problem.columns, 0)]
        if not problem.shares_rows:
            filled.append((values, problem.v, rings.v, rings.columns, -1))

        def numbers(index: Value | int) -> list[Value]:
            first = tiles.first_column(index)
            return [rows.read(tile, first) for rows in self._numbers]

        def iteration(index: Value, *found: Value) -> list[Value]:
            for rows, tensor, ring, columns, place in filled:
                slot = ring.acquire()
                target = b.view(slot, [config.tile_n, columns], problem.stored)
                coords = rows.coords(tile)
                b.copy_rows(tensor, target, coords, rows.dims, lambda _, row: row, found[place])
                b.commit(slot, "thread_copies")
            return numbers(b.INT.add(index, 1))

        begin()
        b.loop(0, tiles.count, numbers(0), iteration)


def streamed_kv(problem: Problem, keys: StoredKeys, values: StoredKeys) -> StreamedKV:
    """The source of keys and values that fill their rings: rows by number, or `copied_kv`.

    Pages that no box of the copy engine goes with are rows by number.
    """
    if keys.lists is not None:
        return RowsByThreads(problem, ListedRows(problem, keys.lists))
    k, v = keys.pages, values.pages
    if k is None or v is None or goes_with_pages(problem.config.tile_n, page_size(k.pool)):
        return copied_kv(problem, keys, values)
    others = None if k.lists == v.lists else PagePositions(problem, v)
    return RowsByThreads(problem, PagePositions(problem, k), others)
