"""The two roles that issue products, by one thread each.

```text
                          keys stand      queries stand
scores    S = X U^T       K Q^T           Q K^T
          dP = Y V^T      V dO^T          dO V^T
sums      dY += P V       dV += P dO      -
          dX += dS U      dK += dS Q      dQ += dS K
```
The tensor core computes the next scores while threads weigh those before, and while it adds up
what they have weighed.
"""

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.tensor_memory.policy import PARTS
from attn_mlir.schedules.backward.tensor_memory.storage import TensorGradientStorage
from attn_mlir.schedules.core.problem import Value, WorkTile


def scores(gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile) -> None:
    """Issues S and dP of all tiles that a work tile visits."""
    problem = gradients.problem
    stationary = [ring.wait() for ring in storage.stationary]
    finished = storage.finished.acquire()

    def iteration(_: Value) -> list[Value]:
        pairs = zip(stationary, storage.streamed, (storage.s, storage.dp), strict=True)
        for rows, streamed, ring in pairs:
            columns = streamed.wait()
            for number in range(storage.products):
                slot, part = ring.acquire(number), _part(columns, number, storage.products)
                b.mma(slot, rows, part, accumulate=False, b_layout="nk")
                b.commit(slot, "tensor_core")
            b.release(columns, "tensor_core")
        return []

    def of_head(tile: WorkTile) -> list[Value]:
        return b.loop(0, problem.column_tiles(tile).count, [], iteration)

    problem.over_column_heads(tile, [], of_head)
    for slot in stationary:
        b.release(slot, "tensor_core")
    b.commit(finished, "tensor_core")


def sums(gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile) -> None:
    """Issues the products that add to the gradients of a work tile."""
    problem = gradients.problem
    finished = storage.finished.acquire()

    def added(total: b.Buffer, ring: b.Ring, place: b.Ring, columns: Value, begun: Value) -> None:
        for number in range(PARTS):
            slots = [ring.wait(number)]
            slots += [place.wait(number)] if storage.is_dense else []
            part, adds = _part(columns, number, PARTS), True if number else begun
            b.mma(total.at(), slots[0], part, accumulate=adds, b_layout="kn")
            for slot in slots:
                b.release(slot, "tensor_core")

    def iteration(_: Value, begun: Value) -> list[Value]:
        first, second = (ring.wait() for ring in storage.streamed)
        if storage.p is not None:
            added(storage.accumulators[1], storage.p, storage.s, second, begun)
        b.release(second, "tensor_core")
        added(storage.accumulators[0], storage.ds, storage.dp, first, begun)
        b.release(first, "tensor_core")
        return [b.true()]

    def of_head(tile: WorkTile, begun: Value) -> list[Value]:
        return b.loop(0, problem.column_tiles(tile).count, [begun], iteration)

    problem.over_column_heads(tile, [b.false()], of_head)
    b.commit(finished, "tensor_core")


def _part(columns: Value, number: int, count: int) -> Value:
    """Part `number` of a streamed tile in `count` parts; its rows are columns of scores."""
    rows = ws.TileType(columns.type).shape[0] // count
    return b.rows(columns, number * rows, rows)
