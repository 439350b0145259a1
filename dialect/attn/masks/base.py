"""What a mask is: which keys each query row sees, and the closed forms that kernels need.

A mask is a frozen dataclass whose integer fields are its parameters. Its formulas are written
once over an `Arith`: with `INTS` they compute, with an object that builds `arith` operations they
emit code. Nothing here imports MLIR, so a front end may use masks without paying for it.

Rows are absolute query indices of one sequence, columns absolute key indices; `sq` and `sk` count
the sequence's queries and keys. Only rows below `sq` matter.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Arith(Protocol[T]):
    """Integer arithmetic on whatever stands for a signed 32-bit number.

    `floordiv` and `ceildiv` are only ever asked for a dividend of at least 0 and a positive
    divisor, so an implementation may round towards zero or divide unsigned.
    """

    def const(self, value: int, /) -> T: ...
    def add(self, a: T, b: T, /) -> T: ...
    def sub(self, a: T, b: T, /) -> T: ...
    def mul(self, a: T, b: T, /) -> T: ...
    def floordiv(self, a: T, b: T, /) -> T: ...
    def ceildiv(self, a: T, b: T, /) -> T: ...
    def max(self, a: T, b: T, /) -> T: ...
    def min(self, a: T, b: T, /) -> T: ...


class IntArith:
    """`Arith` over Python's integers."""

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


INTS = IntArith()


class ColumnRange(NamedTuple, Generic[T]):
    """The keys that one row sees: begin <= column < end."""

    begin: T
    end: T


class TileRange(NamedTuple, Generic[T]):
    """How one block of rows meets the key tiles, counted in tiles.

    Tiles below `begin` and from `end` on hold nothing that a row of the block sees. In
    [begin, full_end) every row sees every column; in [full_end, end) each element must be tested.
    """

    begin: T
    full_end: T
    end: T


class Mask(ABC):
    """Which keys a query row sees. Each row sees one interval of columns."""

    keyword: ClassVar[str]
    """Name of the mask's attribute: `causal` for `#attn.causal`."""

    @abstractmethod
    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """The definition: whether row q sees column k.

        Args:
          q, k: indices, each an integer or an array; arrays broadcast. Indices within bounds.
          sq, sk: numbers of queries and keys.

        Returns:
          A truth value, or an array of them.
        """

    @abstractmethod
    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """Returns the columns that `row` sees, as an interval within [0, sk).

        `end` may be below `begin` for a row that sees nothing.
        """

    @abstractmethod
    def tile_range(
        self, ops: Arith[T], row0: T, rows: int, sq: T, sk: T, tile_n: int
    ) -> TileRange[T]:
        """Returns the key tiles that rows [row0, row0 + rows) have to visit.

        The range is exact for the rows below `sq`, at least one of which must be in the block:
        no tile within it could be left out, none within its full part needs a test.

        Args:
          ops: the arithmetic.
          row0: first row of the block.
          rows: rows in the block, at least 1.
          sq, sk: numbers of queries and keys, at least 0.
          tile_n: columns per key tile; tile i holds columns [i x tile_n, (i + 1) x tile_n).

        Returns:
          begin <= full_end <= end, where `begin` < `end` only if there is something to do.
        """
