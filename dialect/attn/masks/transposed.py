"""A mask seen from either side: which keys a query sees, or which queries see a key."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from .arithmetic import Arith, ColumnRange, RowRange, TileRange
from .base import Edges, Mask

T = TypeVar("T")


class Sight(Protocol):
    """Which columns of a matrix each row sees; in numbers of rows and columns of the matrix.

    A `Mask` is one whose rows are queries and whose columns are keys, `Transposed` one whose rows
    are keys. The methods are those of `Mask`.
    """

    @property
    def edges(self) -> Edges:
        """The edges of visibility from a row to the columns."""
        ...

    @property
    def is_interval(self) -> bool:
        """Whether each row sees one interval of columns."""
        ...

    def column_range(
        self, ops: Arith[T], row: T, rows: T, columns: T, /
    ) -> ColumnRange[T] | RowRange[T]:
        """The columns that a row sees, where these are an interval."""
        ...

    def element(self, ops: Arith[T], row: T, column: T, rows: T, columns: T, /) -> T:
        """Whether a row sees a column, with the column as left operand of each comparison."""
        ...

    def tile_range(
        self, ops: Arith[T], row0: T, count: int, rows: T, columns: T, width: int, /
    ) -> TileRange[T]:
        """The tiles of `width` columns that rows [row0, row0 + count) have to visit."""
        ...


@dataclass(frozen=True)
class Transposed:
    """A mask as its keys see it: a `Sight` whose rows are keys and whose columns are queries.

    Keys past the end of their sequence may see anything. Queries past theirs are seen by no key in
    tiles that are tested against both edges, and may be seen in others, see
    `Mask.query_tile_range`.

    Attributes:
      mask: which keys a query sees.
    """

    mask: Mask

    @property
    def edges(self) -> Edges:
        """Those from keys to queries."""
        return self.mask.row_edges

    @property
    def is_interval(self) -> bool:
        """As of the mask."""
        return self.mask.is_interval

    def column_range(self, ops: Arith[T], row: T, rows: T, columns: T, /) -> RowRange[T]:
        """The queries that see a key."""
        return self.mask.row_range(ops, row, columns, rows)

    def element(self, ops: Arith[T], row: T, column: T, rows: T, columns: T, /) -> T:
        """Whether the query `column` sees the key `row`."""
        return self.mask.transposed_element(ops, column, row, columns, rows)

    def tile_range(
        self, ops: Arith[T], row0: T, count: int, rows: T, columns: T, width: int, /
    ) -> TileRange[T]:
        """The tiles of queries that see keys [row0, row0 + count)."""
        return self.mask.query_tile_range(ops, row0, count, columns, rows, width)
