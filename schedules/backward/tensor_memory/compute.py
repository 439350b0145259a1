"""The compute role: a group makes P of S and dS of dP, and at the end the gradients of their sums.

A thread has a row of its group's part of the columns, in registers:

```text
await S       P = 2^(c S - LSE), 0 where hidden       P to tensor memory, if a product reads it
await dP      dS = P slope (dP - delta)               dS to tensor memory
```
"""

from collections.abc import Sequence

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.adjoints import added, empty_sums, store_sums
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.modified import times_slope
from attn_mlir.schedules.backward.numbers import DELTA, LSE, WEIGHT
from attn_mlir.schedules.backward.steps import exponentials, scale_of_exponents, times
from attn_mlir.schedules.backward.tensor_memory.policy import PARTS
from attn_mlir.schedules.backward.tensor_memory.storage import TensorGradientStorage
from attn_mlir.schedules.core.column_tiles import ColumnTiles, Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Value, WorkTile
from attn_mlir.schedules.softmax.state import masked_scores

CHUNK_COLUMNS = 32  # columns of a gradient in registers at a time


def compute(
    gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile, group: Value
) -> None:
    """All steps of a work tile for a group's part of the columns, and its share of the results."""
    problem = gradients.problem
    steps = _Steps(gradients, storage, tile, group)
    problem.over_column_heads(tile, [], steps.of_head)
    _finish(gradients, storage, tile, group)


class _Steps:
    """The iterations of a work tile."""

    def __init__(
        self, gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile, group: Value
    ):
        self._gradients, self._storage, self._group = gradients, storage, group
        problem = self._problem = gradients.problem
        self._scale_log2 = scale_of_exponents(problem)
        self._count = problem.config.tile_n // PARTS
        self._column = b.INT.mul(group, self._count)
        self._row0 = problem.first_position(tile, 0)
        self._take = storage.numbers.of_part(tile, self._row0, self._column, self._count)

    def of_head(self, tile: WorkTile) -> list[Value]:
        """All iterations over one head of the streamed side."""
        tiles = self._problem.column_tiles(tile)

        def iteration(test: Test | None, index: Value, *sums: Value) -> list[Value]:
            return self._step(tile, tiles, test, index, sums)

        empty = empty_sums(self._problem)
        sums = loop_over_tiles(tiles, tiles.phases(b.constant(0)), empty, iteration)
        store_sums(self._problem, tile, self._row0, sums, adds=True)
        return []

    def _step(
        self,
        tile: WorkTile,
        tiles: ColumnTiles,
        test: Test | None,
        index: Value,
        sums: Sequence[Value],
    ) -> list[Value]:
        """One streamed tile; returns the sums of rows after it, given those before."""
        problem, storage, group = self._problem, self._storage, self._group
        row0, column, scale = self._row0, self._column, problem.scale
        scores = storage.s.load(group)
        weights = found = exponentials(
            masked_scores(problem, tile, scores, test, tiles, index, row0, scale, column),
            self._scale_log2,
            self._take(LSE),
        )
        factors = times_slope(problem, tile, scores, weights, tiles, index, row0, column)
        if storage.s.used is not None:
            weights = self._times_row_weights(weights, again=True)
            storage.s.store(b.rounded(weights, problem.element), group)
        weight_gradients = self._times_row_weights(storage.dp.load(group))

        def score_gradient(factor: Value, gradient: Value, delta: Value) -> Value:
            return b.fmul(factor, b.fsub(gradient, delta))

        deltas = self._take(DELTA)
        score_gradients = b.map_elements(score_gradient, factors, weight_gradients, deltas)
        storage.dp.store(b.rounded(score_gradients, problem.element), group)
        if not problem.modifier.adjoints:
            return []
        differences = b.map_elements(b.fsub, weight_gradients, deltas)
        at = (tiles, index, row0)
        return added(problem, tile, scores, found, differences, *at, sums, column)

    def _times_row_weights(self, fragment: Value, *, again: bool = False) -> Value:
        """A fragment times the weights of queries; itself where these are 1."""
        has_weights = self._gradients.weights is not None
        return times(fragment, self._take(WEIGHT, again=again) if has_weights else None)


def _finish(
    gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile, group: Value
) -> None:
    """Writes the gradients, rounded, to their slots; zeros where a work tile visits no tiles."""
    problem = gradients.problem
    any_tile = problem.column_tiles(tile).any()
    finished = storage.finished.wait()
    for part, ring in zip(storage.parts, storage.results, strict=True):
        slot, scale = ring.acquire(), problem.scale if part.is_of_scores else b.f32_constant(1.0)
        sums = part.of(storage.accumulators[0 if part.is_of_scores else -1].at())
        chunks = list(zip(_chunks(sums), _chunks(slot), strict=True))
        for owner in range(PARTS):
            with b.when(b.compare("eq", group, owner)):
                for chunk, target in chunks[owner::PARTS]:
                    _store_scaled(chunk, target, scale, any_tile)
        b.commit(slot, "warps")
    b.release(finished, "warps")


def _store_scaled(chunk: Value, target: Value, scale: Value, any_tile: Value) -> None:
    zero = b.f32_constant(0.0)
    shape, element = ws.TileType(chunk.type).shape, ws.TileType(target.type).element
    with b.either(any_tile) as (some, none):
        with some:
            found = b.map_elements(lambda x: b.fmul(x, scale), b.load(chunk))
            b.store(b.rounded(found, element), target)
        with none:
            b.store(b.rounded(b.fill(shape, zero), element), target)


def _chunks(tile: Value) -> list[Value]:
    """The columns of a tile in chunks."""
    _, width = ws.TileType(tile.type).shape
    firsts = range(0, width, CHUNK_COLUMNS)
    return [b.columns(tile, x, min(CHUNK_COLUMNS, width - x)) for x in firsts]
