"""Online softmax: from a tile of scores to P, and from a row's m_i and l_i to its results.

Pure functions over fragments, used by every schedule; `row` has the formulas for one row.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from attn_mlir.dialect import ws

from .. import emit as b
from ..core.column_tiles import ColumnTiles, Test
from ..core.config import Configured
from ..core.problem import Problem, Value, WorkTile
from .mask import hide
from .row import Row
from .row import is_large as is_too_coarse
from .scores import map_scores

TOTAL_COLUMNS = 8  # partial sums of a row: each thread of a quad has its own
FMA_COLUMNS = 4  # per period: two pairs of 2^x on the multiply-add units (FlashAttention-4)
FMA_FRAGMENT = (
    32  # columns of a fragment; the last fragment of a row uses the special-function unit alone
)


def masked_scores(
    problem: Problem,
    tile: WorkTile,
    scores: Value,
    test: Test | None,
    tiles: ColumnTiles,
    index: Value,
    row0: Value,
    scale: Value,
    column: Value | int = 0,
) -> Value:
    """The scores after modifier and mask: -inf where a row does not see a key.

    Args:
      scores: [rows, columns], raw.
      test: the edges of the mask to test; None for none.
      tiles: the column tiles of the work tile.
      index: number of the iteration.
      row0: position of their first row.
      scale: multiplies scores before the modifier gets them.
      column: first column of the scores in the key tile.
    """
    modifier = problem.modifier
    masked = modifier.hides and (test is not None or tiles.masks_everywhere)
    if not (modifier.changes or masked or test is not None):
        return scores
    column0 = tiles.first_column(index)
    if column != 0:
        column0 = b.INT.add(column0, column)
    if modifier.changes or masked:
        scores = map_scores(
            partial(modifier, masked=masked),
            problem,
            tile,
            scores,
            row0,
            column0,
            scale if modifier.changes else None,
        )
    if test is not None:
        scores = hide(problem, tile, scores, test, row0, column0)
    return scores


class RowState(NamedTuple):
    """The state of online softmax for some rows, carried by a loop.

    Attributes:
      maximum: [rows], m_i, which may be stale.
      offset: [rows], the addend in the exponent that belongs to the maximum; see `Row.offset`.
      limit: [rows], the largest score that lets the maximum stay.
      is_large: i1, whether any row of this warp has a large offset; see `row.is_large`.
      l_partial: [rows, columns], partial sums of weights, to be reduced at the end.
    """

    maximum: Value
    offset: Value
    limit: Value
    is_large: Value
    l_partial: Value

    @classmethod
    def empty(cls, row: Row, count: int, columns: int = TOTAL_COLUMNS) -> "RowState":
        """The state of `count` rows that have seen no key."""
        maximum = b.fill([count], b.f32_constant(-math.inf))
        l_partial = b.fill([count, columns], b.f32_constant(0.0))
        return cls(maximum, b.map_elements(row.offset, maximum), maximum, b.false(), l_partial)

    def total(self) -> Value:
        """[rows], l_i."""
        (count,) = ws.FragmentType(self.maximum.type).shape
        return b.reduce_rows("add", self.l_partial, b.fill([count], b.f32_constant(0.0)))


STATE_VALUES = len(RowState._fields)  # values that a loop carries


class SoftmaxStep(NamedTuple):
    """The result of a step of online softmax over one tile of scores.

    Attributes:
      rows: the new state.
      has_new_max: i1, whether the maximum of any row of this warp has changed.
      alpha: [rows], the rescale of O.
      weights: [rows, columns], P in f32.
    """

    rows: RowState
    has_new_max: Value
    alpha: Value
    weights: Value


class MaxUpdate(NamedTuple):
    """New row maxima after a tile of scores.

    Attributes:
      rows: the state, without the tile's weights.
      has_new_max: i1, whether the maximum of any row of this warp has changed.
      alpha: [rows], the rescale of O.
    """

    rows: RowState
    has_new_max: Value
    alpha: Value


def update_max(row: Row, scores: Value, rows: RowState, largest: Value | None = None) -> MaxUpdate:
    """The first half of `softmax_step`: the maxima."""
    largest = b.reduce_rows("max", scores, rows.maximum) if largest is None else largest
    has_new_max = b.any_row(b.map_elements(is_beyond, largest, rows.limit, element=b.i1()))
    rows, alpha = rescaled_state(row, rows, has_new_max, lambda: largest)
    return MaxUpdate(rows, has_new_max, alpha)


def exp2_scores(
    problem: Configured, row: Row, scores: Value, step: MaxUpdate, *, apart: bool = False
) -> SoftmaxStep:
    """The second half of `softmax_step`: P and the partial sums at these maxima."""
    exponentials = weights_of(problem, row, scores, step.rows, apart=apart)
    rows = step.rows._replace(l_partial=b.fold(exponentials, step.rows.l_partial))
    return SoftmaxStep(rows, step.has_new_max, step.alpha, exponentials)


def softmax_step(
    problem: Configured,
    row: Row,
    scores: Value,
    rows: RowState,
    largest: Value | None = None,
    *,
    apart: bool = False,
) -> SoftmaxStep:
    """A step of online softmax over the scores of one tile, after modifier and mask.

    A warp in which no row's maximum changes keeps its offsets and limits as they are.

    Args:
      largest: [rows], the largest score of all tiles so far; computed if None.
      apart: as of `weights_of`.
    """
    return exp2_scores(problem, row, scores, update_max(row, scores, rows, largest), apart=apart)


def rescaled_state(
    row: Row, rows: RowState, has_new_max: Value, find_largest: Callable[[], Value]
) -> tuple[RowState, Value]:
    """Raises the maxima of rows whose largest score exceeds the limit, and rescales l_i.

    Args:
      row: the arithmetic of a row.
      rows: the state before the tile.
      has_new_max: i1, whether any score exceeds its row's limit; if not, the state stays as it is.
      find_largest: emits the largest score of each row [rows], at least its maximum, in the branch
        taken if `has_new_max`.

    Returns:
      The state, and alpha [rows]: 1 in rows whose maximum stays.
    """
    maximum, _, limit, _, l_partial = rows

    def raised(largest: Value, maximum: Value, limit: Value, row: Value) -> Value:
        del row
        return b.select(is_beyond(largest, limit), largest, maximum)

    def to_new_maxima() -> list[Value]:
        new_maximum = b.map_rows(raised, find_largest(), maximum, limit)
        alpha = b.map_elements(row.exact_alpha, maximum, new_maximum)
        offsets = b.map_elements(row.offset, new_maximum)
        large = b.any_row(b.map_elements(is_too_coarse, offsets, element=b.i1()))
        limits = b.map_elements(row.limit, new_maximum)
        return [new_maximum, offsets, limits, large, b.times_rows(l_partial, alpha), alpha]

    ones = b.fill(ws.FragmentType(maximum.type).shape, b.f32_constant(1.0))
    kinds = [value.type for value in (*rows, maximum)]
    *values, alpha = b.chosen(has_new_max, kinds, to_new_maxima, lambda: [*rows, ones])
    return RowState(*values), alpha


def weights_of(
    problem: Configured, row: Row, scores: Value, rows: RowState, *, apart: bool = False
) -> Value:
    """P of a tile of scores, f32 and unrounded, with the exact formula where an offset is large.

    Args:
      apart: whether the exact formula has its own copy of the code after it. Otherwise both
        formulas share that code, and the compiler may move ordinary scores between registers.
    """
    maximum, offset = rows.maximum, rows.offset

    def exact() -> list[Value]:
        p = weights(problem, row, *row.exact(scores, offset, maximum))
        return [b.opaque(p) if apart else p]

    (exponentials,) = b.chosen(
        rows.is_large,
        [scores.type],
        exact,
        lambda: [weights(problem, row, scores, offset)],
    )
    return exponentials


def is_beyond(largest: Value, limit: Value) -> Value:
    """i1: largest > limit; true if the limit is NaN, as a scale of almost 0 makes it."""
    return b.fcompare("UGT", largest, limit)


def store_lse(
    problem: Problem, row: Row, tile: WorkTile, row0: Value, maximum: Value, total: Value
) -> None:
    """Writes the LSE if requested; for splits of the keys as two terms to be added."""
    if problem.lse is None:
        return
    formulas = [row.lse_high, row.lse_low] if problem.is_partial else [row.lse]
    for number, formula in enumerate(formulas):
        term = [number] if problem.is_partial else []
        rows = b.map_elements(formula, maximum, total)
        problem.rows.store_lse(rows, tile.results, tile.head, row0, *term)


def with_sink(
    problem: Problem, row: Row, tile: WorkTile, row0: Value, maximum: Value, total: Value
) -> Value:
    """The row sum l plus the weight of the sink; a row that saw no key keeps its 0."""
    if not problem.modifier.has_sink:
        return total

    def element(m: Value, t: Value, number: Value) -> Value:
        queries = problem.rows
        q, head = b.INT.add(row0, queries.position(number)), queries.head(tile.head, number)
        weight = row.of_logit(problem.modifier.sink(tile.batch, head, q), m)
        zero = b.f32_constant(0.0)
        return b.select(b.fcompare("OEQ", t, zero), zero, b.fadd(t, weight))

    return b.map_rows(element, maximum, total)


def weights(
    problem: Configured,
    row: Row,
    scores: Value,
    offset: Value,
    *,
    column: int = 0,
    of: int | None = None,
) -> Value:
    """P = 2^(S c + offset) in f32, [rows, columns]; `offset` [rows] is bias - m c.

    Args:
      column: first column of these scores in their row.
      of: columns of the row; those of `scores` if None.
    """
    config, columns = problem.config, ws.FragmentType(scores.type).shape[1]
    last = (columns if of is None else of) - FMA_FRAGMENT - column
    offset = b.broadcast(offset, columns)
    exponent = b.map_elements(lambda s, o: b.fma(s, row.scale_log2, o), scores, offset)
    if not config.exp2_period:
        return b.exp2_tile(exponent, period=0, count=0, begin=0, end=columns)
    return b.exp2_tile(
        exponent,
        period=config.exp2_period,
        count=FMA_COLUMNS,
        begin=min(max(FMA_FRAGMENT * config.exp2_start - column, 0), columns),
        end=min(max(last, 0), columns),
    )


def row_sums(chunks: Sequence[Value], init: Value) -> Value:
    """`init` [rows] plus the sum of each row, whose columns are in chunks.

    Chunks are added pairwise, as the vectors of 32 columns of one fragment are.
    """
    level = list(chunks)
    while len(level) > 1:
        level = [
            b.map_elements(b.fadd, *pair) for pair in zip(level[::2], level[1::2], strict=True)
        ]
    return b.reduce_rows("add", level[0], init)


def reciprocal(total: Value, output_scale: Value | None) -> Value:
    """1 / l, or `output_scale` / l; 0 for a row that saw no key."""
    zero = b.f32_constant(0.0)
    empty = b.fcompare("OEQ", total, zero)
    numerator = b.f32_constant(1.0) if output_scale is None else output_scale
    inverse = b.fdiv(numerator, total)
    return b.select(empty, zero, inverse)
