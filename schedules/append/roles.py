"""The problem of an append: work tiles, rows and fragments of columns of the new tokens."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.targets.limits import WARP_THREADS

from .. import emit as b
from ..operands.storage import OperandStorage
from .destinations import Destination, Token, TokenArrays

Value = Any

WARPS = 4
THREADS = WARPS * WARP_THREADS
MIN_TOKENS = 32  # of a work tile: at 128 columns of 16 bits, 4 loads of 16 bytes per thread
MAX_WIDTH = 64  # columns of a fragment: 128 bytes at 16 bits, a line
UNIT_BITS = 128  # of a thread's access


class WorkTile(NamedTuple):
    """A work tile, i32 each.

    Attributes:
      first: row of its first token.
      end: end of the rows of its sequence or tile.
      begin: row of the first token of its sequence, or of the tile.
      head, sequence: of the tile; `sequence` is None if tokens of a tile differ in it.
    """

    first: Value
    begin: Value
    end: Value
    head: Value
    sequence: Value | None


@dataclass(frozen=True)
class Problem:
    """One operation: its tensors and sizes.

    Attributes:
      k, v: the caches; `k_new` and `v_new` are memrefs of the tokens.
      arrays: of tokens' destinations.
      angles: cos and sin as memrefs, or nothing; `rotary_dim` columns of keys are rotated.
      interleaved: whether the columns of a pair are adjacent.
      has_own_value_lists: whether values have other lists than keys.
      has_scale_pages: whether scales of positions have their own page table.
    """

    k: Destination
    v: Destination
    k_new: Value
    v_new: Value
    arrays: TokenArrays
    angles: tuple[Value, ...]
    rotary_dim: int
    interleaved: bool
    has_own_value_lists: bool
    has_scale_pages: bool

    @staticmethod
    def of(
        op: attn.AppendOp,
        keys: OperandStorage,
        values: OperandStorage,
        arguments: Mapping[Value, Value],
    ) -> "Problem":
        """The problem of an operation with these caches, and the kernel's arguments."""
        return Problem(
            k=Destination.of(keys, arguments),
            v=Destination.of(values, arguments),
            k_new=arguments[op.k_new],
            v_new=arguments[op.v_new],
            arrays=TokenArrays.of(op, arguments),
            angles=tuple(arguments[angle] for angle in op.angles),
            rotary_dim=op.rotary_dim,
            interleaved=op.is_interleaved,
            has_own_value_lists=_lists(keys) != _lists(values),
            has_scale_pages=not len(op.slots) and _has_scale_pages(keys),
        )

    @property
    def token_dims(self) -> list[int]:
        """The dimensions of `k_new` that tokens run along."""
        return list(range(ir.MemRefType(self.k_new.type).rank - 2))

    @property
    def columns(self) -> tuple[int, int]:
        """For keys and for values."""
        k, v = (ir.MemRefType(x.type).shape[-1] for x in (self.k_new, self.v_new))
        return k, v

    @property
    def width(self) -> int:
        """Columns of a fragment: a power of two that divides groups and rotated halves."""
        ends = [MAX_WIDTH, *(self.group(of) for of in (self.k, self.v))]
        if self.rotary_dim:
            ends.append(self.rotary_dim if self.interleaved else self.rotary_dim // 2)
        return math.gcd(*ends)

    def group(self, of: Destination) -> int:
        """Columns that share a scale; all columns without scales per position."""
        columns = ir.MemRefType(of.tensor.type).shape[-1]
        return columns if of.scales is None else columns // group_count(of)

    @property
    def tokens(self) -> int:
        """Tokens of a work tile: whole rows of fragments."""
        unit = UNIT_BITS // ws.element_bits(ir.MemRefType(self.k_new.type).element_type)
        return max(MIN_TOKENS, THREADS * unit // self.width)

    def token_count(self) -> Value:
        """Rows of all tokens."""
        extents = [b.extent(self.k_new, dim) for dim in self.token_dims]
        return extents[0] if len(extents) == 1 else b.INT.mul(*extents)

    def token(self, tile: WorkTile, row: Value) -> Token:
        """The token of a row of the tile."""
        number = b.INT.add(tile.first, row)
        exists = b.compare("slt", number, tile.end)
        if tile.sequence is not None:
            index, count = b.INT.sub(number, tile.begin), b.INT.sub(tile.end, tile.begin)
            return Token(number, (number,), exists, tile.sequence, index, count)
        if len(self.token_dims) > 1:
            count = b.extent(self.k_new, 1)
            sequence = b.INT.floordiv(number, count)
            index = b.INT.sub(number, b.INT.mul(sequence, count))
            return Token(number, (sequence, index), exists, sequence, index, count)
        sequence = b.constant(0)
        if self.arrays.sequences is not None:
            sequence = b.element(self.arrays.sequences, [number])
        return Token(number, (number,), exists, sequence, number, self.token_count())


def _lists(cache: OperandStorage) -> list[Value]:
    """The index arrays of a cache's storage."""
    steps = (step for step in cache.steps if not isinstance(step, attn.ScaledOp))
    return [value for step in steps for value in list(step.operation.operands)[1:]]


def _has_scale_pages(cache: OperandStorage) -> bool:
    """Whether scales of positions have other pages than their elements."""
    step = cache.position_scales
    return step is not None and _pages(OperandStorage.of(step.scales)) != _pages(cache)


def _pages(cache: OperandStorage) -> list[Value]:
    """The arrays that list the pages of a cache; none without pages."""
    return [] if cache.pages is None else list(cache.pages.operation.operands)[1:]


def group_count(of: Destination) -> int:
    """Scales of a row."""
    assert of.scales is not None
    return ir.MemRefType(of.scales.tensor.type).shape[-1]


class RowState(NamedTuple):
    """The rows of a tile's tokens: fragments [tokens] of i32.

    Attributes:
      k, v: the rows of the caches.
      read: the rows of the new tokens, `NOWHERE` for one that is not stored.
    """

    k: Value
    v: Value
    read: Value


def each_row(problem: Problem, body: Callable[[Value], Value], element: Any = None) -> Value:
    """A fragment [tokens] of a function of each row of the tile."""
    return b.generate(body, [problem.tokens], b.i32() if element is None else element)


def tokens_of(
    problem: Problem, tensor: Value, rows: RowState, tile: WorkTile, column: int
) -> Value:
    """Some columns of the tile's tokens."""
    dims = problem.token_dims
    coords = [*(0 for _ in dims), tile.head, column]
    return b.load_rows(tensor, rows.read, problem.width, coords, [*dims, len(dims) + 1])


def as_f32(x: Value) -> Value:
    """An element as f32."""
    f32 = ir.F32Type.get()
    return x if x.type == f32 else arith.ExtFOp(f32, x).result


def upcast(fragment: Value) -> Value:
    """A fragment in f32."""
    f32 = ir.F32Type.get()
    if ws.FragmentType(fragment.type).element == f32:
        return fragment
    return b.map_elements(as_f32, fragment, element=f32)
