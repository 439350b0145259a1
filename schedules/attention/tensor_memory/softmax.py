"""The softmax role: online softmax in the log2 domain with a row maximum that may be stale.

With c = scale x log2(e), per row and key tile (spec: FlashAttention-4):

    m' = max(m, max S)      keep m unless it lags too far:  (m - m') c < -threshold
    alpha = 2^((m - m') c), 1 where m is kept
    P = 2^(S c - m c + bias)       l = l alpha + sum P

With a stale m, P reaches up to 2^(bias + threshold), at most 2^8, which every type of P and f32
sums can hold; in return, correction rarely rescales O. The exponent bias, 0 for 16 bits, moves
8-bit P to where its type has small values too. A row that has seen no key has m = -inf; its
exponent is taken relative to 0. `softmax.row` has the formulas for one row.
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


def softmax(problem: Problem, storage: Storage, tile: WorkTile, q_tile: Value) -> None:
    """Turns S into P tile by tile; at the end passes 1 / l to correction and writes the LSE."""
    key_tiles = problem.column_tiles(tile)
    rows = [problem.config.tile_m]
    phases = key_tiles.phases(q_tile)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
    row0 = problem.first_position(tile, q_tile)
    row_scales = storage.row_scales
    query_scales = None if row_scales is None else row_scales.of_rows(problem, tile, row0)

    stages, columns = storage.stages.pv, problem.config.tile_n
    width = columns if stages == 1 else SCORE_CHUNK_COLUMNS

    def iteration(test: Test | None, index: Value, maximum: Value, total: Value) -> list[Value]:
        _await_other_group(storage, q_tile, group=1)
        slot = storage.s.wait(q_tile)
        chunks = {c: b.load(b.columns(slot, c, width)) for c in range(0, columns, width)}
        b.release(slot, "threads")
        if row_scales is not None and query_scales is not None:
            chunks = row_scales.scaled(chunks, query_scales)
        largest = maximum
        for column, scores in chunks.items():
            chunks[column] = scores = masked_scores(
                problem, tile, scores, test, key_tiles, index, row0, scale, column
            )
            largest = b.reduce_rows("max", scores, largest)
        alpha = b.map_elements(row.alpha, maximum, largest)
        maximum = b.map_elements(row.maximum, maximum, largest)
        stats_slot = storage.stats.acquire(q_tile)
        b.store(alpha, stats_slot)
        b.commit(stats_slot, "threads")
        targets = [storage.p.acquire(q_tile) for _ in range(stages)]
        other = None if storage.order is None else storage.order.acquire(b.INT.sub(1, q_tile))
        rescaled = b.map_elements(b.fmul, total, alpha)
        offset = b.map_elements(row.offset, maximum)

        def exp2_chunks(exponents: Callable[[Value, Value], tuple[Value, Value]]) -> list[Value]:
            exponentials: list[Value] = []
            next_offset = offset  # depends on the commit of the stage before
            for column, scores in chunks.items():
                number, first = divmod(column, columns // stages)
                scaled = exponents(scores, next_offset)
                exponentials.append(weights(problem, row, *scaled, column=column, of=columns))
                target = b.columns(targets[number], first, width)
                b.store(b.rounded(exponentials[-1], problem.element), target)
                if first + width == columns // stages:
                    b.commit(targets[number], "threads")
                    if number + 1 < stages:
                        next_offset = b.after(next_offset, targets[number])
            if other is not None:
                b.commit(other, "threads")
            return [row_sums(exponentials, rescaled)]

        large = b.any_row(b.map_elements(is_large, offset, element=b.i1()))
        (total,) = b.chosen(
            large,
            [total.type],
            lambda: exp2_chunks(lambda s, o: row.exact(s, o, maximum)),
            lambda: exp2_chunks(lambda s, o: (s, o)),
        )
        _await_other_group(storage, q_tile, group=0)
        return [maximum, total]

    state = [b.fill(rows, b.f32_constant(-math.inf)), b.fill(rows, b.f32_constant(0.0))]
    state = loop_over_tiles(key_tiles, phases, state, iteration)
    maximum, total = state

    _await_acknowledgement(storage, q_tile)
    stats_slot = storage.stats.acquire(q_tile)
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_scale(tile)
    b.store(b.map_elements(lambda t: reciprocal(t, output), divisor), stats_slot)
    b.commit(stats_slot, "threads")
    store_lse(problem, row, tile, row0, maximum, total)
    _await_acknowledgement(storage, q_tile)


def _await_other_group(storage: Storage, q_tile: Value, *, group: int) -> None:
    """Waits until the other softmax group has committed P, if the groups alternate.

    Group 1 waits before an iteration for the same iteration of group 0; group 0 waits after an
    iteration for the same iteration of group 1. Each waits once an iteration, and the first
    iteration of group 0 starts at once.
    """
    if storage.order is not None:
        with b.when(b.compare("eq", q_tile, group)):
            b.release(storage.order.wait(q_tile), "threads")


def _await_acknowledgement(storage: Storage, q_tile: Value) -> None:
    """Waits until correction has read every slot of `stats` so far."""
    b.release(storage.acknowledged.wait(q_tile), "threads")
