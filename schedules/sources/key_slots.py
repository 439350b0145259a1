"""The slots that a tile of keys lies in: one, or one for each of its parts.

A part has some columns of all keys of a tile, and a slot with barriers of its own. Q K^T is a
product for each part, and begins when the first one is in shared memory:

```text
load    fill part 0 | fill part 1 | ...
mma     wait part 0, S = Q[:, columns of 0] K[:, columns of 0]^T | wait part 1, S += ... | ...
```
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect.targets.limits import LINE_BYTES

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from ..core.tile_rows import product_operands
from .kv_source import KEYS, ROPE, KVSource


class KeyStage(NamedTuple):
    """Some columns of a tile of keys.

    Attributes:
      ring: of their slots, which may have room for more.
      columns: which, counted in elements of queries and keys.
      is_rope: whether they are those that all heads share, in slots of their type of elements.
    """

    ring: b.Ring
    columns: range
    is_rope: bool = False


def stage_columns(problem: Problem, columns: int, count: int) -> list[range]:
    """The first columns of queries and keys in `count` parts of equally many lines of 128 bytes."""
    line = LINE_BYTES * 8 // ws.element_bits(problem.element)
    width = -(-columns // line) // count * line
    return [range(first, min(first + width, columns)) for first in range(0, columns, width)]


def staged_ring(
    problem: Problem, name: str, stages: Sequence[range], *, tiles: int
) -> list[KeyStage]:
    """These parts in a ring that has room for so many tiles of keys."""
    kind = b.tile([problem.config.tile_n, len(stages[0])], problem.element, "shared")
    ring = b.Ring(name, kind, stages=tiles * len(stages))
    return [KeyStage(ring, stage) for stage in stages]


class AwaitedSlots:
    """Slots of the parts of a tile, of which each is waited for once,
    when it is first asked for.
    """

    def __init__(self, waits: Sequence[Callable[[], Value]], at_once: int):
        """Waits for the first `at_once`; what waits for each returns its slot."""
        self._waits, self._slots, self._released = waits, list[Value](), 0
        for number in range(at_once):
            self.slot(number)

    def slot(self, number: int) -> Value:
        """The slot of a part, once it is full; parts are asked for in their order."""
        if number == len(self._slots):
            self._slots.append(self._waits[number]())
        return self._slots[number]

    def release(self, end: int | None = None) -> None:
        """Hands back slots before slot `end`, or all, when the products that were issued so far
        have read them.
        """
        for slot in self._slots[self._released : end]:
            b.release(slot, "tensor_core")
        self._released = len(self._slots) if end is None else end


class KeySlots:
    """A tile of keys in parts.

    Attributes:
      filled: how many of them `fill` fills.
    """

    def __init__(
        self, problem: Problem, stages: Sequence[KeyStage], *, filled: int = 0, at_once: int = 1
    ):
        """Parts in the order of their columns.

        Args:
          filled: how many of them `fill` fills, 0 for all; others fill the rest.
          at_once: how many are waited for before the first product.
        """
        self._problem, self._stages, self._at_once = problem, stages, at_once
        self.filled = filled or len(stages)

    @classmethod
    def whole(cls, problem: Problem, ring: b.Ring) -> "KeySlots":
        """A single part, in slots of a ring that may have room for wider tiles."""
        return cls(problem, [KeyStage(ring, range(problem.columns))])

    def fill(
        self,
        source: KVSource,
        tile: WorkTile,
        first_column: Value,
        entries: Sequence[Value],
        *,
        after: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Acquires slots and copies the tile from a key on into them; as `KVSource.load`.

        Args:
          after: emits what comes behind the copies of a part, given its number.
        """
        for number, stage in enumerate(self._stages[: self.filled]):
            slot = stage.ring.acquire()
            if stage.is_rope:
                source.load(ROPE, slot, tile, first_column, entries)
            else:
                target, column = self._tile(stage, slot), stage.columns.start
                source.load(KEYS, target, tile, first_column, entries, column=column)
            b.commit(slot, "copy_engine")
            after(number)

    def wait(self) -> AwaitedSlots:
        """The slots of the next tile, once those are full that the first product reads."""
        return AwaitedSlots([stage.ring.wait for stage in self._stages], self._at_once)

    def multiply(
        self,
        scores: Value,
        queries: Callable[[int, range], list[Value]],
        keys: AwaitedSlots,
        *,
        is_last: bool,
    ) -> None:
        """Issues Q K^T of a tile into a tile of scores, a product for each part, or for each type
        of elements.

        Args:
          queries: the columns of Q that a part multiplies, given its number and which they are, as
            `product_operands` says.
          is_last: whether no other product reads this tile: slots that are awaited one by one are
            handed back then, but for the last one.
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
        """What products take of a slot."""
        if stage.is_rope:
            return [slot]
        return product_operands(self._tile(stage, slot), self._problem.q, stage.columns.start)

    def _tile(self, stage: KeyStage, slot: Value) -> Value:
        return b.view(
            slot, [self._problem.config.tile_n, len(stage.columns)], self._problem.element
        )
