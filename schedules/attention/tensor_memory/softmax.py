"""The softmax role: online softmax in the log2 domain with a row maximum that may be stale.

With c = scale x log2(e), per row and key tile (spec: FlashAttention-4):

    m' = max(m, max S)      keep m unless it lags too far:  (m - m') c < -threshold
    factor = 2^((m - m') c), 1 where m is kept
    P = 2^(S c - m c + lift)       l = l factor + sum P

With a stale m, P reaches up to 2^(lift + threshold), at most 2^8, which every type of P and f32
sums can hold; in return, correction rarely has to rescale O. The lift, 0 for 16 bits, moves 8-bit P
to where its type has small values too. A row that has seen no key has m = -inf; its exponent is
taken relative to 0. `online` has the formulas for one row.
"""

import math
from collections.abc import Callable

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.row import Row, is_large
from attn_mlir.schedules.softmax.state import (
    masked_scores,
    reciprocal,
    row_sums,
    store_lse,
    weights,
    with_sink,
)

from .policy import SCORE_CHUNK_COLUMNS
from .storage import Storage


def softmax(problem: Problem, storage: Storage, tile: WorkTile, way: Value) -> None:
    """Turns S into P tile by tile; at the end passes 1 / l to correction and writes the LSE."""
    visited = problem.column_tiles(tile)
    rows = [problem.config.tile_m]
    phases = visited.phases(way)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
    row0 = problem.first_position(tile, way)
    factors = storage.factors
    own = None if factors is None else factors.of_rows(problem, tile, row0)

    stages, columns = storage.stages.pv, problem.config.tile_n
    width = columns if stages == 1 else SCORE_CHUNK_COLUMNS

    def iteration(test: Test | None, turn: Value, maximum: Value, total: Value) -> list[Value]:
        _await_turn(storage, way, group=1)
        slot = storage.s.wait(way)
        pieces = {c: b.load(b.columns(slot, c, width)) for c in range(0, columns, width)}
        b.release(slot, "threads")
        if factors is not None and own is not None:
            pieces = factors.scaled(pieces, own)
        found = maximum
        for column, scores in pieces.items():
            pieces[column] = scores = masked_scores(
                problem, tile, scores, test, visited, turn, row0, scale, column
            )
            found = b.reduce_rows("max", scores, found)
        factor = b.map_elements(row.alpha, maximum, found)
        maximum = b.map_elements(row.maximum, maximum, found)
        handover = storage.stats.acquire(way)
        b.store(factor, handover)
        b.commit(handover, "threads")
        targets = [storage.p.acquire(way) for _ in range(stages)]
        other = None if storage.order is None else storage.order.acquire(b.INT.sub(1, way))
        scaled = b.map_elements(b.fmul, total, factor)
        offset = b.map_elements(row.offset, maximum)

        def softmax_step(exponents: Callable[[Value, Value], tuple[Value, Value]]) -> list[Value]:
            weighed: list[Value] = []
            rest = (
                offset  # of scores that are weighed when the part before them has been handed over
            )
            for column, scores in pieces.items():
                number, first = divmod(column, columns // stages)
                given = exponents(scores, rest)
                weighed.append(weights(problem, row, *given, column=column, of=columns))
                target = b.columns(targets[number], first, width)
                b.store(b.rounded(weighed[-1], problem.element), target)
                if first + width == columns // stages:
                    b.commit(targets[number], "threads")
                    if number + 1 < stages:
                        rest = b.after(rest, targets[number])
            if other is not None:
                b.commit(other, "threads")
            return [row_sums(weighed, scaled)]

        large = b.any_row(b.map_elements(is_large, offset, element=b.i1()))
        (total,) = b.chosen(
            large,
            [total.type],
            lambda: softmax_step(lambda scores, rest: row.exact(scores, rest, maximum)),
            lambda: softmax_step(lambda scores, rest: (scores, rest)),
        )
        _await_turn(storage, way, group=0)
        return [maximum, total]

    state = [b.fill(rows, b.f32_constant(-math.inf)), b.fill(rows, b.f32_constant(0.0))]
    state = loop_over_tiles(visited, phases, state, iteration)
    maximum, total = state

    _hear(storage, way)
    handover = storage.stats.acquire(way)
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_scale(tile)
    b.store(b.map_elements(lambda t: reciprocal(t, output), divisor), handover)
    b.commit(handover, "threads")
    store_lse(problem, row, tile, row0, maximum, total)
    _hear(storage, way)


def _await_turn(storage: Storage, way: Value, *, group: int) -> None:
    """One of the groups waits until the other one has handed P over, where they take turns.

    Group 1 waits in front of its turn, for the same turn of group 0; group 0 behind its turn, for
    the same turn of group 1. So either hears of the other once a turn, and the first turn of group
    0 waits for nobody.
    """
    if storage.order is not None:
        with b.when(b.compare("eq", way, group)):
            b.release(storage.order.wait(way), "threads")


def _hear(storage: Storage, way: Value) -> None:
    """Waits until correction has read all that was handed over in `stats`."""
    b.release(storage.heard.wait(way), "threads")
