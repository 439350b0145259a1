"""Prefix language models: every row sees the prefix, and causally what follows it.

length 2, sq 3, sk 4 (x: visible):      length 2, sq 3, sk 2:

        k 0 1 2 3                               k 0 1
    q 0   x x . .                           q 0   x x
    q 1   x x x .                           q 1   x x
    q 2   x x x x                           q 2   x x
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .arithmetic import Arith, ColumnRange, in_digits
from .base import Edges, Mask, check_parameter
from .causal import causal
from .registry import makes

T = TypeVar("T")


@dataclass(frozen=True)
class PrefixMask(Mask):
    """Row q sees column k if and only if k < length or k <= q + sk - sq.

    Attributes:
      length: keys of the prefix.

    Raises:
      SpecError: a length that is not from 0 to 2^30.
    """

    length: int

    keyword: ClassVar[str] = "prefix"

    def __post_init__(self) -> None:
        check_parameter("prefix length", self.length, at_least=0)

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: it exists, in the prefix or at most on the row's diagonal
        element.
        """
        return (k < sk) & ((k < self.length) | (k <= q + (sk - sq)))

    @property
    def edges(self) -> Edges:
        """The diagonal."""
        return Edges(left=False, right=True)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """Columns up to the end of the prefix or the diagonal element, whichever is later."""
        after = ops.add(row, ops.add(ops.sub(sk, sq), ops.const(1)))
        return ColumnRange(ops.const(0), ops.min(ops.max(after, ops.const(self.length)), sk))

    @property
    def name(self) -> str:
        """`prefix_64`."""
        return f"prefix_{self.length}"

    def __str__(self) -> str:
        """`prefix:64`."""
        return f"prefix:{in_digits(self.length)}"


@makes(PrefixMask, example=PrefixMask(64), usage="prefix:LENGTH")
def prefix_lm(length: int) -> Mask:
    """A query sees the first `length` keys, and the keys after them causally.

    Raises:
      SpecError: a length that is not from 0 to 2^30.
    """
    mask = PrefixMask(length)
    return mask if length else causal()
