"""Which side of the scores stands still while tiles of the other one stream past it.

A work tile of a kernel is some rows of scores, which it keeps; their columns come and go:

```text
                   rows                 columns
QUERIES_STAND      queries              keys and values stream      O, LSE, dQ
KEYS_STAND         keys and values      queries and dO stream       dK, dV
```
All that there is one of for queries and one of for keys (sequences, lengths, numbers of heads,
coordinates) is put into the order of rows and columns by the direction. Nothing else asks for it.
"""

from typing import Protocol, TypeVar

from attn_mlir.dialect.attn.masks import Mask, Sight, Transposed

T = TypeVar("T")


class Direction(Protocol):
    """Which side has the rows of a tile of scores, and which the columns."""

    def sight(self, mask: Mask, /) -> Sight:
        """Which columns a row sees."""
        ...

    def ordered(self, queries: T, keys: T, /) -> tuple[T, T]:
        """What belongs to rows and what to columns, of what belongs to queries and to keys.

        It is its own inverse: of what belongs to rows and to columns it gives what belongs to
        queries and to keys.
        """
        ...


class _RowsAreQueries:
    """Tiles of keys stream past queries."""

    def sight(self, mask: Mask, /) -> Sight:
        """The mask, which is made for this direction."""
        return mask

    def ordered(self, queries: T, keys: T, /) -> tuple[T, T]:
        """As they are."""
        return queries, keys


class _RowsAreKeys:
    """Tiles of queries stream past keys."""

    def sight(self, mask: Mask, /) -> Sight:
        """The mask as keys see it."""
        return Transposed(mask)

    def ordered(self, queries: T, keys: T, /) -> tuple[T, T]:
        """Keys first."""
        return keys, queries


ROWS_ARE_QUERIES: Direction = _RowsAreQueries()
ROWS_ARE_KEYS: Direction = _RowsAreKeys()
