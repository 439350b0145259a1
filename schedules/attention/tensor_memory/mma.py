"""The MMA role: issues the products that accumulate in tensor memory, by one thread."""

from functools import partial

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.sources.key_slots import AwaitedSlots
from attn_mlir.schedules.sources.transport import values_in

from .storage import Storage


def mma(problem: Problem, storage: Storage, tile: WorkTile) -> None:
    """Issues the products, the two query tiles interleaved: PV0(n-1) QK0(n) PV1(n-1) QK1(n).

    While softmax works on one query tile, the tensor core works on the other.
    """
    key_tiles = problem.column_tiles(tile)
    q_tiles = range(problem.config.q_tiles)

    def scores(q_tile: int, query: AwaitedSlots, key: AwaitedSlots) -> None:
        slot = storage.s.acquire(q_tile)
        queries_of = partial(storage.queries.columns, query)
        storage.keys.multiply(slot, queries_of, key, is_last=q_tile == q_tiles[-1])
        b.commit(slot, "tensor_core")

    def multiply_pv(q_tile: int, values: Value, accumulate: Value | bool) -> None:
        count = storage.stages.pv
        rows = problem.config.tile_n // count
        for number in range(count):
            p = storage.p.wait(q_tile)
            v = b.rows(values_in(problem, values), number * rows, rows)
            adds = True if number else accumulate
            b.mma(storage.o.at(q_tile), p, v, accumulate=adds, b_layout="kn")
            b.release(p, "tensor_core")

    with b.when(key_tiles.any()):
        key = storage.keys.wait()
        queries: list[AwaitedSlots] = []
        for q_tile in q_tiles:
            queries.append(storage.queries.wait(q_tile))
            scores(q_tile, queries[q_tile], key)
        key.release()
        finished = [storage.finished.acquire(q_tile) for q_tile in q_tiles]

        def iteration(index: Value) -> list[Value]:
            accumulate = b.compare("sgt", index, 1)
            values = storage.v.wait()
            key: AwaitedSlots | None = None
            for q_tile in q_tiles:
                multiply_pv(q_tile, values, accumulate)
                if q_tile == q_tiles[-1]:
                    b.release(values, "tensor_core")
                key = key or storage.keys.wait()
                scores(q_tile, queries[q_tile], key)
            if key is not None:
                key.release()
            return []

        b.loop(1, key_tiles.count, [], iteration)
        for query in queries:
            query.release()
        accumulate = b.compare("sgt", key_tiles.count, 1)
        values = storage.v.wait()
        for q_tile in q_tiles:
            multiply_pv(q_tile, values, accumulate)
            b.commit(finished[q_tile], "tensor_core")
        b.release(values, "tensor_core")
