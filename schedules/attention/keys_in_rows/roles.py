"""The roles of a kernel whose products have keys in the rows: S^T = K Q^T.

A product has 128 rows, but may have as few as 8 columns. With keys in the rows, few queries cost
little:

    S' [keys, queries] = K Q'          both with their columns along shared memory
    O' [columns, queries] = V' P'      V and P as they lie, keys down

The softmax uses [queries, keys] and [queries, columns], as in other kernels: fragments are
transposed after loads from tensor memory and before stores. A thread owns a key of every tile, with
its scores of all queries; later a column of O. Partial sums over keys stay in each thread until the
end, but maxima concern the whole group. A maximum stays until a score exceeds it by 2^8: then the
warps exchange their maxima and O is rescaled while no product uses it. A barrier of the group
decides that in each iteration.

    load --q,k,v--> mma --s--> attend --out--> leave
                     ^ '-finished-^ |
                     '------p-------'
"""

import dataclasses

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.targets.limits import LINE_BYTES, WARPGROUP_WARPS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.core.splits import CombinedSplits
from attn_mlir.schedules.policy.tiling import OutputChunks, keys_in_rows_columns, query_slot_rows
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import (
    RowState,
    SoftmaxStep,
    is_beyond,
    masked_scores,
    reciprocal,
    rescaled_state,
    store_lse,
    weights_of,
    with_sink,
)

from ..streaming.combine_in_kernel import WorkspaceSlot, finish


class KeysInRowsStorage:
    """The rings and buffers of the kernel.

    K and V have rings of their own, since the scores of a tile are multiplied before the values of
    the one before it. An empty slot of `p` signals that the product that read it is complete: until
    `p` is committed again, only `attend` uses O.

    Attributes:
      columns: columns of a tile of V. O has as many as products have rows; if V has fewer, the last
        are copies or zeros.
      scratch: shared memory for reductions across the warps.
      out: O; None in kernels that combine splits themselves.
    """

    def __init__(self, problem: Problem):
        config, f32 = problem.config, ir.F32Type.get()
        rows, keys = config.tile_m, config.tile_n
        self.columns = keys_in_rows_columns(problem.v_head_dim)
        loaded = query_slot_rows(config.packed_heads, rows)
        queries = b.tile([loaded, problem.columns], problem.element, "shared")
        self.q = b.Ring("q", queries, stages=2)
        stages = config.kv_stages
        keys_of, values_of = (
            b.tile([keys, columns], problem.stored, "shared")
            for columns in (problem.columns, self.columns)
        )
        self.k, self.v = b.Ring("k", keys_of, stages=stages), b.Ring("v", values_of, stages=stages)
        self.s = b.Ring("s", b.tile([keys, rows], f32, "tensor"), stages=2)
        self.p = b.Ring("p", b.tile([keys, rows], problem.product, "shared"))
        self.o = b.Buffer("o", b.tile([keys, rows], f32, "tensor"))
        self.finished = b.Ring("finished", None)
        self.out: b.Ring | None = None
        if not isinstance(problem.splits, CombinedSplits):
            self.out = b.Ring("out", b.tile([rows, keys], problem.output, "shared"))
        self.scratch = b.Buffer("found", b.tile([WARPGROUP_WARPS * rows], f32, "shared"))


def multiply(problem: Problem, storage: KeysInRowsStorage, tile: WorkTile) -> None:
    """Issues the products in the order S(0) S(1) O(0) S(2) O(1) ...; one thread.

    So the scores of a tile are complete when the weights of the tile before are committed.
    """
    key_tiles, rows = problem.column_tiles(tile), problem.config.tile_m

    def scores(queries: Value) -> None:
        key, slot = storage.k.wait(), storage.s.acquire()
        b.mma(slot, key, b.rows(queries, 0, rows), accumulate=False, b_layout="nk")
        b.commit(slot, "tensor_core")
        b.release(key, "tensor_core")

    def add(accumulate: Value) -> None:
        values, weights, o = storage.v.wait(), storage.p.wait(), storage.o.at()
        b.mma(o, values, weights, accumulate=accumulate, a_layout="km", b_layout="kn")
        b.release(weights, "tensor_core")
        b.release(values, "tensor_core")

    queries = storage.q.wait()
    with b.when(key_tiles.any()):
        scores(queries)
        finished = storage.finished.acquire()

        def iteration(index: Value) -> list[Value]:
            scores(queries)
            add(b.compare("sgt", index, 1))
            return []

        b.loop(1, key_tiles.count, [], iteration)
        add(b.compare("sgt", key_tiles.count, 1))
        b.commit(finished, "tensor_core")
    b.release(queries, "tensor_core")


def attend(problem: Problem, storage: KeysInRowsStorage, tile: WorkTile) -> None:
    """Online softmax of a work tile's rows; then O / l to the out ring, the LSE to memory."""
    rows, keys_in_tile = problem.config.tile_m, problem.config.tile_n
    key_tiles = problem.column_tiles(tile)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
    row0 = problem.first_position(tile, 0)
    scratch = storage.scratch.at()

    def iteration(test: Test | None, index: Value, *state: Value) -> list[Value]:
        slot = storage.s.wait()
        scores = b.transposed(b.load(slot))
        b.release(slot, "warps")
        scores = masked_scores(problem, tile, scores, test, key_tiles, index, row0, scale)
        step = _softmax_step(problem, row, scores, RowState(*state), scratch)
        target = storage.p.acquire()
        b.store(b.transposed(b.rounded(step.weights, problem.product)), target)
        begun = b.compare("sgt", index, 0)  # before the first product O holds nothing
        with b.when(arith.AndIOp(step.has_new_max, begun).result):
            o = storage.o.at()
            b.store(b.transposed(b.times_rows(b.transposed(b.load(o)), step.alpha)), o)
        b.commit(target, "warps")
        return [*step.rows]

    state = loop_over_tiles(
        key_tiles, key_tiles.phases(0), [*RowState.empty(row, rows, keys_in_tile)], iteration
    )
    row_state = RowState(*state)
    zero = b.f32_constant(0.0)
    total = b.reduce_group("add", row_state.l_partial, b.fill([rows], zero), scratch)
    if isinstance(problem.splits, CombinedSplits):
        _combine(problem, storage, tile, row, row_state.maximum, total)
        return
    divisor = with_sink(problem, row, tile, row0, row_state.maximum, total)
    output = problem.output_scale(tile)
    inverse = b.map_elements(lambda t: reciprocal(t, output), divisor)
    store_lse(problem, row, tile, row0, row_state.maximum, total)
    with b.either(key_tiles.any()) as (some, none):
        with some:
            _hand_over(problem, storage, b.times_rows(_settled(storage), inverse))
        with none:
            _hand_over(problem, storage, b.broadcast(inverse, keys_in_tile))  # zeros


def _settled(storage: KeysInRowsStorage) -> Value:
    """O of a work tile [rows, columns], undivided, when its last product is complete."""
    finished = storage.finished.wait()
    o = b.transposed(b.load(storage.o.at()))
    b.release(finished, "warps")
    return o


def _combine(
    problem: Problem,
    storage: KeysInRowsStorage,
    tile: WorkTile,
    row: Row,
    maximum: Value,
    total: Value,
) -> None:
    """Stores the results of a split; in the last CTA, combines all splits."""
    whole, columns = b.constant(0), problem.config.tile_n  # O is one chunk
    workspace = WorkspaceSlot.of(problem, OutputChunks.whole(columns), tile, 0, whole)
    workspace.store_statistics(maximum, total)
    with b.either(problem.column_tiles(tile).any()) as (some, none):
        with some:
            workspace.store_output(whole, _settled(storage))
        with none:
            workspace.store_output(
                whole, b.fill([problem.config.tile_m, columns], b.f32_constant(0.0))
            )
    with b.when(workspace.is_last()):
        exact = dataclasses.replace(row, threshold=0)  # maxima of splits differ by any amount
        finish(problem, tile, exact, workspace, whole, 0)


def _softmax_step(
    problem: Problem, row: Row, scores: Value, rows: RowState, scratch: Value
) -> SoftmaxStep:
    """A step of online softmax over masked scores [rows, keys], by threads that own keys."""
    limits = b.broadcast(rows.limit, problem.config.tile_n)
    has_new_max = b.any_in_group(b.map_elements(is_beyond, scores, limits, element=b.i1()))
    rows, alpha = rescaled_state(
        row, rows, has_new_max, lambda: b.reduce_group("max", scores, rows.maximum, scratch)
    )
    weights = weights_of(problem, row, scores, rows)
    rows = rows._replace(l_partial=b.map_elements(b.fadd, rows.l_partial, weights))
    return SoftmaxStep(rows, has_new_max, alpha, weights)


def _hand_over(problem: Problem, storage: KeysInRowsStorage, result: Value) -> None:
    """Hands O of a work tile to `store_output`."""
    assert storage.out is not None
    slot = storage.out.acquire()
    b.store(b.rounded(result, problem.output), slot)
    b.commit(slot, "warps")


def store_output(problem: Problem, storage: KeysInRowsStorage, tile: WorkTile) -> None:
    """Writes the columns of O that V has; drops rows past the end of the sequence."""
    assert storage.out is not None
    slot = storage.out.wait()
    position = problem.first_position(tile, 0)
    line = LINE_BYTES * 8 // ws.element_bits(problem.output)
    result = b.columns(slot, 0, -(-problem.v_head_dim // line) * line)
    problem.rows.store(result, tile.results, tile.head, position)
    b.release(slot, "copy_engine")
