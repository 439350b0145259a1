"""Causal attention between blocks: a row sees the keys of its own block, and of all before it.

size 2, sq 4, sk 4 (x: visible):

        k 0 1 2 3
    q 0   x x . .
    q 1   x x . .
    q 2   x x x x
    q 3   x x x x
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from attn_mlir.dialect.attn.masks import Arith, ColumnRange, Edges, Mask, makes
from attn_mlir.dialect.attn.masks.base import check_parameter

T = TypeVar("T")


@dataclass(frozen=True)
class BlockCausalMask(Mask):
    """Row q, with p = q + sk - sq, sees column k if and only if k // size <= p // size.

    Attributes:
      size: keys of a block.
    """

    size: int

    keyword: ClassVar[str] = "block_causal"

    def __post_init__(self) -> None:
        check_parameter("block size", self.size, at_least=1)

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: it exists, in the row's block or in one before it."""
        return (k < sk) & (k // self.size <= (q + (sk - sq)) // self.size)

    @property
    def edges(self) -> Edges:
        """The end of the row's block."""
        return Edges(left=False, right=True)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """All columns up to the end of the row's block; none for a row before key 0."""
        zero, size = ops.const(0), ops.const(self.size)
        after = ops.max(ops.add(row, ops.add(ops.sub(sk, sq), ops.const(1))), zero)  # p + 1
        return ColumnRange(zero, ops.min(ops.mul(ops.ceildiv(after, size), size), sk))

    @property
    def name(self) -> str:
        """`block_causal_32`."""
        return f"block_causal_{self.size}"

    def __str__(self) -> str:
        """`block_causal:32`."""
        return f"block_causal:{self.size}"


@makes(BlockCausalMask, example=BlockCausalMask(32), usage="block_causal:SIZE")
def block_causal(size: int) -> Mask:
    """A query sees the keys of its own block of `size` keys, and of all blocks before it."""
    return BlockCausalMask(size)
