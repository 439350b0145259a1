"""The base class of masks: which keys each query row sees, and closed forms for kernels.

A mask is a frozen dataclass whose fields are its parameters, integers or other masks. Its formulas
are written once, for any `Arith`: with `INTS` they compute integers, with an object that builds
`arith` operations they emit code. Nothing here imports MLIR, so that the front end can use masks.

Rows are query positions of one sequence, columns key positions; `sq` and `sk` are the sequence's
numbers of queries and keys, and only rows below `sq` matter. Masks are aligned at the bottom right:
row q is at the key position p = q + sk - sq, so that the last query is at that of the last key.
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from attn_mlir.errors import SpecError

from .arithmetic import Arith, ColumnRange, RowRange, TileRange, tiles_of, whole_tiles
from .inverse import rows_seeing

T = TypeVar("T")

MAX_PARAMETER = 2**30  # so that q + a parameter stays within 32 bits for sequences of this length


class Edges(NamedTuple):
    """Which edges of visibility a mask can have, for any sizes.

    Attributes:
      left: the first columns may be hidden, so that `begin` or `full_begin` of tile ranges may be
        above 0.
      right: the last columns may be hidden.
    """

    left: bool
    right: bool


class Combinations(Protocol):
    """The functions behind the operators of masks."""

    def intersection(self, a: "Mask", b: "Mask") -> "Mask":
        """`a & b`."""
        ...

    def union(self, a: "Mask", b: "Mask") -> "Mask":
        """`a | b`."""
        ...

    def complement(self, mask: "Mask") -> "Mask":
        """`~mask`."""
        ...


class Mask(ABC):
    """Which keys a query row sees. Masks combine with `&`, `|` and `~`.

    In an interval mask each row sees one interval of columns, whose ends do not decrease from row
    to row. The interval contains the row's own position p unless it is empty; that of a row with p
    < 0 begins at column 0. So each column is seen by one interval of rows. Intersections and unions
    of interval masks are interval masks, and their tile ranges are exact, from rows to keys and
    from keys to rows.
    """

    keyword: ClassVar[str]
    """Name of the mask's attribute: `causal` for `#attn.causal`."""

    combinations: ClassVar["Combinations"]
    """The implementation of the operators, the module `combined`; the package attaches it."""

    @abstractmethod
    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """The definition: whether row q sees column k.

        Args:
          q, k: indices within bounds, each an integer or an array; arrays broadcast.
          sq, sk: numbers of queries and keys.

        Returns:
          A truth value, or an array of them.
        """

    @property
    @abstractmethod
    def edges(self) -> Edges:
        """The edges that the mask can have; kernels have no code for other edges."""

    @property
    def row_edges(self) -> Edges:
        """The edges from keys to rows: the first rows (left) or the last ones may not see a key."""
        return Edges(left=self.edges.right, right=self.edges.left)

    @property
    def is_interval(self) -> bool:
        """Whether it is an interval mask, as the class defines it."""
        return True

    @abstractmethod
    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """The columns within [0, sk) that a row of an interval mask sees.

        `end` may be below `begin`, and below 0, for a row that sees nothing. The formula uses no
        comparisons, and neither end decreases with the row: `row_range` follows from it.
        """

    def row_range(self, ops: Arith[T], column: T, sq: T, sk: T) -> RowRange[T]:
        """The rows within [0, sq) that see a column, which is below `sk`, of an interval mask.

        `end` may be below `begin`, and below 0, for a column that no row sees.
        """
        return rows_seeing(self.column_range, ops, column, sq, sk)

    def element(self, ops: Arith[T], row: T, column: T, sq: T, sk: T) -> T:
        """Whether `row` sees `column`; columns from `sk` on are hidden."""
        begin, end = self.column_range(ops, row, sq, sk)
        seen = ops.less(column, end)
        return ops.both(seen, ops.not_less(column, begin)) if self.edges.left else seen

    def transposed_element(self, ops: Arith[T], row: T, column: T, sq: T, sk: T) -> T:
        """As `element`, with the row as left operand of each comparison; the column is below `sk`.

        Rows from `sq` on are hidden. `element` has the column there: words of bits in the place of
        truth values stand for neighbouring columns in that form, for neighbouring rows in this one.
        """
        begin, end = self.row_range(ops, column, sq, sk)
        seen = ops.less(row, end)
        return ops.both(seen, ops.not_less(row, begin)) if self.row_edges.left else seen

    def tile_range(
        self, ops: Arith[T], row0: T, rows: int, sq: T, sk: T, tile_n: int
    ) -> TileRange[T]:
        """The key tiles that rows [row0, row0 + rows) have to visit.

        For an interval mask the range is exact for the rows below `sq`, of which the block must
        have one: every tile in it has to be visited, and every tested tile needs its test. For
        other masks it may have more visited or tested tiles than needed, but never fewer.

        rows 256..511 of a causal mask, sq = sk = 1024, tiles of 128: (0, 0, 2, 4).

        Args:
          ops: the arithmetic.
          row0: first row of the block.
          rows: rows in the block, at least 1.
          sq, sk: numbers of queries and keys, at least 0.
          tile_n: columns per key tile; tile i holds columns [i x tile_n, (i + 1) x tile_n).

        Returns:
          0 <= begin <= full_begin <= full_end <= end, where `begin` < `end` only if a tile has to
            be visited.
        """
        last_row = ops.sub(ops.min(ops.add(row0, ops.const(rows)), sq), ops.const(1))
        first = self.column_range(ops, row0, sq, sk)
        last = self.column_range(ops, last_row, sq, sk)
        return tiles_of(ops, first, last, tile_n, has_left_edge=self.edges.left)

    def query_tile_range(
        self, ops: Arith[T], column0: T, columns: int, sq: T, sk: T, tile_m: int
    ) -> TileRange[T]:
        """The query tiles that columns [column0, column0 + columns) have to visit.

        As `tile_range` with rows and columns exchanged: exact for an interval mask, for the columns
        below `sk`, of which the block must have one. A tile is full if all its rows below `sq` see
        all these columns, so the last one may be full although it is cut off; columns from `sk` on
        are the caller's to hide in every tile.

        columns 256..383 of a causal mask, sq = sk = 1024, tiles of 128: (2, 3, 8, 8).

        Args:
          ops: the arithmetic.
          column0: first column of the block.
          columns: columns in the block, at least 1.
          sq, sk: numbers of queries and keys, at least 0.
          tile_m: rows per query tile; tile i holds rows [i x tile_m, (i + 1) x tile_m).

        Returns:
          0 <= begin <= full_begin <= full_end <= end, where `begin` < `end` only if a tile has to
            be visited.
        """
        last_column = ops.sub(ops.min(ops.add(column0, ops.const(columns)), sk), ops.const(1))
        first = self.row_range(ops, column0, sq, sk)
        last = self.row_range(ops, last_column, sq, sk)
        end = whole_tiles(ops, sq, tile_m)
        if self.row_edges.right:  # rows past sq count as seen where row sq - 1 is
            sees_last = ops.max(ops.add(ops.sub(first.end, sq), ops.const(1)), ops.const(0))
            end = ops.add(first.end, ops.mul(ops.sub(end, sq), sees_last))
        first = RowRange(first.begin, end)
        return tiles_of(ops, first, last, tile_m, has_left_edge=self.row_edges.left)

    @property
    def attribute(self) -> str:
        """The attribute in the text of the IR, such as `#attn.chunked<512 : i64>`."""
        fields = dataclasses.fields(self)  # pyright: ignore
        values = [getattr(self, field.name) for field in fields]
        texts = [v.attribute if isinstance(v, Mask) else f"{v} : i64" for v in values]
        return f"#attn.{self.keyword}" + (f"<{', '.join(texts)}>" if texts else "")

    @property
    @abstractmethod
    def name(self) -> str:
        """The mask in letters, digits and underscores, for the names of kernels."""

    @abstractmethod
    def __str__(self) -> str:
        """The mask as a command line has it: `causal&chunked:512`."""

    def __and__(self, other: "Mask") -> "Mask":
        """The keys that both masks let a row see."""
        if not isinstance(other, Mask):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        return self.combinations.intersection(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        """The keys that either mask lets a row see."""
        if not isinstance(other, Mask):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        return self.combinations.union(self, other)

    def __invert__(self) -> "Mask":
        """The keys that the mask hides."""
        return self.combinations.complement(self)


def check_parameter(name: str, value: object, *, at_least: int) -> None:
    """Refuses a parameter that is no integer, or one that no kernel can hold.

    Raises:
      SpecError: names the parameter, what was got and what is allowed.
    """
    if isinstance(value, int) and not isinstance(value, bool) and at_least <= value:
        if value <= MAX_PARAMETER:
            return
    raise SpecError(
        f"{name} must be an integer from {at_least} to {MAX_PARAMETER}, got {value!r:.40}"
    )
