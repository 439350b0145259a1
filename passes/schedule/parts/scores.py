"""What becomes of a tile of scores on its way to weights, and of a row's numbers at the end.

Pure functions over fragments, whatever memory they come from and whoever holds them; the formulas
of a row are in `online`.
"""

import math
from typing import NamedTuple

from attn_mlir.dialect import ws

from . import builder as b
from .masking import Test, hide
from .online import Row
from .online import is_large as is_too_coarse
from .problem import Problem, Value, WorkTile
from .visited import VisitedTiles

TOTAL_COLUMNS = 8  # of the sums of a row: those of a quad, of which each thread has its own
FMA_COLUMNS = 4  # per period: two pairs of 2^x on the multiply-add units (FlashAttention-4)
FMA_FRAGMENT = 32  # columns of a fragment; the row's last one is left to the special unit


def seen(
    problem: Problem,
    tile: WorkTile,
    scores: Value,
    test: Test | None,
    keys: VisitedTiles,
    turn: Value,
    row0: Value,
    scale: Value,
    column: Value | int = 0,
) -> Value:
    """The scores that count: modified, and -inf where a row does not see a key.

    Args:
      scores: [rows, columns], raw.
      test: what they may have to be tested for.
      keys: the tiles that are visited; these scores are of the tile of a turn.
      row0: position of their first row.
      scale: multiplies them where the modifier looks at them.
      column: of the tile, where they begin.
    """
    modifier = problem.modifier
    keeps = modifier.hides and (test is not None or keys.keeps_everywhere)
    if not (modifier.changes or keeps or test is not None):
        return scores
    column0 = keys.first_column(turn)
    if column != 0:
        column0 = b.INT.add(column0, column)
    if modifier.changes or keeps:
        factor = scale if modifier.changes else None
        scores = _modified(problem, scores, factor, tile, row0, column0, keeps=keeps)
    if test is not None:
        scores = hide(problem, tile, scores, test, row0, column0)
    return scores


class Rows(NamedTuple):
    """What online softmax knows of its rows so far; a loop carries these values.

    Attributes:
      maximum: [rows], which may be stale.
      offset: [rows], what goes with it.
      limit: [rows], the score up to which the maximum stays.
      is_large: i1, whether the offset of a row of this warp is.
      totals: [rows, 8], sums of weights that a reduction adds up at the end.
    """

    maximum: Value
    offset: Value
    limit: Value
    is_large: Value
    totals: Value

    @classmethod
    def none(cls, row: Row, count: int) -> "Rows":
        """Of so many rows that have seen no key."""
        maximum = b.fill([count], b.f32_constant(-math.inf))
        totals = b.fill([count, TOTAL_COLUMNS], b.f32_constant(0.0))
        return cls(maximum, b.map_elements(row.offset, maximum), maximum, b.false(), totals)

    def total(self) -> Value:
        """[rows], l."""
        (count,) = ws.FragmentType(self.maximum.type).shape
        return b.reduce_rows("add", self.totals, b.fill([count], b.f32_constant(0.0)))


class Weighed(NamedTuple):
    """What a tile of scores leaves behind.

    Attributes:
      rows: what is known of them now.
      moved: i1, whether the maximum of a row of this warp has moved.
      factor: [rows], what O so far has to be multiplied by.
      weights: P, unrounded f32.
    """

    rows: Rows
    moved: Value
    factor: Value
    weights: Value


def weigh(problem: Problem, row: Row, scores: Value, rows: Rows) -> Weighed:
    """A step of online softmax over scores that count.

    Where no maximum of a warp moves, it goes on with what it has.
    """
    maximum, _, limit, _, totals = rows
    found = b.reduce_rows("max", scores, maximum)
    moves = b.map_elements(_is_beyond, found, limit, element=b.i1())
    moved = b.any_row(moves)

    def reach(found: Value, maximum: Value, limit: Value, row: Value) -> Value:
        del row
        return b.select(_is_beyond(found, limit), found, maximum)

    def to_new_maxima() -> list[Value]:
        reached = b.map_rows(reach, found, maximum, limit)
        factor = b.map_elements(row.step, maximum, reached)
        following = b.map_elements(row.offset, reached)
        large = b.any_row(b.map_elements(is_too_coarse, following, element=b.i1()))
        ends = b.map_elements(row.limit, reached)
        return [reached, following, ends, large, b.times_rows(totals, factor), factor]

    ones = b.fill(ws.FragmentType(maximum.type).shape, b.f32_constant(1.0))
    kinds = [value.type for value in (*rows, maximum)]
    maximum, offset, limit, is_large, totals, factor = b.chosen(
        moved, kinds, to_new_maxima, lambda: [*rows, ones]
    )
    (weighed,) = b.chosen(
        is_large,
        [scores.type],
        lambda: [weights(problem, row, *row.exact(scores, offset, maximum))],
        lambda: [weights(problem, row, scores, offset)],
    )
    rows = Rows(maximum, offset, limit, is_large, b.fold(weighed, totals))
    return Weighed(rows, moved, factor, weighed)


def _is_beyond(found: Value, limit: Value) -> Value:
    """i1; also where the limit is that of a scale so small that it is no number."""
    return b.fcompare("UGT", found, limit)


def _modified(
    problem: Problem,
    scores: Value,
    scale: Value | None,
    tile: WorkTile,
    row0: Value,
    column0: Value,
    *,
    keeps: bool,
) -> Value:
    """Gives each score to the modifier with its coordinates, scaled if there is a scale."""

    def element(score: Value, row: Value, column: Value) -> Value:
        given = score if scale is None else b.fmul(score, scale)
        queries = problem.queries
        q, k = b.INT.add(row0, queries.position(row)), b.INT.add(column0, column)
        head = queries.head(tile.head, row)
        return problem.modifier(given, tile.batch, head, q, k, keeps=keeps)

    return b.map_coordinates(element, scores)


def store_lse(
    problem: Problem, row: Row, tile: WorkTile, row0: Value, maximum: Value, total: Value
) -> None:
    """Writes the LSE, if anyone asks for it; of a part as a sum of two."""
    if problem.lse is None:
        return
    formulas = [row.lse_first, row.lse_rest] if problem.is_partial else [row.lse]
    for number, formula in enumerate(formulas):
        term = [number] if problem.is_partial else []
        rows = b.map_elements(formula, maximum, total)
        problem.queries.store_lse(rows, tile.results, tile.head, row0, *term)


def with_sink(
    problem: Problem, rows: Row, tile: WorkTile, row0: Value, maximum: Value, total: Value
) -> Value:
    """l with the sink's weight; a row that saw no key keeps its 0."""
    if not problem.modifier.has_sink:
        return total

    def element(m: Value, t: Value, row: Value) -> Value:
        queries = problem.queries
        q, head = b.INT.add(row0, queries.position(row)), queries.head(tile.head, row)
        weight = rows.of_logit(problem.modifier.sink(tile.batch, head, q), m)
        zero = b.f32_constant(0.0)
        return b.select(b.fcompare("OEQ", t, zero), zero, b.fadd(t, weight))

    return b.map_rows(element, maximum, total)


def weights(problem: Problem, row: Row, scores: Value, offset: Value) -> Value:
    """P = 2^(S c - m c + lift), unrounded f32."""
    config, columns = problem.config, ws.FragmentType(scores.type).shape[1]
    offset = b.broadcast(offset, columns)
    exponent = b.map_elements(lambda s, o: b.fma(s, row.scale_log2, o), scores, offset)
    if not config.exp2_period:
        return b.exp2_tile(exponent, period=0, count=0, begin=0, end=columns)
    return b.exp2_tile(
        exponent,
        period=config.exp2_period,
        count=FMA_COLUMNS,
        begin=FMA_FRAGMENT * config.exp2_start,
        end=columns - FMA_FRAGMENT,
    )


def reciprocal(total: Value, factor: Value | None) -> Value:
    """1 / l, or `factor` / l; 0 for a row that saw no key."""
    zero = b.f32_constant(0.0)
    empty = b.fcompare("OEQ", total, zero)
    inverse = b.fdiv(b.f32_constant(1.0) if factor is None else factor, total)
    return b.select(empty, zero, inverse)
