"""Hides scores: puts -inf where a row does not see a column.

A row of an interval mask sees the columns from one number to another. Other masks are evaluated
element by element.
"""

from enum import Enum

from attn_mlir.dialect import ws

from . import builder as b
from .problem import Problem, Value


class Test(Enum):
    """What the elements of a tile have to be tested for."""

    BOTH_EDGES = "both"
    LEFT_EDGE = "left"  # every row's right edge lies beyond the tile


def hide(problem: Problem, scores: Value, test: Test, row0: Value, column0: Value) -> Value:
    """The scores [tile_m, tile_n] with -inf where a row does not see a column.

    Args:
      test: which edges the tile may have.
      row0: position of the tile's first row.
      column0: key of the tile's first column.
    """
    mask, queries = problem.mask, problem.queries
    sq, sk = problem.lengths()
    hidden = b.f32_constant(float("-inf"))
    if not mask.is_interval:

        def element(score: Value, row: Value, column: Value) -> Value:
            position = b.INT.add(row0, queries.position(row))
            seen = mask.element(b.INT, position, b.INT.add(column0, column), sq, sk)
            return b.select(seen, score, hidden)

        return b.map_coordinates(element, scores)

    def limit(name: str) -> Value:
        def of_row(_: Value, row: Value) -> Value:
            position = b.INT.add(row0, queries.position(row))
            return b.INT.sub(getattr(mask.column_range(b.INT, position, sq, sk), name), column0)

        return b.map_rows(of_row, rows(0))

    def rows(value: int) -> Value:
        return b.fill([problem.config.tile_m], b.constant(value))

    begin = limit("begin") if mask.edges.left else rows(0)
    end = limit("end") if test is Test.BOTH_EDGES else rows(problem.config.tile_n)
    return ws.KeepColumnsOp(scores, begin, end, hidden, scores.type).kept
