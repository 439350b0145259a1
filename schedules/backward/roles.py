"""The roles that compute gradients of the stationary X and Y from streaming U and V.

A group has 64 rows of X and Y. Where these are keys and values, scores are transposed, keys in
rows: so weights and their gradients are operands of the next product as they are.

```text
                       keys stand      queries stand
issue S = X U^T        K Q^T           Q K^T
issue dP = Y V^T       V dO^T          dO V^T
await S                P = 2^(c S - LSE), 0 where hidden
issue dY += P V        dV += P dO      -
await dP               dS = P slope (dP - delta)
issue dX += dS U       dK += dS Q      dQ += dS K
await both
```
"""

from collections.abc import Sequence
from typing import Protocol

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.adjoints import added, empty_sums, store_sums
from attn_mlir.schedules.backward.gradients import Gradients, Named
from attn_mlir.schedules.backward.modified import times_slope
from attn_mlir.schedules.backward.numbers import DELTA, LSE, WEIGHT, numbers_of
from attn_mlir.schedules.core.column_tiles import ColumnTiles, Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.row import LOG2E
from attn_mlir.schedules.softmax.state import masked_scores
from attn_mlir.schedules.sources.kv_source import Filled, TensorRows


class OperandRings(Protocol):
    """The rings of operands and results, as of `GradientStorage`."""

    stationary: list[b.Ring]
    streamed: list[b.Ring]
    results: list[b.Ring]
    widths: tuple[int, int]


class GradientStorage:
    """The rings of the kernel; stationary operands and results have one for each group.

    Attributes:
      stationary, streamed: of the two operands of each side.
      results: of the gradients.
      numbers: the LSE and delta of queries, and with `has_weights` their weights.
      widths: columns of the first and of the second operand.
    """

    def __init__(self, gradients: Gradients):
        problem = gradients.problem
        config, element = problem.config, problem.element
        self.widths = problem.columns, problem.v_columns

        def tiles(rows: int) -> list[ws.TileType]:
            return [b.tile([rows, width], element, "shared") for width in self.widths]

        def rings(
            operands: Sequence[Named], rows: int, *, stages: int, instances: int
        ) -> list[b.Ring]:
            named = zip(operands, tiles(rows), strict=True)
            return [
                b.Ring(name, x, stages=stages, instances=instances) for (name, _, _), x in named
            ]

        stationary, streamed = gradients.operands()
        self.stationary = rings(stationary, config.tile_m, stages=1, instances=config.q_tiles)
        self.streamed = rings(streamed, config.tile_n, stages=config.kv_stages, instances=1)
        self.numbers = numbers_of(gradients)
        self.has_weights = gradients.weights is not None
        results = zip(stationary, tiles(config.tile_m), gradients.results, strict=False)
        self.results = [
            b.Ring(f"d{name}", x, instances=config.q_tiles) for (name, _, _), x, _ in results
        ]


def load(gradients: Gradients, storage: OperandRings, tile: WorkTile) -> None:
    """Fills the stationary slots once, and the other rings with all that a tile visits."""
    problem = gradients.problem
    for group in range(problem.config.q_tiles):
        position = problem.first_position(tile, group)
        for ring, rows in zip(storage.stationary, gradients.rows(), strict=True):
            slot = ring.acquire(group)
            rows_sequence, _ = problem.sequences(tile)
            rows.load(slot, rows_sequence, tile.head, position)
            b.commit(slot, "copy_engine")
    _, streamed = gradients.operands()
    source = TensorRows(problem, {side: tensor for _, side, tensor in streamed})
    rings = zip(streamed, storage.streamed, storage.widths, strict=True)
    source.fill_rings([Filled(side, ring, width) for (_, side, _), ring, width in rings], tile)


def attend(gradients: Gradients, storage: GradientStorage, tile: WorkTile, group: Value) -> None:
    """The gradients of a group's rows, to the rings of results."""
    problem, zero = gradients.problem, b.f32_constant(0.0)
    steps = _Steps(problem, storage, tile, group)
    widths = storage.widths[: len(storage.results)]
    empty = [b.fill([problem.config.tile_m, width], zero) for width in widths]
    first, *others = problem.over_column_heads(tile, empty + empty_sums(problem), steps.of_head)
    second, sums = others[: len(widths) - 1], others[len(widths) - 1 :]
    if sums:
        store_sums(problem, tile, problem.first_position(tile, group), sums)
    steps.release()
    scaled = b.map_elements(lambda x: b.fmul(x, problem.scale), first)
    b.barrier()  # the group has read the stationary slots, where these results may lie
    for ring, gradient in zip(storage.results, [scaled, *second], strict=True):
        slot = ring.acquire(group)
        b.store(b.rounded(gradient, problem.output), slot)
        b.commit(slot, "warps")


class _Steps:
    """The iterations of a work tile; a group's state is its gradients, the first without scale."""

    def __init__(self, problem: Problem, storage: GradientStorage, tile: WorkTile, group: Value):
        self._problem, self._storage, self._group = problem, storage, group
        self._row0 = problem.first_position(tile, group)
        to_log2 = b.f32_constant(LOG2E)
        is_scaled = problem.modifier.changes  # else its scores are raw
        self._scale_log2 = to_log2 if is_scaled else b.fmul(problem.scale, to_log2)
        self._take = storage.numbers.of_tile(tile, self._row0)
        self._has_weights = storage.has_weights
        self._stationary = [ring.wait(group) for ring in storage.stationary]

    def release(self) -> None:
        """Releases the stationary slots."""
        for slot in self._stationary:
            b.release(slot, "warps")

    def of_head(self, tile: WorkTile, *state: Value) -> list[Value]:
        """All iterations over one head of the streamed side."""
        tiles = self._problem.column_tiles(tile)

        def iteration(test: Test | None, index: Value, *state: Value) -> list[Value]:
            return self._step(tile, tiles, test, index, *state)

        return loop_over_tiles(tiles, tiles.phases(self._group), list(state), iteration)

    def _step(
        self,
        tile: WorkTile,
        tiles: ColumnTiles,
        test: Test | None,
        index: Value,
        gradient: Value,
        *others: Value,
    ) -> list[Value]:
        """One streamed tile; the state is a gradient, a second one if there are two, and sums."""
        problem, count = self._problem, len(self._storage.results) - 1
        second_gradient, sums = others[:count], others[count:]
        slots: list[Value] = []
        raw: list[Value] = []
        for stationary, ring in zip(self._stationary, self._storage.streamed, strict=True):
            slots.append(ring.wait())
            raw.append(self._product(stationary, slots[-1]))
        first, second = slots
        scores = b.wait_product(raw[0], newest=1)
        row0, scale = self._row0, problem.scale
        weights = exponentials = self._weights(
            masked_scores(problem, tile, scores, test, tiles, index, row0, scale)
        )
        factors = times_slope(problem, tile, scores, weights, tiles, index, row0)
        row_weights = self._take(WEIGHT) if self._has_weights else None
        weights = _times(weights, row_weights)
        second_products = [
            self._added(accumulators, weights, second) for accumulators in second_gradient
        ]
        weight_gradients = b.wait_product(raw[1], newest=len(second_products))
        weight_gradients = _times(weight_gradients, row_weights)
        if sums:
            differences = b.map_elements(b.fsub, weight_gradients, self._take(DELTA))
            gradients = b.map_elements(b.fmul, factors, differences)
        else:
            differences, gradients = None, self._gradients(factors, weight_gradients)
        first_product = self._added(gradient, gradients, first)
        if differences is not None:
            at = (tiles, index, row0)
            sums = added(problem, tile, scores, exponentials, differences, *at, sums)
        second_done = [b.wait_product(product, newest=1) for product in second_products]
        b.release(second, "warps")
        gradient = b.wait_product(first_product)
        b.release(first, "warps")
        return [gradient, *second_done, *sums]

    def _product(self, stationary: Value, streamed: Value) -> Value:
        """The product [rows, columns], in flight."""
        config = self._problem.config
        empty = b.fill([config.tile_m, config.tile_n], b.f32_constant(0.0))
        return b.product(empty, stationary, streamed, accumulate=False, b_layout="nk")

    def _added(self, accumulators: Value, weights: Value, streamed: Value) -> Value:
        """accumulators + weights x streamed, in flight."""
        operand = b.rounded(weights, self._problem.element)
        return b.product(accumulators, operand, streamed, accumulate=True, b_layout="kn")

    def _weights(self, scores: Value) -> Value:
        """P: 2 to the power of scores times c, less the LSE of each query."""

        def exponent(score: Value, lse: Value) -> Value:
            return b.fma(score, self._scale_log2, b.fneg(lse))

        exponents = b.map_elements(exponent, scores, self._take(LSE))
        columns = self._problem.config.tile_n
        return b.exp2_tile(exponents, period=0, count=0, begin=0, end=columns)

    def _gradients(self, factors: Value, gradients: Value) -> Value:
        """dS, without the scale: factors (dP - delta)."""

        def element(factor: Value, gradient: Value, delta: Value) -> Value:
            return b.fmul(factor, b.fsub(gradient, delta))

        return b.map_elements(element, factors, gradients, self._take(DELTA))


def _times(fragment: Value, factors: Value | None) -> Value:
    """The product of two fragments; None is 1."""
    return fragment if factors is None else b.map_elements(b.fmul, fragment, factors)


def store_gradients(gradients: Gradients, storage: OperandRings, tile: WorkTile) -> None:
    """Writes the gradients; rows past the end of the sequence are dropped. One thread."""
    problem = gradients.problem
    for group in range(problem.config.q_tiles):
        position = problem.first_position(tile, group)
        for ring, rows in zip(storage.results, gradients.rows(), strict=False):
            slot = ring.wait(group)
            rows.store(slot, tile.results, tile.head, position)
            b.release(slot, "copy_engine")
