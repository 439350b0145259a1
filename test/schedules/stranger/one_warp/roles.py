"""The role that attends: one warp, with a tile of Q and O in its registers."""

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import (
    RowState,
    masked_scores,
    reciprocal,
    softmax_step,
    store_lse,
    with_sink,
)


class Storage:
    """The rings between the roles: tiles of Q, K and V in shared memory.

    Attributes:
      columns: of a tile of values.
    """

    def __init__(self, problem: Problem):
        config, element = problem.config, problem.element
        self.columns = problem.v_columns
        queries = b.tile([config.tile_m, problem.columns], element, "shared")
        keys = b.tile([config.tile_n, problem.columns], element, "shared")
        values = b.tile([config.tile_n, self.columns], element, "shared")
        self.q = b.Ring("q", queries)
        self.k = b.Ring("k", keys, stages=config.kv_stages)
        self.v = b.Ring("v", values, stages=config.kv_stages)


def attend(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """Online softmax of a query tile over its key tiles; writes O and the LSE."""
    rows, zero = problem.config.tile_m, b.f32_constant(0.0)
    key_tiles, row0 = problem.column_tiles(tile), problem.first_position(tile, 0)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)

    q_slot = storage.q.wait()
    q = b.load(q_slot)
    b.release(q_slot, "threads")

    def iteration(test: Test | None, index: Value, *state: Value) -> list[Value]:
        *row_state, o = state
        slot = storage.k.wait()
        none = b.fill([rows, problem.config.tile_n], zero)
        scores = b.dot(none, q, b.load(slot), b_layout="nk")
        b.release(slot, "threads")
        scores = masked_scores(problem, tile, scores, test, key_tiles, index, row0, scale)
        step = softmax_step(problem, row, scores, RowState(*row_state))
        slot = storage.v.wait()
        p = b.rounded(step.weights, problem.element)
        o = b.dot(b.times_rows(o, step.alpha), p, b.load(slot), b_layout="kn")
        b.release(slot, "threads")
        return [*step.rows, o]

    start = [*RowState.empty(row, rows), b.fill([rows, storage.columns], zero)]
    *row_state, o = loop_over_tiles(key_tiles, key_tiles.phases(b.constant(0)), start, iteration)
    maximum, total = row_state[0], RowState(*row_state).total()
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    inverse = b.map_elements(lambda x: reciprocal(x, None), divisor)
    store_lse(problem, row, tile, row0, maximum, total)
    o = b.rounded(b.times_rows(o, inverse), problem.output)
    problem.rows.store_columns(o, tile.results, tile.head, row0, b.constant(0))
