"""Sums over the keys of each query that gradients of captured tensors are made of."""

from collections.abc import Sequence
from functools import partial

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.scores import map_scores
from attn_mlir.schedules.softmax.state import TOTAL_COLUMNS


def empty_sums(problem: Problem) -> list[Value]:
    """The sums of a group's rows before the first tile, in parts: one for each thread of a quad.

    One for each `attn.adjoint`: [rows, parts].
    """
    shape = [problem.config.tile_m, TOTAL_COLUMNS]
    return [b.fill(shape, b.f32_constant(0.0)) for _ in problem.modifier.adjoint_rows]


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
) -> list[Value]:
    """The sums after a tile of scores.

    Args:
      scores: [rows, columns], raw.
      weights: likewise, e to the power of scores less the LSE.
      differences: likewise, w dP - delta.
      tiles, index, row0: as of `masked_scores`.
      sums: those before it.
    """
    column0, modifier = tiles.first_column(index), problem.modifier

    def part(adjoint: Value, weight: Value, difference: Value) -> Value:
        zero = b.f32_constant(0.0)
        product = b.fmul(b.fmul(weight, difference), adjoint)
        return b.select(b.fcompare("OEQ", weight, zero), zero, product)

    found: list[Value] = []
    for number, before in enumerate(sums):
        body = partial(modifier.adjoint, number)
        adjoints = map_scores(body, problem, tile, scores, row0, column0, problem.scale)
        parts = b.map_elements(part, adjoints, weights, differences)
        found.append(b.fold(parts, before))
    return found


def store_sums(problem: Problem, tile: WorkTile, row0: Value, sums: Sequence[Value]) -> None:
    """Writes the sums; rows past the end of the sequence are dropped."""
    sequence, _ = problem.sequences(tile)
    dim = len(sequence.lead)
    for memory, parts in zip(problem.modifier.adjoint_rows, sums, strict=True):
        zero = b.fill([problem.config.tile_m], b.f32_constant(0.0))
        coords = [*sequence.lead, sequence.row(row0), tile.head, 0]
        b.store_global(
            b.reduce_rows("add", parts, zero), sequence.within(memory, dim), coords, [dim]
        )
