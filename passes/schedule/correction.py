"""The correction role: keeps the accumulators in step with the row maximum, then normalises them."""

from attn_mlir.dialect._mlir import arith

from . import builder as b
from .problem import KeyTiles, Problem, Storage, Value, WorkTile

CHUNK_COLUMNS = 32  # columns of O held in registers at a time; 64 pass the role's budget


def correction(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """Per turn rescales O where the maximum moved; at the end writes O / l to the out ring."""
    keys = KeyTiles(problem, tile)
    ways = range(problem.config.query_tiles)

    def turn_of(turn: Value) -> list[Value]:
        for way in ways:
            scores = storage.s.wait(way)
            handover = storage.stats.wait(way)
            factor = b.load(handover)
            b.release(handover, "threads")
            one = b.f32_constant(1.0)
            moved = b.any_row(
                b.map_elements(lambda f, _: b.fcompare("OLT", f, one), factor, element=b.i1())
            )
            begun = b.compare("sgt", turn, 0)  # before the first product O holds nothing
            with b.when(arith.AndIOp(moved, begun).result):
                for part in _parts(storage.o.at(way), problem.head_dim):
                    b.store(_scale(b.load(part), factor), part)
            b.release(scores, "threads")
        return []

    b.loop(0, keys.count, [], turn_of)
    for way in ways:
        _finish(problem, storage, keys, way)


def _finish(problem: Problem, storage: Storage, keys: KeyTiles, way: int) -> None:
    """O / l of one query tile, rounded, into its out slot; zeros where there was no key."""
    handover = storage.stats.wait(way)
    inverse = b.load(handover)
    b.release(handover, "threads")
    slot = storage.out.acquire(way)
    targets = list(_parts(slot, problem.head_dim))
    with b.either(keys.any()) as (some, none):
        with some:
            finished = storage.s.wait(way)
            for part, target in zip(
                _parts(storage.o.at(way), problem.head_dim), targets, strict=True
            ):
                b.store(_round(problem, _scale(b.load(part), inverse)), target)
            b.release(finished, "threads")
        with none:
            zero = b.f32_constant(0.0)
            empty = b.fill([problem.config.tile_m, CHUNK_COLUMNS], zero)
            for target in targets:
                b.store(_round(problem, empty), target)
    b.commit(slot, "threads")


def _parts(tile: Value, column_count: int) -> list[Value]:
    return [b.columns(tile, c, CHUNK_COLUMNS) for c in range(0, column_count, CHUNK_COLUMNS)]


def _scale(fragment: Value, factor: Value) -> Value:
    factors = b.broadcast(factor, CHUNK_COLUMNS)
    return b.map_elements(lambda x, f, *_: b.fmul(x, f), fragment, factors)


def _round(problem: Problem, fragment: Value) -> Value:
    return b.map_elements(
        lambda x, *_: b.truncate(x, problem.element), fragment, element=problem.element
    )
