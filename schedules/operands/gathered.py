"""Keys in indexed rows, with a list per query: copied by threads, 16 bytes each.

No address depends on an unchecked index: one outside the rows reads as zeros, since the mask hides
its score. Entries are read a tile ahead of their rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import emit as b
from .sequences import Sequence

Value = Any


@dataclass(frozen=True)
class IndirectRows:
    """The lists as sequences of keys: one for each query.

    Attributes:
      rows: [rows, columns].
      indices: [batch, sq, topk], i32.
      lengths: [batch, sq], i32; None where all entries count.
    """

    rows: Value
    indices: Value
    lengths: Value | None
    differ = True

    @property
    def lists(self) -> tuple[Value, ...]:
        """None: they are read entry by entry."""
        return ()

    def count(self) -> Value:
        """The first extent of the lists."""
        return b.extent(self.indices, 0)

    def longest(self) -> Value:
        """Entries of a list."""
        return b.extent(self.indices, 2)

    def of(self, batch: Value, queries: Sequence | None = None) -> Sequence:
        """All entries of a list."""
        return Sequence((), None, self.longest(), False)

    def of_query(self, batch: Value, queries: Sequence, position: Callable[[], Value]) -> Sequence:
        """The entries of one query's list that count."""
        query, length = position(), self.longest()
        if self.lengths is not None:
            listed = b.element(self.lengths, [batch, query])
            length = b.INT.min(b.INT.max(listed, 0), length)
        return Sequence((), None, length, False)
