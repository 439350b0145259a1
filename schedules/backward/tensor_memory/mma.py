"""The MMA role: issues the products that accumulate in tensor memory, by one thread.

```text
                  keys stand      queries stand
S = X U^T         K Q^T           Q K^T
dP = Y V^T        V dO^T          dO V^T
dY += P V         dV += P dO      -
dX += dS U        dK += dS Q      dQ += dS K
```
"""

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.tensor_memory.policy import PARTS
from attn_mlir.schedules.backward.tensor_memory.storage import TensorGradientStorage
from attn_mlir.schedules.core.problem import Value, WorkTile


def mma(gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile) -> None:
    """Issues the products of a work tile, those of each part of the columns one after the other."""
    problem = gradients.problem
    stationary = [ring.wait() for ring in storage.stationary]
    finished = storage.finished.acquire()

    def part(slot: Value, number: int) -> Value:
        return b.rows(slot, number * storage.part, storage.part)

    def scores(ring: b.Ring, rows: Value, columns: Value) -> None:
        for number in range(PARTS):
            slot = ring.acquire(number)
            b.mma(slot, rows, part(columns, number), accumulate=False, b_layout="nk")
            b.commit(slot, "tensor_core")

    def added(sums: b.Buffer, ring: b.Ring, columns: Value, begun: Value) -> None:
        for number in range(PARTS):
            slot, adds = ring.wait(number), True if number else begun
            b.mma(sums.at(), slot, part(columns, number), accumulate=adds, b_layout="kn")
            b.release(slot, "tensor_core")

    def iteration(_: Value, begun: Value) -> list[Value]:
        first, second = (ring.wait() for ring in storage.streamed)
        scores(storage.s, stationary[0], first)
        scores(storage.dp, stationary[1], second)
        if storage.p is not None:
            added(storage.accumulators[1], storage.p, second, begun)
        b.release(second, "tensor_core")
        added(storage.accumulators[0], storage.ds, first, begun)
        b.release(first, "tensor_core")
        return [b.true()]

    def of_head(tile: WorkTile, begun: Value) -> list[Value]:
        return b.loop(0, problem.column_tiles(tile).count, [begun], iteration)

    problem.over_column_heads(tile, [b.false()], of_head)
    for slot in stationary:
        b.release(slot, "tensor_core")
    b.commit(finished, "tensor_core")
