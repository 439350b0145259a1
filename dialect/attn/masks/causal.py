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

from .arithmetic import Arith, ColumnRange
from .base import Edges, Mask
from .registry import makes

T = TypeVar("T")


@dataclass(frozen=True)
class CausalMask(Mask):
    """Row q sees column k if and only if k <= q + sk - sq."""

    keyword: ClassVar[str] = "causal"

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: it exists, and lies at most on the row's diagonal element."""
        return (k < sk) & (k <= q + (sk - sq))

    @property
    def edges(self) -> Edges:
        """The diagonal."""
        return Edges(left=False, right=True)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """Columns up to the diagonal element of the row."""
        diagonal = ops.add(row, ops.sub(sk, sq))
        return ColumnRange(ops.const(0), ops.min(ops.add(diagonal, ops.const(1)), sk))

    @property
    def name(self) -> str:
        """`causal`."""
        return "causal"

    def __str__(self) -> str:
        """`causal`."""
        return "causal"


@makes(CausalMask, example=CausalMask(), usage="causal")
def causal() -> Mask:
    """Query i of sq sees keys 0 ... i + sk - sq: the last query sees the last key.

    A query that sees no key gives 0 and an LSE of minus infinity.
    """
    return CausalMask()
