"""Combinations of masks: `&`, `|` and `~`.

Intersections and unions of interval masks are interval masks, since all intervals of a row contain
its own position and so overlap. Their tile ranges are exact. A complement is no interval mask, and
neither is a combination with one; tile ranges of these may be too large:

* `~a`, if `a` is an interval mask with one edge, visits the tiles beyond that edge, and at most one
  tile too many. If `a` has both edges, it visits all tiles and tests all but those before `a`; if
  `a` is no interval mask, it visits and tests all tiles.
* `a & b` visits tiles that both visit, and leaves those untested that both leave untested.
* `a | b` visits all tiles from the first to the last one that either visits, and leaves those
  untested that the interval mask among them does (the first mask, if neither is one).

All of this holds for the query tiles of a block of columns as well.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from attn_mlir.errors import SpecError, no_kernel

from .arithmetic import Arith, ColumnRange, RowRange, TileRange, ordered
from .base import Edges, Mask
from .causal import CausalMask
from .chunked import ChunkedMask
from .null import NullMask
from .prefix import PrefixMask
from .registry import Kind, register

T = TypeVar("T")

MAX_PARTS = 64  # most masks in a combination, as formulas are nested equally deep


@dataclass(frozen=True)
class _Pair(Mask):
    """A combination of two masks, in an order that does not depend on how it was written."""

    left: Mask
    right: Mask

    sign: ClassVar[str]

    @property
    def is_interval(self) -> bool:
        """Whether both masks are interval masks."""
        return self.left.is_interval and self.right.is_interval

    @property
    def row_edges(self) -> Edges:
        """Those of an interval mask; else those of either mask, see `query_tile_range`."""
        if self.is_interval:
            return super().row_edges
        a, b = self.left.row_edges, self.right.row_edges
        return Edges(left=a.left or b.left, right=a.right or b.right)

    @property
    def name(self) -> str:
        """`causal_and_chunked_512`."""
        return f"{self.left.name}_{self.keyword}_{self.right.name}"

    def __str__(self) -> str:
        """`causal&chunked:512`, with parentheses around a combination by the other operator."""
        texts = [
            _in_parentheses(part)
            if isinstance(part, _Pair) and part.sign != self.sign
            else str(part)
            for part in (self.left, self.right)
        ]
        return self.sign.join(texts)

    @abstractmethod
    def combined_truths(self, ops: Arith[T], a: T, b: T) -> T:
        """Whether a score is seen, from whether each mask sees it."""

    @abstractmethod
    def combined_ranges(self, ops: Arith[T], a: TileRange[T], b: TileRange[T]) -> TileRange[T]:
        """The tiles of a block, from those of each mask."""

    def element(self, ops: Arith[T], row: T, column: T, sq: T, sk: T) -> T:
        """By the interval where there is one, else as each mask sees it."""
        if self.is_interval:
            return super().element(ops, row, column, sq, sk)
        a, b = (m.element(ops, row, column, sq, sk) for m in (self.left, self.right))
        return self.combined_truths(ops, a, b)

    def transposed_element(self, ops: Arith[T], row: T, column: T, sq: T, sk: T) -> T:
        """As `element`."""
        if self.is_interval:
            return super().transposed_element(ops, row, column, sq, sk)
        a, b = (m.transposed_element(ops, row, column, sq, sk) for m in (self.left, self.right))
        return self.combined_truths(ops, a, b)

    def tile_range(
        self, ops: Arith[T], row0: T, rows: int, sq: T, sk: T, tile_n: int
    ) -> TileRange[T]:
        """Exact for interval masks; otherwise see the module."""
        if self.is_interval:
            return super().tile_range(ops, row0, rows, sq, sk, tile_n)
        a, b = (m.tile_range(ops, row0, rows, sq, sk, tile_n) for m in (self.left, self.right))
        return self.combined_ranges(ops, a, b)

    def query_tile_range(
        self, ops: Arith[T], column0: T, columns: int, sq: T, sk: T, tile_m: int
    ) -> TileRange[T]:
        """Exact for interval masks; otherwise see the module."""
        if self.is_interval:
            return super().query_tile_range(ops, column0, columns, sq, sk, tile_m)
        block = (column0, columns, sq, sk, tile_m)
        a, b = (m.query_tile_range(ops, *block) for m in (self.left, self.right))
        return self.combined_ranges(ops, a, b)


@dataclass(frozen=True)
class AndMask(_Pair):
    """Row q sees column k if and only if it does in both masks."""

    keyword: ClassVar[str] = "and"
    sign: ClassVar[str] = "&"

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """Both see it."""
        return self.left.visible(q, k, sq, sk) & self.right.visible(q, k, sq, sk)

    @property
    def edges(self) -> Edges:
        """An edge that either mask has."""
        a, b = self.left.edges, self.right.edges
        return Edges(left=a.left or b.left, right=a.right or b.right)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """The intersection: from the later begin to the earlier end."""
        a, b = (mask.column_range(ops, row, sq, sk) for mask in (self.left, self.right))
        if not self.left.edges.left:
            begin = b.begin
        elif not self.right.edges.left:
            begin = a.begin
        else:
            begin = ops.max(a.begin, b.begin)
        return ColumnRange(begin, ops.min(a.end, b.end))

    def combined_truths(self, ops: Arith[T], a: T, b: T) -> T:
        """Both see it."""
        return ops.both(a, b)

    def combined_ranges(self, ops: Arith[T], a: TileRange[T], b: TileRange[T]) -> TileRange[T]:
        """The intersection."""
        return _in_both(ops, a, b)


@dataclass(frozen=True)
class OrMask(_Pair):
    """Row q sees column k if and only if it does in one of two masks."""

    keyword: ClassVar[str] = "or"
    sign: ClassVar[str] = "|"

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """One of them sees it."""
        return self.left.visible(q, k, sq, sk) | self.right.visible(q, k, sq, sk)

    @property
    def edges(self) -> Edges:
        """Edges that both masks have; those of either if one is no interval mask,
        see `tile_range`.
        """
        a, b = self.left.edges, self.right.edges
        if not self.is_interval:
            return Edges(left=a.left or b.left, right=a.right or b.right)
        return Edges(left=a.left and b.left, right=a.right and b.right)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """The union: from the earlier begin to the later end, as the intervals overlap or one is
        empty.

        An empty one belongs to a row with p < 0, where every interval begins at 0.
        """
        a, b = (mask.column_range(ops, row, sq, sk) for mask in (self.left, self.right))
        begin = ops.min(a.begin, b.begin) if self.edges.left else ops.const(0)
        return ColumnRange(begin, ops.max(a.end, b.end))

    def combined_truths(self, ops: Arith[T], a: T, b: T) -> T:
        """One of them sees it."""
        return ops.either(a, b)

    def combined_ranges(self, ops: Arith[T], a: TileRange[T], b: TileRange[T]) -> TileRange[T]:
        """The union."""
        return _in_either(ops, a, b, full=b if self.right.is_interval else a)


@dataclass(frozen=True)
class NotMask(Mask):
    """Row q sees column k if and only if it does not in the other mask."""

    mask: Mask

    keyword: ClassVar[str] = "not"

    def visible(self, q: Any, k: Any, sq: Any, sk: Any) -> Any:
        """The column exists, and the other mask hides it."""
        return (k < sk) & (self.mask.visible(q, k, sq, sk) ^ True)

    @property
    def is_interval(self) -> bool:
        """False: a row does not see its own position."""
        return False

    @property
    def edges(self) -> Edges:
        """The opposite edges of those of an interval mask; the right one otherwise."""
        if not self.mask.is_interval:
            return Edges(left=False, right=True)
        return Edges(left=not self.mask.edges.left, right=self.mask.edges.left)

    @property
    def row_edges(self) -> Edges:
        """As `edges`."""
        if not self.mask.is_interval:
            return Edges(left=False, right=True)
        return Edges(left=not self.mask.row_edges.left, right=self.mask.row_edges.left)

    def column_range(self, ops: Arith[T], row: T, sq: T, sk: T) -> ColumnRange[T]:
        """Never called, as this is no interval mask."""
        raise AssertionError(f"{self} is no interval mask")

    def element(self, ops: Arith[T], row: T, column: T, sq: T, sk: T) -> T:
        """The column exists, and the other mask hides it."""
        return ops.both(
            ops.less(column, sk), ops.negation(self.mask.element(ops, row, column, sq, sk))
        )

    def tile_range(
        self, ops: Arith[T], row0: T, rows: int, sq: T, sk: T, tile_n: int
    ) -> TileRange[T]:
        """The tiles before or after an interval mask with one edge; else see the module."""
        zero, width = ops.const(0), ops.const(tile_n)
        all_tiles = ops.ceildiv(sk, width)
        if not self.mask.is_interval:
            return ordered(ops, zero, zero, zero, all_tiles)
        last_row = ops.sub(ops.min(ops.add(row0, ops.const(rows)), sq), ops.const(1))
        first = self.mask.column_range(ops, row0, sq, sk)
        last = self.mask.column_range(ops, last_row, sq, sk)
        return _outside(ops, self.mask.edges, first, last, zero, width, all_tiles, cut_off=sk)

    def transposed_element(self, ops: Arith[T], row: T, column: T, sq: T, sk: T) -> T:
        """The row exists, and the other mask hides it."""
        hidden = ops.negation(self.mask.transposed_element(ops, row, column, sq, sk))
        return ops.both(ops.less(row, sq), hidden)

    def query_tile_range(
        self, ops: Arith[T], column0: T, columns: int, sq: T, sk: T, tile_m: int
    ) -> TileRange[T]:
        """The tiles before or after an interval mask with one edge; else see the module."""
        zero, height = ops.const(0), ops.const(tile_m)
        all_tiles = ops.ceildiv(sq, height)
        if not self.mask.is_interval:
            return ordered(ops, zero, zero, zero, all_tiles)
        last_column = ops.sub(ops.min(ops.add(column0, ops.const(columns)), sk), ops.const(1))
        first = self.mask.row_range(ops, column0, sq, sk)
        last = self.mask.row_range(ops, last_column, sq, sk)
        return _outside(ops, self.mask.row_edges, first, last, zero, height, all_tiles)

    @property
    def name(self) -> str:
        """`not_causal`."""
        return f"not_{self.mask.name}"

    def __str__(self) -> str:
        """`~causal`, `~(causal&chunked:512)`."""
        inner = _in_parentheses(self.mask) if isinstance(self.mask, _Pair) else str(self.mask)
        return "~" + inner


def _in_both(ops: Arith[T], a: TileRange[T], b: TileRange[T]) -> TileRange[T]:
    """The tiles that two masks visit, untested where neither tests."""
    return ordered(
        ops,
        ops.max(a.begin, b.begin),
        ops.max(a.full_begin, b.full_begin),
        ops.min(a.full_end, b.full_end),
        ops.min(a.end, b.end),
    )


def _in_either(
    ops: Arith[T], a: TileRange[T], b: TileRange[T], *, full: TileRange[T]
) -> TileRange[T]:
    """The tiles from the first to the last one of two masks, untested where `full` tests none."""
    begin, end = ops.min(a.begin, b.begin), ops.max(a.end, b.end)
    return ordered(ops, begin, full.full_begin, full.full_end, end)


def _outside(
    ops: Arith[T],
    edges: Edges,
    first: ColumnRange[T] | RowRange[T],
    last: ColumnRange[T] | RowRange[T],
    zero: T,
    size: T,
    all_tiles: T,
    *,
    cut_off: T | None = None,
) -> TileRange[T]:
    """The tiles of a block that the complement of an interval mask has to visit.

    Args:
      edges: those of the interval mask in this direction.
      first, last: the intervals of the block's first and last row, or column.
      size: columns or rows per tile.
      all_tiles: the number of tiles.
      cut_off: the number of columns, if the last tile counts as partly hidden where they end in it.
    """
    if not edges.left:  # the complement lies after the interval
        begin = ops.floordiv(ops.max(first.end, zero), size)
        full_begin = ops.ceildiv(ops.max(last.end, zero), size)
        full_end = all_tiles if cut_off is None else ops.floordiv(cut_off, size)
        return ordered(ops, begin, full_begin, full_end, all_tiles)
    full_end = ops.floordiv(first.begin, size)
    end = all_tiles if edges.right else ops.ceildiv(last.begin, size)
    return ordered(ops, zero, zero, full_end, end)


def _in_parentheses(mask: Mask) -> str:
    """A mask as text; spelled so that PyTorch's compiler, which traces it, knows what it gives."""
    return "(" + str(mask) + ")"


def intersection(a: Mask, b: Mask) -> Mask:
    """`a & b`, the same mask however its operands are ordered, grouped or repeated."""
    parts = [mask for mask in _parts(AndMask, a, b) if mask != NullMask()]
    return _joined(AndMask, parts) if parts else NullMask()


def union(a: Mask, b: Mask) -> Mask:
    """`a | b`, the same mask however its operands are ordered, grouped or repeated."""
    parts = _parts(OrMask, a, b)
    return NullMask() if NullMask() in parts else _joined(OrMask, parts)


def complement(mask: Mask) -> Mask:
    """`~mask`, moved inwards to interval masks, whose complements have better tile ranges."""
    if isinstance(mask, NotMask):
        return mask.mask
    if isinstance(mask, _Pair) and not mask.is_interval:
        combine = union if isinstance(mask, AndMask) else intersection
        return combine(complement(mask.left), complement(mask.right))
    return NotMask(mask)


def _parts(kind: type[_Pair], *masks: Mask) -> list[Mask]:
    """The masks that a tree of one kind of combination joins, each once, ordered by name."""
    found: dict[Mask, None] = {}
    pending = list(masks)
    while pending:
        mask = pending.pop()
        if isinstance(mask, kind):
            pending += [mask.left, mask.right]
        else:
            found[mask] = None
    return sorted(found, key=str)


def _count(mask: Mask) -> int:
    """The number of masks in a combination."""
    if isinstance(mask, NotMask):
        return _count(mask.mask)
    return _count(mask.left) + _count(mask.right) if isinstance(mask, _Pair) else 1


def _joined(kind: type[_Pair], parts: list[Mask]) -> Mask:
    count = sum(map(_count, parts))
    if count > MAX_PARTS:
        reason = f"at most {MAX_PARTS} are joined by & and |; what they share can be a mask_mod"
        raise SpecError(no_kernel(f"a mask of {count} parts", reason))
    joined = parts[0]
    for part in parts[1:]:
        joined = kind(joined, part)
    return joined


_CHUNKS = ChunkedMask(512)
register(Kind(AndMask, AndMask(CausalMask(), _CHUNKS)))
register(Kind(OrMask, OrMask(_CHUNKS, PrefixMask(64))))
register(Kind(NotMask, NotMask(_CHUNKS)))
