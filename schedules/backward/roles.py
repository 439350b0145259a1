"""The roles that compute gradients of the stationary X and Y from streaming U and V.

A group has 64 rows of X and Y. Where these are keys and values, scores are transposed, keys in
rows: so weights and their gradients are operands of the next product as they are.

```text
                       keys stand      queries stand
issue S = X U^T        K Q^T           Q K^T
issue dP = Y V^T       V dO^T          dO V^T
await S                P = 2^(c S - LSE), 0 where hidden
await dP               dS = P slope (dP - delta)
issue dY += P V        dV += P dO      -
issue dX += dS U       dK += dS Q      dQ += dS K
await both
```
P and dS are complete before the products with them are issued: so P is not needed twice, in f32 and
rounded, while its product is in flight. That is as fast at head size 128 and 5 % faster at 64 than
to issue dY first (H100, `bench/backward.py`, 2026-11-28), and needs 16 registers less.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.adjoints import added, empty_sums, store_sums
from attn_mlir.schedules.backward.gradients import Gradients, Named, Part
from attn_mlir.schedules.backward.modified import times_slope
from attn_mlir.schedules.backward.numbers import DELTA, LSE, WEIGHT, numbers_of
from attn_mlir.schedules.backward.query_products import QueryProducts
from attn_mlir.schedules.backward.stationary import SlotOfAll, SlotOfEach, StationaryRows
from attn_mlir.schedules.backward.steps import (
    added_product,
    exponentials,
    product_of,
    scale_of_exponents,
    times,
)
from attn_mlir.schedules.core.column_tiles import ColumnTiles, Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.state import masked_scores
from attn_mlir.schedules.sources.kv_source import Filled, TensorRows


class OperandRings(Protocol):
    """The rings of operands and results, as of `GradientStorage`."""

    streamed: list[b.Ring]
    results: list[b.Ring]
    parts: list[Part]
    widths: tuple[int, int]

    @property
    def stationary(self) -> Sequence[StationaryRows]:
        """The rows of the two operands that stand still."""
        ...


class GradientStorage:
    """The rings of the kernel; results have one for each group.

    Attributes:
      stationary: the rows of the two operands that stand still.
      streamed: the rings of the two that stream.
      results: the rings of the gradients `parts`.
      numbers: the LSE and delta of queries, and with `has_weights` their weights.
      query_products: what groups do for the gradients of queries; None without these.
      widths: columns of the first and of the second operand.
    """

    def __init__(
        self,
        gradients: Gradients,
        query_products: Callable[[Problem, SlotOfAll], QueryProducts] | None = None,
    ):
        problem = gradients.problem
        config, element = problem.config, problem.element
        self.widths = problem.columns, problem.v_columns

        def named_tiles(operands: Sequence[Named], rows: int) -> list[tuple[str, ws.TileType]]:
            tiles = (b.tile([rows, width], element, "shared") for width in self.widths)
            return [(name, tile) for (name, _, _), tile in zip(operands, tiles, strict=True)]

        stationary, streamed = gradients.operands()
        first, second = named_tiles(stationary, config.tile_m)
        rows: StationaryRows
        self.query_products: QueryProducts | None = None
        if query_products is None:
            rows = SlotOfEach(*first, config.q_tiles)
        else:
            rows = keys = SlotOfAll(*first, config.q_tiles)
            self.query_products = query_products(problem, keys)
        self.stationary = rows, SlotOfEach(*second, config.q_tiles)
        self.streamed = [
            b.Ring(*named, stages=config.kv_stages)
            for named in named_tiles(streamed, config.tile_n)
        ]
        self.numbers = numbers_of(gradients)
        self.has_weights = gradients.weights is not None
        self.parts = gradients.parts()
        self.results = [
            b.Ring(x.name, x.tile(config.tile_m), instances=config.q_tiles) for x in self.parts
        ]


def load(gradients: Gradients, storage: OperandRings, tile: WorkTile) -> None:
    """Fills the stationary slots once, and the other rings with all that a tile visits."""
    problem = gradients.problem
    sequence, _ = problem.sequences(tile)
    to_end = gradients.dq_accum is not None  # keys are multiplied with gradients of scores
    for group in range(problem.config.q_tiles):
        position = problem.first_position(tile, group)
        for stationary, rows in zip(storage.stationary, gradients.rows(), strict=True):
            slot = stationary.begin(group)
            rows.load(slot, sequence, tile.head, position, to_end=to_end)
            stationary.end(group)
    _, streamed = gradients.operands()
    source = TensorRows(problem, {side: tensors for _, side, tensors in streamed})
    rings = zip(streamed, storage.streamed, storage.widths, strict=True)
    source.fill_rings([Filled(side, ring, width) for (_, side, _), ring, width in rings], tile)


def attend(gradients: Gradients, storage: GradientStorage, tile: WorkTile, group: Value) -> None:
    """The gradients of a group's rows, to the rings of results."""
    problem, zero = gradients.problem, b.f32_constant(0.0)
    steps = _Steps(problem, storage, tile, group)
    empty = [b.fill([problem.config.tile_m, x.columns], zero) for x in storage.parts]
    found = problem.over_column_heads(tile, empty, steps.of_head)
    steps.release()
    if storage.query_products is not None:
        storage.query_products.await_readers(group)

    def scaled(gradient: Value) -> Value:
        return b.map_elements(lambda x: b.fmul(x, problem.scale), gradient)

    pairs = zip(storage.parts, found, strict=True)
    results = [scaled(x) if part.is_of_scores else x for part, x in pairs]
    hand_over(storage.results, results, group)


def hand_over(rings: Sequence[b.Ring], results: Sequence[Value], group: Value | int = 0) -> None:
    """Writes gradients of a group, rounded, to their rings, in the order of these."""
    b.barrier()  # the group has read the stationary slots, which the results may overwrite
    for ring, gradient in zip(rings, results, strict=True):
        slot = ring.acquire(group)
        b.store(b.rounded(gradient, ws.TileType(slot.type).element), slot)
        b.commit(slot, "warps")


class _Steps:
    """The iterations of a work tile; a group's state is its gradients, without scale."""

    def __init__(self, problem: Problem, storage: GradientStorage, tile: WorkTile, group: Value):
        self._problem, self._storage, self._group = problem, storage, group
        self._row0 = problem.first_position(tile, group)
        self._scale_log2 = scale_of_exponents(problem)
        self._take = storage.numbers.of_tile(tile, self._row0)
        self._has_weights = storage.has_weights
        self._stationary = [rows.wait(group) for rows in storage.stationary]

    def release(self) -> None:
        """Releases the stationary slots."""
        for rows in self._storage.stationary:
            rows.release()

    def of_head(self, tile: WorkTile, *state: Value) -> list[Value]:
        """All iterations over one head of the streamed side."""
        tiles = self._problem.column_tiles(tile)

        def iteration(test: Test | None, index: Value, *state: Value) -> list[Value]:
            return self._step(tile, tiles, test, index, *state)

        state = (*state, *empty_sums(self._problem))
        found = loop_over_tiles(tiles, tiles.phases(self._group), list(state), iteration)
        count = len(self._storage.results)
        store_sums(self._problem, tile, self._row0, found[count:])
        return found[:count]

    def _step(
        self,
        tile: WorkTile,
        tiles: ColumnTiles,
        test: Test | None,
        index: Value,
        *state: Value,
    ) -> list[Value]:
        """One streamed tile. The state is the accumulators of the first stationary operand's
        gradient, those of the second one if it has a gradient, and sums.
        """
        problem, parts = self._problem, self._storage.parts
        gradients_before, sums = state[: len(parts)], state[len(parts) :]
        of_scores = [x for x in parts if x.is_of_scores]
        first_gradients = gradients_before[: len(of_scores)]
        second_gradients = gradients_before[len(of_scores) :]
        slots: list[Value] = []
        raw: list[Value] = []
        for stationary, ring in zip(self._stationary, self._storage.streamed, strict=True):
            slots.append(ring.wait())
            raw.append(product_of(problem, stationary, slots[-1]))
        first, second = slots
        scores = b.wait_product(raw[0], newest=1)
        row0, scale = self._row0, problem.scale
        weights = found = exponentials(
            masked_scores(problem, tile, scores, test, tiles, index, row0, scale),
            self._scale_log2,
            self._take(LSE),
        )
        factors = times_slope(problem, tile, scores, weights, tiles, index, row0)
        row_weights = self._take(WEIGHT) if self._has_weights else None
        weight_gradients = times(b.wait_product(raw[1]), row_weights)
        differences = b.map_elements(b.fsub, weight_gradients, self._take(DELTA))
        gradients = b.map_elements(b.fmul, factors, differences)
        at = (tiles, index, row0)
        sums = added(problem, tile, scores, found, differences, *at, sums)
        gradients = b.rounded(gradients, problem.element)
        weights = b.rounded(times(weights, row_weights), problem.element)
        queries, later = self._storage.query_products, len(of_scores)
        if queries is not None:
            queries.hand_over(gradients, self._group)
        second_products = [
            added_product(accumulators, weights, second) for accumulators in second_gradients
        ]
        if queries is not None:
            later += queries.issue(self._group)
        first_products = [
            added_product(accumulators, gradients, part.of(first))
            for part, accumulators in zip(of_scores, first_gradients, strict=True)
        ]
        second_done = [b.wait_product(product, newest=later) for product in second_products]
        b.release(second, "warps")
        if queries is not None:
            queries.finish(self._group)
        newer = reversed(range(len(of_scores)))
        pairs = zip(first_products, newer, strict=True)
        first_done = [b.wait_product(product, newest=count) for product, count in pairs]
        b.release(first, "warps")
        return [*first_done, *second_done, *sums]


def store_gradients(gradients: Gradients, storage: OperandRings, tile: WorkTile) -> None:
    """Writes the gradients; rows past the end of the sequence are dropped. One thread."""
    problem = gradients.problem
    for group in range(problem.config.q_tiles):
        position = problem.first_position(tile, group)
        for ring, part in zip(storage.results, storage.parts, strict=True):
            slot = ring.wait(group)
            part.rows.store(slot, tile.results, tile.head, position)
            b.release(slot, "copy_engine")
