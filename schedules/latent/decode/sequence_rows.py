"""Whole sequences whose keys are loaded row by row; `read_entries` reads their page table.

Entries are the positions of a sequence; an entry is visible if the mask shows it to the query. So
the kernels of lists serve sequences whose stored rows are no operands of products: one query in a
work tile.
"""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialect import ws
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.operands.pages import Pages
from attn_mlir.schedules.operands.sequences import KeySequences, QuerySequences, Sequence

from ..common.rows import ABSENT_ROW, ScaledRows
from ..sparse.problem import NOWHERE, Query, SparseDecode, Value, is_below


@dataclass(frozen=True)
class SequenceDecode(SparseDecode):
    """An `attn.mla_decode` without lists.

    Attributes:
      queries, keys: the sequences; those of keys have `pages` if they are paged.
      mask: the mask in closed form.
    """

    queries: QuerySequences
    keys: KeySequences
    pages: Pages | None
    mask: Mask

    def range_of(self, coords: tuple[Value, ...]) -> tuple[Value, Value, Value]:
        """The sequence's length, and the blocks that the mask does not hide entirely."""
        number, position = coords
        queries, keys = self._sequences(number)
        lengths = queries.length, keys.length
        span = self.mask.tile_range(b.INT, position, 1, *lengths, self.config.tile_n)
        return keys.length, span.begin, span.end

    def rows_of(self, query: Query) -> Callable[[Value], Value]:
        """As of lists: the rows of the visible positions of a block.

        A block without any reads no page table, which may have no entry.
        """
        number, position = query.q_coords
        queries, keys = self._sequences(number)
        shape, nowhere = [self.config.tile_n], b.constant(NOWHERE)

        def rows_from(first: Value) -> Value:
            def row(offset: Value) -> Value:
                key = b.INT.add(first, offset)
                is_visible = self.mask.element(b.INT, position, key, queries.length, keys.length)
                counts = b.INT.both(is_visible, b.compare("slt", key, query.entries))
                return b.select(counts, self._row(number, keys, key), nowhere)

            (rows,) = b.chosen(
                b.compare("slt", first, query.entries),
                [ws.fragment_type(shape, b.i32())],
                lambda: [b.generate(row, shape, b.i32())],
                lambda: [b.fill(shape, nowhere)],
            )
            return rows

        return rows_from

    def _sequences(self, number: Value) -> tuple[Sequence, Sequence]:
        queries = self.queries.of(number)
        return queries, self.keys.of(number, queries)

    def _row(self, number: Value, keys: Sequence, key: Value) -> Value:
        """The cache row of a position; `ABSENT_ROW`, for keys of 0, in a page outside the pool."""
        assert isinstance(self.source, ScaledRows)
        page = self.source.page()
        if self.pages is None:
            (sequence,) = keys.lead
            return b.INT.add(b.INT.mul(sequence, page), keys.row(key))
        column = b.INT.floordiv(key, page)
        entry = self.pages.entry(number, column)
        offset = b.INT.sub(key, b.INT.mul(column, page))
        row = b.INT.add(b.INT.mul(entry, page), offset)
        exists = is_below(entry, b.extent(self.pages.pool, 0))
        return b.select(exists, row, b.constant(ABSENT_ROW))
