"""The causal mask, aligned at the bottom right: the last query sees the last key.

sq 2, sk 4 (x: visible):        sq 4, sk 2: rows 0 and 1 see nothing.

        k 0 1 2 3                       k 0 1
    q 0   x x x .                   q 0   . .
    q 1   x x x x                   q 1   . .
                                    q 2   x .
                                    q 3   x x
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from attn_mlir.dialect.attn.masks.base import Arith, ColumnRange, Mask, TileRange

T = TypeVar("T")


@dataclass(frozen=True)
class CausalMask(Mask):
    """Row q sees column k if and only if k <= q + sk - sq."""

    keyword: ClassVar[str] = "causal"

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: it exists, and lies at most on the row's diagonal element."""
        return (k < sk) & (k <= q + (sk - sq))

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """Columns up to the diagonal element of the row."""
        diagonal = ops.add(row, ops.sub(sk, sq))
        return ColumnRange(ops.const(0), ops.min(ops.add(diagonal, ops.const(1)), sk))

    def tile_range(
        self, ops: Arith[T], row0: T, rows: int, sq: T, sk: T, tile_n: int
    ) -> TileRange[T]:
        """Tiles up to the last row's diagonal; full are those that end before the first row's.

        rows 256..511 of sq = sk = 1024, tiles of 128: (0, 2, 4).
        """
        zero, width = ops.const(0), ops.const(tile_n)
        above = ops.add(row0, ops.sub(sk, sq))  # column of the first row's diagonal element
        first = ops.max(ops.min(ops.add(above, ops.const(1)), sk), zero)  # columns row0 sees
        last = ops.max(ops.min(ops.add(above, ops.const(rows)), sk), zero)  # the last row's
        return TileRange(zero, ops.floordiv(first, width), ops.ceildiv(last, width))
