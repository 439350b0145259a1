"""The role that issues products whose results lie in tensor memory. It runs on one thread."""

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
    visited = problem.column_tiles(tile)
    instances = range(problem.config.q_tiles)

    def scores(way: int, query: AwaitedSlots, key: AwaitedSlots) -> None:
        slot = storage.s.acquire(way)
        queries_of = partial(storage.queries.columns, query)
        storage.keys.multiply(slot, queries_of, key, is_last=way == instances[-1])
        b.commit(slot, "tensor_core")

    def softmax_step(way: int, values: Value, accumulate: Value | bool) -> None:
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
        for way in instances:
            queries.append(storage.queries.wait(way))
            scores(way, queries[way], key)
        key.release()
        sums = [storage.finished.acquire(way) for way in instances]

        def iteration(turn: Value) -> list[Value]:
            accumulate = b.compare("sgt", turn, 1)
            values = storage.v.wait()
            key: AwaitedSlots | None = None
            for way in instances:
                softmax_step(way, values, accumulate)
                if way == instances[-1]:
                    b.release(values, "tensor_core")
                key = key or storage.keys.wait()
                scores(way, queries[way], key)
            if key is not None:
                key.release()
            return []

        b.loop(1, visited.count, [], iteration)
        for query in queries:
            query.release()
        accumulate = b.compare("sgt", visited.count, 1)
        values = storage.v.wait()
        for way in instances:
            softmax_step(way, values, accumulate)
            b.commit(sums[way], "tensor_core")
        b.release(values, "tensor_core")
