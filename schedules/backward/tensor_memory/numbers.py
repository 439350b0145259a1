"""The LSE and the delta of queries for a part of the columns of a tile of scores."""

from collections.abc import Callable
from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.numbers import Take
from attn_mlir.schedules.core.problem import Value, WorkTile
from attn_mlir.schedules.sources.row_vectors import FilledVector, fill_vectors, vector_ring


class PartNumbers(Protocol):
    """The LSE and the delta of queries.

    Attributes:
      stream: whether a warp has to `fill` rings with them.
    """

    stream: bool

    def fill(self, tile: WorkTile) -> None:
        """The role that fills the rings; one warp."""
        ...

    def of_tile(self, tile: WorkTile, row0: Value, column: Value, count: int) -> Take:
        """Emits what a work tile begins with; returns what emits LSE or DELTA of a part of a tile
        of scores, [rows, count], in the order of these.

        Args:
          row0: position of the first row.
          column: first column of the part in the tile.
        """
        ...


class RowPartNumbers:
    """Of queries that stand still: read from memory, once."""

    stream = False

    def __init__(self, gradients: Gradients):
        self._vectors = gradients.exponents(), gradients.deltas()

    def fill(self, tile: WorkTile) -> None:
        """Nothing streams."""

    def of_tile(self, tile: WorkTile, row0: Value, column: Value, count: int) -> Take:
        """As of `PartNumbers`."""
        found = [vector.of_rows(tile, row0) for vector in self._vectors]
        return lambda number: b.broadcast(found[number], count)


class ColumnPartNumbers:
    """Of queries that stream, in rings of their own."""

    stream = True

    def __init__(self, gradients: Gradients):
        self._problem = gradients.problem
        vectors = ("lse", gradients.exponents()), ("delta", gradients.deltas())
        width = gradients.problem.config.tile_n
        self._rings = [vector_ring(name, width) for name, _ in vectors]
        loads = (vector.of_columns for _, vector in vectors)
        self._filled = [FilledVector(*x) for x in zip(self._rings, loads, strict=True)]

    def fill(self, tile: WorkTile) -> None:
        """As of `PartNumbers`."""
        fill_vectors(self._problem, self._filled, tile)

    def of_tile(self, tile: WorkTile, row0: Value, column: Value, count: int) -> Take:
        """As of `PartNumbers`; each is the next of its ring."""
        rows = self._problem.config.tile_m

        def take(number: int) -> Value:
            slot = self._rings[number].wait()
            found = b.load(b.rows(slot, column, count))
            b.release(slot, "warps")
            return b.broadcast_down(found, rows)

        return take


def part_numbers_of(gradients: Gradients) -> PartNumbers:
    """Those of the direction, with their rings."""
    kinds: tuple[Callable[[Gradients], PartNumbers], ...] = RowPartNumbers, ColumnPartNumbers
    kind, _ = gradients.problem.direction.ordered(*kinds)
    return kind(gradients)
