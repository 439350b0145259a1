"""The correction role: rescales O when the row maximum changes, then normalises it."""

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile

from .storage import Storage

CHUNK_COLUMNS = 16  # columns of O held in registers at a time; 32 spill within 72 registers


def correction(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """Rescales O after each key tile whose maximum changed; writes O / l to `out`."""
    key_tiles = problem.column_tiles(tile)
    q_tiles = range(problem.config.q_tiles)

    def begin(q_tile: int) -> None:
        """The first key tile: there is no O to rescale."""
        b.release(storage.stats.wait(q_tile), "threads")
        for _ in range(storage.stages.pv):
            b.commit(storage.p.acquire(q_tile), "threads")

    def iteration(index: Value) -> list[Value]:
        del index
        for q_tile in q_tiles:
            # stats follows scores that were issued after the previous product: O has that product
            stats_slot = storage.stats.wait(q_tile)
            slots = [storage.p.acquire(q_tile) for _ in range(storage.stages.pv)]
            alpha = b.load(stats_slot)
            b.release(stats_slot, "threads")
            with b.when(b.any_row(b.map_elements(_is_below_one, alpha, element=b.i1()))):
                for chunk in _column_chunks(storage.o.at(q_tile), problem.v_columns):
                    b.store(b.times_rows(b.load(chunk), alpha), chunk)
            for slot in slots:
                b.commit(slot, "threads")
        return []

    with b.when(key_tiles.any()):
        for q_tile in q_tiles:
            begin(q_tile)
        b.loop(1, key_tiles.count, [], iteration)
    for q_tile in q_tiles:
        _acknowledge(storage, q_tile)
    inverses: list[Value] = []
    for q_tile in q_tiles:
        stats_slot = storage.stats.wait(q_tile)
        inverses.append(b.load(stats_slot))
        b.release(stats_slot, "threads")
        _acknowledge(storage, q_tile)
    for q_tile in q_tiles:
        _finish(problem, storage, key_tiles, q_tile, inverses[q_tile])


def _is_below_one(alpha: Value) -> Value:
    return b.fcompare("OLT", alpha, b.f32_constant(1.0))


def _acknowledge(storage: Storage, q_tile: int) -> None:
    """Signals softmax that every slot of `stats` so far has been read."""
    b.commit(storage.acknowledged.acquire(q_tile), "threads")


def _finish(
    problem: Problem, storage: Storage, key_tiles: ColumnTiles, q_tile: int, inverse: Value
) -> None:
    """Writes O / l of one query tile, rounded, to its slot of `out`; zeros without a key tile."""
    zero = b.f32_constant(0.0)
    with b.either(key_tiles.any()) as (some, none):
        with some:
            finished = storage.finished.wait(
                q_tile
            )  # also signals that no product reads Q any more
            slot = storage.out.acquire(q_tile)
            o, out = (_column_chunks(x, problem.v_columns) for x in (storage.o.at(q_tile), slot))
            for chunk, target in zip(o, out, strict=True):
                b.store(b.rounded(b.times_rows(b.load(chunk), inverse), problem.output), target)
            b.release(finished, "threads")
            b.commit(slot, "threads")
        with none:
            slot = storage.out.acquire(q_tile)
            empty = b.fill([problem.config.tile_m, CHUNK_COLUMNS], zero)
            for target in _column_chunks(slot, problem.v_columns):
                b.store(b.rounded(empty, problem.output), target)
            b.commit(slot, "threads")


def _column_chunks(tile: Value, column_count: int) -> list[Value]:
    return [b.columns(tile, c, CHUNK_COLUMNS) for c in range(0, column_count, CHUNK_COLUMNS)]
