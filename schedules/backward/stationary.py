"""The rows of an operand that stands still: a slot for each group, or one that has those of all."""

from typing import Protocol

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Value


class StationaryRows(Protocol):
    """Slots that are filled once for a work tile, group by group in their order."""

    def begin(self, group: int) -> Value:
        """Acquires the rows of a group, [tile_m, columns], to be filled."""
        ...

    def end(self, group: int) -> None:
        """Hands these rows over, once the copies into them have landed."""
        ...

    def wait(self, group: Value) -> Value:
        """The rows of a group."""
        ...

    def release(self) -> None:
        """The group has read what it waited for."""
        ...


class SlotOfEach:
    """A slot for each group; a gradient may lie in it as soon as that group has read it.

    Attributes:
      ring: of the slots.
    """

    def __init__(self, name: str, rows: ws.TileType, groups: int = 1):
        self.ring = b.Ring(name, rows, instances=groups)

    def begin(self, group: int) -> Value:
        """As of `StationaryRows`."""
        self._slot = self.ring.acquire(group)
        return self._slot

    def end(self, group: int) -> None:
        """As of `StationaryRows`."""
        b.commit(self._slot, "copy_engine")

    def wait(self, group: Value) -> Value:
        """As of `StationaryRows`."""
        self._taken = self.ring.wait(group)
        return self._taken

    def release(self) -> None:
        """As of `StationaryRows`."""
        b.release(self._taken, "warps")


class SlotOfAll:
    """One slot for all groups, any of which can read the rows of the others.

    Attributes:
      ring: of the slot, [groups x tile_m, columns].
      taken: the slot that a role waited for.
    """

    taken: Value

    def __init__(self, name: str, rows: ws.TileType, groups: int):
        self._tile_m, columns = rows.shape
        self._groups = groups
        whole = b.tile([groups * self._tile_m, columns], rows.element, "shared")
        self.ring = b.Ring(name, whole)

    def begin(self, group: int) -> Value:
        """As of `StationaryRows`."""
        if group == 0:
            self._slot = self.ring.acquire()
        return b.rows(self._slot, group * self._tile_m, self._tile_m)

    def end(self, group: int) -> None:
        """As of `StationaryRows`."""
        if group == self._groups - 1:
            b.commit(self._slot, "copy_engine")

    def wait(self, group: Value) -> Value:
        """As of `StationaryRows`."""
        self.taken = self.ring.wait()
        return b.rows(self.taken, b.INT.mul(group, self._tile_m), self._tile_m)

    def release(self) -> None:
        """As of `StationaryRows`."""
        b.release(self.taken, "warps")
