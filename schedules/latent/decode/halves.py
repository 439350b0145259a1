"""Two warpgroups each own half of O's columns; one hands the other the factors that rescale O."""

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile


def in_step(sums: Value, moved: Value, factor: Value) -> Value:
    """O so far, rescaled to the new maxima where one moved."""
    (found,) = b.chosen(moved, [sums.type], lambda: [b.times_rows(sums, factor)], lambda: [sums])
    return found


def hand_over(ring: b.Ring, value: Value) -> None:
    """Fills a slot with a row vector."""
    slot = ring.acquire()
    b.store(value, slot)
    b.commit(slot, "warps")


def taken(ring: b.Ring) -> Value:
    """What a slot holds, which is free again."""
    slot = ring.wait()
    value = b.load(slot)
    b.release(slot, "warps")
    return value


def leave(problem: Problem, out: b.Ring | None, tile: WorkTile, result: Value, first: int) -> None:
    """Columns of O of a work tile, to a slot of `out`, or to memory where there is none.

    Args:
      result: [rows, columns], in f32.
      first: the first of these columns.
    """
    if out is None:
        row0 = problem.first_position(tile, 0)
        problem.queries.store_columns(result, tile.results, tile.head, row0, first)
        return
    slot = out.acquire()
    _, columns = ws.FragmentType(result.type).shape
    b.store(b.rounded(result, problem.output), b.columns(slot, first, columns))
    b.commit(slot, "warps")
