"""Turns the formula for the columns of a row into one for the rows that see a column.

The ends of an interval mask are formulas of the row that never decrease: sums, products, quotients,
maxima and minima. So an end lies above a column k from one row on, and that row follows from the
formula, operation by operation, from the outermost one inwards:

    a + c > k      iff  a > k - c              max(a, b) > k  iff  a > k or b > k: the earlier row
    a - c > k      iff  a > k + c              min(a, b) > k  iff  a > k and b > k: the later row
    a * s > k      iff  a > floor(k / s)       row > k        iff  row >= k + 1
    floor(a/s) > k iff  a > (k + 1) s - 1      ceil(a/s) > k  iff  a > k s

A row sees column k if begin <= k < end, so the rows that see it reach from the first one whose
`end` lies above k to before the first one whose `begin` does. No mask says this a second time.

causal, end = row + (sk - sq) + 1, cut off at sk: above k from row k - (sk - sq) on, and k < sk
holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from .arithmetic import Arith, RowRange

T = TypeVar("T")

MANY_ROWS = 2**30  # rows of no sequence, so that sums of numbers of rows stay within 32 bits


class Rows(Enum):
    """The rows whose number lies above a bound, where no arithmetic is needed to tell."""

    ALL = "all"
    NONE = "none"


@dataclass(frozen=True)
class Bound(Generic[T]):
    """A number that others are compared with.

    Attributes:
      value: the bound.
      is_column: whether it is the column itself, so that `sk` lies above it.
      is_natural: whether it is known to be at least 0.
    """

    value: T
    is_column: bool = False
    is_natural: bool = False


@dataclass(frozen=True)
class Fixed(Generic[T]):
    """A number that does not depend on the row.

    Attributes:
      value: the number.
      known: its value, if that is a constant of the formula.
      is_sk: whether it is the number of keys.
    """

    value: T
    known: int | None = None
    is_sk: bool = False


@dataclass(frozen=True)
class Rising(Generic[T]):
    """A number that never decreases from row to row.

    Attributes:
      first_above: from a bound to the first row whose number lies above it.
    """

    first_above: "Callable[[Bound[T]], T | Rows]"


Number = Fixed[T] | Rising[T]


class RowsOf(Generic[T]):
    """`Arith` on numbers that depend on a row, over the arithmetic `ops` of the bounds and rows."""

    def __init__(self, ops: Arith[T]):
        self._ops = ops

    def const(self, value: int) -> Number[T]:
        """A constant."""
        return Fixed(self._ops.const(value), value)

    def row(self) -> Number[T]:
        """The row itself: above k from row k + 1 on."""
        return Rising(lambda bound: self._ops.add(bound.value, self._ops.const(1)))

    def add(self, a: Number[T], b: Number[T]) -> Number[T]:
        """a + b, of which one depends on the row at most."""
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(self._ops.add(a.value, b.value))
        a, b = (b, a) if isinstance(a, Fixed) else (a, b)
        rising, fixed = _one_of_each("sum", a, b)
        return Rising(
            lambda bound: rising.first_above(Bound(self._ops.sub(bound.value, fixed.value)))
        )

    def sub(self, a: Number[T], b: Number[T]) -> Number[T]:
        """a - b, of which `b` does not depend on the row."""
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(self._ops.sub(a.value, b.value))
        rising, fixed = _one_of_each("difference", a, b)

        def first_above(bound: Bound[T]) -> T | Rows:
            natural = bound.is_natural and fixed.known is not None and fixed.known >= 0
            shifted = self._ops.add(bound.value, fixed.value)
            return rising.first_above(Bound(shifted, is_natural=natural))

        return Rising(first_above)

    def mul(self, a: Number[T], b: Number[T]) -> Number[T]:
        """a x b, of which `b` is above 0 and does not depend on the row; bounds are at least 0."""
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(self._ops.mul(a.value, b.value))
        rising, fixed = _one_of_each("product", a, b)

        def first_above(bound: Bound[T]) -> T | Rows:
            value = bound.value
            assert bound.is_natural, "a product in an end of a mask has a bound that may be below 0"
            return rising.first_above(
                Bound(self._ops.floordiv(value, fixed.value), is_natural=True)
            )

        return Rising(first_above)

    def floordiv(self, a: Number[T], b: Number[T]) -> Number[T]:
        """a / b, rounded down, as in `Arith`."""
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(self._ops.floordiv(a.value, b.value))
        rising, fixed = _one_of_each("quotient", a, b)

        def first_above(bound: Bound[T]) -> T | Rows:
            after = self._ops.mul(self._ops.add(bound.value, self._ops.const(1)), fixed.value)
            last = self._ops.sub(after, self._ops.const(1))
            return rising.first_above(Bound(last, is_natural=bound.is_natural))

        return Rising(first_above)

    def ceildiv(self, a: Number[T], b: Number[T]) -> Number[T]:
        """a / b, rounded up, as in `Arith`."""
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(self._ops.ceildiv(a.value, b.value))
        rising, fixed = _one_of_each("quotient", a, b)

        def first_above(bound: Bound[T]) -> T | Rows:
            multiple = self._ops.mul(bound.value, fixed.value)
            return rising.first_above(Bound(multiple, is_natural=bound.is_natural))

        return Rising(first_above)

    def max(self, a: Number[T], b: Number[T]) -> Number[T]:
        """The greater one: above a bound from the earlier row on."""
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(self._ops.max(a.value, b.value))
        return Rising(lambda bound: self._joined(self._ops.min, Rows.ALL, a, b, bound))

    def min(self, a: Number[T], b: Number[T]) -> Number[T]:
        """The smaller one: above a bound from the later row on."""
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(self._ops.min(a.value, b.value))
        return Rising(lambda bound: self._joined(self._ops.max, Rows.NONE, a, b, bound))

    def less(self, a: Number[T], b: Number[T]) -> Any:
        """Refused: a truth value is no end."""
        raise AssertionError("an end of a mask does not compare")

    not_less = both = either = less

    def negation(self, a: Number[T]) -> Any:
        """Refused, as `less`."""
        return self.less(a, a)

    def first_above(self, number: Number[T], bound: Bound[T]) -> T | Rows:
        """The first row whose number lies above a bound."""
        if isinstance(number, Rising):
            return number.first_above(bound)
        if number.is_sk and bound.is_column:
            return Rows.ALL
        if bound.is_natural and number.known is not None and number.known <= 0:
            return Rows.NONE
        ops = self._ops
        zero, one = ops.const(0), ops.const(1)
        is_above = ops.min(ops.max(ops.sub(number.value, bound.value), zero), one)
        return ops.mul(ops.sub(one, is_above), ops.const(MANY_ROWS))

    def _joined(
        self,
        join: Callable[[T, T], T],
        decisive: Rows,
        a: Number[T],
        b: Number[T],
        bound: Bound[T],
    ) -> T | Rows:
        """The first row of two numbers together; one of them alone decides by `decisive`."""
        first, second = self.first_above(a, bound), self.first_above(b, bound)
        if isinstance(first, Rows):
            return first if first is decisive else second
        if isinstance(second, Rows):
            return second if second is decisive else first
        return join(first, second)


def _one_of_each(what: str, a: Number[T], b: Number[T]) -> tuple[Rising[T], Fixed[T]]:
    assert isinstance(a, Rising) and isinstance(b, Fixed), f"a {what} that may decrease ends a mask"
    return a, b


def rows_seeing(
    columns_of: "Callable[..., tuple[Any, Any]]", ops: Arith[T], column: T, sq: T, sk: T
) -> RowRange[T]:
    """The rows within [0, sq) that see a column of an interval mask.

    Args:
      columns_of: the mask's `column_range`.
      ops: the arithmetic of the result.
      column: a column below `sk`.
      sq, sk: numbers of queries and keys.
    """
    numbers = RowsOf(ops)
    begin, end = columns_of(numbers, numbers.row(), Fixed(sq), Fixed(sk, is_sk=True))
    bound = Bound(column, is_column=True, is_natural=True)
    first, after = numbers.first_above(end, bound), numbers.first_above(begin, bound)
    assert first is not Rows.NONE and after is not Rows.ALL, (
        "a mask hides all columns from all rows"
    )
    return RowRange(
        ops.const(0) if isinstance(first, Rows) else ops.max(first, ops.const(0)),
        sq if isinstance(after, Rows) else ops.min(after, sq),
    )
