"""Where the sequences of a batch lie and how long they are: the storage side of the schedule.

A work tile belongs to one sequence. What the parts need of it is a `Sequence`; what the storage
operations of the `attn` dialect say is turned into one here. Numbers read from index arrays are
moved into the tensor, so that no array makes a kernel leave it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from attn_mlir.dialect import attn
from attn_mlir.passes.infrastructure.diagnostics import op_error

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
class Limited:
    """Sequences of which only the first so many positions exist.

    Attributes:
      inner: where they lie.
      lengths: [batch], i32.
      excludes_queries: the lengths do not count the queries' own positions.
    """

    inner: Sequences
    lengths: Value
    excludes_queries: bool
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

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """Shorter, and neither below 0 nor longer than before."""
        found = self.inner.of(batch, queries)
        length = b.element(self.lengths, [batch])
        if self.excludes_queries:
            assert queries is not None
            length = b.INT.add(length, queries.length)
        length = b.INT.min(b.INT.max(length, 0), found.length)
        return Sequence(found.lead, found.start, length, False)


def root(operand: Value) -> Value:
    """The stored tensor of an operand of `attn.mha`."""
    owner = operand.owner
    if isinstance(owner, attn.RaggedOp):
        return owner.rows
    if isinstance(owner, (attn.LimitedOp, attn.ScaledOp)):
        return root(owner.source)
    return operand


def sequences_of(operand: Value, tensor: Value, arguments: Mapping[Value, Value]) -> Sequences:
    """The sequences of an operand of `attn.mha`.

    Args:
      operand: a tensor, or a view that storage operations made.
      tensor: the kernel's argument that holds its elements.
      arguments: what the storage operations read, as arguments of the kernel.
    """
    owner = operand.owner
    if isinstance(owner, attn.RaggedOp):
        return Ragged(tensor, arguments[owner.offsets], arguments[owner.longest])
    if isinstance(owner, attn.LimitedOp):
        inner = sequences_of(owner.source, tensor, arguments)
        return Limited(inner, arguments[owner.lengths], owner.excludes_queries)
    if isinstance(owner, attn.ScaledOp):
        return sequences_of(owner.source, tensor, arguments)
    return Dense(tensor)


def check_storage(op: attn.MhaOp) -> None:
    """Refuses storage that the schedule has no source for.

    Raises:
      VerifyError: k and v lie differently, or lengths of queries do not count the queries.
    """
    if _steps(op.k) != _steps(op.v):
        raise op_error(op, "expects k and v to be stored alike, by the same offsets and lengths")
    if any(excludes for _, _, excludes in _steps(op.q)):
        raise op_error(op, "expects the lengths of q to count the queries")


def _steps(operand: Value) -> list[tuple[str, list[Value], bool]]:
    """What the storage operations do to an operand, its own tensor left out."""
    owner = operand.owner
    if isinstance(owner, attn.RaggedOp):
        return [("ragged", [owner.offsets, owner.longest], False)]
    if isinstance(owner, attn.LimitedOp):
        step = ("limited", [owner.lengths], owner.excludes_queries)
        return [*_steps(owner.source), step]
    return _steps(owner.source) if isinstance(owner, attn.ScaledOp) else []


def is_ragged(op: attn.MhaOp) -> bool:
    """Whether the queries of all sequences lie in one dimension."""
    return attn.stored_type(op.q).rank < attn.logical_type(op.q).rank


def has_padded_queries(op: attn.MhaOp) -> bool:
    """Whether the queries of a sequence end before its dimension does.

    A tensor map of those has a dimension for that, and none is left for packed heads.
    """
    owner = op.q.owner
    while isinstance(owner, attn.ScaledOp):
        owner = owner.source.owner
    return isinstance(owner, attn.LimitedOp) and not is_ragged(op)
