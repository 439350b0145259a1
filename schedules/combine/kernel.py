"""The kernel of `attn.combine`, which combines the results of splits of the keys.

A work tile is 128 rows by 64 columns of O, of one sequence. Its rows are queries of one head or,
for few queries, heads of one query, in work tiles of 32 rows. The first warps, with a row per
thread, add up the splits with their weights; then one warp stores the result, and one loads the
splits. Splits are added in order, so the result does not depend on timing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.combine import HEADS_ALONG_ROWS
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.combine.policy import COMBINE
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

ROWS, FEW_ROWS = 128, 32  # a row per thread; in four warps or one
COLUMNS = 64  # the f32 accumulators of a row are 64 registers
FRAGMENT_COLUMNS = 32
IN_FLIGHT = 384  # rows of splits, of 256 bytes each
BATCH = 8  # splits whose LSEs are loaded at once, to hide the latency of memory
PREFETCHED = 4  # splits whose LSEs are prefetched in the loop over O
LN2 = math.log(2.0)
LOG2E = 1.0 / LN2


class WorkTile(NamedTuple):
    """A work tile: its first column of O, and the coordinates of its first row; i32 each."""

    column: Value
    batch: Value
    query: Value
    head: Value


@dataclass(frozen=True)
class Problem:
    """The operation: its tensors and sizes.

    Attributes:
      parts, lses, o, lse: memrefs with the shapes of `attn.combine`; lse may be absent.
      lse_terms: 1, or 2 if an LSE of a split is stored as two numbers to be added.
      sinks: memref [heads] or None.
      heads, v_head_dim: static sizes.
      output: element type of o.
      heads_along_rows: whether the rows of a tile are heads of one query.
    """

    parts: Value
    lses: Value
    o: Value
    lse: Value | None
    sinks: Value | None
    lse_terms: int
    heads: int
    v_head_dim: int
    output: Any
    heads_along_rows: bool

    @property
    def split_count(self) -> Value:
        """Number of parts, i32."""
        return b.extent(self.parts, 0)

    @property
    def rows(self) -> int:
        """Rows of a work tile."""
        return FEW_ROWS if self.heads_along_rows else ROWS

    def tile_space(self) -> list[Value]:
        """Extents of the tile space.

        First blocks of rows times blocks of columns, then queries or heads, whichever do not run
        along the rows, then the batch.
        """
        sq, heads = b.extent(self.o, 1), b.constant(self.heads)
        along, other = (heads, sq) if self.heads_along_rows else (sq, heads)
        blocks = b.INT.mul(b.INT.ceildiv(along, self.rows), -(-self.v_head_dim // COLUMNS))
        return [blocks, other, b.extent(self.o, 0)]

    def place(self, block: Value, other: Value, batch: Value) -> WorkTile:
        """The work tile with these coordinates; the column blocks of a row block are adjacent."""
        column_blocks = -(-self.v_head_dim // COLUMNS)
        row_block = b.INT.floordiv(block, column_blocks)
        column = b.INT.sub(block, b.INT.mul(row_block, column_blocks))
        first = b.INT.mul(row_block, self.rows)
        query, head = (other, first) if self.heads_along_rows else (first, other)
        return WorkTile(b.INT.mul(column, COLUMNS), batch, query, head)

    def coords_of(self, tile: WorkTile, row: Value) -> tuple[Value, Value]:
        """Query and head of a row of the tile."""
        if self.heads_along_rows:
            return tile.query, b.INT.add(tile.head, row)
        return b.INT.add(tile.query, row), tile.head


@register
class Combine:
    """Combines splits by copies and arithmetic of threads, without matrix products."""

    policy: ClassVar[Policy] = COMBINE

    def build(self, function: Any, op: attn.CombineOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one combination.

        Raises:
          VerifyError: the function computes something else as well, or mixes up operands.
        """
        operations = list(function.body.blocks[0].operations)
        if len(operations) != 2:
            names = ", ".join(other.operation.name for other in operations)
            raise op_error(function, f"expects one attn.combine and func.return, got {names}")
        if list(op.operation.operands) != list(function.arguments):
            raise op_error(op, "expects the function's arguments as its operands, in order")
        returned = list(operations[1].operation.operands)
        if returned not in ([op.o, op.lse], [op.o]):
            raise op_error(operations[1], "expects to return o, or o and lse, of the attn.combine")
        return _schedule(op, function.sym_name.value, with_lse=len(returned) > 1)


def _schedule(op: attn.CombineOp, name: str, *, with_lse: bool) -> ws.KernelOp:
    """Builds the kernel at the insertion point.

    Args:
      op: the operation.
      name: entry name of the kernel.
      with_lse: whether the kernel writes the LSE.
    """
    tensors = {
        "parts": (op.parts, "in", ("splits", "batch", "sq", "", "")),
        "lses": (op.lses, "in", (*[""] * (op.lse_terms - 1), "splits", "batch", "", "sq")),
        **({"sinks": (op.sinks[0], "in", ("",))} if len(op.sinks) else {}),
        "o": (op.o, "out", ("batch", "sq", "", "")),
        **({"lse": (op.lse, "out", ("batch", "", "sq"))} if with_lse else {}),
    }
    arguments = [
        b.Argument(label, role, ir.MemRefType.get([*v.type.shape], v.type.element_type), dims)
        for label, (v, role, dims) in tensors.items()
    ]
    kernel = b.declare_kernel(name, arguments)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        tensor_values = dict(zip(tensors, kernel.body.blocks[0].arguments, strict=True))
        problem = Problem(
            **({"lse": None, "sinks": None} | tensor_values),
            lse_terms=op.lse_terms,
            heads=op.o.type.shape[2],
            v_head_dim=op.o.type.shape[3],
            output=op.o.type.element_type,
            heads_along_rows=HEADS_ALONG_ROWS in op.operation.attributes,
        )
        b.emit_roles(_roles(problem))
    return kernel


def _roles(problem: Problem) -> list[b.Role]:
    shape, warps = [problem.rows, COLUMNS], problem.rows // WARP_THREADS
    tile = b.tile(shape, ir.F32Type.get(), "shared")
    ring = b.Ring("parts", tile, stages=IN_FLIGHT // problem.rows)
    out = b.Ring("out", b.tile(shape, problem.output, "shared"))

    def work(body: Callable[[WorkTile], None]) -> Callable[[Value], None]:
        """The body of a role in a work tile, after the kernels before this one."""

        def run(_: Value) -> None:
            b.grid_dependency_wait()
            with b.tiles(problem.tile_space(), "single") as coordinates:
                body(problem.place(*coordinates))

        return run

    return [
        b.Role("combine", work(lambda place: _combine(problem, ring, out, place)), warps=warps),
        b.Role("store", work(lambda place: _store(problem, out, place)), lanes=1),
        b.Role("load", work(lambda place: _load(problem, ring, place)), lanes=1),
    ]


def _row_dims(problem: Problem, lead: int) -> list[int]:
    """Dimensions of [..., query, head, column] along which rows and columns of a tile run.

    `lead` is the number of dimensions before the query.
    """
    return [lead + 1 if problem.heads_along_rows else lead, lead + 2]


def _load(problem: Problem, ring: b.Ring, tile: WorkTile) -> None:
    def iteration(split: Value) -> list[Value]:
        slot = ring.acquire()
        coords = [split, tile.batch, tile.query, tile.head, tile.column]
        b.copy_in(problem.parts, slot, coords, _row_dims(problem, 2))
        b.commit(slot, "copy_engine")
        return []

    b.loop(0, problem.split_count, [], iteration)


def _store(problem: Problem, out: b.Ring, tile: WorkTile) -> None:
    slot = out.wait()
    coords = [tile.batch, tile.query, tile.head, tile.column]
    b.copy_out(slot, problem.o, coords, _row_dims(problem, 1))
    b.release(slot, "copy_engine")


def _combine(problem: Problem, ring: b.Ring, out: b.Ring, tile: WorkTile) -> None:
    """Computes the weights from the LSEs, then the weighted sum of the splits.

    `peak` is the largest LSE of each row, a fragment for each of its terms.
    """
    f32, parts, rows = ir.F32Type.get(), problem.split_count, problem.rows

    def lses_of(split: Value) -> list[Value]:
        """The LSE of each row in a split, a fragment per term; clamped to the last split."""

        def term_of(*term: int) -> Value:
            def element(row: Value) -> Value:
                query, head = problem.coords_of(tile, row)
                lse = b.element(problem.lses, [*term, split, tile.batch, head, query])
                return lse if term else _of_no_keys(lse)

            return b.generate(element, [rows], f32)

        return [term_of()] if problem.lse_terms == 1 else [*map(term_of, range(problem.lse_terms))]

    def over_splits(begin: list[Value], step: Callable[..., list[Value]]) -> list[Value]:
        """A loop over splits in batches, whose LSEs are loaded together.

        `step` computes the next state from a split's number, its LSE and the state. The numbers of
        the last batch may exceed the number of splits.
        """

        def several(number: Value, *state: Value) -> list[Value]:
            first = b.INT.mul(number, BATCH)
            numbers = [b.INT.add(first, i) for i in range(BATCH)]
            current = list(state)
            for split, lses in zip(numbers, [lses_of(split) for split in numbers], strict=True):
                current = step(split, lses, *current)
            return current

        return b.loop(0, b.INT.ceildiv(parts, BATCH), begin, several)

    def update_max(split: Value, lses: list[Value], *peak: Value) -> list[Value]:
        """The larger LSE: the larger first term with its second term, or the larger second one."""
        del split

        def low_term(m: Value, r: Value, other: Value, other_low: Value) -> Value:
            equal = b.select(b.fcompare("OEQ", other, m), _larger(r, other_low), r)
            return b.select(b.fcompare("OGT", other, m), other_low, equal)

        first = b.map_elements(_larger, peak[0], lses[0])
        return [first, *(b.map_elements(low_term, *peak, *lses) for _ in peak[1:])]

    def add_weight(split: Value, lses: list[Value], total: Value) -> list[Value]:
        exists = b.compare("slt", split, parts)

        def element(t: Value, *terms: Value) -> Value:
            weight = _relative(list(terms[: len(lses)]), list(terms[len(lses) :]))
            return b.fadd(t, b.select(exists, weight, b.f32_constant(0.0)))

        return [b.map_elements(element, total, *lses, *peak)]

    def add(split: Value, *state: Value) -> list[Value]:
        prefetched, accumulators = (
            list(state[: PREFETCHED * len(peak)]),
            state[PREFETCHED * len(peak) :],
        )
        lses, prefetched = prefetched[: len(peak)], prefetched[len(peak) :]
        prefetched += lses_of(b.INT.add(split, PREFETCHED))

        def element(i: Value, *terms: Value) -> Value:
            weight = _relative(list(terms[: len(lses)]), list(terms[len(lses) :]))
            return b.fmul(weight, i)

        weight = b.broadcast(b.map_elements(element, inverse, *lses, *peak), FRAGMENT_COLUMNS)
        slot = ring.wait()
        values = [
            b.map_elements(_weighted, b.load(fragment), weight) for fragment in _column_tiles(slot)
        ]
        b.release(slot, "threads")
        added = [
            b.map_elements(b.fadd, s, value) for s, value in zip(accumulators, values, strict=True)
        ]
        return [*prefetched, *added]

    zero = b.f32_constant(0.0)
    lowest = b.fill([rows], b.f32_constant(-math.inf))
    peak = over_splits([lowest, *[b.fill([rows], zero)] * (problem.lse_terms - 1)], update_max)
    (total,) = over_splits([b.fill([rows], zero)], add_weight)
    inverse = b.map_elements(_reciprocal, _with_sink(problem, tile, peak, total))
    begin = [term for number in range(PREFETCHED) for term in lses_of(b.constant(number))]
    begin += [b.fill([rows, FRAGMENT_COLUMNS], zero)] * (COLUMNS // FRAGMENT_COLUMNS)
    accumulators = b.loop(0, parts, begin, add)[PREFETCHED * len(peak) :]

    slot = out.acquire()
    for fragment, target in zip(accumulators, _column_tiles(slot), strict=True):
        b.store(b.rounded(fragment, problem.output), target)
    b.commit(slot, "threads")
    if problem.lse is not None:
        with b.when(b.compare("eq", tile.column, 0)):
            _store_lse(problem, tile, b.map_elements(_lse, total, *peak))


def _store_lse(problem: Problem, tile: WorkTile, rows: Value) -> None:
    dims = [1] if problem.heads_along_rows else [2]
    b.store_global(rows, problem.lse, [tile.batch, tile.head, tile.query], dims)


def _with_sink(problem: Problem, tile: WorkTile, peak: list[Value], total: Value) -> Value:
    """The row sum plus e^(sink - peak); a row without a key keeps its 0."""
    if problem.sinks is None:
        return total
    kind = ir.MemRefType(problem.sinks.type).element_type

    def element(t: Value, *terms: Value) -> Value:
        *top, row = terms
        _, head = problem.coords_of(tile, row)
        logit = ws.ElementOp(problem.sinks, [head], kind).value
        if kind != ir.F32Type.get():
            logit = arith.ExtFOp(ir.F32Type.get(), logit).result
        zero = b.f32_constant(0.0)
        with_sink = b.fadd(t, _relative([logit], top))
        return b.select(b.fcompare("OEQ", t, zero), zero, with_sink)

    return b.map_rows(element, total, *peak)


def _of_no_keys(lse: Value) -> Value:
    """An LSE of the caller; -inf also for a split without keys that some kernels mark by +inf."""
    lowest, highest = b.f32_constant(-math.inf), b.f32_constant(math.inf)
    return b.select(b.fcompare("OEQ", lse, highest), lowest, lse)


def _larger(a: Value, c: Value) -> Value:
    return b.select(b.fcompare("OGT", c, a), c, a)


def _reference(maximum: Value) -> Value:
    """The maximum, or 0 for a row without a key, so that -inf - reference is -inf."""
    lowest = b.f32_constant(-math.inf)
    return b.select(b.fcompare("OEQ", maximum, lowest), b.f32_constant(0.0), maximum)


def _relative(lse: list[Value], peak: list[Value]) -> Value:
    """e^(lse - peak), both as terms to be added; a missing second term of `lse` is 0."""
    difference = b.fsub(lse[0], _reference(peak[0]))
    for number, low_term in enumerate(peak[1:], 1):
        lse_low = lse[number] if number < len(lse) else b.f32_constant(0.0)
        difference = b.fadd(difference, b.fsub(lse_low, low_term))
    return b.exp2(b.fmul(difference, b.f32_constant(LOG2E)))


def _weighted(value: Value, weight: Value) -> Value:
    """value x weight; 0 for a weight of 0, as an empty split may be unwritten memory."""
    zero = b.f32_constant(0.0)
    return b.select(b.fcompare("OEQ", weight, zero), zero, b.fmul(value, weight))


def _reciprocal(total: Value) -> Value:
    """1 / l, or 0 for a row without a key."""
    zero = b.f32_constant(0.0)
    return b.select(b.fcompare("OEQ", total, zero), zero, b.fdiv(b.f32_constant(1.0), total))


def _lse(total: Value, first: Value, *low_term: Value) -> Value:
    """peak + ln l; -inf for a row without a key."""
    count = b.log2(total)
    if not low_term:
        return b.fma(count, b.f32_constant(LN2), _reference(first))
    return b.fadd(_reference(first), b.fma(count, b.f32_constant(LN2), *low_term))


def _column_tiles(tile: Value) -> list[Value]:
    return [b.columns(tile, c, FRAGMENT_COLUMNS) for c in range(0, COLUMNS, FRAGMENT_COLUMNS)]
