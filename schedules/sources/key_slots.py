"""The slots of a tile of keys: one, or one for each stage of Q K^T.

A stage has some columns of all keys of a tile, and its own slot with its barriers. Q K^T is a
product for each stage, and begins when the first stage is in shared memory:

```text
load    fill stage 0 | fill stage 1 | ...
mma     wait stage 0, S = Q[:, columns of 0] K[:, columns of 0]^T | wait stage 1, S += ... | ...
```
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect.targets.limits import LINE_BYTES

from .. import emit as b
from ..core.problem import Problem, Value
from ..core.tile_rows import product_operands
from .kv_source import KEYS, ROPE, KVSource
from .paged_rows import CopiedTile


class KeyStage(NamedTuple):
    """Some columns of a tile of keys.

    Attributes:
      ring: the ring of their slots, which may be wider.
      columns: their range, in elements of queries and keys.
      is_rope: whether all heads share them, in slots of their own element type.
    """

    ring: b.Ring
    columns: range
    is_rope: bool = False


def stage_columns(problem: Problem, columns: int, count: int) -> list[range]:
    """Splits columns of queries and keys into `count` stages of equally many 128-byte lines."""
    line = LINE_BYTES * 8 // ws.element_bits(problem.element)
    width = -(-columns // line) // count * line
    return [range(first, min(first + width, columns)) for first in range(0, columns, width)]


def staged_ring(
    problem: Problem, name: str, stages: Sequence[range], *, tiles: int
) -> list[KeyStage]:
    """The stages, in a ring with slots for `tiles` tiles of keys."""
    kind = b.tile([problem.config.tile_n, len(stages[0])], problem.element, "shared")
    ring = b.Ring(name, kind, stages=tiles * len(stages))
    return [KeyStage(ring, stage) for stage in stages]


class AwaitedSlots:
    """Slots of the stages of a tile; each is awaited once, at its first use."""

    def __init__(self, waits: Sequence[Callable[[], Value]], at_once: int):
        """Waits for the first `at_once` slots; each of `waits` returns a slot."""
        self._waits, self._slots, self._released = waits, list[Value](), 0
        for number in range(at_once):
            self.slot(number)

    def slot(self, number: int) -> Value:
        """The slot of a stage, once it is full; stages are used in their order."""
        if number == len(self._slots):
            self._slots.append(self._waits[number]())
        return self._slots[number]

    def release(self, end: int | None = None) -> None:
        """Releases slots before slot `end`, or all, after the products issued so far."""
        for slot in self._slots[self._released : end]:
            b.release(slot, "tensor_core")
        self._released = len(self._slots) if end is None else end


class KeySlots:
    """A tile of keys in stages.

    Attributes:
      filled: number of stages that `fill` fills.
    """

    def __init__(
        self, problem: Problem, stages: Sequence[KeyStage], *, filled: int = 0, at_once: int = 1
    ):
        """Takes stages in the order of their columns.

        Args:
          filled: number of stages that `fill` fills, 0 for all; other roles fill the last ones.
          at_once: number of stages awaited before the first product.
        """
        self._problem, self._stages, self._at_once = problem, stages, at_once
        self.filled = filled or len(stages)

    @classmethod
    def whole(cls, problem: Problem, ring: b.Ring) -> "KeySlots":
        """A single stage, in slots of a ring for tiles at least as wide."""
        return cls(problem, [KeyStage(ring, range(problem.columns))])

    def fill(
        self,
        source: KVSource,
        tile: CopiedTile,
        after: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Acquires slots and copies the tile into them; as `KVSource.load`.

        Args:
          after: emits code after the copies of a stage, given its number.
        """
        for number, stage in enumerate(self._stages[: self.filled]):
            slot = stage.ring.acquire()
            if stage.is_rope:
                source.load(ROPE, slot, tile)
            else:
                target, column = self._tile(stage, slot), stage.columns.start
                source.load(KEYS, target, tile, column=column)
            b.commit(slot, "copy_engine")
            after(number)

    def wait(self) -> AwaitedSlots:
        """The slots of the next tile, once the slots of the first product are full."""
        return AwaitedSlots([stage.ring.wait for stage in self._stages], self._at_once)

    def multiply(
        self,
        scores: Value,
        queries: Callable[[int, range], list[Value]],
        keys: AwaitedSlots,
        *,
        is_last: bool,
    ) -> None:
        """Issues Q K^T of a tile into a tile of scores, a product per stage and element type.

        Args:
          queries: maps a stage's number and columns to the operands of Q, as `product_operands`.
          is_last: whether no later product reads this tile: slots awaited one by one are then
            released, except the last one.
        """
        is_first = True
        for number, stage in enumerate(self._stages):
            if is_last and self._at_once < len(self._stages):
                keys.release(number)
            rows, slot = queries(number, stage.columns), keys.slot(number)
            for query_operand, key_operand in zip(rows, self._operands(stage, slot), strict=True):
                b.mma(scores, query_operand, key_operand, accumulate=not is_first, b_layout="nk")
                is_first = False

    def _operands(self, stage: KeyStage, slot: Value) -> list[Value]:
        """The operands of products in a slot."""
        if stage.is_rope:
            return [slot]
        return product_operands(self._tile(stage, slot), self._problem.q, stage.columns.start)

    def _tile(self, stage: KeyStage, slot: Value) -> Value:
        return b.view(
            slot, [self._problem.config.tile_n, len(stage.columns)], self._problem.element
        )
