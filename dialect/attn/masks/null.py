"""The mask that hides nothing: every query sees every key."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .arithmetic import Arith, ColumnRange
from .base import Edges, Mask
from .registry import makes

T = TypeVar("T")


@dataclass(frozen=True)
class NullMask(Mask):
    """Full attention.

    sk 300, tiles of 128 columns: tiles 0 and 1 are full, tile 2 holds 44 columns: (0, 0, 2, 3).
    """

    keyword: ClassVar[str] = "null"

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: always, for a column that exists."""
        return (q >= 0) & (k < sk)

    @property
    def edges(self) -> Edges:
        """None."""
        return Edges(left=False, right=False)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """All columns."""
        return ColumnRange(ops.const(0), sk)

    @property
    def name(self) -> str:
        """`null`."""
        return "null"

    def __str__(self) -> str:
        """`full`."""
        return "full"


@makes(NullMask, example=NullMask(), usage="full")
def full() -> Mask:
    """Every query sees every key."""
    return NullMask()
