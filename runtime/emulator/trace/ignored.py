"""Events of an inspector that a trace ignores, as they are part of a warp's instructions."""

from typing import Any

from ..core.observer import Channel, StrongKind, SyncKey
from ..core.order import Order
from ..core.state import Cta, LaunchInspector, WarpContext
from ..machine.faults import Fault
from ..machine.watch import MemoryWatch


class PartialInspector(LaunchInspector):
    """Ignores accesses, fences and allocations."""

    def access(
        self,
        s: WarpContext,
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        is_write: bool,
        values: Any = None,
        element_bytes: int = 0,
    ) -> None:
        """Its instruction has steps."""

    def unwritten(self, cta: Cta, memory: str, fault: Fault, extent: int) -> None:
        """Ends the launch, as without a trace."""
        raise fault

    def strong_access(
        self,
        s: WarpContext,
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        kind: StrongKind,
        order: Order,
    ) -> None:
        """Its instruction has steps."""

    def tensor_access(
        self, s: WarpContext, boxes: list[tuple[int, int, int, int]], is_write: bool
    ) -> None:
        """Its instruction has steps."""

    def named_foreign_lane(self, s: WarpContext, address: int, taken: int) -> None:
        """The lanes of the warp's own quarter are accessed."""

    def tensor_waited(self, s: WarpContext, is_write: bool) -> None:
        """The instruction that is waited for has had its steps."""

    def allocated(self, s: WarpContext, offset: int, column: int, count: int, group: int) -> None:
        """Takes no time."""

    def deallocating(self, s: WarpContext, column: int, count: int) -> None:
        """Takes no time."""

    def read_unwritten(self, s: WarpContext, names: str) -> None:
        """Takes no time."""

    def registers_changed(self, s: WarpContext, line: int, names: str) -> None:
        """Takes no time."""

    def misused_members(self, s: WarpContext, opcode: str, message: str) -> None:
        """Takes no time."""

    def fence(self, s: WarpContext, mask: int, opcode: str) -> None:
        """A fence takes one step."""

    def warp_synced(self, s: WarpContext, mask: int) -> None:
        """The lanes of a warp have one clock."""

    def announcing(self, s: WarpContext, mask: int, key: SyncKey) -> None:
        """Its instruction has steps."""

    def waiting(self, s: WarpContext, mask: int, key: SyncKey, parity: int) -> None:
        """Only that lanes went on counts."""

    def invalidated(self, s: WarpContext, lane: int, cta: Cta, offset: int) -> None:
        """Nothing happens on the barrier any more."""

    def part_issued(self, s: WarpContext, channel: Channel) -> None:
        """The last warp's part is what starts the work."""


class PartialWatch(MemoryWatch):
    """Ignores tensor memory: copies are counted in shared memory."""

    def cells(self, first_lane: int, lanes: int, column: int, columns: int, is_write: bool) -> None:
        """Not on the way of a copy engine."""

    def unpromised(self, message: str, column: int, columns: int) -> None:
        """Takes no time."""
