"""The mask that hides nothing: every query sees every key."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from attn_mlir.dialect.attn.masks.base import Arith, ColumnRange, Mask, TileRange

T = TypeVar("T")


@dataclass(frozen=True)
class NullMask(Mask):
    """Full attention."""

    keyword: ClassVar[str] = "null"

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: always, for a column that exists."""
        return (q >= 0) & (k < sk)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """All columns."""
        return ColumnRange(ops.const(0), sk)

    def tile_range(
        self, ops: Arith[T], row0: T, rows: int, sq: T, sk: T, tile_n: int
    ) -> TileRange[T]:
        """All tiles; only a last one that reaches past `sk` needs a test.

        sk 300, tiles of 128 columns: tiles 0 and 1 are full, tile 2 holds 44 columns: (0, 2, 3).
        """
        width = ops.const(tile_n)
        return TileRange(ops.const(0), ops.floordiv(sk, width), ops.ceildiv(sk, width))
