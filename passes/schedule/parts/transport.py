"""The roles that move tiles and start products: load, mma, epilogue. Each runs on one thread."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from . import builder as b
from .key_slots import AwaitedSlots, KeySlots
from .kv_source import VALUES, KVSource
from .problem import Problem, Value, WorkTile
from .query_slots import QuerySlots
from .storage import Storage


class Loaded(Protocol):
    """The rings that `load` fills, of queries, keys and values; those may be one ring."""

    @property
    def queries(self) -> QuerySlots:
        """Slots of queries."""
        ...

    @property
    def keys(self) -> KeySlots:
        """Slots of keys."""
        ...

    @property
    def v(self) -> b.Ring:
        """Slots of values."""
        ...


def values_in(problem: Problem, slot: Value) -> Value:
    """The tile of values [tile_n, v_columns] in a slot."""
    return b.view(slot, [problem.config.tile_n, problem.v_columns], problem.element)


def load(problem: Problem, storage: Loaded, source: KVSource, tile: WorkTile) -> None:
    """Fills Q once, and the rings of K and V in the order K(0) Q V(0) K(1) V(1) ...

    Where pages lie is read one key tile ahead, as soon as the copies of a tile have been issued: the
    numbers arrive while `load` waits for the slots of the next tile.
    """
    visited = problem.key_tiles(tile)

    def fill_values(column: Value, found: Sequence[Value]) -> None:
        slot = storage.v.acquire()
        source.load(VALUES, values_in(problem, slot), tile, column, found)
        b.commit(slot, "copy_engine")

    def turn_of(turn: Value, *found: Value) -> list[Value]:
        column = visited.first_column(turn)
        storage.keys.fill(source, tile, column, found)
        fill_values(column, found)
        return source.find(tile, visited, b.INT.add(turn, 1)) if found else []

    with b.when(visited.any()):
        first = visited.first_column(0)
        found = source.find(tile, visited, 0)
        queries = storage.queries
        between = storage.keys.filled if queries.count > 1 else 0

        def fill_queries(number: int) -> None:
            """The part of the first query tile that the first product reads with a part of keys."""
            if number < between:
                queries.fill(tile, 0, [number])

        storage.keys.fill(source, tile, first, found, behind=fill_queries)
        for way in range(problem.config.q_tiles):
            queries.fill(tile, way, range(0 if way else between, queries.count))
        fill_values(first, found)
        following = source.find(tile, visited, b.constant(1)) if found else []
        b.loop(1, visited.count, following, turn_of)


def mma(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """Issues the products, the two query tiles interleaved: PV0(n-1) QK0(n) PV1(n-1) QK1(n).

    While softmax works on one query tile, the tensor core works on the other.
    """
    visited = problem.key_tiles(tile)
    ways = range(problem.config.q_tiles)

    def scores(way: int, query: AwaitedSlots, key: AwaitedSlots) -> None:
        slot = storage.s.acquire(way)
        queries_of = partial(storage.queries.columns, query)
        storage.keys.multiply(slot, queries_of, key, is_last=way == ways[-1])
        b.commit(slot, "tensor_core")

    def weigh(way: int, values: Value, accumulate: Value | bool) -> None:
        count = storage.stages.pv
        rows = problem.config.tile_n // count
        for number in range(count):
            probabilities = storage.p.wait(way)
            own = b.rows(values_in(problem, values), number * rows, rows)
            adds = True if number else accumulate
            b.mma(storage.o.at(way), probabilities, own, accumulate=adds, b_layout="kn")
            b.release(probabilities, "tensor_core")

    with b.when(visited.any()):
        key = storage.keys.wait()
        queries: list[AwaitedSlots] = []
        for way in ways:
            queries.append(storage.queries.wait(way))
            scores(way, queries[way], key)
        key.release()
        sums = [storage.finished.acquire(way) for way in ways]

        def turn_of(turn: Value) -> list[Value]:
            accumulate = b.compare("sgt", turn, 1)
            values = storage.v.wait()
            key: AwaitedSlots | None = None
            for way in ways:
                weigh(way, values, accumulate)
                if way == ways[-1]:
                    b.release(values, "tensor_core")
                key = key or storage.keys.wait()
                scores(way, queries[way], key)
            if key is not None:
                key.release()
            return []

        b.loop(1, visited.count, [], turn_of)
        for query in queries:
            query.release()
        accumulate = b.compare("sgt", visited.count, 1)
        values = storage.v.wait()
        for way in ways:
            weigh(way, values, accumulate)
            b.commit(sums[way], "tensor_core")
        b.release(values, "tensor_core")


def epilogue(problem: Problem, out: b.Ring, tile: WorkTile) -> None:
    """Writes the finished O tiles; rows past the end of the sequence are dropped."""
    for way in range(problem.config.q_tiles):
        slot = out.wait(way)
        position = problem.first_position(tile, way)
        head = problem.query_tile(tile, way).head
        problem.queries.store(slot, tile.results, head, position)
        b.release(slot, "copy_engine")
