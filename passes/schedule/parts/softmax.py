"""The softmax role: online softmax in the log2 domain with a row maximum that may be stale.

With c = scale x log2(e), per row and key tile (spec: FlashAttention-4):

    m' = max(m, max S)      keep m unless it lags too far:  (m - m') c < -threshold
    factor = 2^((m - m') c), 1 where m is kept
    P = 2^(S c - m c + lift)       l = l factor + sum P

With a stale m, P reaches up to 2^(lift + threshold), at most 2^8, which every type of P and f32 sums
can hold; in return, correction rarely has to rescale O. The lift, 0 for 16 bits, moves 8-bit P to
where its type has small values too. A row that has seen no key has m = -inf; its exponent is taken
relative to 0. `online` has the formulas for one row.
"""

import math

from . import builder as b
from .masking import Test
from .online import Row, is_large
from .problem import Problem, Value, WorkTile
from .scores import reciprocal, seen, store_lse, weights, with_sink
from .storage import Storage
from .visited import visit


def softmax(problem: Problem, storage: Storage, tile: WorkTile, way: Value) -> None:
    """Turns S into P tile by tile; at the end passes 1 / l to correction and writes the LSE."""
    visited = problem.key_tiles(tile)
    rows = [problem.config.tile_m]
    phases = visited.phases(way)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
    row0 = problem.first_position(tile, way)
    factors = storage.factors
    own = None if factors is None else factors.of_rows(problem, tile, row0)

    def turn_of(test: Test | None, turn: Value, maximum: Value, total: Value) -> list[Value]:
        slot = storage.s.wait(way)
        scores = b.load(slot)
        b.release(slot, "threads")
        if factors is not None and own is not None:
            scores = factors.scaled(scores, own)
        scores = seen(problem, tile, scores, test, visited, turn, row0, scale)
        found = b.reduce_rows("max", scores, maximum)
        factor = b.map_elements(row.factor, maximum, found)
        maximum = b.map_elements(row.maximum, maximum, found)
        handover = storage.stats.acquire(way)
        b.store(factor, handover)
        b.commit(handover, "threads")
        target = storage.p.acquire(way)
        scaled = b.map_elements(b.fmul, total, factor)
        offset = b.map_elements(row.offset, maximum)

        def weigh(scores: Value, offset: Value) -> list[Value]:
            weighed = weights(problem, row, scores, offset)
            b.store(b.rounded(weighed, problem.element), target)
            b.commit(target, "threads")
            return [b.reduce_rows("add", weighed, scaled)]

        large = b.any_row(b.map_elements(is_large, offset, element=b.i1()))
        (total,) = b.chosen(
            large,
            [total.type],
            lambda: weigh(*row.exact(scores, offset, maximum)),
            lambda: weigh(scores, offset),
        )
        return [maximum, total]

    state = [b.fill(rows, b.f32_constant(-math.inf)), b.fill(rows, b.f32_constant(0.0))]
    state = visit(visited, phases, state, turn_of)
    maximum, total = state

    _hear(storage, way)
    handover = storage.stats.acquire(way)
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_factor(tile)
    b.store(b.map_elements(lambda t: reciprocal(t, output), divisor), handover)
    b.commit(handover, "threads")
    store_lse(problem, row, tile, row0, maximum, total)
    _hear(storage, way)


def _hear(storage: Storage, way: Value) -> None:
    """Waits until correction has read all that was handed over in `stats`."""
    b.release(storage.heard.wait(way), "threads")
