"""The numbers of each query, its LSE and its delta, as a tile of scores needs them.

With sinks and a gradient of the LSE it also has a weight, the factor of its probabilities.

Where queries stand still they belong to rows and are read once. Where keys do, they belong to
columns and stream as tiles of queries do.
"""

from collections.abc import Callable
from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.core.problem import Value, WorkTile
from attn_mlir.schedules.sources.row_vectors import (
    FilledVector,
    StoredVector,
    fill_vectors,
    vector_ring,
)

LSE, DELTA, WEIGHT = "lse", "delta", "weight"
Take = Callable[[str], Value]


class Numbers(Protocol):
    """The LSE, delta and weight of queries.

    Attributes:
      stream: whether a warp has to `fill` rings with them.
    """

    stream: bool

    def fill(self, tile: WorkTile) -> None:
        """The role that fills the rings; one warp."""
        ...

    def of_tile(self, tile: WorkTile, row0: Value) -> Take:
        """Emits what a work tile begins with; returns what emits LSE, WEIGHT or DELTA of a tile of
        scores, [rows, columns], each once and in this order.

        Args:
          row0: position of the first row.
        """
        ...


def _vectors(gradients: Gradients) -> dict[str, StoredVector]:
    """The numbers of queries, by name."""
    found, weights = {LSE: gradients.exponents()}, gradients.row_weights()
    found |= {} if weights is None else {WEIGHT: weights}
    return found | {DELTA: gradients.deltas()}


class RowNumbers:
    """The numbers of queries that stand still."""

    stream = False

    def __init__(self, gradients: Gradients):
        self._vectors = _vectors(gradients)
        self._config = gradients.problem.config

    def fill(self, tile: WorkTile) -> None:
        """Nothing streams."""

    def of_tile(self, tile: WorkTile, row0: Value) -> Take:
        """As of `Numbers`; reads them from memory."""
        found = {name: vector.of_rows(tile, row0) for name, vector in self._vectors.items()}
        return lambda name: b.broadcast(found[name], self._config.tile_n)


class ColumnNumbers:
    """The numbers of queries that stream, in rings of their own."""

    stream = True

    def __init__(self, gradients: Gradients):
        self._problem = gradients.problem
        self._rows = gradients.problem.config.tile_m
        vectors, width = _vectors(gradients), gradients.problem.config.tile_n
        self._rings = {name: vector_ring(name, width) for name in vectors}
        self._filled = [
            FilledVector(self._rings[name], vector.of_columns) for name, vector in vectors.items()
        ]

    def fill(self, tile: WorkTile) -> None:
        """As of `Numbers`."""
        fill_vectors(self._problem, self._filled, tile)

    def of_tile(self, tile: WorkTile, row0: Value) -> Take:
        """As of `Numbers`; each is the next of its ring."""

        def take(name: str) -> Value:
            slot = self._rings[name].wait()
            found = b.broadcast_down(b.load(slot), self._rows)
            b.release(slot, "warps")
            return found

        return take


def numbers_of(gradients: Gradients) -> Numbers:
    """Those of the direction, with their rings."""
    kind, _ = gradients.problem.direction.ordered(RowNumbers, ColumnNumbers)
    return kind(gradients)
