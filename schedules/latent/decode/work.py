"""Absorbed latent attention over contiguous sequences of keys: the blocks of a work tile, and its
results.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import masked_scores, store_lse, with_sink

from ..common.absorbed import AbsorbedStorage


def in_tiles(
    tiles: Callable[[], AbstractContextManager[WorkTile]], role: Callable[[WorkTile], None]
) -> Callable[[Value], None]:
    """The body of a role in its work tiles, after the kernels before this one."""

    def run(_: Value) -> None:
        b.grid_dependency_wait()
        with tiles() as tile:
            role(tile)

    return run


class ContiguousStorage(AbsorbedStorage):
    """The rings of the kernel, as `stream` fills them.

    Attributes:
      k, v: the ring of keys, whose tiles are those of values as well.
      columns: of a tile of values as it is loaded.
    """

    def __init__(self, problem: Problem):
        """With one thread that loads."""
        super().__init__(problem)
        self.k = self.v = self.keys
        self.columns = problem.columns


class ContiguousWork:
    """A work tile: the keys of one sequence that the mask shows to any of its rows."""

    agent: ClassVar[str] = "threads"  # by which scores are given back
    needs_row_max: ClassVar[bool] = False

    def __init__(self, problem: Problem, tile: WorkTile):
        self._problem, self._tile = problem, tile
        self._visited = problem.column_tiles(tile)
        self._row0 = problem.first_position(tile, 0)
        self.count = self._visited.count

    def any_visible(self) -> None:
        """None: tiles that no row sees are skipped."""

    def loop_over_blocks(
        self, ring: b.Ring, state: list[Value], iteration: Callable[..., list[Value]]
    ) -> list[Value]:
        """A loop for each kind of test of scores against the mask."""

        def block(test: Test | None, turn: Value, *state: Value) -> list[Value]:
            def scores() -> tuple[Value, None]:
                slot = ring.wait()
                raw = b.load(slot)
                b.release(slot, self.agent)
                return self._masked_scores(raw, test, turn), None

            return iteration(scores, *state)

        return loop_over_tiles(self._visited, self._visited.phases(0), state, block)

    def _masked_scores(self, scores: Value, test: Test | None, index: Value) -> Value:
        """The scores of a key tile, -inf for hidden keys."""
        problem = self._problem
        position = (self._visited, index, self._row0, problem.scale)
        return masked_scores(problem, self._tile, scores, test, *position)

    def divisor(self, row: Row, maximum: Value, total: Value) -> Value:
        """l with the weight of the sink of each row's head."""
        return with_sink(self._problem, row, self._tile, self._row0, maximum, total)

    def store_statistics(
        self, row: Row, maximum: Value, total: Value, largest: Value | None
    ) -> None:
        """Writes LSE."""
        store_lse(self._problem, row, self._tile, self._row0, maximum, total)
