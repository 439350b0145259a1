"""Gradients that scores pass on to tensors that a modifier reads: each by itself, or summed up.

Sums of rows are kept in registers while tiles stream past them. They and the parts of single scores
go to memory at places that the modifier's indices say. What is 0 is not written.
"""

from collections.abc import Sequence
from functools import partial

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.modifier import Adjoint
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.scores import map_scores
from attn_mlir.schedules.softmax.state import TOTAL_COLUMNS

NOWHERE = -1


def empty_sums(problem: Problem) -> list[Value]:
    """The sums of a group's rows before the first tile of a head, in parts: one for each thread of
    a quad.

    One for each `attn.adjoint` per row: [rows, parts].
    """
    shape = [problem.config.tile_m, TOTAL_COLUMNS]
    per_row = [x for x in problem.modifier.adjoints if x.is_per_row]
    return [b.fill(shape, b.f32_constant(0.0)) for _ in per_row]


def added(
    problem: Problem,
    tile: WorkTile,
    scores: Value,
    weights: Value,
    differences: Value,
    tiles: ColumnTiles,
    index: Value,
    row0: Value,
    sums: Sequence[Value],
    column: Value | int = 0,
) -> list[Value]:
    """The sums after a tile of scores; writes the parts of single scores.

    Args:
      scores: [rows, columns], raw.
      weights: likewise, e to the power of scores less the LSE.
      differences: likewise, w dP - delta.
      tiles, index, row0, column: as of `masked_scores`.
      sums: those before it.
    """
    column0, (rows, _) = tiles.first_column(index), problem.sequences(tile)
    if column != 0:
        column0 = b.INT.add(column0, column)

    def part(adjoint: Value, weight: Value, difference: Value) -> Value:
        zero = b.f32_constant(0.0)
        product = b.fmul(b.fmul(weight, difference), adjoint)
        return b.select(b.fcompare("OEQ", weight, zero), zero, product)

    def place(adjoint: Adjoint, score: Value, part: Value, row: Value, column: Value) -> Value:
        head, q, k = problem.coordinates(tile, row0, column0, row, column)
        where = adjoint.place(b.fmul(score, problem.scale), tile.batch, head, q, k)
        position, _ = problem.direction.ordered(q, k)
        is_other = b.fcompare("UNE", part, b.f32_constant(0.0))
        counts = b.INT.both(is_other, b.compare("slt", position, rows.length))
        return b.select(counts, where, b.constant(NOWHERE))

    bits = ws.element_bits(problem.element)
    at_a_time = problem.config.scores_at_a_time(problem.modifier, bits)
    before, found = list(sums), list[Value]()
    for adjoint in problem.modifier.adjoints:
        values = map_scores(adjoint.value, problem, tile, scores, row0, column0, problem.scale)
        parts = b.map_elements(part, values, weights, differences)
        if adjoint.is_per_row:
            found.append(b.fold(parts, before[len(found)]))
            continue
        body = partial(place, adjoint)
        places = b.map_coordinates(body, scores, parts, element=b.i32(), at_a_time=at_a_time)
        b.scatter(parts, places, adjoint.target, adds=adjoint.adds)
    return found


def store_sums(
    problem: Problem, tile: WorkTile, row0: Value, sums: Sequence[Value], *, adds: bool = False
) -> None:
    """Writes the sums of a head.

    Args:
      adds: whether two groups have parts of the sums: added to 0 they give the same in any order.
    """
    sequence, _ = problem.sequences(tile)
    per_row = [x for x in problem.modifier.adjoints if x.is_per_row]
    for adjoint, parts in zip(per_row, sums, strict=True):
        zero = b.fill([problem.config.tile_m], b.f32_constant(0.0))

        def place(total: Value, row: Value, adjoint: Adjoint = adjoint) -> Value:
            nothing = b.constant(0)
            head, q, k = problem.coordinates(tile, row0, nothing, row, nothing)
            position, _ = problem.direction.ordered(q, k)
            queries, keys = problem.direction.ordered(position, None)
            where = adjoint.place(None, tile.batch, head, queries, keys)
            exists = b.compare("slt", position, sequence.length)
            return b.select(exists, where, b.constant(NOWHERE))

        totals = b.reduce_rows("add", parts, zero)
        places = b.map_rows(place, totals, element=b.i32())
        b.scatter(totals, places, adjoint.target, adds=adds or adjoint.adds)
