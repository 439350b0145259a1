"""Masks of shards: rows and columns are part of a longer sequence and begin at offsets in it.

Row i is the query at position i + q_offset, column j the key at position j + k_offset. Positions
take the place of the alignment at the bottom right: p = i + q_offset. With q_offset = k_offset + sk
- sq a shifted mask of keys from 0 on is the mask itself.

causal, q_offset 3, k_offset 2, sq 2, sk 3 (x: visible):

                k 0 1 2
    position      2 3 4
    q 0 at 3      x x .
    q 1 at 4      x x x

Offsets are numbers of the arithmetic, so a kernel may read them. The masks' own formulas give the
ranges: a row of a shard has the position that a row of a sequence of k_offset + sk keys and
k_offset + sk - q_offset queries has.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, ClassVar, TypeVar

from attn_mlir.errors import SpecError, no_kernel

from .arithmetic import INTS, Arith, ColumnRange, RowRange, TileRange, ordered
from .base import Edges, Mask
from .combined import AndMask, NotMask, OrMask
from .inverse import Fixed, RowsOf, rows_seeing
from .null import NullMask

T = TypeVar("T")

CONTEXT = "with q_offset or k_offset"
_ROWS, _POSITIONS = (0, 1, 40, 3000), (-300, -1, 0, 1, 9, 130, 700, 9000)
_KEYS = (1, 7, 64, 333, 5000, 70000)
MAX_OFFSET = 2**29  # so that a position plus a parameter of a mask stays within 32 bits


def shifted(mask: Mask, q_offset: Any, k_offset: Any) -> Mask:
    """The mask of rows and columns whose first ones are at these positions.

    Args:
      q_offset: position of row 0, at most 2^29 from 0. A row may have a position below 0; of the
        masks here only `full`, prefixes and limits on the right show it any key then.
      k_offset: position of column 0, from 0 to 2^29.

    Raises:
      SpecError: a mask that is no interval mask, and no combination or complement of such; one
        whose formula is found to be of the sequence's lengths.
    """
    if isinstance(mask, NullMask):
        return mask
    if mask.is_interval:
        if not _is_of_positions(mask):
            reason = "its column_range uses sq, or sk, for more than positions and the last column"
            raise SpecError(no_kernel(f"mask {mask}", reason, context=CONTEXT))
        return ShiftedMask(mask, q_offset, k_offset)
    if isinstance(mask, AndMask | OrMask):
        return type(mask)(*(shifted(x, q_offset, k_offset) for x in (mask.left, mask.right)))
    if isinstance(mask, NotMask):
        return NotMask(shifted(mask.mask, q_offset, k_offset))
    raise SpecError(no_kernel(f"mask {mask}", "it is no interval mask", context=CONTEXT))


@lru_cache(maxsize=256)
def _is_of_positions(mask: Mask) -> bool:
    """Whether, for some sizes, a row's interval depends on its position alone, cut off at sk."""

    def interval(position: int, row: int, sk: int) -> range:
        columns = mask.column_range(INTS, row, row + sk - position, sk)
        return range(columns.begin if mask.edges.left else 0, columns.end)

    for position, (keys, more) in product(_POSITIONS, pairwise(_KEYS)):
        longer = interval(position, 0, more)
        cut = range(longer.start, min(longer.stop, keys))
        found = [interval(position, row, keys) for row in _ROWS]
        if any(x != cut and (x or cut) for x in found):
            return False
    return True


@dataclass(frozen=True)
class ShiftedMask(Mask):
    """An interval mask at offsets, as `shifted` makes it. Tile ranges are exact both ways.

    Attributes:
      mask: an interval mask, over positions.
      q_offset, k_offset: as of `shifted`.
    """

    mask: Mask
    q_offset: Any
    k_offset: Any

    keyword: ClassVar[str] = "shifted"  # of no attribute: offsets are operands

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """As the mask says of their positions; the column exists."""
        end = sk + self.k_offset
        return self.mask.visible(q, k + self.k_offset, end - self.q_offset, end)

    @property
    def edges(self) -> Edges:
        """Those of the mask."""
        return self.mask.edges

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """The columns at positions that the row sees; `begin` is at most sk."""
        past = ops.add(sk, self.k_offset)
        begin, end = self.mask.column_range(ops, row, ops.sub(past, self.q_offset), past)
        end = ops.sub(end, self.k_offset)
        if not self.edges.left:
            return ColumnRange(ops.const(0), end)
        begin = ops.max(ops.sub(begin, self.k_offset), ops.const(0))
        return ColumnRange(ops.min(begin, sk), end)

    def row_range(self, ops: Arith[T], column: T, sq: T, sk: T) -> RowRange[T]:
        """The rows that see the column's position; `begin` is at most sq."""

        def columns_of(numbers: RowsOf[T], row: Any, _: Any, past: Any) -> ColumnRange[Any]:
            return self.mask.column_range(
                numbers, row, numbers.sub(past, Fixed(self.q_offset)), past
            )

        column, past = (ops.add(x, self.k_offset) for x in (column, sk))
        begin, end = rows_seeing(columns_of, ops, column, sq, past)
        return RowRange(ops.min(begin, sq) if self.row_edges.left else begin, end)

    def tile_range(
        self, ops: Arith[T], row0: T, rows: int, sq: T, sk: T, tile_n: int
    ) -> TileRange[T]:
        """Exact, also for rows whose intervals begin after the last column."""
        span = super().tile_range(ops, row0, rows, sq, sk, tile_n)
        if not self.edges.left:
            return span
        return _none_from(ops, span, self.column_range(ops, row0, sq, sk).begin, sk)

    def query_tile_range(
        self, ops: Arith[T], column0: T, columns: int, sq: T, sk: T, tile_m: int
    ) -> TileRange[T]:
        """Exact, also for columns that rows after the last one see first."""
        span = super().query_tile_range(ops, column0, columns, sq, sk, tile_m)
        if not self.row_edges.left:
            return span
        return _none_from(ops, span, self.row_range(ops, column0, sq, sk).begin, sq)

    @property
    def name(self) -> str:
        """`causal_shifted`."""
        return f"{self.mask.name}_shifted"

    def __str__(self) -> str:
        """`causal at q_offset, k_offset`, for messages."""
        return f"{self.mask} at q_offset, k_offset"


def _none_from(ops: Arith[T], span: TileRange[T], first: T, length: T) -> TileRange[T]:
    """The tiles, or none of them if the first interval begins at `length`, which it is at most.

    Then the tile in which `length` lies is none of those that only a left edge hides: columns past
    the end are not hidden by it.
    """
    is_past = ops.max(ops.add(ops.sub(first, length), ops.const(1)), ops.const(0))  # 0 or 1
    end = ops.sub(span.end, ops.mul(is_past, ops.sub(span.end, span.begin)))
    return ordered(ops, span.begin, span.full_begin, span.full_end, end)
