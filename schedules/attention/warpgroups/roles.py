"""Attention of warpgroups that keep S, P and O of their query rows in registers.

A group is four warps with 64 query rows: it issues asynchronous products and computes the softmax
between them. While the tensor core computes P V of one key tile, the group computes the softmax of
the next:

```text
issue S(n) = Q K(n)^T      issue O += P(n-1) V(n-1)
wait S(n)                  mask, m_i, P and l_i of tile n
wait O                     round P(n); rescale O if m_i changed
```

No product is in flight at the end of an iteration, and no register of a product in flight is
written: ptxas would insert a wait.
"""

from collections.abc import Sequence

from attn_mlir.dialect.ws.tiles import RESPONSE_WORDS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles, Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import (
    STATE_VALUES,
    RowState,
    masked_scores,
    reciprocal,
    softmax_step,
    store_lse,
    with_sink,
)
from attn_mlir.schedules.sources.key_slots import KeySlots
from attn_mlir.schedules.sources.query_slots import QuerySlots

from .values import values_of


class RegisterStorage:
    """The rings of the kernel; the instances of `q` and `out` are its groups.

    ```text
    load --q,k,v--> attend --out--> leave
    ```
    Keys and values have their own rings, since an iteration uses the keys of one tile and the
    values of the tile before. `claimed` has the CTA's next work tile, if `load` fetches it from a
    counter: after the copies of a work tile, before its last products.
    """

    def __init__(self, problem: Problem):
        config, element = problem.config, problem.element
        instances, stages = config.q_tiles, config.kv_stages
        rows, keys, columns = config.tile_m, config.tile_n, problem.v_columns
        self.q = b.Ring(
            "q", b.tile([rows, problem.columns], element, "shared"), instances=instances
        )
        self.k = b.Ring("k", b.tile([keys, problem.columns], element, "shared"), stages=stages)
        self.keys = KeySlots.whole(problem, self.k)
        self.queries = QuerySlots(problem, self.q, [range(problem.columns)])
        self.values = values_of(problem)
        self.v = self.values.loaded
        self.out = b.Ring(
            "out", b.tile([rows, columns], problem.output, "shared"), instances=instances
        )
        self.claimed: b.Ring | None = None
        if problem.tile_counter is not None:
            self.claimed = b.Ring("answers", b.tile([RESPONSE_WORDS], b.i32(), "shared"))


def attend(problem: Problem, storage: RegisterStorage, tile: WorkTile, q_tile: Value) -> None:
    """Attention of the query rows of a group: O / l to the out ring, the LSE to memory."""
    config = problem.config
    key_tiles = problem.column_tiles(tile)
    row = Row.of(problem, problem.score_scale(tile))
    row0 = problem.first_position(tile, q_tile)
    column_ranges, zero = storage.values.column_ranges, b.f32_constant(0.0)
    empty = (b.fill([config.tile_m, len(span)], zero) for span in column_ranges)
    state = [*RowState.empty(row, config.tile_m), *empty]
    steps = _Steps(problem, storage, tile, q_tile, key_tiles, row, row0)
    state = b.chosen(
        key_tiles.any(), [value.type for value in state], lambda: steps.all(state), lambda: state
    )
    rows, accumulators = RowState(*state[:STATE_VALUES]), state[STATE_VALUES:]
    maximum, total = rows.maximum, rows.total()
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_scale(tile)
    inverse = b.map_elements(lambda t: reciprocal(t, output), divisor)
    store_lse(problem, row, tile, row0, maximum, total)
    b.barrier()  # the group has read Q: O may be staged in its memory
    slot = storage.out.acquire(q_tile)
    for number, (span, accumulator) in enumerate(zip(column_ranges, accumulators, strict=True)):
        if number and span.start < column_ranges[number - 1].stop:
            b.barrier()  # other lanes have written the columns that both ranges contain
        columns = b.columns(slot, span.start, len(span))
        b.store(b.rounded(b.times_rows(accumulator, inverse), problem.output), columns)
    b.commit(slot, "warps")


class _Steps:
    """The iterations of one work tile, at least one; the state of a group is (*rows, *O)."""

    def __init__(
        self,
        problem: Problem,
        storage: RegisterStorage,
        tile: WorkTile,
        q_tile: Value,
        key_tiles: ColumnTiles,
        row: Row,
        row0: Value,
    ):
        self._problem, self._storage, self._tile = problem, storage, tile
        self._key_tiles, self._row, self._row0, self._q_tile = key_tiles, row, row0, q_tile
        self._scale = problem.score_scale(tile)

    def all(self, state: list[Value]) -> list[Value]:
        """All iterations: the first Q K^T alone, then steps, then the last P V alone."""
        key_tiles, index, values = self._key_tiles, b.constant(0), self._storage.values
        row_values, accumulators = state[:STATE_VALUES], state[STATE_VALUES:]
        phases = key_tiles.phases(self._q_tile)
        self._queries = self._storage.q.wait(self._q_tile)
        slot = self._storage.k.wait()
        scores = b.wait_product(self._scores(slot))
        b.release(slot, "warps")
        (scores,) = b.chosen(
            b.compare("sgt", phases.plain, 0),
            [scores.type],
            lambda: [self._masked(scores, Test.ALL, index)],
            lambda: [self._masked(scores, Test.ALL if phases.left is not None else None, index)],
        )
        first = softmax_step(self._problem, self._row, scores, RowState(*row_values))
        state = [*first.rows, *accumulators, values.operand(first.weights)]
        state = loop_over_tiles(key_tiles, phases, state, self._step, first=1)
        b.release(self._queries, "warps")
        row_values, accumulators, p = state[:STATE_VALUES], state[STATE_VALUES:-1], state[-1]
        slot = values.wait()
        in_flight = values.start(accumulators, p, slot)
        for number in range(len(accumulators)):
            in_flight, accumulators = values.add(number, in_flight, accumulators, p, slot)
        return [*row_values, *accumulators]

    def _step(self, test: Test | None, index: Value, *state: Value) -> list[Value]:
        """Q K^T of an iteration, together with P V of the iteration before."""
        row_values, accumulators, p = state[:STATE_VALUES], state[STATE_VALUES:-1], state[-1]
        values = self._storage.values
        issue = self._values_first if values.go_first else self._scores_first
        scores, slot, in_flight, accumulators = issue(accumulators, p)
        for number in range(int(values.go_first), len(accumulators) - 1):
            in_flight, accumulators = values.add(number, in_flight, accumulators, p, slot)
        scores = self._masked(scores, test, index)
        step = softmax_step(self._problem, self._row, scores, RowState(*row_values))
        if in_flight is not None:
            _, accumulators = values.add(len(accumulators) - 1, in_flight, accumulators, p, slot)
        accumulators = b.chosen(
            step.has_new_max,
            [accumulator.type for accumulator in accumulators],
            lambda: [b.times_rows(accumulator, step.alpha) for accumulator in accumulators],
            lambda: accumulators,
        )
        return [*step.rows, *accumulators, values.operand(step.weights)]

    def _scores_first(
        self, accumulators: Sequence[Value], p: Value
    ) -> tuple[Value, Value, Value | None, Sequence[Value]]:
        """The next scores, a slot of values, the product in flight with them, and O so far."""
        values = self._storage.values
        key = self._storage.k.wait()
        raw = self._scores(key)
        slot = values.wait()
        in_flight = values.start(accumulators, p, slot)
        scores = b.wait_product(raw, newest=1)
        b.release(key, "warps")
        return scores, slot, in_flight, accumulators

    def _values_first(
        self, accumulators: Sequence[Value], p: Value
    ) -> tuple[Value, Value, Value | None, Sequence[Value]]:
        """As `_scores_first`; the first product has been added to O."""
        values = self._storage.values
        slot = values.wait()
        in_flight = values.start(accumulators, p, slot)
        key = self._storage.k.wait()
        raw = self._scores(key)
        in_flight, accumulators = values.add(0, in_flight, accumulators, p, slot, newest=1)
        scores = b.wait_product(raw, newest=0 if in_flight is None else 1)
        b.release(key, "warps")
        return scores, slot, in_flight, accumulators

    def _masked(self, scores: Value, test: Test | None, index: Value) -> Value:
        key_tiles, row0, scale = self._key_tiles, self._row0, self._scale
        return masked_scores(self._problem, self._tile, scores, test, key_tiles, index, row0, scale)

    def _scores(self, keys: Value) -> Value:
        """Q K^T, in flight."""
        config, zero = self._problem.config, b.f32_constant(0.0)
        empty = b.fill([config.tile_m, config.tile_n], zero)
        return b.product(empty, self._queries, keys, accumulate=False, b_layout="nk")
