"""The sliding window: a row sees some keys before its own position and some after it.

left 1, right 0, sq 3, sk 4 (x: visible):      left 0, right 2, sq 3, sk 2; row 0 has p = -1.

        k 0 1 2 3                                      k 0 1
    q 0   x x . .                                  q 0   x x
    q 1   . x x .                                  q 1   x x
    q 2   . . x x                                  q 2   . x
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from attn_mlir.errors import SpecError

from .arithmetic import Arith, ColumnRange, in_digits
from .base import Edges, Mask, check_parameter
from .causal import causal
from .null import full
from .registry import makes

T = TypeVar("T")

UNLIMITED = -1


@dataclass(frozen=True)
class WindowMask(Mask):
    """Row q, with p = q + sk - sq, sees column k if and only if p - left <= k <= p + right.

    Attributes:
      left: keys before the row's own position, or -1 for all of them.
      right: keys after it, or -1 for all.

    Raises:
      SpecError: a limit below -1, or above 2^30.
    """

    left: int
    right: int

    keyword: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        check_parameter("window left", self.left, at_least=UNLIMITED)
        check_parameter("window right", self.right, at_least=UNLIMITED)

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Row q sees column k: it exists, within the limits around the row's own position."""
        distance = k - (q + (sk - sq))
        seen = (q >= 0) & (k < sk)
        if self.left != UNLIMITED:
            seen = seen & (distance >= -self.left)
        if self.right != UNLIMITED:
            seen = seen & (distance <= self.right)
        return seen

    @property
    def edges(self) -> Edges:
        """The sides that have a limit."""
        return Edges(left=self.left != UNLIMITED, right=self.right != UNLIMITED)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """Columns around the row's own position."""
        position = ops.add(row, ops.sub(sk, sq))
        begin, end = ops.const(0), sk
        if self.left != UNLIMITED:
            begin = ops.max(ops.sub(position, ops.const(self.left)), begin)
        if self.right != UNLIMITED:
            end = ops.min(ops.add(position, ops.const(self.right + 1)), end)
        return ColumnRange(begin, end)

    @property
    def name(self) -> str:
        """`window_127_0`; `inf` where there is no limit."""
        return f"window_{_text(self.left)}_{_text(self.right)}"

    def __str__(self) -> str:
        """`window:127,0`; `inf` where there is no limit."""
        return f"window:{_text(self.left)},{_text(self.right)}"


def _text(limit: int) -> str:
    return "inf" if limit == UNLIMITED else in_digits(limit)


@makes(
    WindowMask,
    example=WindowMask(127, 0),
    usage="window:LEFT or window:LEFT,RIGHT",
    note="keys before a query and behind it; window:127 for none behind, window:127,64, "
    "inf for all",
)
def sliding_window(left: int | None, right: int | None = 0) -> Mask:
    """A query sees its own position, `left` keys before it and `right` keys after it.

    Args:
      left, right: at least 0; None for no limit.

    Raises:
      SpecError: a limit below 0, or above 2^30.
    """
    for name, limit in (("left", left), ("right", right)):
        if limit is not None and (type(limit) is not int or limit < 0):
            raise SpecError(
                f"{name} of a sliding window must be an integer of at least 0, or None for no "
                f"limit (-1 in #attn.window, inf on the command line), got {limit!r:.40}"
            )
    if left is None and right is None:
        return full()
    if left is None and right == 0:
        return causal()
    return WindowMask(UNLIMITED if left is None else left, UNLIMITED if right is None else right)
