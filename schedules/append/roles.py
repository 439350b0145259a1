"""New tokens of an append, as the kernel's only role sees them: work tiles, rows and fragments of
columns.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.targets.limits import WARP_THREADS

from .. import emit as b
from ..operands.storage import OperandStorage
from .destinations import Destination, Token, Told

Value = Any

WARPS = 4
THREADS = WARPS * WARP_THREADS
MIN_TOKENS = (
    32  # of a work tile: of 128 columns of 16 bits a thread has 4 reads of 16 bytes in flight
)
MAX_WIDTH = 64  # columns of a fragment: 128 bytes at 16 bits, a line
UNIT_BITS = 128  # of a thread's access


class Place(NamedTuple):
    """A work tile, i32 each.

    Attributes:
      first: row of its first token.
      end: row behind its last sequence's, or tile's, tokens.
      begin: row of the first token of its sequence, where that is one.
      head, sequence: of the tile; `sequence` is None where each token has its own.
    """

    first: Value
    begin: Value
    end: Value
    head: Value
    sequence: Value | None


@dataclass(frozen=True)
class Problem:
    """One operation as the kernel's only role sees it.

    Attributes:
      k, v: the caches; `k_new` and `v_new` are memrefs of the tokens.
      told: what says where tokens go.
      angles: cos and sin as memrefs, or nothing; `rotary_dim` columns of keys are rotated.
      interleaved: whether pairs are neighbours.
      is_listed_apart: whether other lists tell where values are than where keys are.
      has_own_scale_table: whether factors of positions lie in pages that a table of their own
        lists.
    """

    k: Destination
    v: Destination
    k_new: Value
    v_new: Value
    told: Told
    angles: tuple[Value, ...]
    rotary_dim: int
    interleaved: bool
    is_listed_apart: bool
    has_own_scale_table: bool

    @staticmethod
    def of(
        op: attn.AppendOp,
        keys: OperandStorage,
        values: OperandStorage,
        given: Mapping[Value, Value],
    ) -> "Problem":
        """The problem of an operation with these caches, whose function's arguments are the
        kernel's.
        """
        return Problem(
            k=Destination.of(keys, given),
            v=Destination.of(values, given),
            k_new=given[op.k_new],
            v_new=given[op.v_new],
            told=Told.of(op, given),
            angles=tuple(given[angle] for angle in op.angles),
            rotary_dim=op.rotary_dim,
            interleaved=op.is_interleaved,
            is_listed_apart=_lists(keys) != _lists(values),
            has_own_scale_table=not len(op.slots) and _has_own_scale_table(keys),
        )

    @property
    def token_dims(self) -> list[int]:
        """The dimensions of `k_new` that tokens run along."""
        return list(range(ir.MemRefType(self.k_new.type).rank - 2))

    @property
    def columns(self) -> tuple[int, int]:
        """Of keys and of values."""
        k, v = (ir.MemRefType(x.type).shape[-1] for x in (self.k_new, self.v_new))
        return k, v

    @property
    def width(self) -> int:
        """Columns of a fragment: a power of two that divides all that is moved in one piece."""
        ends = [MAX_WIDTH, *(self.group(of) for of in (self.k, self.v))]
        if self.rotary_dim:
            ends.append(self.rotary_dim if self.interleaved else self.rotary_dim // 2)
        return math.gcd(*ends)

    def group(self, of: Destination) -> int:
        """Columns that share a factor; all where positions have none of their own."""
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

    def token(self, place: Place, row: Value) -> Token:
        """The token of a row of the tile."""
        number = b.INT.add(place.first, row)
        exists = b.compare("slt", number, place.end)
        if place.sequence is not None:
            own, count = b.INT.sub(number, place.begin), b.INT.sub(place.end, place.begin)
            return Token(number, (number,), exists, place.sequence, own, count)
        if len(self.token_dims) > 1:
            count = b.extent(self.k_new, 1)
            sequence = b.INT.floordiv(number, count)
            own = b.INT.sub(number, b.INT.mul(sequence, count))
            return Token(number, (sequence, own), exists, sequence, own, count)
        sequence = b.constant(0)
        if self.told.sequences is not None:
            sequence = b.element(self.told.sequences, [number])
        return Token(number, (number,), exists, sequence, number, self.token_count())


def _lists(cache: OperandStorage) -> list[Value]:
    """The arrays that say where a cache's positions are."""
    steps = (step for step in cache.steps if not isinstance(step, attn.ScaledOp))
    return [value for step in steps for value in list(step.operation.operands)[1:]]


def _has_own_scale_table(cache: OperandStorage) -> bool:
    """Whether factors of positions are found by other lists than the elements that they are of."""
    step = cache.position_scales
    return step is not None and _pages(OperandStorage.of(step.factors)) != _pages(cache)


def _pages(cache: OperandStorage) -> list[Value]:
    """The arrays that list the pages of a cache; none without pages."""
    return [] if cache.pages is None else list(cache.pages.operation.operands)[1:]


def group_count(of: Destination) -> int:
    """Factors of a row."""
    assert of.scales is not None
    return ir.MemRefType(of.scales.tensor.type).shape[-1]


class Rows(NamedTuple):
    """What threads know of their rows: fragments [tokens] of i32.

    Attributes:
      k, v: the rows of the caches.
      read: the rows of the tokens, `NOWHERE` where nothing of it is written.
    """

    k: Value
    v: Value
    read: Value


def each_row(problem: Problem, body: Callable[[Value], Value], element: Any = None) -> Value:
    """A fragment [tokens] of what a function says of each row of the tile."""
    return b.generate(body, [problem.tokens], b.i32() if element is None else element)


def tokens_of(problem: Problem, tensor: Value, rows: Rows, place: Place, column: int) -> Value:
    """Some columns of the tile's tokens."""
    dims = problem.token_dims
    coords = [*(0 for _ in dims), place.head, column]
    return b.load_rows(tensor, rows.read, problem.width, coords, [*dims, len(dims) + 1])


def wide(x: Value) -> Value:
    """An element as f32."""
    f32 = ir.F32Type.get()
    return x if x.type == f32 else arith.ExtFOp(f32, x).result


def widened(fragment: Value) -> Value:
    """A fragment in f32."""
    f32 = ir.F32Type.get()
    if ws.FragmentType(fragment.type).element == f32:
        return fragment
    return b.map_elements(wide, fragment, element=f32)
