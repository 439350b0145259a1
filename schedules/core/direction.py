"""Which operand has the rows of S, which a work tile keeps, and which has the columns.

A work tile of a kernel keeps some rows of scores, and iterates over tiles of columns:

```text
                   rows                 columns
QUERIES_STAND      queries              keys and values             O, LSE, dQ
KEYS_STAND         keys and values      queries and dO              dK, dV
```
The direction puts pairs of queries and keys (sequences, lengths, numbers of heads, coordinates)
into the order of rows and columns. No other code asks which one it is.
"""

from typing import Protocol, TypeVar

from attn_mlir.dialect.attn.masks import Mask, Sight, Transposed

T = TypeVar("T")


class Direction(Protocol):
    """The order of queries and keys as rows and columns of S."""

    def sight(self, mask: Mask, /) -> Sight:
        """The columns that a row sees."""
        ...

    def ordered(self, queries: T, keys: T, /) -> tuple[T, T]:
        """The values for rows and for columns, given those for queries and for keys.

        It is its own inverse: it also maps (rows, columns) to (queries, keys).
        """
        ...


class _RowsAreQueries:
    """Rows are queries, columns are keys."""

    def sight(self, mask: Mask, /) -> Sight:
        """The mask itself."""
        return mask

    def ordered(self, queries: T, keys: T, /) -> tuple[T, T]:
        """Queries first."""
        return queries, keys


class _RowsAreKeys:
    """Rows are keys, columns are queries."""

    def sight(self, mask: Mask, /) -> Sight:
        """The transposed mask."""
        return Transposed(mask)

    def ordered(self, queries: T, keys: T, /) -> tuple[T, T]:
        """Keys first."""
        return keys, queries


ROWS_ARE_QUERIES: Direction = _RowsAreQueries()
ROWS_ARE_KEYS: Direction = _RowsAreKeys()
