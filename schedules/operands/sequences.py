"""The sequences of a batch in memory, and their lengths.

A work tile belongs to one sequence, which a `Sequence` describes; `operands` makes `Sequences` from
the storage operations of the `attn` dialect. Numbers read from index arrays are clamped to the
tensor, so that no array makes a kernel read outside it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from .. import emit as b

Value = Any


@dataclass(frozen=True)
class Sequence:
    """One sequence of a stored tensor.

    Attributes:
      lead: the coordinates before the row: the sequence's number, if the tensor has a dimension for
        it.
      start: the tensor's row where it begins; None for 0.
      length: number of its positions, i32.
      is_whole: whether the tensor's dimension ends with the sequence, so that copies need no limit.
    """

    lead: tuple[Value, ...]
    start: Value | None
    length: Value
    is_whole: bool

    def row(self, position: Value) -> Value:
        """The tensor's row that holds a position."""
        return position if self.start is None else b.INT.add(self.start, position)

    def shifted(self, by: Value) -> "Sequence":
        """The sequence displaced by `by`: sequences in a dense tensor, rows in a ragged one."""
        if self.start is None:
            first, *inner = self.lead
            return replace(self, lead=(b.INT.add(first, by), *inner))
        return replace(self, start=b.INT.add(self.start, by))

    def within(self, tensor: Value, dim: int) -> Value:
        """A view of the tensor that ends where the sequence does; its rows run along `dim`."""
        return tensor if self.is_whole else b.limit(tensor, self.row(self.length), dim)


class Packed(NamedTuple):
    """Sequences that lie one after the other.

    Attributes:
      ends: [batch + 1], i32.
      rows: of the tensor that holds them, i32.
    """

    ends: Value
    rows: Value


class Sequences(Protocol):
    """The sequences of one operand."""

    def count(self) -> Value:
        """Number of sequences: the batch."""
        ...

    def longest(self) -> Value:
        """An upper bound of their lengths, set at launch."""
        ...

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """Sequence number `batch`; for keys, `queries` is the sequence of queries that sees
        them.
        """
        ...

    @property
    def differ(self) -> bool:
        """Whether their lengths may differ."""
        ...

    @property
    def lists(self) -> tuple[Value, ...]:
        """The index arrays that locate them."""
        ...


class QuerySequences(Sequences, Protocol):
    """The sequences of queries."""

    def packed(self) -> Packed | None:
        """The layout of concatenated sequences; None if the tensor has a dimension for them."""
        ...


class KeySequences(Sequences, Protocol):
    """The sequences of keys."""

    def of_query(self, batch: Value, queries: Sequence, position: Callable[[], Value]) -> Sequence:
        """The keys of a work tile.

        Args:
          batch: number of its sequence.
          queries: the sequence of its queries.
          position: emits the position of its first query.
        """
        ...


class SharedByQueries:
    """Keys that all queries of a sequence see: the default of `KeySequences.of_query`."""

    def of_query(
        self: Sequences, batch: Value, queries: Sequence, position: Callable[[], Value]
    ) -> Sequence:
        """The whole sequence."""
        return self.of(batch, queries)


@dataclass(frozen=True)
class Dense(SharedByQueries):
    """Sequences of a tensor [batch, sequence, heads, columns], all of one length."""

    tensor: Value
    differ = False

    @property
    def lists(self) -> tuple[Value, ...]:
        """None."""
        return ()

    def count(self) -> Value:
        """The tensor's first extent, the batch."""
        return b.extent(self.tensor, 0)

    def longest(self) -> Value:
        """The tensor's second extent."""
        return b.extent(self.tensor, 1)

    def packed(self) -> None:
        """They are not."""

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """The sequence at index `batch` of the first dimension."""
        return Sequence((batch,), None, self.longest(), True)


@dataclass(frozen=True)
class Ragged(SharedByQueries):
    """Sequences of a tensor [total, heads, columns]: b lies in rows ends[b] to ends[b + 1] - 1.

    Attributes:
      tensor: the rows.
      ends: [batch + 1], i32.
      most: i32, the caller's bound of their lengths.
    """

    tensor: Value
    ends: Value
    most: Value
    differ = True

    @property
    def lists(self) -> tuple[Value, ...]:
        """The ends."""
        return (self.ends,)

    def count(self) -> Value:
        """Number of ends, less one."""
        return b.INT.sub(b.extent(self.ends, 0), 1)

    def longest(self) -> Value:
        """The caller's bound."""
        return self.most

    def packed(self) -> Packed:
        """The ends, and the rows of the tensor."""
        return Packed(self.ends, b.extent(self.tensor, 0))

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """The rows between two ends; no rows where the second end is below the first."""
        total = b.extent(self.tensor, 0)
        begin, end = (b.element(self.ends, [i]) for i in (batch, b.INT.add(batch, 1)))
        begin = b.INT.min(b.INT.max(begin, 0), total)
        end = b.INT.min(b.INT.max(end, begin), total)
        return Sequence((), begin, b.INT.min(b.INT.sub(end, begin), self.most), False)


@dataclass(frozen=True)
class Shortened(SharedByQueries):
    """Sequences of which some positions are left out.

    Attributes:
      inner: the whole sequences.
    """

    inner: Sequences
    differ = True

    def count(self) -> Value:
        """As `inner`."""
        return self.inner.count()

    def longest(self) -> Value:
        """As `inner`, of which these are parts."""
        return self.inner.longest()


@dataclass(frozen=True)
class Limited(Shortened):
    """Sequences of which only the first `lengths[b]` positions exist.

    Attributes:
      lengths: [batch], i32.
      excludes_queries: the positions of the queries come on top of these lengths.
    """

    lengths: Value
    excludes_queries: bool

    @property
    def lists(self) -> tuple[Value, ...]:
        """The lengths, and those of `inner`."""
        return (self.lengths, *self.inner.lists)

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """The sequence with its length from the array, clamped to 0 and the length in `inner`."""
        inner_sequence = self.inner.of(batch, queries)
        length = b.element(self.lengths, [batch])
        if self.excludes_queries:
            assert queries is not None
            length = b.INT.add(length, queries.length)
        length = b.INT.min(b.INT.max(length, 0), inner_sequence.length)
        return Sequence(inner_sequence.lead, inner_sequence.start, length, False)


@dataclass(frozen=True)
class LimitedQueries(Limited):
    """Queries of which only the first `lengths[b]` exist."""

    inner: QuerySequences

    def packed(self) -> Packed | None:
        """As `inner`."""
        return self.inner.packed()


@dataclass(frozen=True)
class Selected(SharedByQueries):
    """Sequences chosen from others: b is sequence indices[b] of `inner`.

    Attributes:
      inner: the sequences to choose from.
      indices: [batch], i32.
    """

    inner: Sequences
    indices: Value

    @property
    def differ(self) -> bool:
        """As `inner`."""
        return self.inner.differ

    @property
    def lists(self) -> tuple[Value, ...]:
        """The indices, and those of `inner`."""
        return (self.indices, *self.inner.lists)

    def count(self) -> Value:
        """Number of indices."""
        return b.extent(self.indices, 0)

    def longest(self) -> Value:
        """As `inner`."""
        return self.inner.longest()

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """The chosen sequence; an index outside is clamped."""
        last = b.INT.sub(self.inner.count(), 1)
        index = b.INT.min(b.INT.max(b.element(self.indices, [batch]), 0), last)
        return self.inner.of(index, queries)


@dataclass(frozen=True)
class Trimmed(Shortened):
    """Sequences without the padding at their beginning.

    Attributes:
      counts: [batch], i32: positions of padding of each.
    """

    counts: Value

    @property
    def lists(self) -> tuple[Value, ...]:
        """The counts, and those of `inner`."""
        return (self.counts, *self.inner.lists)

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """The sequence after its padding; of length 0 where all of it is padding."""
        inner_sequence = self.inner.of(batch, queries)
        count = b.INT.min(b.INT.max(b.element(self.counts, [batch]), 0), inner_sequence.length)
        return Sequence(
            inner_sequence.lead,
            inner_sequence.row(count),
            b.INT.sub(inner_sequence.length, count),
            False,
        )
