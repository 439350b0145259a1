"""Parts of the keys: where a split kernel puts the results of each, and which tiles a part visits.

Where another kernel puts them together, the results of the parts lie one after the other along the
first dimension of O and of LSE's sequences, each as the result of the whole would: part p of
sequence b is at p x batch + b, part p of row r at p x total + r. Where the kernel does so itself
(`joining`), they lie in memory for that. Work tiles of the parts of a sequence are tiles of their
own.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from .. import emit as b
from ..operands.sequences import Sequence

Value = Any


class Split(NamedTuple):
    """One part: its number, how many there are, and the sequences in front of its results.

    Attributes:
      size: its tiles, where that is fixed.
    """

    number: Value
    count: Value
    offset: Value
    size: int | None = None

    def tiles(self, begin: Value, end: Value) -> tuple[Value, Value]:
        """This part's range of a range of tiles: equal shares, the first ones take the rest.

        Of T tiles in P parts, part p begins at p (T / P) + min(p, T mod P). Of a fixed size S it
        begins at p S: what a sequence's parts are does not depend on how many a longer one has.
        """
        if self.size is not None:
            first = b.INT.min(b.INT.add(begin, b.INT.mul(self.number, self.size)), end)
            is_last = b.INT.floordiv(b.INT.add(self.number, 1), self.count)  # 1, before it 0
            remainder = b.INT.mul(is_last, b.INT.sub(end, begin))
            return first, b.INT.min(b.INT.add(first, b.INT.add(remainder, self.size)), end)
        total = b.INT.sub(end, begin)
        share = b.INT.floordiv(total, self.count)
        remainder = b.INT.sub(total, b.INT.mul(share, self.count))

        def start(number: Value) -> Value:
            return b.INT.add(
                begin, b.INT.add(b.INT.mul(number, share), b.INT.min(number, remainder))
            )

        return start(self.number), start(b.INT.add(self.number, 1))


@dataclass(frozen=True)
class Splits:
    """The parts of a kernel's keys.

    Attributes:
      results: O, memref.
      queries: Q, memref; its first extent is that of one part's results.
      size: tiles of each, if that is fixed; there are then enough for the longest sequence.
      stores_partials: whether O and LSE are the results for each part.
    """

    results: Value
    queries: Value
    stores_partials: ClassVar[bool] = True
    size: int | None = field(default=None, kw_only=True)

    def count(self) -> Value:
        """How many parts: the caller allocates results for as many."""
        return b.INT.floordiv(b.extent(self.results, 0), b.INT.max(b.extent(self.queries, 0), 1))

    def of(self, number: Value, batch: Value) -> tuple[Split, Value]:
        """The part and the sequence of a work tile.

        Args:
          number: of the sequence of one part, counted over all parts.
          batch: sequences.
        """
        split = b.INT.floordiv(number, batch)
        offset = b.INT.mul(split, b.extent(self.queries, 0))
        sequence = b.INT.sub(number, b.INT.mul(split, batch))
        return Split(split, self.count(), offset, self.size), sequence

    def destination(self, split: Split, queries: Sequence) -> Sequence:
        """Where what a work tile of a part finds for a sequence of queries belongs."""
        return queries.shifted(split.offset)


class Workspace(NamedTuple):
    """Memory that parts are put together in, arguments of the kernel as `attn.join` has them."""

    accumulators: Value
    extremes: Value
    arrived: Value


@dataclass(frozen=True)
class CombinedSplits(Splits):
    """Parts that the kernel puts together.

    Attributes:
      memory: where.
    """

    memory: Workspace
    stores_partials: ClassVar[bool] = False

    def count(self) -> Value:
        """As many as there is memory for."""
        return b.extent(self.memory.accumulators, 0)

    def destination(self, split: Split, queries: Sequence) -> Sequence:
        """Where the results for all keys belong."""
        return queries
