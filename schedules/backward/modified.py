"""The part of a score modifier in gradients: its derivative by the score."""

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.scores import map_scores


def times_slope(
    problem: Problem,
    tile: WorkTile,
    scores: Value,
    weights: Value,
    tiles: ColumnTiles,
    index: Value,
    row0: Value,
    column: Value | int = 0,
) -> Value:
    """P times the derivative of the modified scores by the scores; P itself where that is 1.

    Where P is 0 the product is 0 whatever the derivative is: that of a hidden score may be NaN, as
    coordinates there may be outside of what the modifier is for.

    Args:
      scores: [rows, columns], raw.
      weights: P, likewise.
      tiles, index, row0, column: as of `masked_scores`.
    """
    if not problem.modifier.has_slope:
        return weights
    column0 = tiles.first_column(index)
    if column != 0:
        column0 = b.INT.add(column0, column)
    modifier = problem.modifier
    slopes = map_scores(modifier.slope, problem, tile, scores, row0, column0, problem.scale)

    def product(weight: Value, slope: Value) -> Value:
        zero = b.f32_constant(0.0)
        return b.select(b.fcompare("OEQ", weight, zero), zero, b.fmul(weight, slope))

    return b.map_elements(product, weights, slopes)
