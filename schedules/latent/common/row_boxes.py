"""Boxes of the rows of a latent cache: some columns of some keys of a sequence, of a tensor or of
pages.
"""

from collections.abc import Sequence
from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.operands.pages import Pages
from attn_mlir.schedules.sources.paged_rows import PagedRows


class RowBoxes(Protocol):
    """Where boxes come from. A box may lie behind the end of its sequence altogether."""

    def find(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """Where the box that begins with a key lies; anything for keys that no sequence has."""
        ...

    def load(
        self,
        slot: Value,
        tile: WorkTile,
        first_key: Value,
        column: Value | int,
        found: Sequence[Value],
        *,
        ends: bool,
    ) -> None:
        """Fills a ring slot from the row of a key and a column on.

        Args:
          found: what `find` found.
          ends: whether rows behind the sequence have to be zero; else they may be anything.
        """
        ...


class TensorBoxes:
    """Of rows of a tensor."""

    def __init__(self, problem: Problem):
        self._tensor = problem.k

    def find(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """Nothing has to be read."""
        return []

    def load(
        self,
        slot: Value,
        tile: WorkTile,
        first_key: Value,
        column: Value | int,
        found: Sequence[Value],
        *,
        ends: bool,
    ) -> None:
        """One box.

        A map that ends with a sequence may have its base in front of the tensor, and where nothing
        of a box is inside the copy engine looks there (see `PagedRows`): such a box is one behind
        the whole tensor.
        """
        tensor, keys = self._tensor, tile.keys
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
    """Of rows in pages, a copy for each page."""

    def __init__(self, pages: Pages, count: int):
        """Boxes of so many keys."""
        self._pages, self._count = pages, count

    def find(self, tile: WorkTile, first_key: Value) -> list[Value]:
        """The entry for each copy."""
        return PagedRows(self._pages, self._count).find(tile, first_key)

    def load(
        self,
        slot: Value,
        tile: WorkTile,
        first_key: Value,
        column: Value | int,
        found: Sequence[Value],
        *,
        ends: bool,
    ) -> None:
        """A box for each page, which ends with the sequence where it has to."""
        rows = PagedRows(self._pages, self._count, first_column=column)
        load = rows.load_until_end if ends else rows.load
        load(slot, tile, lambda: 0, first_key, found)


def boxes_of(problem: Problem, pages: Pages | None, count: int) -> RowBoxes:
    """Boxes of so many keys of a problem, which lie in pages or in a tensor."""
    return TensorBoxes(problem) if pages is None else PagedBoxes(pages, count)
