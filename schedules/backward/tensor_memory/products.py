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

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.tensor_memory.storage import TensorGradientStorage, Weighed
from attn_mlir.schedules.core.problem import Value, WorkTile


def scores(gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile) -> None:
    """Issues S and dP of all tiles that a work tile visits."""
    stationary = [rows.ring.wait() for rows in storage.stationary]
    finished = storage.finished.acquire()

    def of_tile(*_: object) -> None:
        made = storage.s.made, storage.dp.made
        for rows, streamed, ring in zip(stationary, storage.streamed, made, strict=True):
            columns, slot = streamed.wait(), ring.acquire()
            b.mma(slot, rows, columns, accumulate=False, b_layout="nk")
            b.commit(slot, "tensor_core")
            b.release(columns, "tensor_core")

    gradients.problem.each_column_tile(tile, of_tile)
    for slot in stationary:
        b.release(slot, "tensor_core")
    b.commit(finished, "tensor_core")


def sums(gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile) -> None:
    """Issues the products that add to the gradients of a work tile."""
    problem = gradients.problem
    finished = storage.finished.acquire()

    def added(total: b.Buffer, weighed: Weighed, columns: Value, begun: Value) -> None:
        slots = [ring.wait() for ring in weighed.held]
        b.mma(total.at(), slots[0], columns, accumulate=begun, b_layout="kn")
        for slot in (*slots, columns):
            b.release(slot, "tensor_core")

    def iteration(_: Value, begun: Value) -> list[Value]:
        first, second = (ring.wait() for ring in storage.streamed)
        if storage.s.used is not None:
            added(storage.accumulators[1], storage.s, second, begun)
        else:
            b.release(second, "tensor_core")
        added(storage.accumulators[0], storage.dp, first, begun)
        return [b.true()]

    def of_head(tile: WorkTile, begun: Value) -> list[Value]:
        return b.loop(0, problem.column_tiles(tile).count, [begun], iteration)

    problem.over_column_heads(tile, [b.false()], of_head)
    b.commit(finished, "tensor_core")
