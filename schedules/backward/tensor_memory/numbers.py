"""The numbers of queries for a part of the columns of a tile of scores."""

from collections.abc import Callable
from typing import Protocol

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.numbers import ColumnNumbers, Numbers, RowNumbers
from attn_mlir.schedules.core.problem import Value, WorkTile


class TakePart(Protocol):
    """Emits a number of queries as a part of a tile of scores, [rows, count]."""

    def __call__(self, name: str, /, *, again: bool = False) -> Value:
        """LSE, WEIGHT or DELTA.

        Args:
          again: whether the same is asked for once more, so that it need not stay in registers.
        """
        ...


class PartNumbers(Numbers, Protocol):
    """The LSE, delta and weight of queries."""

    def of_part(self, tile: WorkTile, row0: Value, column: Value, count: int) -> TakePart:
        """As `of_tile`, for some columns of a tile of scores.

        Args:
          row0: position of the first row.
          column: first of these columns in the tile.
        """
        ...


class RowPartNumbers(RowNumbers):
    """The numbers of queries that stand still."""

    def of_part(self, tile: WorkTile, row0: Value, column: Value, count: int) -> TakePart:
        """As of `PartNumbers`; reads them from memory."""
        del column
        found = {name: vector.of_rows(tile, row0) for name, vector in self._vectors.items()}
        return lambda name, /, *, again=False: b.broadcast(found[name], count)


class ColumnPartNumbers(ColumnNumbers):
    """The numbers of queries that stream, in rings of their own."""

    def of_part(self, tile: WorkTile, row0: Value, column: Value, count: int) -> TakePart:
        """As of `PartNumbers`; each is the next of its ring."""

        held: dict[str, Value] = {}

        def take(name: str, /, *, again: bool = False) -> Value:
            slot = held.pop(name) if name in held else self._rings[name].wait()
            found = b.load(b.rows(slot, column, count))
            if again:
                held[name] = slot
            else:
                b.release(slot, "warps")
            return b.broadcast_down(found, self._rows)

        return take


def part_numbers_of(gradients: Gradients) -> PartNumbers:
    """Those of the direction, with their rings."""
    kinds: tuple[Callable[[Gradients], PartNumbers], ...] = RowPartNumbers, ColumnPartNumbers
    kind, _ = gradients.problem.direction.ordered(*kinds)
    return kind(gradients)
