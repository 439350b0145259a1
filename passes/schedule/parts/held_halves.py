"""What groups of threads do that hold half of O's columns each: both step together, by what one tells the other."""

from collections.abc import Sequence

from . import builder as b
from .problem import Problem, Value, WorkTile


def in_step(sums: Sequence[Value], moved: Value, factor: Value) -> Sequence[Value]:
    """O so far, in parts of its columns, as it is with the new maxima."""
    kinds = [own.type for own in sums]
    return b.chosen(moved, kinds, lambda: [b.times_rows(x, factor) for x in sums], lambda: sums)


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


def leave(
    problem: Problem, out: b.Ring | None, tile: WorkTile, result: Sequence[tuple[int, int, Value]]
) -> None:
    """Columns of O of a work tile, to a slot of `out`, or to memory where there is none.

    Args:
      result: the first column of each part, how many it has, and the part.
    """
    if out is None:
        row0 = problem.first_position(tile, 0)
        for first, _, part in result:
            problem.queries.store_columns(part, tile.results, tile.head, row0, first)
        return
    slot = out.acquire()
    for first, count, part in result:
        b.store(b.rounded(part, problem.output), b.columns(slot, first, count))
    b.commit(slot, "warps")
