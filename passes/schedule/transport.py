"""The roles that move tiles and start products: load, mma, epilogue. Each runs on one thread."""

from . import builder as b
from .problem import KeyTiles, KVSource, Problem, Storage, Value, WorkTile


def load(problem: Problem, storage: Storage, source: KVSource, tile: WorkTile) -> None:
    """Fills Q once and the K/V ring in the order K(0) Q V(0) K(1) V(1) ..."""
    keys = KeyTiles(problem, tile)

    def fill_keys(turn: Value | int) -> None:
        slot = storage.kv.acquire()
        source.load_keys(slot, tile, keys.first_column(turn))
        b.commit(slot, "tma")

    def fill_values(turn: Value | int) -> None:
        slot = storage.kv.acquire()
        source.load_values(slot, tile, keys.first_column(turn))
        b.commit(slot, "tma")

    def turn_of(turn: Value) -> list[Value]:
        fill_keys(turn)
        fill_values(turn)
        return []

    with b.when(keys.any()):
        fill_keys(0)
        for way in range(problem.config.q_tiles):
            slot = storage.q.acquire(way)
            row = problem.first_row(tile, way)
            b.tma_load(problem.q, slot, [tile.batch, row, tile.head, 0], [1, 3])
            b.commit(slot, "tma")
        fill_values(0)
        b.loop(1, keys.count, [], turn_of)


def mma(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """Issues the products, the two query tiles interleaved: PV0(n-1) QK0(n) PV1(n-1) QK1(n).

    While softmax works on one query tile, the tensor core works on the other.
    """
    keys = KeyTiles(problem, tile)
    ways = range(problem.config.q_tiles)

    def scores(slot: Value, query: Value, key: Value) -> None:
        b.mma(slot, query, key, accumulate=False, b_layout="nk")
        b.commit(slot, "mma")

    def weigh(slot: Value, way: int, values: Value, accumulate: Value | bool) -> None:
        shape = [problem.config.tile_m, problem.config.tile_n]
        probabilities = b.view(slot, shape, problem.element)
        b.mma(storage.o.at(way), probabilities, values, accumulate=accumulate, b_layout="kn")

    with b.when(keys.any()):
        key = storage.kv.wait()
        queries: list[Value] = []
        for way in ways:
            queries.append(storage.q.wait(way))
            scores(storage.s.acquire(way), queries[way], key)
        b.release(key, "mma")

        def turn_of(turn: Value) -> list[Value]:
            accumulate = b.compare("sgt", turn, 1)
            values = storage.kv.wait()
            key = None
            for way in ways:
                slot = storage.s.acquire(way)
                weigh(slot, way, values, accumulate)
                if way == ways[-1]:
                    b.release(values, "mma")
                if key is None:
                    key = storage.kv.wait()
                scores(slot, queries[way], key)
            b.release(key, "mma")
            return []

        b.loop(1, keys.count, [], turn_of)
        for query in queries:
            b.release(query, "mma")
        accumulate = b.compare("sgt", keys.count, 1)
        values = storage.kv.wait()
        for way in ways:
            slot = storage.s.acquire(way)
            weigh(slot, way, values, accumulate)
            b.commit(slot, "mma")
        b.release(values, "mma")


def epilogue(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """Writes the finished O tiles; rows past the end of the sequence are dropped."""
    for way in range(problem.config.q_tiles):
        slot = storage.out.wait(way)
        row = problem.first_row(tile, way)
        b.tma_store(slot, problem.o, [tile.batch, row, tile.head, 0], [1, 3])
        b.release(slot, "tma")
