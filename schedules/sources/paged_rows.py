"""Key tiles of rows that lie in the pages of a pool, one copy for each page."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith

from .. import emit as b
from ..core.problem import Value, WorkTile
from ..operands.pages import Pages, page_size

ROW_DIM, COLUMN_DIM = 1, 3  # of a pool [pages, page, heads, columns]
Head = Callable[[], Value | int]


class CopiedTile(NamedTuple):
    """A tile of keys, values or other columns of a work tile, which is copied into slots.

    Attributes:
      work: the work tile.
      first_column: the first of these columns: of keys the first key.
      entries: its page entries; none of tensors.
      is_whole: whether all of these columns exist.
    """

    work: WorkTile
    first_column: Value
    entries: Sequence[Value]
    is_whole: bool = False


class PagedRows:
    """The rows of one operand in pages: a tile is part of a page, or made of several.

    Pages and key tiles divide each other, and tiles begin at multiples of their size, so that no
    copy crosses the end of a page. Pages that lie behind a sequence altogether are not read.

    A copy that ends within its page goes through a map whose base lies in front of the pool
    (`ws.limit`). Where nothing of a box is inside, the copy engine looks at the base all the same,
    and faults where no memory is mapped (measured on an H200): a page that is not there is copied
    through the map of the pool itself, and reads as zeros.

    Attributes:
      copies: of a tile.
      box_rows: of each.
    """

    def __init__(self, pages: Pages, tile_n: int, *, first_column: Value | int = 0):
        """Tiles of `tile_n` rows, whose first column is column `first_column` of the pool."""
        self._pages, self._column = pages, first_column
        self._size = page_size(pages.pool)
        self.box_rows = min(self._size, tile_n)  # of a copy
        self.copies = tile_n // self.box_rows

    def read_entries(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """The entry for each copy of the tile that begins with a key."""
        first = b.INT.floordiv(first_key, self._size)
        numbers = (b.INT.add(first, number) for number in range(self.copies))
        return [self._pages.entry(tile.batch, number) for number in numbers]

    def load(self, slot: Value, tile: CopiedTile, head: Head, *, column: int = 0) -> None:
        """Copies whole boxes, whatever is behind the end of the sequence.

        Args:
          slot: [rows of a tile, columns], or its boxes side by side: [rows of a box, boxes x
            columns].
          tile: with what `read_entries` found.
          head: emits the number of the pool's head.
          column: of the rows at which those of the slot begin.
        """
        pool = self._pages.pool
        for number, entry in enumerate(tile.entries):
            left = None if tile.is_whole else self._left(tile, number)
            page = self._page(entry, left)
            self._copy(pool, slot, head, number, page, tile.first_column, column=column)

    def load_until_end(self, slot: Value, tile: CopiedTile, head: Head) -> None:
        """Copies boxes that end with the sequence, and are zero behind it; arguments as `load`."""
        pool, first_key = self._pages.pool, tile.first_column
        for number, entry in enumerate(tile.entries):
            left = self._left(tile, number)
            page, count = self._page(entry, left), b.extent(pool, 0)
            begins, ends = b.compare("sge", page, 0), b.compare("slt", page, count)
            with b.either(arith.AndIOp(begins, ends).result) as (is_there, is_not):
                with is_there:
                    end = b.INT.add(self._row(first_key), b.INT.min(left, self.box_rows))
                    limited = b.limit(pool, end, ROW_DIM)
                    self._copy(limited, slot, head, number, page, first_key)
                with is_not:
                    self._copy(pool, slot, head, number, count, first_key)

    def _left(self, tile: CopiedTile, number: int) -> Value:
        """Positions of the sequence from a copy's first on."""
        first = b.INT.add(tile.first_column, number * self.box_rows)
        return b.INT.sub(tile.work.keys.length, first)

    def _page(self, entry: Value, left: Value | None) -> Value:
        """The page of a copy: a number outside the pool where there is nothing to read."""
        count = b.extent(self._pages.pool, 0)
        inside = b.INT.min(b.INT.max(entry, -1), count)
        if left is None:
            return inside
        return b.select(b.compare("sgt", left, 0), inside, count)

    def _row(self, first_key: Value) -> Value:
        """Row of a page at which the copies of a tile begin."""
        if self._size == self.box_rows:
            return b.constant(0)
        page = b.INT.floordiv(first_key, self._size)
        return b.INT.sub(first_key, b.INT.mul(page, self._size))

    def _copy(
        self,
        pool: Value,
        slot: Value,
        head: Head,
        number: int,
        page: Value,
        first_key: Value,
        *,
        column: int = 0,
    ) -> None:
        """One box of a pool to its rows of the tile; of a slot with boxes side by side, to its
        columns.
        """
        rows, columns = ws.TileType(slot.type).shape
        if rows == self.box_rows and self.copies > 1:
            width = columns // self.copies
            box = b.columns(slot, number * width, width)
        else:
            box = b.rows(slot, number * self.box_rows, self.box_rows)
        first = self._column if column == 0 else b.INT.add(self._column, column)
        coords = [page, self._row(first_key), head(), first]
        b.copy_in(pool, box, coords, [ROW_DIM, COLUMN_DIM])
