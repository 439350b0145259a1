"""What each query has of its own, its LSE and its delta, as a tile of scores needs it.

Where queries stand still they belong to rows and are read once. Where keys do, they belong to
columns and stream as tiles of queries do.
"""

from collections.abc import Callable
from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.core.problem import Value, WorkTile
from attn_mlir.schedules.sources.row_vectors import FilledVector, fill_vectors, vector_ring

LSE, DELTA = 0, 1
Take = Callable[[int], Value]


class Numbers(Protocol):
    """The LSE and the delta of queries.

    Attributes:
      stream: whether a warp has to `fill` rings with them.
    """

    stream: bool

    def fill(self, tile: WorkTile) -> None:
        """The role that fills the rings; one warp."""
        ...

    def of_tile(self, tile: WorkTile, row0: Value) -> Take:
        """Emits what a work tile begins with; returns what emits LSE or DELTA of a tile of scores,
        [rows, columns], in the order of these.

        Args:
          row0: position of the first row.
        """
        ...


class RowNumbers:
    """Of queries that stand still."""

    stream = False

    def __init__(self, gradients: Gradients):
        self._vectors = gradients.exponents(), gradients.deltas()
        self._config = gradients.problem.config

    def fill(self, tile: WorkTile) -> None:
        """Nothing streams."""

    def of_tile(self, tile: WorkTile, row0: Value) -> Take:
        """As of `Numbers`; reads them from memory."""
        found = [vector.of_rows(tile, row0) for vector in self._vectors]
        return lambda number: b.broadcast(found[number], self._config.tile_n)


class ColumnNumbers:
    """Of queries that stream, in rings of their own."""

    stream = True

    def __init__(self, gradients: Gradients):
        self._problem = gradients.problem
        self._rows = gradients.problem.config.tile_m
        vectors = ("lse", gradients.exponents()), ("delta", gradients.deltas())
        width = gradients.problem.config.tile_n
        self._rings = [vector_ring(name, width) for name, _ in vectors]
        loads = (vector.of_columns for _, vector in vectors)
        self._filled = [FilledVector(*x) for x in zip(self._rings, loads, strict=True)]

    def fill(self, tile: WorkTile) -> None:
        """As of `Numbers`."""
        fill_vectors(self._problem, self._filled, tile)

    def of_tile(self, tile: WorkTile, row0: Value) -> Take:
        """As of `Numbers`; each is the next of its ring."""

        def take(number: int) -> Value:
            slot = self._rings[number].wait()
            found = b.broadcast_down(b.load(slot), self._rows)
            b.release(slot, "warps")
            return found

        return take


def numbers_of(gradients: Gradients) -> Numbers:
    """Those of the direction, with their rings."""
    kind, _ = gradients.problem.direction.ordered(RowNumbers, ColumnNumbers)
    return kind(gradients)
