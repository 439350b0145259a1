"""The softmax role: online softmax in the log2 domain with a row maximum that may be stale.

With c = scale x log2(e), per row and key tile (spec: FlashAttention-4):

    m' = max(m, max S)      keep m unless it lags too far:  (m - m') c < -threshold
    factor = 2^((m - m') c), 1 where m is kept
    P = 2^(S c - m c + lift)       l = l factor + sum P

A stale m lets P grow to 2^(lift + threshold), at most 2^8, which every type of P and f32 sums hold; it spares
correction most of the passes over O. The lift, 0 for 16 bits, puts 8-bit P where its type is finest. A row that has
seen no key has m = -inf; its exponent is taken relative to 0. What a row's numbers become is in `online`.
"""

import math

from . import builder as b
from .masking import Test, hide
from .online import Row, is_large
from .problem import Problem, Value, WorkTile
from .storage import Storage

FMA_COLUMNS = 4  # per period: two pairs of 2^x on the multiply-add units (FlashAttention-4)
FMA_FRAGMENT = 32  # columns of a fragment; the row's last one is left to the special unit


def softmax(problem: Problem, storage: Storage, tile: WorkTile, way: Value) -> None:
    """Turns S into P tile by tile, then leaves 1 / l with correction and writes the LSE."""
    keys = problem.keys(tile)
    rows = [problem.config.tile_m]
    phases = keys.phases(way)
    changes = problem.modifier.changes
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
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
        factor = b.map_elements(row.factor, maximum, found)
        maximum = b.map_elements(row.maximum, maximum, found)
        handover = storage.stats.acquire(way)
        b.store(factor, handover)
        b.commit(handover, "threads")
        target = b.view(slot, [problem.config.tile_m, problem.config.tile_n], problem.element)
        scaled = b.map_elements(b.fmul, total, factor)
        offset = b.map_elements(row.offset, maximum)

        def weigh(scores: Value, offset: Value) -> list[Value]:
            weights = _weights(problem, row, scores, offset)
            narrow = b.map_elements(
                lambda p: b.truncate(p, problem.element), weights, element=problem.element
            )
            b.store(narrow, target)
            b.release(slot, "threads")
            return [b.reduce_rows("add", weights, scaled)]

        large = b.any_row(b.map_elements(is_large, offset, element=b.i1()))
        (total,) = b.chosen(
            large,
            [total.type],
            lambda: weigh(*row.exact(scores, offset, maximum)),
            lambda: weigh(scores, offset),
        )
        return [maximum, total]

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
    divisor = _with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_factor(tile)
    b.store(b.map_elements(lambda t: _reciprocal(t, output), divisor), handover)
    b.commit(handover, "threads")
    _store_lse(problem, row, tile, row0, maximum, total)
    with b.when(keys.any()):
        b.release(storage.s.wait(way), "threads")  # the turn without scores


def _store_lse(
    problem: Problem, row: Row, tile: WorkTile, row0: Value, maximum: Value, total: Value
) -> None:
    """Writes the LSE, if anyone asks for it; of a part as a sum of two."""
    if problem.lse is None:
        return
    formulas = [row.lse] if problem.parts is None else [row.lse_first, row.lse_rest]
    for number, formula in enumerate(formulas):
        term = [number] if problem.parts is not None else []
        rows = b.map_elements(formula, maximum, total)
        problem.queries.store_lse(rows, tile.results, tile.head, row0, *term)


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
    problem: Problem, rows: Row, tile: WorkTile, row0: Value, maximum: Value, total: Value
) -> Value:
    """l with the sink's weight; a row that saw no key keeps its 0."""
    if not problem.modifier.has_sink:
        return total

    def element(m: Value, t: Value, row: Value) -> Value:
        queries = problem.queries
        q, head = b.INT.add(row0, queries.position(row)), queries.head(tile.head, row)
        weight = rows.of_logit(problem.modifier.sink(tile.batch, head, q), m)
        zero = b.f32_constant(0.0)
        return b.select(b.fcompare("OEQ", t, zero), zero, b.fadd(t, weight))

    return b.map_rows(element, maximum, total)


def _weights(problem: Problem, row: Row, scores: Value, offset: Value) -> Value:
    """P = 2^(S c - m c + lift), unrounded f32."""
    config = problem.config
    offset = b.broadcast(offset, config.tile_n)
    exponent = b.map_elements(lambda s, o: b.fma(s, row.scale_log2, o), scores, offset)
    return b.exp2_tile(
        exponent,
        period=config.exp2_period,
        count=FMA_COLUMNS if config.exp2_period else 0,
        begin=FMA_FRAGMENT * config.exp2_start,
        end=config.tile_n - FMA_FRAGMENT,
    )


def _reciprocal(total: Value, factor: Value | None) -> Value:
    """1 / l, or `factor` / l; 0 for a row that saw no key."""
    zero = b.f32_constant(0.0)
    empty = b.fcompare("OEQ", total, zero)
    inverse = b.fdiv(b.f32_constant(1.0) if factor is None else factor, total)
    return b.select(empty, zero, inverse)
