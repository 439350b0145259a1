"""The softmax role: online softmax in the log2 domain with a row maximum that may be stale.

With c = scale x log2(e), per row and key tile (spec: FlashAttention-4):

    m' = max(m, max S)      keep m unless it lags too far:  (m - m') c < -threshold
    factor = 2^((m - m') c), 1 where m is kept
    P = 2^(S c - m c + lift)       l = l factor + sum P

A stale m lets P grow to 2^(lift + threshold), at most 2^8, which every type of P and f32 sums hold; it spares
correction most of the passes over O. The lift, 0 for 16 bits, puts 8-bit P where its type is finest. A row that has seen no key has m = -inf; its exponent is taken relative to 0.
"""

import math
from dataclasses import dataclass

from . import builder as b
from .masking import Test, hide
from .problem import Problem, Storage, Value, WorkTile

FMA_COLUMNS = 4  # per period: two pairs of 2^x on the multiply-add units (FlashAttention-4)
FMA_FRAGMENT = 32  # columns of a fragment; the row's last one is left to the special unit
HIDDEN_BELOW = -2e38  # scores below count as -inf: times log2(e) they would overflow float32
LN2 = math.log(2.0)
LOG2E = 1.0 / LN2


def softmax(problem: Problem, storage: Storage, tile: WorkTile, way: Value) -> None:
    """Turns S into P tile by tile, then leaves 1 / l with correction and writes the LSE."""
    keys = problem.keys(tile)
    rows = [problem.config.tile_m]
    phases = keys.phases(way)
    log2e = b.f32_constant(LOG2E)
    changes = problem.modifier.changes  # and then it has taken in the scale
    scale = problem.score_scale(tile)
    scale_log2 = log2e if changes else b.fmul(scale, log2e)
    step = _Step(scale_log2, problem.config.rescale_threshold)
    row0 = problem.first_position(tile, way)

    def turn_of(test: Test | None, turn: Value, maximum: Value, total: Value) -> list[Value]:
        slot = storage.s.wait(way)
        scores = b.load(slot)
        keeps = problem.modifier.hides and (test is not None or keys.keeps_everywhere)
        asks = changes or keeps or test is not None
        column0 = keys.first_column(turn) if asks else None
        if changes or keeps:
            factor = scale if changes else None
            scores = _modify(problem, scores, factor, tile, row0, column0, keeps=keeps)
        if test is not None:
            scores = hide(problem, tile, scores, test, row0, column0)
        found = b.reduce_rows("max", scores, maximum)
        factor = b.map_elements(step.factor, maximum, found)
        maximum = b.map_elements(step.maximum, maximum, found)
        handover = storage.stats.acquire(way)
        b.store(factor, handover)
        b.commit(handover, "threads")
        weights = _weights(problem, scores, maximum, scale_log2)
        narrow = b.map_elements(
            lambda p: b.truncate(p, problem.element), weights, element=problem.element
        )
        b.store(
            narrow, b.view(slot, [problem.config.tile_m, problem.config.tile_n], problem.element)
        )
        b.release(slot, "threads")
        scaled = b.map_elements(b.fmul, total, factor)
        return [maximum, b.reduce_rows("add", weights, scaled)]

    def turns(begin: Value | int, end: Value, test: Test | None, state: list[Value]) -> list[Value]:
        return b.loop(begin, end, state, lambda *args: turn_of(test, *args))

    state = [b.fill(rows, b.f32_constant(-math.inf)), b.fill(rows, b.f32_constant(0.0))]
    state = turns(0, phases.plain, Test.ALL, state)
    if phases.left is None:
        state = turns(phases.plain, keys.count, None, state)
    else:
        state = turns(phases.plain, phases.left, None, state)
        state = turns(phases.left, keys.count, Test.LEFT_EDGE, state)
    maximum, total = state

    handover = storage.stats.acquire(way)
    divisor = _with_sink(problem, tile, row0, maximum, total, scale_log2)
    output = problem.output_factor(tile)
    b.store(b.map_elements(lambda t: _reciprocal(t, output), divisor), handover)
    b.commit(handover, "threads")
    if problem.lse is not None:
        lse = b.map_elements(lambda m, t: _lse(problem, m, t, scale_log2), maximum, total)
        problem.queries.store_lse(lse, tile.results, tile.head, row0)
    with b.when(keys.any()):
        b.release(storage.s.wait(way), "threads")  # the turn without scores


def _modify(
    problem: Problem,
    scores: Value,
    scale: Value | None,
    tile: WorkTile,
    row0: Value,
    column0: Value,
    *,
    keeps: bool,
) -> Value:
    """Gives each score to the modifier with its coordinates, scaled if there is a scale."""

    def element(score: Value, row: Value, column: Value) -> Value:
        given = score if scale is None else b.fmul(score, scale)
        queries = problem.queries
        q, k = b.INT.add(row0, queries.position(row)), b.INT.add(column0, column)
        head = queries.head(tile.head, row)
        return problem.modifier(given, tile.batch, head, q, k, keeps=keeps)

    return b.map_coordinates(element, scores)


def _with_sink(
    problem: Problem, tile: WorkTile, row0: Value, maximum: Value, total: Value, scale_log2: Value
) -> Value:
    """l with the sink's 2^(logit log2(e) - m c + lift); a row that saw no key keeps its 0."""
    if not problem.modifier.has_sink:
        return total

    def element(m: Value, t: Value, row: Value) -> Value:
        queries = problem.queries
        q, head = b.INT.add(row0, queries.position(row)), queries.head(tile.head, row)
        logit = problem.modifier.sink(tile.batch, head, q)
        offset = _offset(problem, m, scale_log2)
        weight = b.exp2(b.fma(logit, b.f32_constant(LOG2E), offset))
        zero = b.f32_constant(0.0)
        return b.select(b.fcompare("OEQ", t, zero), zero, b.fadd(t, weight))

    return b.map_rows(element, maximum, total)


def _reference(maximum: Value) -> Value:
    """The maximum, or 0 for a row that has seen no key, so that -inf - reference is -inf."""
    empty = b.fcompare("OLT", maximum, b.f32_constant(HIDDEN_BELOW))
    return b.select(empty, b.f32_constant(0.0), maximum)


@dataclass(frozen=True)
class _Step:
    """What becomes of a row's maximum m when a tile's scores reach `found`, at least m."""

    scale_log2: Value
    threshold: int

    def _lag(self, maximum: Value, found: Value) -> Value:
        """How far m lies below `found`, in log2 units; never above 0."""
        return b.fmul(b.fsub(maximum, _reference(found)), self.scale_log2)

    def _is_kept(self, maximum: Value, found: Value) -> Value:
        lag = self._lag(maximum, found)
        return b.fcompare("OGE", lag, b.f32_constant(-float(self.threshold)))

    def maximum(self, maximum: Value, found: Value) -> Value:
        """The maximum to go on with."""
        return b.select(self._is_kept(maximum, found), maximum, found)

    def factor(self, maximum: Value, found: Value) -> Value:
        """What O and the row sum so far have to be multiplied by."""
        factor = b.exp2(self._lag(maximum, found))
        return b.select(self._is_kept(maximum, found), b.f32_constant(1.0), factor)


def _weights(problem: Problem, scores: Value, maximum: Value, scale_log2: Value) -> Value:
    """P = 2^(S c - m c + lift), unrounded f32."""
    offset = b.map_elements(lambda m: _offset(problem, m, scale_log2), maximum)
    offset = b.broadcast(offset, problem.config.tile_n)
    exponent = b.map_elements(lambda s, o: b.fma(s, scale_log2, o), scores, offset)
    config = problem.config
    return b.exp2_tile(
        exponent,
        period=config.exp2_period,
        count=FMA_COLUMNS if config.exp2_period else 0,
        begin=FMA_FRAGMENT * config.exp2_start,
        end=config.tile_n - FMA_FRAGMENT,
    )


def _offset(problem: Problem, maximum: Value, scale_log2: Value) -> Value:
    """lift - m c, what is added to S c."""
    product = b.fmul(_reference(maximum), scale_log2)
    return b.fsub(b.f32_constant(float(problem.lift)), product) if problem.lift else b.fneg(product)


def _reciprocal(total: Value, factor: Value | None) -> Value:
    """1 / l, or `factor` / l; 0 for a row that saw no key."""
    zero = b.f32_constant(0.0)
    empty = b.fcompare("OEQ", total, zero)
    inverse = b.fdiv(b.f32_constant(1.0) if factor is None else factor, total)
    return b.select(empty, zero, inverse)


def _lse(problem: Problem, maximum: Value, total: Value, scale_log2: Value) -> Value:
    """ln of the sum of e^(scale S): (m c + log2 l - lift) ln 2; -inf for a row that saw no key."""
    log2 = b.log2(total)
    if problem.lift:
        log2 = b.fsub(log2, b.f32_constant(float(problem.lift)))
    return b.fmul(b.fma(maximum, scale_log2, log2), b.f32_constant(LN2))
