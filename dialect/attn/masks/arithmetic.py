"""The arithmetic that formulas of masks use, and the ranges of rows, columns and tiles."""

import operator
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Arith(Protocol[T]):
    """Integer arithmetic and logic on representations of signed 32-bit numbers and truth values.

    `floordiv` and `ceildiv` are only called with a dividend >= 0 and a divisor > 0, so an
    implementation may round towards zero or divide unsigned.
    """

    def const(self, value: int, /) -> T: ...
    def add(self, a: T, b: T, /) -> T: ...
    def sub(self, a: T, b: T, /) -> T: ...
    def mul(self, a: T, b: T, /) -> T: ...
    def floordiv(self, a: T, b: T, /) -> T: ...
    def ceildiv(self, a: T, b: T, /) -> T: ...
    def max(self, a: T, b: T, /) -> T: ...
    def min(self, a: T, b: T, /) -> T: ...
    def less(self, a: T, b: T, /) -> T: ...
    def not_less(self, a: T, b: T, /) -> T: ...
    def both(self, a: T, b: T, /) -> T: ...
    def either(self, a: T, b: T, /) -> T: ...
    def negation(self, a: T, /) -> T: ...


class IntArith:
    """`Arith` over Python's integers and truth values."""

    def const(self, value: int, /) -> int:
        """Returns `value`."""
        return value

    def add(self, a: int, b: int, /) -> int:
        """Returns a + b."""
        return a + b

    def sub(self, a: int, b: int, /) -> int:
        """Returns a - b."""
        return a - b

    def mul(self, a: int, b: int, /) -> int:
        """Returns a x b."""
        return a * b

    def floordiv(self, a: int, b: int, /) -> int:
        """Returns a / b, rounded down."""
        return a // b

    def ceildiv(self, a: int, b: int, /) -> int:
        """Returns a / b, rounded up."""
        return -(-a // b)

    def max(self, a: int, b: int, /) -> int:
        """Returns the greater one."""
        return max(a, b)

    def min(self, a: int, b: int, /) -> int:
        """Returns the smaller one."""
        return min(a, b)

    def less(self, a: int, b: int, /) -> bool:
        """Returns a < b."""
        return a < b

    def not_less(self, a: int, b: int, /) -> bool:
        """Returns a >= b."""
        return a >= b

    def both(self, a: int, b: int, /) -> bool:
        """Returns a and b."""
        return bool(a and b)

    def either(self, a: int, b: int, /) -> bool:
        """Returns a or b."""
        return bool(a or b)

    def negation(self, a: int, /) -> bool:
        """Returns not a."""
        return not a


INTS = IntArith()


class ColumnRange(NamedTuple, Generic[T]):
    """The columns that one row sees: begin <= column < end."""

    begin: T
    end: T


class RowRange(NamedTuple, Generic[T]):
    """The rows that see one column: begin <= row < end."""

    begin: T
    end: T


class TileRange(NamedTuple, Generic[T]):
    """The key tiles that a block of rows has to visit, and those that need a test, as tile numbers.

    Or, with rows and columns exchanged, the query tiles that a block of columns has to visit.

    ```
            begin      full_begin       full_end        end
      nothing |  left edge |   no test     |  right edge |  nothing
    ```
    No row of the block sees a column of tiles below `begin` or from `end` on. In [full_begin,
    full_end) every row sees every column. In all other tiles each element must be tested. Of an
    interval mask, tiles in [begin, full_begin) lie before the right edge of every row, so that
    testing the left edge is enough; tiles in [full_end, end) may have both edges.
    """

    begin: T
    full_begin: T
    full_end: T
    end: T


def ordered(ops: Arith[T], begin: T, full_begin: T, full_end: T, end: T) -> TileRange[T]:
    """A range with bounds in order: `begin` stays, `end` is raised to it,
    the full part is clamped.
    """
    end = ops.max(begin, end)
    full_end = ops.max(begin, ops.min(full_end, end))
    return TileRange(begin, ops.max(begin, ops.min(full_begin, full_end)), full_end, end)


def tiles_of(
    ops: Arith[T],
    first: ColumnRange[T] | RowRange[T],
    last: ColumnRange[T] | RowRange[T],
    tile_n: int,
    *,
    has_left_edge: bool,
) -> TileRange[T]:
    """The tiles of a block of rows of an interval mask, from the columns of its outermost rows.

    Begins and ends do not decrease from row to row, and intervals of neighbouring rows touch. So
    the rows together see [first.begin, last.end), and each of them sees [last.begin, first.end).
    The same holds with rows and columns exchanged.

    Args:
      first, last: columns that the block's first and last row see; begin >= 0, end may be any
        number.
      tile_n: columns per tile.
      has_left_edge: whether `begin` can be above 0.
    """
    zero, width = ops.const(0), ops.const(tile_n)
    end = ops.ceildiv(ops.max(last.end, zero), width)
    full_end = ops.floordiv(ops.max(first.end, zero), width)
    if not has_left_edge:
        return TileRange(zero, zero, full_end, end)
    begin = ops.floordiv(first.begin, width)
    return ordered(ops, begin, ops.ceildiv(last.begin, width), full_end, end)


def whole_tiles(ops: Arith[T], length: T, tile: int) -> T:
    """The number of rows or columns of the tiles that hold `length` of them."""
    size = ops.const(tile)
    return ops.mul(ops.ceildiv(length, size), size)


def in_digits(number: int) -> str:
    """A mask's number in its text; `index` makes a constant of one that changes in graphs of
    PyTorch's compiler.
    """
    return str(operator.index(number))
