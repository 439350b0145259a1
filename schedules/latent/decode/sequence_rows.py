"""Whole sequences whose keys are found row by row, as those that lists name: what `find` reads in
place of lists.

Entries are the positions of a sequence; one counts if the mask shows it to the query. So the
kernels of lists serve sequences whose rows are no operands of products as they are stored: one
query in a work tile.
"""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialect import ws
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.operands.pages import Pages
from attn_mlir.schedules.operands.sequences import KeySequences, QuerySequences, Sequence

from ..common.rows import ABSENT, NarrowRows
from ..sparse.problem import NOWHERE, Query, SparseDecode, Value, is_below


@dataclass(frozen=True)
class SequenceDecode(SparseDecode):
    """Of `attn.mla_decode` without lists.

    Attributes:
      queries, keys: where sequences lie; those of keys as `pages`, where they have any.
      mask: which positions a query sees, in closed form.
    """

    queries: QuerySequences
    keys: KeySequences
    pages: Pages | None
    mask: Mask

    def range_of(self, place: tuple[Value, ...]) -> tuple[Value, Value, Value]:
        """The sequence's length, and the blocks that the mask does not hide entirely."""
        number, position = place
        queries, keys = self._sequences(number)
        lengths = queries.length, keys.length
        span = self.mask.tile_range(b.INT, position, 1, *lengths, self.config.tile_n)
        return keys.length, span.begin, span.end

    def rows_of(self, query: Query) -> Callable[[Value], Value]:
        """As of lists: where the positions of a block lie that the query sees.

        Where a block has none, no table is read: it may have no entry.
        """
        number, position = query.place
        queries, keys = self._sequences(number)
        shape, nowhere = [self.config.tile_n], b.constant(NOWHERE)

        def rows_from(first: Value) -> Value:
            def row(place: Value) -> Value:
                key = b.INT.add(first, place)
                seen = self.mask.element(b.INT, position, key, queries.length, keys.length)
                counts = b.INT.both(seen, b.compare("slt", key, query.entries))
                return b.select(counts, self._row(number, keys, key), nowhere)

            (found,) = b.chosen(
                b.compare("slt", first, query.entries),
                [ws.fragment_type(shape, b.i32())],
                lambda: [b.generate(row, shape, b.i32())],
                lambda: [b.fill(shape, nowhere)],
            )
            return found

        return rows_from

    def _sequences(self, number: Value) -> tuple[Sequence, Sequence]:
        queries = self.queries.of(number)
        return queries, self.keys.of(number, queries)

    def _row(self, number: Value, keys: Sequence, key: Value) -> Value:
        """The row of the cache that holds a position; `ABSENT` in a page that the pool does not
        have, where keys of zeros count."""
        assert isinstance(self.source, NarrowRows)
        page = self.source.page()
        if self.pages is None:
            (sequence,) = keys.lead
            return b.INT.add(b.INT.mul(sequence, page), keys.row(key))
        column = b.INT.floordiv(key, page)
        entry = self.pages.entry(number, column)
        rest = b.INT.sub(key, b.INT.mul(column, page))
        row = b.INT.add(b.INT.mul(entry, page), rest)
        exists = is_below(entry, b.extent(self.pages.pool, 0))
        return b.select(exists, row, b.constant(ABSENT))
