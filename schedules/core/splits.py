"""Splits of the keys (split-KV): the tiles of each split and the place of its results.

If another kernel combines the splits, their results lie one after the other along the first
dimension of O and of LSE's sequences: split p of sequence b is at p x batch + b, split p of row r
at p x total + r. If the kernel combines them itself, they lie in a workspace. Each split of a
sequence has its own work tiles.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from .. import emit as b
from ..operands.sequences import Sequence

Value = Any


class Split(NamedTuple):
    """One split of the keys of a work tile.

    Attributes:
      number, count: number of the split, and of how many.
      offset: sequences, or rows, before its results.
      size: its tiles; None for equal shares.
    """

    number: Value
    count: Value
    offset: Value
    size: int | None = None

    def tiles(self, begin: Value, end: Value) -> tuple[Value, Value]:
        """The split's range of a range of tiles: equal shares, one more in the first splits.

        Split p of P begins at p (T / P) + min(p, T mod P) of T tiles. With a fixed size S it begins
        at p S, so that the splits of a sequence do not depend on longer sequences of the batch.
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
    """The splits of a kernel's keys, whose results another kernel combines.

    Attributes:
      results: O, memref.
      queries: Q, memref; its first extent is that of the results of one split.
      size: tiles of a split; None for equal shares. The splits cover the longest sequence.
      stores_partials: whether O and LSE hold the results of each split.
    """

    results: Value
    queries: Value
    stores_partials: ClassVar[bool] = True
    size: int | None = field(default=None, kw_only=True)

    def count(self) -> Value:
        """Number of splits, by the extent of the results."""
        return b.INT.floordiv(b.extent(self.results, 0), b.INT.max(b.extent(self.queries, 0), 1))

    def of(self, number: Value, batch: Value) -> tuple[Split, Value]:
        """The split and the sequence of a work tile.

        Args:
          number: split x batch + sequence.
          batch: number of sequences.
        """
        split = b.INT.floordiv(number, batch)
        offset = b.INT.mul(split, b.extent(self.queries, 0))
        sequence = b.INT.sub(number, b.INT.mul(split, batch))
        return Split(split, self.count(), offset, self.size), sequence

    def destination(self, split: Split, queries: Sequence) -> Sequence:
        """The rows of O and LSE for a split of a sequence of queries."""
        return queries.shifted(split.offset)


class Workspace(NamedTuple):
    """Workspace of a kernel that combines splits, as operands of `attn.join`."""

    accumulators: Value
    extremes: Value
    arrived: Value


@dataclass(frozen=True)
class CombinedSplits(Splits):
    """Splits that the kernel combines itself.

    Attributes:
      memory: the workspace.
    """

    memory: Workspace
    stores_partials: ClassVar[bool] = False

    def count(self) -> Value:
        """Number of splits, by the extent of the workspace."""
        return b.extent(self.memory.accumulators, 0)

    def destination(self, split: Split, queries: Sequence) -> Sequence:
        """The rows of O and LSE of the queries."""
        return queries
