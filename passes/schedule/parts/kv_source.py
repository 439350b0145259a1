"""Where the tiles of keys and values come from."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from attn_mlir.dialect._mlir import arith

from . import builder as b
from .pages import Pages, page_size
from .problem import Problem, Value, WorkTile
from .visited import VisitedTiles

ROW_DIM, COLUMN_DIM = 1, 3  # of a pool [pages, page, heads, columns]


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

    def load_keys(
        self,
        slot: Value,
        tile: WorkTile,
        first_column: Value,
        found: Sequence[Value],
        *,
        is_whole: bool = False,
    ) -> None:
        """Fills a ring slot [tile_n, head_dim] with the keys from `first_column` on.

        Args:
          is_whole: all of these exist.
        """
        ...

    def load_values(
        self,
        slot: Value,
        tile: WorkTile,
        first_column: Value,
        found: Sequence[Value],
        *,
        is_whole: bool = False,
    ) -> None:
        """Fills a ring slot [tile_n, head_dim] with the values from `first_column` on, likewise."""
        ...


class TensorKV:
    """Keys and values as rows of tensors, sequence by sequence; past a sequence's end reads 0."""

    reads: ClassVar[bool] = False

    def __init__(self, problem: Problem):
        self._problem = problem

    def _load(self, source: Value, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Past the end of the sequence, and past the head size, the tile is zero."""
        head = self._problem.queries.kv_head(tile.head)
        keys = tile.keys
        row = len(keys.lead)
        coords = [*keys.lead, keys.row(first_column), head, 0]
        b.copy_in(keys.within(source, row), slot, coords, [row, row + 2])

    def find(self, tile: WorkTile, keys: VisitedTiles, turn: Value | int) -> list[Value]:
        """Nothing has to be read."""
        return []

    def load_keys(
        self,
        slot: Value,
        tile: WorkTile,
        first_column: Value,
        found: Sequence[Value],
        *,
        is_whole: bool = False,
    ) -> None:
        """Copies a box of K."""
        self._load(self._problem.k, slot, tile, first_column)

    def load_values(
        self,
        slot: Value,
        tile: WorkTile,
        first_column: Value,
        found: Sequence[Value],
        *,
        is_whole: bool = False,
    ) -> None:
        """Copies a box of V."""
        self._load(self._problem.v, slot, tile, first_column)


class PagedKV:
    """Keys and values in pages: a tile is part of a page, or made of several, one copy for each.

    Pages and key tiles divide each other, and tiles begin at multiples of their size, so that no copy
    crosses the end of a page. What a copy reads behind the sequence is zero for values, whose
    product with a probability of 0 has to be 0; keys there may be anything, since the mask hides
    their scores. Pages that lie behind it altogether are not read.

    A copy that ends within its page goes through a map whose base lies in front of the pool
    (`ws.limit`). Where nothing of a box is inside, the copy engine looks at the base all the same,
    and faults where no memory is mapped (measured on an H200): a page that is not there is copied
    through the map of the pool itself, and reads as zeros.
    """

    reads: ClassVar[bool] = True

    def __init__(self, problem: Problem, keys: Pages, values: Pages):
        """Of the pages of keys and of values, which have one size."""
        self._problem = problem
        self._keys, self._values = keys, values
        self._size = page_size(keys.pool)
        self._rows = min(self._size, problem.config.tile_n)  # of a copy
        self._copies = problem.config.tile_n // self._rows  # per tile

    def find(self, tile: WorkTile, keys: VisitedTiles, turn: Value | int) -> list[Value]:
        """The entry for each copy of keys, then of values unless both are listed together.

        As the list has them: nothing waits for an entry before the copy that it is for.
        """
        column = keys.first_column(turn)
        found = self._find(self._keys, tile, column)
        if self._values.lists != self._keys.lists:
            found += self._find(self._values, tile, column)
        return found

    def _find(self, pages: Pages, tile: WorkTile, column: Value) -> list[Value]:
        first = b.INT.floordiv(column, self._size)
        numbers = (b.INT.add(first, number) for number in range(self._copies))
        return [pages.entry(tile.batch, number) for number in numbers]

    def load_keys(
        self,
        slot: Value,
        tile: WorkTile,
        first_column: Value,
        found: Sequence[Value],
        *,
        is_whole: bool = False,
    ) -> None:
        """Copies boxes of K, whole ones."""
        pool = self._keys.pool
        for number, entry in enumerate(found[: self._copies]):
            left = None if is_whole else self._left(tile, first_column, number)
            self._copy(pool, slot, tile, number, self._page(pool, entry, left), first_column)

    def load_values(
        self,
        slot: Value,
        tile: WorkTile,
        first_column: Value,
        found: Sequence[Value],
        *,
        is_whole: bool = False,
    ) -> None:
        """Copies boxes of V that end with the sequence."""
        for number, entry in enumerate(found[-self._copies :]):
            pool = self._values.pool
            if is_whole:
                page = self._page(pool, entry, None)
                self._copy(pool, slot, tile, number, page, first_column)
                continue
            left = self._left(tile, first_column, number)
            page, count = self._page(pool, entry, left), b.extent(pool, 0)
            begins, ends = b.compare("sge", page, 0), b.compare("slt", page, count)
            with b.either(arith.AndIOp(begins, ends).result) as (is_there, is_not):
                with is_there:
                    end = b.INT.add(self._row(first_column), b.INT.min(left, self._rows))
                    limited = b.limit(pool, end, ROW_DIM)
                    self._copy(limited, slot, tile, number, page, first_column)
                with is_not:
                    self._copy(pool, slot, tile, number, count, first_column)

    def _left(self, tile: WorkTile, first_column: Value, number: int) -> Value:
        """Positions of the sequence from a copy's first on."""
        return b.INT.sub(tile.keys.length, b.INT.add(first_column, number * self._rows))

    def _page(self, pool: Value, entry: Value, left: Value | None) -> Value:
        """The page of a copy: a number outside the pool where there is nothing to read."""
        count = b.extent(pool, 0)
        inside = b.INT.min(b.INT.max(entry, -1), count)
        if left is None:
            return inside
        return b.select(b.compare("sgt", left, 0), inside, count)

    def _row(self, first_column: Value) -> Value:
        """Row of a page at which the copies of a tile begin."""
        if self._size == self._rows:
            return b.constant(0)
        page = b.INT.floordiv(first_column, self._size)
        return b.INT.sub(first_column, b.INT.mul(page, self._size))

    def _copy(
        self, pool: Value, slot: Value, tile: WorkTile, number: int, page: Value, column: Value
    ) -> None:
        """One box of a pool to its rows of the tile from a column on."""
        part = b.rows(slot, number * self._rows, self._rows)
        coords = [page, self._row(column), self._problem.queries.kv_head(tile.head), 0]
        b.copy_in(pool, part, coords, [ROW_DIM, COLUMN_DIM])
