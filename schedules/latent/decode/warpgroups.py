"""Absorbed latent attention of 64 rows whose sums stay in the registers of two groups of threads.

O has 512 columns, which are twice what a group has registers for. So one group finds the weights of
a tile of keys and sums up the first half of O, and hands weights and factors to another one, which
sums up the second half. A tile of keys is one of values as well: its first 512 columns.

```text
load --q,keys--> attend --p,factors--> follow --out--> load
           |       '-------------out-----^--------------^
           '--------------keys-----------'
```
A turn of `attend`, n of its key tile:

```text
issue S(n) = Q K(n)^T    settle it    mask and maxima of tile n
hand over the factors; the first half of O to the new maxima, where they moved
weights and sums of tile n    store P(n), rounded
issue O += P(n) V(n), from registers    hand over P(n)    settle it
```
`follow` brings its half in step when it has the factors, while weights are computed, and multiplies
with P from shared memory. The product of `attend` is issued before the fences that P's handover
takes.
"""

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.latent import LATENT_COLUMNS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.core.visited_tiles import Test, visit
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import (
    ROW_VALUES,
    Rows,
    raised,
    reciprocal,
    seen,
    store_lse,
    weighed_at,
    with_sink,
)

HALF = LATENT_COLUMNS // 2  # columns of O in a group: 128 registers of each thread


class HeldLatentStorage:
    """The rings of the kernel, as `stream` fills them.

    `factors` has for each turn what O so far is multiplied by, in the end what O is: 1 / l. `out`
    is where O is staged, which both groups fill; parts of the keys have none, their O in f32 goes
    to memory from registers.

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


def attend(problem: Problem, storage: HeldLatentStorage, tile: WorkTile) -> None:
    """Weights of all key tiles, the first half of O, and the LSE."""
    config = problem.config
    visited = problem.visited_tiles(tile)
    row = Row.of(problem, problem.scale)
    row0, zero = problem.first_position(tile, 0), b.f32_constant(0.0)
    queries = storage.q.wait()

    def turn_of(test: Test | None, turn: Value, *state: Value) -> list[Value]:
        found, sums = state[:ROW_VALUES], state[ROW_VALUES]
        keys = storage.k.wait()
        empty = b.fill([config.tile_m, config.tile_n], zero)
        raw = b.settle(b.product(empty, queries, keys, accumulate=False, b_layout="nk"))
        scores = seen(problem, tile, raw, test, visited, turn, row0, problem.scale)
        step = raised(row, scores, Rows(*found))
        _hand_over(storage.factors, step.factor)
        sums = _in_step(sums, step.moved, step.factor)
        weighed = weighed_at(problem, row, scores, step)
        weights, slot = b.rounded(weighed.weights, problem.element), storage.p.acquire()
        b.store(weights, slot)
        pending = _product(problem, sums, weights, keys, 0)
        b.commit(slot, "warps")
        sums = b.settle(pending)
        b.release(keys, "warps")
        return [*weighed.rows, sums]

    state = [*Rows.none(row, config.tile_m), b.fill([config.tile_m, HALF], zero)]
    state = visit(visited, visited.phases(0), state, turn_of)
    b.release(queries, "warps")
    rows, sums = Rows(*state[:ROW_VALUES]), state[ROW_VALUES]
    maximum, total = rows.maximum, rows.total()
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    inverse = b.map_elements(lambda t: reciprocal(t, None), divisor)
    _hand_over(storage.factors, inverse)
    b.barrier()  # nobody of the group reads Q any more, in whose place O may be staged
    _leave(problem, storage.out, tile, b.times_rows(sums, inverse), 0)
    store_lse(problem, row, tile, row0, maximum, total)


def follow(problem: Problem, storage: HeldLatentStorage, tile: WorkTile) -> None:
    """The second half of O."""
    config = problem.config
    one = b.f32_constant(1.0)

    def block(_: Value, sums: Value) -> list[Value]:
        factor = _taken(storage.factors)
        differs = b.map_elements(lambda x: b.fcompare("ONE", x, one), factor, element=b.i1())
        sums = _in_step(sums, b.any_row(differs), factor)
        keys, weights = storage.k.wait(), storage.p.wait()
        sums = b.settle(_product(problem, sums, weights, keys, HALF))
        b.release(weights, "warps")
        b.release(keys, "warps")
        return [sums]

    empty = b.fill([config.tile_m, HALF], b.f32_constant(0.0))
    (sums,) = b.loop(0, problem.visited_tiles(tile).count, [empty], block)
    result = b.times_rows(sums, _taken(storage.factors))
    _leave(problem, storage.out, tile, result, HALF)


def _product(problem: Problem, sums: Value, weights: Value, keys: Value, first: int) -> Value:
    """O + P V of half of the columns, pending."""
    values = b.columns(keys, first, HALF)
    return b.product(sums, weights, values, accumulate=True, b_layout="kn")


def _in_step(sums: Value, moved: Value, factor: Value) -> Value:
    """O so far, rescaled to the new maxima where one moved."""
    (found,) = b.chosen(moved, [sums.type], lambda: [b.times_rows(sums, factor)], lambda: [sums])
    return found


def _hand_over(ring: b.Ring, value: Value) -> None:
    """Fills a slot with a row vector."""
    slot = ring.acquire()
    b.store(value, slot)
    b.commit(slot, "warps")


def _taken(ring: b.Ring) -> Value:
    """What a slot holds, which is free again."""
    slot = ring.wait()
    value = b.load(slot)
    b.release(slot, "warps")
    return value


def _leave(problem: Problem, out: b.Ring | None, tile: WorkTile, result: Value, first: int) -> None:
    """Columns of O of a work tile, to a slot of `out`, or to memory where there is none.

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
