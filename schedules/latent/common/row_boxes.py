"""Boxes of the rows of a latent cache: columns of some keys of a sequence, in a tensor or pages."""

from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.operands.pages import Pages
from attn_mlir.schedules.sources.paged_rows import CopiedTile, PagedRows


class RowBoxes(Protocol):
    """The source of boxes. A box may lie past the end of its sequence altogether."""

    def read_entries(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """The page-table entries of the box that begins with a key; any for keys past the end."""
        ...

    def load(self, slot: Value, tile: CopiedTile, column: Value | int, *, ends: bool) -> None:
        """Fills a ring slot from the row of a tile's first key and a column on.

        Args:
          ends: whether rows past the end of the sequence must be zero; else they may be anything.
        """
        ...


class TensorBoxes:
    """Boxes of rows of a tensor."""

    def __init__(self, problem: Problem):
        self._tensor = problem.k

    def read_entries(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """No entries."""
        return []

    def load(self, slot: Value, tile: CopiedTile, column: Value | int, *, ends: bool) -> None:
        """One box.

        A map that ends with a sequence may have its base before the tensor, where the copy engine
        reads a box that is outside altogether (see `PagedRows`): such a box is taken past the end
        of the whole tensor.
        """
        tensor, keys, first_key = self._tensor, tile.work.keys, tile.first_column
        lead, row = keys.lead, len(keys.lead)

        def copy(source: Value, first: Value) -> None:
            b.copy_in(source, slot, [*lead, first, 0, column], [row, row + 2])

        if keys.is_whole or not ends:
            copy(tensor, keys.row(first_key))
            return
        with b.either(b.compare("slt", first_key, keys.length)) as (some, none):
            with some:
                copy(keys.within(tensor, row), keys.row(first_key))
            with none:
                copy(tensor, b.extent(tensor, row))


class PagedBoxes:
    """Boxes of rows in pages, a copy per page."""

    def __init__(self, pages: Pages, count: int):
        """Boxes of `count` keys."""
        self._pages, self._count = pages, count

    def read_entries(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """An entry per copy."""
        return PagedRows(self._pages, self._count).read_entries(tile, first_key)

    def load(self, slot: Value, tile: CopiedTile, column: Value | int, *, ends: bool) -> None:
        """A box per page, which ends with the sequence if `ends`."""
        rows = PagedRows(self._pages, self._count, first_column=column)
        load = rows.load_until_end if ends else rows.load
        load(slot, tile, lambda: 0)


def boxes_of(problem: Problem, pages: Pages | None, count: int) -> RowBoxes:
    """Boxes of `count` keys of a problem, in pages or in a tensor."""
    return TensorBoxes(problem) if pages is None else PagedBoxes(pages, count)
