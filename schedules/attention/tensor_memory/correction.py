"""The correction role: keeps the accumulators in step with the row maximum,
then normalises them.
"""

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile

from .storage import Storage

CHUNK_COLUMNS = 16  # columns of O held in registers at a time; 32 spill within 72 registers


def correction(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """For each key tile rescales O where the row maximum moved;
    at the end writes O / l to `out`.
    """
    visited = problem.column_tiles(tile)
    instances = range(problem.config.q_tiles)

    def begin(way: int) -> None:
        """The first key tile: before its product O holds nothing."""
        b.release(storage.stats.wait(way), "threads")
        for _ in range(storage.stages.pv):
            b.commit(storage.p.acquire(way), "threads")

    def iteration(turn: Value) -> list[Value]:
        del turn
        for way in instances:
            # softmax has waited for scores issued behind the previous product, which O then
            # contains
            handover = storage.stats.wait(way)
            fitting = [storage.p.acquire(way) for _ in range(storage.stages.pv)]
            factor = b.load(handover)
            b.release(handover, "threads")
            with b.when(b.any_row(b.map_elements(_is_below_one, factor, element=b.i1()))):
                for part in _parts(storage.o.at(way), problem.v_columns):
                    b.store(b.times_rows(b.load(part), factor), part)
            for slot in fitting:
                b.commit(slot, "threads")
        return []

    with b.when(visited.any()):
        for way in instances:
            begin(way)
        b.loop(1, visited.count, [], iteration)
    for way in instances:
        _tell(storage, way)
    inverses: list[Value] = []
    for way in instances:
        handover = storage.stats.wait(way)
        inverses.append(b.load(handover))
        b.release(handover, "threads")
        _tell(storage, way)
    for way in instances:
        _finish(problem, storage, visited, way, inverses[way])


def _is_below_one(factor: Value) -> Value:
    return b.fcompare("OLT", factor, b.f32_constant(1.0))


def _tell(storage: Storage, way: int) -> None:
    """Tells softmax that all of `stats` so far has been read."""
    b.commit(storage.heard.acquire(way), "threads")


def _finish(
    problem: Problem, storage: Storage, visited: ColumnTiles, way: int, inverse: Value
) -> None:
    """Writes O / l of one query tile, rounded, to its slot of `out`; zeros without a key tile."""
    zero = b.f32_constant(0.0)
    with b.either(visited.any()) as (some, none):
        with some:
            finished = storage.finished.wait(way)  # also says that nobody reads Q any more
            slot = storage.out.acquire(way)
            sums = _parts(storage.o.at(way), problem.v_columns)
            for part, target in zip(sums, _parts(slot, problem.v_columns), strict=True):
                b.store(b.rounded(b.times_rows(b.load(part), inverse), problem.output), target)
            b.release(finished, "threads")
            b.commit(slot, "threads")
        with none:
            slot = storage.out.acquire(way)
            empty = b.fill([problem.config.tile_m, CHUNK_COLUMNS], zero)
            for target in _parts(slot, problem.v_columns):
                b.store(b.rounded(empty, problem.output), target)
            b.commit(slot, "threads")


def _parts(tile: Value, column_count: int) -> list[Value]:
    return [b.columns(tile, c, CHUNK_COLUMNS) for c in range(0, column_count, CHUNK_COLUMNS)]
