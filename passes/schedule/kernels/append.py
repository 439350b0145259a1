"""From `attn.append` to a `ws.kernel`: threads move rows, 16 bytes at a time.

A work tile is a block of tokens and one head. Its threads find where each token goes, read the keys
and values of the block, rotate and narrow them in registers, and write each row where it belongs.
The 16-byte units of a row lie in neighbouring threads, so that rows are whole lines of memory
wherever they go; K and V are read before either is written, which keeps more of them in flight.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.passes.check_names import names_of
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.schedule.parts import builder as b
from attn_mlir.passes.schedule.parts.destinations import NOWHERE, Destination, Token, Told
from attn_mlir.passes.schedule.parts.operands import root, storage_steps
from attn_mlir.passes.schedule.registry import NoOptions, register
from attn_mlir.passes.target.limits import WARP_THREADS, Target

Value = Any

WARPS = 4
THREADS = WARPS * WARP_THREADS
MIN_TOKENS = (
    32  # of a work tile: at 128 columns of 16 bits each thread has 4 reads of 16 bytes in flight
)
MAX_WIDTH = 64  # columns of a fragment: 128 bytes at 16 bits, a line
UNIT_BITS = 128  # of a thread's access
STORAGE = (
    attn.LimitedOp,
    attn.SelectedOp,
    attn.TrimmedOp,
    attn.PagedOp,
    attn.PagedCsrOp,
    attn.ScaledOp,
)


@register
class Append:
    """New tokens into a cache, by threads alone."""

    name: ClassVar[str] = "append"
    operation: ClassVar[type[Any]] = attn.AppendOp
    options: ClassVar[type[Any]] = NoOptions

    def lacks(self, target: Target) -> str:
        """Nothing: no product is taken."""
        return ""

    def takes(self, op: attn.AppendOp, target: Target) -> bool:
        """Any."""
        return True

    def configure(self, op: attn.AppendOp, target: Target, options: Mapping[str, Any]) -> None:
        """Leaves nothing: the tiles follow from the sizes."""

    def build(self, function: Any, op: attn.AppendOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one `attn.append`.

        Raises:
          VerifyError: the function computes something else as well, or the caches lie in views that
            no kernel writes to.
        """
        _check(function, op)
        kernel = b.declare_kernel(function.sym_name.value, _arguments(function, op))
        with ir.InsertionPoint(kernel.body.blocks[0]):
            given = dict(zip(function.arguments, kernel.body.blocks[0].arguments, strict=True))
            _emit(Problem.of(op, given))
        return kernel


def _check(function: Any, op: attn.AppendOp) -> None:
    """Raises VerifyError for a function that the kernel does not cover."""
    block = list(function.body.blocks[0].operations)
    others = [other for other in block if not isinstance(other, STORAGE)]
    if len(others) != 2 or list(others[1].operation.operands):
        names = ", ".join(other.operation.name for other in others)
        raise op_error(function, f"expects one attn.append and an empty func.return, got {names}")
    caches = [root(op.k_cache), root(op.v_cache)]
    if [*caches, op.k_new, op.v_new] != list(function.arguments)[:4]:
        raise op_error(op, "expects the function's first arguments as its first operands, in order")
    for cache in (op.k_cache, op.v_cache):
        steps: list[Any] = [type(step) for step in storage_steps(cache)]
        if len(set(steps)) != len(steps) or attn.RaggedOp in steps:
            raise op_error(
                op, "expects caches that each storage operation looks at once, not ragged"
            )
        if len(op.slots) and set(steps) - {attn.ScaledOp}:
            raise op_error(op, "expects slots of caches as they are stored")
        is_paged = attn.PagedOp in steps or attn.PagedCsrOp in steps
        if is_paged and {attn.SelectedOp, attn.TrimmedOp} & set(steps):
            raise op_error(op, "expects sequences in pages to be neither selected nor trimmed")


def _arguments(function: Any, op: attn.AppendOp) -> list[b.Argument]:
    """The function's arguments; extents of one name are equal."""
    kinds: list[Any] = [type(step) for step in storage_steps(op.k_cache)]
    pool = root(op.k_cache).type
    is_batch = op.k_new.type.rank > 3
    if not pool.is_dynamic_dim(1):
        cache = ("pages", "", "", "")
    else:
        own_rows = is_batch and attn.SelectedOp not in kinds
        cache = ("batch" if own_rows else "rows", "sk", "", "")
    tokens = ("batch", "sq") if is_batch else ("tokens",)
    per_token = [x for values in (op.slots, op.positions, op.sequences) for x in values]
    names = names_of(function)
    found: list[b.Argument] = []
    for number, value in enumerate(function.arguments):
        name, kind = names[number] or f"capture{number}", value.type
        dims = tuple(f"{name}_{i}" if kind.is_dynamic_dim(i) else "" for i in range(kind.rank))
        if number < 2:
            dims = cache
        elif number < 4:
            dims = (*tokens, "", "")
        elif value in per_token:
            dims = tokens
        elif value in list(op.angles):
            dims = ("angles", "")
        memref = ir.MemRefType.get(list(kind.shape), kind.element_type)
        found.append(b.Argument(name, "inout" if number < 2 else "in", memref, dims))
    return found


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

    @staticmethod
    def of(op: attn.AppendOp, given: Mapping[Value, Value]) -> "Problem":
        """The problem of an operation whose function's arguments are those of the kernel."""
        caches = (op.k_cache, op.v_cache)
        k, v = (Destination.of(x, given[root(x)], given) for x in caches)
        return Problem(
            k=k,
            v=v,
            k_new=given[op.k_new],
            v_new=given[op.v_new],
            told=Told.of(op, given),
            angles=tuple(given[angle] for angle in op.angles),
            rotary_dim=op.rotary_dim,
            interleaved=op.is_interleaved,
            is_listed_apart=_lists(op.k_cache) != _lists(op.v_cache),
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
        ends = [MAX_WIDTH, *self.columns]
        if self.rotary_dim:
            ends.append(self.rotary_dim if self.interleaved else self.rotary_dim // 2)
        return math.gcd(*ends)

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


def _lists(cache: Value) -> list[Value]:
    """What tells where a cache's positions are."""
    steps = (step for step in storage_steps(cache) if not isinstance(step, attn.ScaledOp))
    return [value for step in steps for value in list(step.operation.operands)[1:]]


def _emit(problem: Problem) -> None:
    heads = b.constant(ir.MemRefType(problem.k_new.type).shape[-2])
    total, size = problem.token_count(), problem.tokens
    with b.role("append", first=0, warps=WARPS):
        ends = problem.told.offsets
        if ends is None:
            with b.tiles([b.INT.ceildiv(total, size), heads], "single") as (block, head):
                first = b.INT.mul(block, size)
                _append(problem, Place(first, first, total, head, None))
            return
        count = b.INT.sub(b.extent(ends, 0), 1)
        space = [b.INT.ceildiv(total, size), heads, count]
        packing = [count, total, b.constant(size)]
        with b.tiles(space, "ragged", ends=[ends], packing=packing) as (block, head, sequence):
            begin, end = (b.element(ends, [x]) for x in (sequence, b.INT.add(sequence, 1)))
            begin = b.INT.min(b.INT.max(begin, 0), total)
            end = b.INT.min(b.INT.max(end, begin), total)
            first = b.INT.add(begin, b.INT.mul(block, size))
            _append(problem, Place(first, begin, end, head, sequence))


class _Rows(NamedTuple):
    """What threads know of their rows: fragments [tokens] of i32.

    Attributes:
      k, v: the rows of the caches.
      read: the rows of the tokens, `NOWHERE` where nothing of it is written.
    """

    k: Value
    v: Value
    read: Value


def _append(problem: Problem, place: Place) -> None:
    """Moves one work tile."""
    told, token = problem.told, problem.token

    def rows_of(of: Destination) -> Value:
        return _each_row(problem, lambda row: of.row(told, token(place, row)))

    k_rows = rows_of(problem.k)
    v_rows = rows_of(problem.v) if problem.is_listed_apart else k_rows

    def read(k: Value, v: Value, row: Value) -> Value:
        nowhere = b.constant(NOWHERE)
        wanted = b.INT.either(b.compare("sge", k, 0), b.compare("sge", v, 0))
        return b.select(wanted, b.INT.add(place.first, row), nowhere)

    rows = _Rows(k_rows, v_rows, b.map_rows(read, k_rows, v_rows))
    width, (k_columns, v_columns) = problem.width, problem.columns
    keys = [_tokens(problem, problem.k_new, rows, place, c) for c in range(0, k_columns, width)]
    values = [_tokens(problem, problem.v_new, rows, place, c) for c in range(0, v_columns, width)]
    if problem.angles:
        keys = _rotated(problem, place, rows, keys)
    for of, to, pieces in ((problem.k, rows.k, keys), (problem.v, rows.v, values)):
        element = ir.MemRefType(of.tensor.type).element_type
        factors = _factors(problem, of, place) if _is_narrowed(problem, of) else None
        for number, piece in enumerate(pieces):
            piece = _stored(piece, factors, element)
            b.store_rows(piece, to, of.tensor, [0, 0, place.head, number * width], [0, 1, 3])


def _each_row(problem: Problem, body: Callable[[Value], Value], element: Any = None) -> Value:
    """A fragment [tokens] of what a function says of each row of the tile."""
    return b.generate(body, [problem.tokens], b.i32() if element is None else element)


def _tokens(problem: Problem, tensor: Value, rows: _Rows, place: Place, column: int) -> Value:
    """Some columns of the tile's tokens."""
    dims = problem.token_dims
    coords = [*(0 for _ in dims), place.head, column]
    return b.load_rows(tensor, rows.read, problem.width, coords, [*dims, len(dims) + 1])


def _is_narrowed(problem: Problem, of: Destination) -> bool:
    """Whether the cache has factors and elements of fewer bits than the tokens."""
    kinds = [ir.MemRefType(x.type).element_type for x in (of.tensor, problem.k_new)]
    return of.factors is not None and ws.element_bits(kinds[0]) < ws.element_bits(kinds[1])


def _factors(problem: Problem, of: Destination, place: Place) -> Value:
    """What each row of the tile is divided by."""

    def factor(row: Value) -> Value:
        sequence = problem.token(place, row).sequence
        return b.element(of.factors, [sequence, place.head])

    return b.broadcast(_each_row(problem, factor, ir.F32Type.get()), problem.width)


def _wide(x: Value) -> Value:
    """An element as f32."""
    f32 = ir.F32Type.get()
    return x if x.type == f32 else arith.ExtFOp(f32, x).result


def _widened(fragment: Value) -> Value:
    """A fragment in f32."""
    f32 = ir.F32Type.get()
    if ws.FragmentType(fragment.type).element == f32:
        return fragment
    return b.map_elements(_wide, fragment, element=f32)


def _stored(piece: Value, factors: Value | None, element: Any) -> Value:
    """A fragment as the cache has it."""
    if factors is not None:
        piece = b.map_elements(_divided, _widened(piece), factors)
    if ws.FragmentType(piece.type).element == element:
        return piece
    return b.rounded(_widened(piece), element)


def _divided(x: Value, factor: Value) -> Value:
    """x / factor, rounded once."""
    return arith.DivFOp(x, factor).result


def _rotated(problem: Problem, place: Place, rows: _Rows, keys: list[Value]) -> list[Value]:
    """The keys with their first columns rotated; see `attn.append`."""
    told = problem.told
    width, rotated = problem.width, problem.rotary_dim // problem.width
    positions = _each_row(problem, lambda row: problem.k.place(told, problem.token(place, row))[0])
    if problem.interleaved:
        several = [_neighbours(problem, place, rows, positions, c * width) for c in range(rotated)]
        first = [_turned(x, *others) for x, others in zip(keys, several, strict=False)]
        return [*first, *keys[rotated:]]
    half = rotated // 2
    cos, sin = (
        [b.load_rows(angle, positions, width, [0, c * width], [0, 1]) for c in range(half)]
        for angle in problem.angles
    )
    low, high = keys[:half], keys[half:rotated]
    pairs = list(zip(low, high, cos, sin, strict=True))
    turned = [_turned(x, y, c, s, -1.0) for x, y, c, s in pairs]
    turned += [_turned(y, x, c, s, 1.0) for x, y, c, s in pairs]
    return [*turned, *keys[rotated:]]


def _turned(x: Value, y: Value, cos: Value, sin: Value, sign: float = 1.0) -> Value:
    """x cos + sign y sin, in f32."""

    def element(x: Value, y: Value, cos: Value, sin: Value) -> Value:
        return b.fma(x, cos, b.fmul(y if sign > 0 else b.fneg(y), sin))

    return b.map_elements(element, *map(_widened, (x, y, cos, sin)))


def _neighbours(
    problem: Problem, place: Place, rows: _Rows, positions: Value, first: int
) -> tuple[Value, Value, Value]:
    """For columns from `first` on: the other one of each pair with its sign, cos and sin.

    They are read one by one: a pair's columns lie in one thread, in 4 bytes that it has just read.
    """
    f32, width = ir.F32Type.get(), problem.width

    def other(token: Value, row: Value, column: Value) -> Value:
        pair = arith.XOrIOp(column, b.constant(1)).result
        coords = [token]
        if len(problem.token_dims) > 1:
            inner = b.extent(problem.k_new, 1)
            outer = b.INT.floordiv(b.INT.max(token, 0), inner)
            coords = [outer, b.INT.sub(token, b.INT.mul(outer, inner))]
        x = _wide(b.element(problem.k_new, [*coords, place.head, b.INT.add(pair, first)]))
        return b.select(b.compare("sgt", pair, column), b.fneg(x), x)

    def angle(of: Value) -> Value:
        def element(position: Value, row: Value, column: Value) -> Value:
            pair = arith.ShRUIOp(b.INT.add(column, first), b.constant(1)).result
            return _wide(b.element(of, [position, pair]))

        return b.map_coordinates(element, b.broadcast(positions, width), element=f32)

    cos, sin = problem.angles
    return (
        b.map_coordinates(other, b.broadcast(rows.read, width), element=f32),
        angle(cos),
        angle(sin),
    )
