"""The roles that compute gradients of keys and values.

A group has 64 keys, whose scores with a tile of queries it computes transposed, keys in rows. So
weights are an operand of the next product as they are:

```text
issue S = K Q^T        issue dP = V dO^T
settle S               P = 2^(c S - LSE), 0 where hidden        issue dV += P dO
settle dP              dS = P (dP - delta)                      issue dK += dS Q
settle dV and dK
```
"""

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.core.visited_tiles import Test, VisitedTiles, visit
from attn_mlir.schedules.softmax.row import LOG2E
from attn_mlir.schedules.softmax.state import seen
from attn_mlir.schedules.sources.kv_source import (
    OUTPUT_GRADIENTS,
    QUERIES,
    Filled,
    TensorRows,
)
from attn_mlir.schedules.sources.row_vectors import FilledVector, fill_vectors, vector_ring

from .gradients import Gradients


class GradientStorage:
    """The rings of the kernel; the ways of `k`, `v`, `dk` and `dv` are its groups.

    ```text
    load --k,v,q,do--> attend --dk,dv--> leave        rows --lse,delta--> attend
    ```
    """

    def __init__(self, gradients: Gradients):
        problem = gradients.problem
        config, element = problem.config, problem.element
        keys, queries = config.tile_m, config.tile_n
        widths = problem.columns, problem.v_columns
        ways, stages = config.q_tiles, config.kv_stages
        of_keys = [b.tile([keys, width], element, "shared") for width in widths]
        of_queries = [b.tile([queries, width], element, "shared") for width in widths]
        self.k, self.v = (b.Ring(*x, ways=ways) for x in zip("kv", of_keys, strict=True))
        self.q = b.Ring("q", of_queries[0], stages=stages)
        self.do = b.Ring("do", of_queries[1], stages=stages)
        self.lse, self.delta = (vector_ring(name, queries) for name in ("lse", "delta"))
        results = zip(("dk", "dv"), of_keys, strict=True)
        self.dk, self.dv = (b.Ring(*x, ways=ways) for x in results)


def load(gradients: Gradients, storage: GradientStorage, tile: WorkTile) -> None:
    """Fills the slots of K and V once, and the rings of Q and dO with all that the tile visits."""
    problem = gradients.problem
    for way in range(problem.config.q_tiles):
        position = problem.first_position(tile, way)
        for ring, rows in zip((storage.k, storage.v), gradients.sides(), strict=True):
            slot = ring.acquire(way)
            rows.load(slot, tile.keys, tile.head, position)
            b.commit(slot, "copy_engine")
    (queries,) = problem.q
    source = TensorRows(problem, {QUERIES: queries, OUTPUT_GRADIENTS: gradients.do})
    streamed = (
        (QUERIES, storage.q, problem.columns),
        (OUTPUT_GRADIENTS, storage.do, problem.v_columns),
    )
    source.fill_rings([Filled(*x) for x in streamed], tile)


def load_rows(gradients: Gradients, storage: GradientStorage, tile: WorkTile) -> None:
    """Fills the rings of what each row of queries has of its own; one warp."""
    streamed = (storage.lse, gradients.exponents()), (storage.delta, gradients.deltas())
    vectors = [FilledVector(ring, vector.load) for ring, vector in streamed]
    fill_vectors(gradients.problem, vectors, tile)


def attend(gradients: Gradients, storage: GradientStorage, tile: WorkTile, way: Value) -> None:
    """The gradients of the keys of a group, to the rings `dk` and `dv`."""
    problem, zero = gradients.problem, b.f32_constant(0.0)
    keys = problem.config.tile_m
    steps = _Steps(problem, storage, tile, way)
    empty = [b.fill([keys, width], zero) for width in (problem.columns, problem.v_columns)]
    dk, dv = problem.over_column_heads(tile, empty, steps.of_head)
    steps.release()
    scaled = b.map_elements(lambda x: b.fmul(x, problem.scale), dk)
    b.barrier()  # nobody of the group reads K and V any more, in whose place these may be staged
    for ring, sums in ((storage.dk, scaled), (storage.dv, dv)):
        slot = ring.acquire(way)
        b.store(b.rounded(sums, problem.output), slot)
        b.commit(slot, "warps")


class _Steps:
    """The turns of one work tile; the state of a group is (dK, dV), without the scale."""

    def __init__(self, problem: Problem, storage: GradientStorage, tile: WorkTile, way: Value):
        self._problem, self._storage, self._way = problem, storage, way
        self._row0 = problem.first_position(tile, way)
        self._scale_log2 = b.fmul(problem.scale, b.f32_constant(LOG2E))
        self._k, self._v = storage.k.wait(way), storage.v.wait(way)

    def release(self) -> None:
        """Hands K and V back."""
        for slot in (self._k, self._v):
            b.release(slot, "warps")

    def of_head(self, tile: WorkTile, *state: Value) -> list[Value]:
        """Every turn with the queries of one head."""
        visited = self._problem.visited_tiles(tile)

        def turn_of(test: Test | None, turn: Value, *state: Value) -> list[Value]:
            return self._step(tile, visited, test, turn, *state)

        return visit(visited, visited.phases(self._way), list(state), turn_of)

    def _step(
        self,
        tile: WorkTile,
        visited: VisitedTiles,
        test: Test | None,
        turn: Value,
        dk: Value,
        dv: Value,
    ) -> list[Value]:
        """A tile of queries."""
        problem, storage = self._problem, self._storage
        q = storage.q.wait()
        raw = self._product(self._k, q)
        do = storage.do.wait()
        raw_gradients = self._product(self._v, do)
        scores = b.settle(raw, newest=1)
        row0, scale = self._row0, problem.scale
        scores = seen(problem, tile, scores, test, visited, turn, row0, scale)
        weights = self._weights(scores)
        more = b.product(
            dv, b.rounded(weights, problem.element), do, accumulate=True, b_layout="kn"
        )
        gradients = self._gradients(weights, b.settle(raw_gradients, newest=1))
        last = b.product(
            dk, b.rounded(gradients, problem.element), q, accumulate=True, b_layout="kn"
        )
        dv = b.settle(more, newest=1)
        b.release(do, "warps")
        dk = b.settle(last)
        b.release(q, "warps")
        return [dk, dv]

    def _product(self, keys: Value, queries: Value) -> Value:
        """[keys, queries], pending."""
        config = self._problem.config
        empty = b.fill([config.tile_m, config.tile_n], b.f32_constant(0.0))
        return b.product(empty, keys, queries, accumulate=False, b_layout="nk")

    def _weights(self, scores: Value) -> Value:
        """P: 2 to the power of scores times c, less the LSE of each column."""
        columns = self._problem.config.tile_n
        lse = self._numbers(self._storage.lse)

        def exponent(score: Value, lse: Value) -> Value:
            return b.fma(score, self._scale_log2, b.fneg(lse))

        exponents = b.map_elements(exponent, scores, lse)
        return b.exp2_tile(exponents, period=0, count=0, begin=0, end=columns)

    def _gradients(self, weights: Value, gradients: Value) -> Value:
        """dS, without the scale: P (dP - delta)."""
        delta = self._numbers(self._storage.delta)

        def element(weight: Value, gradient: Value, delta: Value) -> Value:
            return b.fmul(weight, b.fsub(gradient, delta))

        return b.map_elements(element, weights, gradients, delta)

    def _numbers(self, ring: b.Ring) -> Value:
        """[keys, queries]: the next numbers of a ring, one for each column."""
        slot = ring.wait()
        found = b.broadcast_down(b.load(slot), self._problem.config.tile_m)
        b.release(slot, "warps")
        return found


def leave(gradients: Gradients, storage: GradientStorage, tile: WorkTile) -> None:
    """Writes dK and dV; rows past the end of the sequence are dropped. One thread."""
    problem = gradients.problem
    for way in range(problem.config.q_tiles):
        position = problem.first_position(tile, way)
        for ring, rows in zip((storage.dk, storage.dv), gradients.sides(), strict=True):
            slot = ring.wait(way)
            rows.store(slot, tile.results, tile.head, position)
            b.release(slot, "copy_engine")
