"""The slots that a tile of keys lies in: those of one ring, or of several, of a part each."""

from collections.abc import Sequence
from typing import Protocol

from . import builder as b
from .kv_source import KEYS, KVSource
from .problem import Problem, Value, WorkTile
from .queries import as_multiplied


class KeySlots(Protocol):
    """The ring, or the rings, of keys."""

    def fill(
        self, source: KVSource, tile: WorkTile, first_column: Value, found: Sequence[Value]
    ) -> None:
        """Acquires slots and copies the tile from a key on into them; as `KVSource.load`."""
        ...

    def wait(self) -> list[Value]:
        """The slots of the next tile, once they are full."""
        ...

    def multiply(self, scores: Value, queries: Value, slots: Sequence[Value]) -> None:
        """Issues Q K^T of a tile into a tile of scores."""
        ...

    def release(self, slots: Sequence[Value]) -> None:
        """Hands them back when the products that were issued so far have read them."""
        ...


class WholeKeys:
    """A tile of keys in one slot."""

    def __init__(self, problem: Problem, ring: b.Ring):
        """In slots of a ring that may have room for wider tiles."""
        self._problem, self._ring = problem, ring

    def fill(
        self, source: KVSource, tile: WorkTile, first_column: Value, found: Sequence[Value]
    ) -> None:
        """One slot."""
        slot = self._ring.acquire()
        source.load(KEYS, self._tile(slot), tile, first_column, found)
        b.commit(slot, "copy_engine")

    def wait(self) -> list[Value]:
        """One slot."""
        return [self._ring.wait()]

    def multiply(self, scores: Value, queries: Value, slots: Sequence[Value]) -> None:
        """One product, or one for each type of elements."""
        (slot,) = slots
        operands = (as_multiplied(tile, self._problem.q) for tile in (queries, self._tile(slot)))
        for number, (rows, keys) in enumerate(zip(*operands, strict=True)):
            b.mma(scores, rows, keys, accumulate=number > 0, b_layout="nk")

    def release(self, slots: Sequence[Value]) -> None:
        """One slot."""
        (slot,) = slots
        b.release(slot, "tensor_core")

    def _tile(self, slot: Value) -> Value:
        shape = [self._problem.config.tile_n, self._problem.columns]
        return b.view(slot, shape, self._problem.element)
