"""The slots of the query tiles of a work tile: one for each tile, or for each stage of Q K^T.

If a tile of keys has stages (`key_slots`) and none is wider than the first, so has a tile of
queries: the first product begins when the first stage of both is in shared memory.
"""

from collections.abc import Sequence
from functools import partial

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from ..core.tile_rows import product_operands
from .key_slots import AwaitedSlots


class QuerySlots:
    """The slots of query tiles.

    Attributes:
      count: slots of a tile.
    """

    def __init__(self, problem: Problem, ring: b.Ring, stages: Sequence[range]):
        """Takes the columns of each stage; the instances of the ring are query tiles."""
        self._problem, self._ring, self._stages = problem, ring, stages
        self.count = len(stages)

    @classmethod
    def of(cls, problem: Problem, stages: Sequence[range]) -> "QuerySlots":
        """The slots in a new ring, given the stages of a tile of keys; one slot without stages."""
        if not stages or any(len(stage) > len(stages[0]) for stage in stages):
            stages = [range(problem.columns)]
        config, widest = problem.config, len(stages[0])
        kind = b.tile([config.tile_m, widest], problem.element, "shared")
        ring = b.Ring("q", kind, stages=len(stages), instances=config.q_tiles)
        return cls(problem, ring, stages)

    def fill(self, tile: WorkTile, q_tile: int, numbers: Sequence[int]) -> None:
        """Acquires the slots of some stages of a query tile, and copies them."""
        queries = self._problem.rows
        for number in numbers:
            slot = self._ring.acquire(q_tile)
            position = self._problem.first_position(tile, q_tile)
            stage = self._stages[number]
            target = self._tile(slot, stage)
            queries.load(target, tile.queries, tile.head, position, column=stage.start)
            b.commit(slot, "copy_engine")

    def wait(self, q_tile: int) -> AwaitedSlots:
        """The slots of a query tile, once the first one is full."""
        return AwaitedSlots([partial(self._ring.wait, q_tile)] * self.count, at_once=1)

    def columns(self, queries: AwaitedSlots, number: int, columns: range) -> list[Value]:
        """The columns of stage `number` of a tile of keys, as operands of products."""
        if self.count > 1:
            stage = self._tile(queries.slot(number), columns)
        else:
            stage = b.columns(queries.slot(0), columns.start, len(columns))
        return product_operands(stage, self._problem.q, columns.start)

    def _tile(self, slot: Value, columns: range) -> Value:
        problem = self._problem
        return b.view(slot, [problem.config.tile_m, len(columns)], problem.element)
