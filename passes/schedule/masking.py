"""Hides scores: puts -inf where a row does not see a column.

A row of an interval mask sees the columns from one number to another, which the row compares with
each column. Other masks are evaluated per element.
"""

from enum import Enum

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
    mask = problem.mask
    sq, sk = problem.lengths()
    hidden = b.f32_constant(float("-inf"))

    def in_interval(score: Value, row: Value, column: Value) -> Value:
        position = b.INT.add(row0, problem.queries.position(row))
        begin, end = mask.column_range(b.INT, position, sq, sk)
        if test is Test.BOTH_EDGES:
            seen = b.compare("slt", column, b.INT.sub(end, column0))
            score = b.select(seen, score, hidden)
        if mask.edges.left:
            seen = b.compare("sge", column, b.INT.sub(begin, column0))
            score = b.select(seen, score, hidden)
        return score

    def element(score: Value, row: Value, column: Value) -> Value:
        position = b.INT.add(row0, problem.queries.position(row))
        seen = mask.element(b.INT, position, b.INT.add(column0, column), sq, sk)
        return b.select(seen, score, hidden)

    return b.map_coordinates(in_interval if mask.is_interval else element, scores)
