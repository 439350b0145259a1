"""Sequences whose positions lie in pages of a pool: which page holds a position.

A table with one row per sequence lists the pages, or one array lists those of all sequences. No
address depends on an unchecked entry: a number outside the pool is clamped to a page just before or
after it, for which the copy engine gives zeros.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from attn_mlir.dialect._mlir import ir

from .. import emit as b
from .sequences import KeySequences, Sequence, SharedByQueries

Value = Any


class Pages(KeySequences, Protocol):
    """The sequences of one operand, in pages."""

    @property
    def pool(self) -> Value:
        """[pages, page, heads, columns]."""
        ...

    @property
    def lists(self) -> tuple[Value, ...]:
        """The arrays that entries are read from."""
        ...

    def entry(self, batch: Value, number: Value) -> Value:
        """The entry of page `number` of a sequence; any value past its last page."""
        ...

    def capacity(self, batch: Value) -> Value:
        """Positions that the pages of a sequence have, used or not."""
        ...


def page_size(pool: Value) -> int:
    """Positions of a page."""
    return ir.MemRefType(pool.type).get_dim_size(1)


def _sequence(length: Value) -> Sequence:
    """A sequence without a range of rows: copies use its pages."""
    return Sequence((), None, length, False)


@dataclass(frozen=True)
class TablePages(SharedByQueries):
    """Pages of sequence b: table[b, 0], table[b, 1], ...

    Attributes:
      pool: [pages, page, heads, columns].
      table: [batch, columns], i32.
    """

    pool: Value
    table: Value
    differ = False

    @property
    def lists(self) -> tuple[Value, ...]:
        """The table."""
        return (self.table,)

    def count(self) -> Value:
        """The table's rows."""
        return b.extent(self.table, 0)

    def longest(self) -> Value:
        """All pages of a row."""
        return b.INT.mul(b.extent(self.table, 1), page_size(self.pool))

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """A sequence with all positions of the table's row."""
        return _sequence(self.longest())

    def entry(self, batch: Value, number: Value) -> Value:
        """The entry of the table; the nearest entry past a row's end."""
        return b.element(self.table, [batch, number])

    def capacity(self, batch: Value) -> Value:
        """All pages of a row."""
        return self.longest()


@dataclass(frozen=True)
class CsrPages(SharedByQueries):
    """Pages of sequence b: indices[offsets[b]], ..., indices[offsets[b + 1] - 1].

    Attributes:
      pool: [pages, page, heads, columns].
      offsets: [batch + 1], i32.
      indices: [pages of all sequences], i32.
      last: [batch], i32: positions in the last page of each sequence.
    """

    pool: Value
    offsets: Value
    indices: Value
    last: Value
    differ = True

    @property
    def lists(self) -> tuple[Value, ...]:
        """Offsets and entries."""
        return self.offsets, self.indices

    def count(self) -> Value:
        """One less than there are offsets."""
        return b.INT.sub(b.extent(self.offsets, 0), 1)

    def longest(self) -> Value:
        """All pages there are."""
        return b.INT.mul(b.extent(self.indices, 0), page_size(self.pool))

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """(n - 1) x page + last of n pages; none where offsets are in the wrong order."""
        size = page_size(self.pool)
        begin, end = self._ends(batch)
        last = b.INT.min(b.INT.max(b.element(self.last, [batch]), 1), size)
        whole = b.INT.mul(b.INT.sub(b.INT.sub(end, begin), 1), size)
        return _sequence(b.INT.max(b.INT.add(whole, last), 0))

    def _ends(self, batch: Value) -> tuple[Value, Value]:
        """Begin and end of the entries of a sequence, clamped to the list."""
        total = b.extent(self.indices, 0)
        begin = b.INT.min(b.INT.max(self._offset(batch), 0), total)
        return begin, b.INT.min(b.INT.max(self._offset(b.INT.add(batch, 1)), begin), total)

    def capacity(self, batch: Value) -> Value:
        """The sequence's own pages."""
        begin, end = self._ends(batch)
        return b.INT.mul(b.INT.sub(end, begin), page_size(self.pool))

    def _offset(self, number: Value) -> Value:
        return b.element(self.offsets, [number])

    def entry(self, batch: Value, number: Value) -> Value:
        """The entry of the list, counted from the sequence's first page."""
        begin = b.INT.max(self._offset(batch), 0)
        return b.element(self.indices, [b.INT.add(begin, number)])
