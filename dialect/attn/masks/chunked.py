"""Chunks: a row sees the keys of the chunk that contains its own position, and no others.

size 2, sq 3, sk 4 (x: visible):

        k 0 1 2 3
    q 0   x x . .     p = 1
    q 1   . . x x     p = 2
    q 2   . . x x     p = 3
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .arithmetic import Arith, ColumnRange, in_digits
from .base import Edges, Mask, check_parameter
from .registry import makes

T = TypeVar("T")


@dataclass(frozen=True)
class ChunkedMask(Mask):
    """Row q, with p = q + sk - sq, sees column k if and only if p and k lie in one chunk.

    Attributes:
      size: keys per chunk; chunk i holds [i x size, (i + 1) x size).

    Raises:
      SpecError: a size that is not from 1 to 2^30.
    """

    size: int

    keyword: ClassVar[str] = "chunked"

    def __post_init__(self) -> None:
        check_parameter("chunk size", self.size, at_least=1)

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: it exists, in the same chunk; rows before key 0 see nothing."""
        return (k < sk) & ((q + (sk - sq)) // self.size == k // self.size)

    @property
    def edges(self) -> Edges:
        """Both ends of a chunk."""
        return Edges(left=True, right=True)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """The row's chunk; nothing for a row before key 0."""
        zero, size = ops.const(0), ops.const(self.size)
        after = ops.max(ops.add(row, ops.add(ops.sub(sk, sq), ops.const(1))), zero)  # p + 1
        end = ops.mul(ops.ceildiv(after, size), size)
        return ColumnRange(ops.max(ops.sub(end, size), zero), ops.min(end, sk))

    @property
    def name(self) -> str:
        """`chunked_512`."""
        return f"chunked_{self.size}"

    def __str__(self) -> str:
        """`chunked:512`."""
        return f"chunked:{in_digits(self.size)}"


@makes(ChunkedMask, example=ChunkedMask(512), usage="chunked:SIZE")
def chunked(size: int) -> Mask:
    """A query sees the keys of the chunk that contains its own position.

    Chunk c holds keys c x size ... (c + 1) x size - 1; `chunked(size) & causal()` for local causal
    attention.

    Raises:
      SpecError: a size that is not from 1 to 2^30.
    """
    return ChunkedMask(size)
