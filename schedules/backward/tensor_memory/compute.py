"""The compute role: a group makes P of S and dS of dP, and at the end the gradients of their sums.

A thread has a row of its group's part of the columns, in registers:

```text
await S       P = 2^(c S - LSE), 0 where hidden       P to tensor memory, if a product reads it
await dP      dS = P (dP - delta)                     dS to tensor memory
```
"""

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.numbers import DELTA, LSE
from attn_mlir.schedules.backward.tensor_memory.policy import PARTS
from attn_mlir.schedules.backward.tensor_memory.storage import TensorGradientStorage
from attn_mlir.schedules.core.column_tiles import ColumnTiles, Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Value, WorkTile
from attn_mlir.schedules.softmax.row import LOG2E
from attn_mlir.schedules.softmax.state import masked_scores

CHUNK_COLUMNS = 32  # columns of a gradient in registers at a time


def compute(
    gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile, group: Value
) -> None:
    """All steps of a work tile for a group's part of the columns, and its share of the results."""
    problem, part = gradients.problem, gradients.problem.config.tile_n // PARTS
    row0, column = problem.first_position(tile, 0), b.INT.mul(group, part)
    scale_log2 = b.fmul(problem.scale, b.f32_constant(LOG2E))
    take = storage.numbers.of_tile(tile, row0, column, part)

    def step(tile: WorkTile, tiles: ColumnTiles, test: Test | None, index: Value) -> list[Value]:
        scores = storage.s.load(group)
        scores = masked_scores(
            problem, tile, scores, test, tiles, index, row0, problem.scale, column
        )
        exponents = b.map_elements(
            lambda score, lse: b.fma(score, scale_log2, b.fneg(lse)), scores, take(LSE)
        )
        weights = b.exp2_tile(exponents, period=0, count=0, begin=0, end=part)
        if storage.s.used is not None:
            storage.s.store(b.rounded(weights, problem.element), group)
        changes = b.map_elements(
            lambda weight, gradient, delta: b.fmul(weight, b.fsub(gradient, delta)),
            weights,
            storage.dp.load(group),
            take(DELTA),
        )
        storage.dp.store(b.rounded(changes, problem.element), group)
        return []

    def of_head(tile: WorkTile) -> list[Value]:
        tiles = problem.column_tiles(tile)
        return loop_over_tiles(
            tiles,
            tiles.phases(b.constant(0)),
            [],
            lambda test, index: step(tile, tiles, test, index),
        )

    problem.over_column_heads(tile, [], of_head)
    _finish(gradients, storage, tile, group)


def _finish(
    gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile, group: Value
) -> None:
    """Writes the gradients, rounded, to their slots; zeros where a work tile visits no tiles."""
    problem = gradients.problem
    any_tile = problem.column_tiles(tile).any()
    finished = storage.finished.wait()
    for number, (ring, sums) in enumerate(zip(storage.results, storage.accumulators, strict=True)):
        slot, scale = ring.acquire(), b.f32_constant(1.0) if number else problem.scale
        chunks = list(zip(_chunks(sums.at()), _chunks(slot), strict=True))
        for owner in range(PARTS):
            with b.when(b.compare("eq", group, owner)):
                for chunk, target in chunks[owner::PARTS]:
                    _store_scaled(problem.output, chunk, target, scale, any_tile)
        b.commit(slot, "warps")
    b.release(finished, "warps")


def _store_scaled(
    element: object, chunk: Value, target: Value, scale: Value, any_tile: Value
) -> None:
    zero = b.f32_constant(0.0)
    shape = ws.TileType(chunk.type).shape
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
