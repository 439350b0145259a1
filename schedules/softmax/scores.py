"""Functions of scores and of where they are, as score modifiers are."""

from collections.abc import Callable

from attn_mlir.dialect import ws

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile


def map_scores(
    body: Callable[..., Value],
    problem: Problem,
    tile: WorkTile,
    scores: Value,
    row0: Value,
    column0: Value,
    scale: Value | None = None,
) -> Value:
    """Applies `body(score, batch, head, q, k)` to each score of a tile.

    Args:
      scores: [rows, columns].
      row0, column0: positions of the first row and of the first column.
      scale: multiplies scores first; None for 1.
    """

    def element(score: Value, row: Value, column: Value) -> Value:
        scaled_score = score if scale is None else b.fmul(score, scale)
        head, q, k = problem.coordinates(tile, row0, column0, row, column)
        return body(scaled_score, tile.batch, head, q, k)

    bits = ws.element_bits(problem.element)
    at_a_time = problem.config.scores_at_a_time(problem.modifier, bits)
    return b.map_coordinates(element, scores, at_a_time=at_a_time)
