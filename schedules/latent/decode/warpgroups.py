"""Absorbed latent attention of 64 rows with O in the registers of two warpgroups.

O has 512 columns, twice as many as a warpgroup has registers for. So one warpgroup computes P of a
key tile and accumulates the first half of O, and sends P and alpha to the second warpgroup, which
accumulates the other half. The first 512 columns of a tile of keys are its values.

```text
load --q,keys--> attend --p,factors--> follow --out--> load
           |       '-------------out-----^--------------^
           '--------------keys-----------'
```
An iteration of `attend`, for key tile n:

```text
issue S(n) = Q K(n)^T    wait for it    mask and m_i of tile n
commit alpha; rescale the first half of O if m_i changed
P and l_i of tile n    store P(n), rounded
issue O += P(n) V(n), from registers    commit P(n)    wait for the product
```
`follow` rescales its half when it has alpha, while P is computed, and reads P from shared memory.
The product of `attend` is issued before the fences of P's commit.
"""

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.latent.columns import LATENT_COLUMNS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import (
    STATE_VALUES,
    RowState,
    exp2_scores,
    masked_scores,
    reciprocal,
    store_lse,
    update_max,
    with_sink,
)

HALF_COLUMNS = LATENT_COLUMNS // 2  # columns of O in a group: 128 registers of each thread


class RegisterLatentStorage:
    """The rings of the kernel, as `stream` fills them.

    `factors` has alpha of each iteration, in the end 1 / l_i. Both warpgroups stage O in `out`;
    splits of the keys have none, as their O in f32 goes to memory from registers.

    Attributes:
      k, v: the ring of keys, whose tiles are those of values as well.
      columns: of a tile of values as it is loaded.
    """

    def __init__(self, problem: Problem):
        config, element, f32 = problem.config, problem.element, ir.F32Type.get()
        rows, keys = config.tile_m, config.tile_n
        self.columns = problem.columns
        self.q = b.Ring("q", b.tile([rows, self.columns], element, "shared"))
        tile = b.tile([keys, self.columns], element, "shared")
        self.k = self.v = b.Ring("keys", tile, stages=config.kv_stages)
        self.p = b.Ring("p", b.tile([rows, keys], element, "shared"))
        self.factors = b.Ring("factors", b.tile([rows], f32, "shared"), stages=2)
        self.out: b.Ring | None = None
        if not problem.is_partial:
            out = b.tile([rows, LATENT_COLUMNS], problem.output, "shared")
            self.out = b.Ring("out", out, producers=("warps", "warps"))


def first_half(problem: Problem, storage: RegisterLatentStorage, tile: WorkTile) -> None:
    """P of all key tiles, the first half of O, and the LSE."""
    config = problem.config
    key_tiles = problem.column_tiles(tile)
    row = Row.of(problem, problem.scale)
    row0, zero = problem.first_position(tile, 0), b.f32_constant(0.0)
    queries = storage.q.wait()

    def iteration(test: Test | None, turn: Value, *state: Value) -> list[Value]:
        row_state, accumulators = state[:STATE_VALUES], state[STATE_VALUES]
        keys = storage.k.wait()
        empty = b.fill([config.tile_m, config.tile_n], zero)
        raw = b.wait_product(b.product(empty, queries, keys, accumulate=False, b_layout="nk"))
        scores = masked_scores(problem, tile, raw, test, key_tiles, turn, row0, problem.scale)
        step = update_max(row, scores, RowState(*row_state))
        _send(storage.factors, step.alpha)
        accumulators = _rescaled(accumulators, step.has_new_max, step.alpha)
        exponentials = exp2_scores(problem, row, scores, step)
        weights, slot = b.rounded(exponentials.weights, problem.element), storage.p.acquire()
        b.store(weights, slot)
        in_flight = _product(problem, accumulators, weights, keys, 0)
        b.commit(slot, "warps")
        accumulators = b.wait_product(in_flight)
        b.release(keys, "warps")
        return [*exponentials.rows, accumulators]

    state = [*RowState.empty(row, config.tile_m), b.fill([config.tile_m, HALF_COLUMNS], zero)]
    state = loop_over_tiles(key_tiles, key_tiles.phases(0), state, iteration)
    b.release(queries, "warps")
    rows, accumulators = RowState(*state[:STATE_VALUES]), state[STATE_VALUES]
    maximum, total = rows.maximum, rows.total()
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    inverse = b.map_elements(lambda t: reciprocal(t, None), divisor)
    _send(storage.factors, inverse)
    b.barrier()  # all of the group have read Q, in whose memory O may be staged
    _store_output(problem, storage.out, tile, b.times_rows(accumulators, inverse), 0)
    store_lse(problem, row, tile, row0, maximum, total)


def second_half(problem: Problem, storage: RegisterLatentStorage, tile: WorkTile) -> None:
    """The second half of O."""
    config = problem.config
    one = b.f32_constant(1.0)

    def block(_: Value, accumulators: Value) -> list[Value]:
        alpha = _received(storage.factors)
        differs = b.map_elements(lambda x: b.fcompare("ONE", x, one), alpha, element=b.i1())
        accumulators = _rescaled(accumulators, b.any_row(differs), alpha)
        keys, weights = storage.k.wait(), storage.p.wait()
        accumulators = b.wait_product(_product(problem, accumulators, weights, keys, HALF_COLUMNS))
        b.release(weights, "warps")
        b.release(keys, "warps")
        return [accumulators]

    empty = b.fill([config.tile_m, HALF_COLUMNS], b.f32_constant(0.0))
    (accumulators,) = b.loop(0, problem.column_tiles(tile).count, [empty], block)
    result = b.times_rows(accumulators, _received(storage.factors))
    _store_output(problem, storage.out, tile, result, HALF_COLUMNS)


def _product(
    problem: Problem, accumulators: Value, weights: Value, keys: Value, first: int
) -> Value:
    """O + P V of half of the columns, in flight."""
    values = b.columns(keys, first, HALF_COLUMNS)
    return b.product(accumulators, weights, values, accumulate=True, b_layout="kn")


def _rescaled(accumulators: Value, has_new_max: Value, alpha: Value) -> Value:
    """O, rescaled by alpha if a maximum changed."""
    (result,) = b.chosen(
        has_new_max,
        [accumulators.type],
        lambda: [b.times_rows(accumulators, alpha)],
        lambda: [accumulators],
    )
    return result


def _send(ring: b.Ring, value: Value) -> None:
    """Fills a slot with a row vector."""
    slot = ring.acquire()
    b.store(value, slot)
    b.commit(slot, "warps")


def _received(ring: b.Ring) -> Value:
    """Loads a row vector from a slot, and releases it."""
    slot = ring.wait()
    value = b.load(slot)
    b.release(slot, "warps")
    return value


def _store_output(
    problem: Problem, out: b.Ring | None, tile: WorkTile, result: Value, first: int
) -> None:
    """Stores columns of O of a work tile to a slot of `out`, or to memory without one.

    Args:
      result: [rows, columns], in f32.
      first: the first of these columns.
    """
    if out is None:
        row0 = problem.first_position(tile, 0)
        problem.rows.store_columns(result, tile.results, tile.head, row0, first)
        return
    slot = out.acquire()
    _, columns = ws.FragmentType(result.type).shape
    b.store(b.rounded(result, problem.output), b.columns(slot, first, columns))
    b.commit(slot, "warps")
