"""Where the sequences of a batch lie and how long they are: the storage side of the schedule.

A work tile belongs to one sequence. What the parts need of it is a `Sequence`; `operands` has one
made of what the storage operations of the `attn` dialect say. Numbers read from index arrays are
moved into the tensor, so that no array makes a kernel leave it.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from . import builder as b

Value = Any


@dataclass(frozen=True)
class Sequence:
    """One sequence of a stored tensor.

    Attributes:
      lead: coordinates in front of the row's: the sequence, where it has a dimension.
      start: row of the tensor where it begins; None for 0.
      length: positions that exist, i32.
      is_whole: the tensor ends where the sequence ends, so that copies stop by themselves.
    """

    lead: tuple[Value, ...]
    start: Value | None
    length: Value
    is_whole: bool

    def row(self, position: Value) -> Value:
        """Row of the tensor that holds a position."""
        return position if self.start is None else b.INT.add(self.start, position)

    def moved(self, by: Value) -> "Sequence":
        """Moved by whole sequences in a dense tensor, by rows in one of all sequences' rows."""
        if self.start is None:
            first, *others = self.lead
            return replace(self, lead=(b.INT.add(first, by), *others))
        return replace(self, start=b.INT.add(self.start, by))

    def within(self, tensor: Value, dim: int) -> Value:
        """The tensor as if it ended with the sequence; its rows run along `dim`."""
        return tensor if self.is_whole else b.limit(tensor, self.row(self.length), dim)


class Sequences(Protocol):
    """The sequences of one operand."""

    def count(self) -> Value:
        """How many there are: the batch."""
        ...

    def longest(self) -> Value:
        """A bound of their lengths that is known at launch."""
        ...

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """One of them; `queries` is the sequence of queries that looks at these keys."""
        ...

    def packed(self) -> tuple[Value, Value]:
        """The ends of sequences that lie one after the other, and the rows of the tensor."""
        ...

    @property
    def differ(self) -> bool:
        """Whether their lengths may differ."""
        ...


@dataclass(frozen=True)
class Dense:
    """[batch, sequence, heads, columns]: all are equally long."""

    tensor: Value
    differ = False

    def count(self) -> Value:
        """The tensor's first extent."""
        return b.extent(self.tensor, 0)

    def longest(self) -> Value:
        """The tensor's second extent."""
        return b.extent(self.tensor, 1)

    def packed(self) -> tuple[Value, Value]:
        """They do not: `attn-configure` asks for no order that needs it."""
        raise AssertionError("sequences have a dimension of their own")

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """One row of matrices."""
        return Sequence((batch,), None, self.longest(), True)


@dataclass(frozen=True)
class Ragged:
    """[total, heads, columns] with sequence b from row ends[b] to before row ends[b + 1].

    Attributes:
      tensor: the rows.
      ends: [batch + 1], i32.
      most: i32, no sequence has more rows.
    """

    tensor: Value
    ends: Value
    most: Value
    differ = True

    def count(self) -> Value:
        """One less than there are ends."""
        return b.INT.sub(b.extent(self.ends, 0), 1)

    def longest(self) -> Value:
        """What the caller says."""
        return self.most

    def packed(self) -> tuple[Value, Value]:
        """They do."""
        return self.ends, b.extent(self.tensor, 0)

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """Rows between two ends; none where they are in the wrong order."""
        total = b.extent(self.tensor, 0)
        begin, end = (b.element(self.ends, [i]) for i in (batch, b.INT.add(batch, 1)))
        begin = b.INT.min(b.INT.max(begin, 0), total)
        end = b.INT.min(b.INT.max(end, begin), total)
        return Sequence((), begin, b.INT.min(b.INT.sub(end, begin), self.most), False)


@dataclass(frozen=True)
class _Shortened:
    """Sequences of which some positions do not count.

    Attributes:
      inner: where they lie.
    """

    inner: Sequences
    differ = True

    def count(self) -> Value:
        """As many as before."""
        return self.inner.count()

    def longest(self) -> Value:
        """At most as before."""
        return self.inner.longest()

    def packed(self) -> tuple[Value, Value]:
        """As before."""
        return self.inner.packed()


@dataclass(frozen=True)
class Limited(_Shortened):
    """Sequences of which only the first so many positions exist.

    Attributes:
      lengths: [batch], i32.
      excludes_queries: the lengths do not count the queries' own positions.
    """

    lengths: Value
    excludes_queries: bool

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """Shorter, and neither below 0 nor longer than before."""
        found = self.inner.of(batch, queries)
        length = b.element(self.lengths, [batch])
        if self.excludes_queries:
            assert queries is not None
            length = b.INT.add(length, queries.length)
        length = b.INT.min(b.INT.max(length, 0), found.length)
        return Sequence(found.lead, found.start, length, False)


@dataclass(frozen=True)
class Selected:
    """Sequence b is sequence indices[b] of others.

    Attributes:
      inner: the others.
      indices: [batch], i32.
    """

    inner: Sequences
    indices: Value

    @property
    def differ(self) -> bool:
        """As before."""
        return self.inner.differ

    def count(self) -> Value:
        """As many as there are indices."""
        return b.extent(self.indices, 0)

    def longest(self) -> Value:
        """As before."""
        return self.inner.longest()

    def packed(self) -> tuple[Value, Value]:
        """Never of queries, whose order it would tell."""
        raise AssertionError("queries are not selected")

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """The one with that index, moved into range."""
        last = b.INT.sub(self.inner.count(), 1)
        index = b.INT.min(b.INT.max(b.element(self.indices, [batch]), 0), last)
        return self.inner.of(index, queries)


@dataclass(frozen=True)
class Trimmed(_Shortened):
    """Sequences without the padding in front of them.

    Attributes:
      counts: [batch], i32: positions of padding.
    """

    counts: Value

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """Begins later; of no length where all of it is padding."""
        found = self.inner.of(batch, queries)
        count = b.INT.min(b.INT.max(b.element(self.counts, [batch]), 0), found.length)
        return Sequence(found.lead, found.row(count), b.INT.sub(found.length, count), False)
