"""The interface of inspectors of a launch: accesses, what orders them, and work for engines.

The checkers are an inspector. Unlike an `Observer`, which gets descriptions in words, an inspector
gets the machine's objects. Events come in execution order and before they take effect. Without an
inspector (None) each event costs one comparison.
"""

from typing import TYPE_CHECKING, Any, Literal, Protocol

from .machine.watch import MemoryWatch
from .order import Order

if TYPE_CHECKING:
    from .machine.faults import Fault
    from .state import Cluster, Cta, Launch, Strand

Channel = tuple[Any, ...] | None  # of `Scheduler.post`
StrongKind = Literal["load", "store", "update"]  # "update" is an atomic
SyncKey = tuple[Any, ...]  # ("bar", CTA rank, number), ("mbarrier", CTA rank, offset), ("cluster",)


class Inspector(Protocol):
    """Receives every memory access and synchronisation of a launch."""

    # ---- the launch

    def launched(self, launch: "Launch") -> None:
        """A launch begins."""
        ...

    def started(self, cluster: "Cluster") -> None:
        """The CTAs of a cluster begin."""
        ...

    def ended(self, cta: "Cta") -> None:
        """All threads of a CTA have left the kernel."""
        ...

    def memory_watch(self, cta: "Cta") -> MemoryWatch:
        """What the CTA's memories report the accesses of engines to."""
        ...

    def unwritten(self, cta: "Cta", memory: str, fault: "Fault", extent: int) -> None:
        """A CTA's memory is read where nothing wrote, in launches that track this.

        Args:
          memory: "shared memory" or "tensor memory". fault: what to raise to end the launch; else
            what is there is read. extent: bytes, or columns of tensor memory.
        """
        ...

    # ---- threads

    def access(
        self,
        s: "Strand",
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        is_write: bool,
        values: Any = None,
        element_bytes: int = 0,
    ) -> None:
        """Lanes of a strand access `width` bytes each through the generic proxy.

        Args:
          lanes: their numbers, or None for all 32. addresses: one per lane.
          values, element_bytes: of st: uint8[lanes, width], not yet in memory, and the element's
            size.
        """
        ...

    def meeting(
        self,
        s: "Strand",
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        kind: StrongKind,
        order: Order,
    ) -> None:
        """Strong accesses (atomic, volatile, relaxed, acquire, release) of lanes; otherwise as `access`."""
        ...

    def tensor_access(
        self, s: "Strand", boxes: list[tuple[int, int, int, int]], is_write: bool
    ) -> None:
        """tcgen05.ld or .st of (first lane, lanes, first column, columns) boxes is issued."""
        ...

    def tensor_waited(self, s: "Strand", is_write: bool) -> None:
        """tcgen05.wait::ld or ::st has been passed."""
        ...

    def allocated(self, s: "Strand", offset: int, column: int, count: int, group: int) -> None:
        """tcgen05.alloc of a cta_group gave columns of the own CTA."""
        ...

    def deallocating(self, s: "Strand", column: int, count: int) -> None:
        """tcgen05.dealloc of columns of the own CTA."""
        ...

    def read_unwritten(self, s: "Strand", names: str) -> None:
        """A strand reads registers that no path to there writes."""
        ...

    def registers_changed(self, s: "Strand", line: int, names: str) -> None:
        """Registers of a wgmma.mma_async at a line were written before the wait that covers it."""
        ...

    def misused_members(self, s: "Strand", opcode: str, message: str) -> None:
        """A warp-wide instruction whose member mask and lanes do not go together."""
        ...

    def fence(self, s: "Strand", mask: int, opcode: str) -> None:
        """Lanes execute a fence."""
        ...

    def warp_synced(self, s: "Strand", mask: int) -> None:
        """Lanes synchronised by bar.warp.sync."""
        ...

    def initialised(self, s: "Strand", lane: int, cta: "Cta", offset: int) -> None:
        """mbarrier.init."""
        ...

    def invalidated(self, s: "Strand", lane: int, cta: "Cta", offset: int) -> None:
        """mbarrier.inval."""
        ...

    def arriving(self, s: "Strand", mask: int, key: SyncKey, order: Order | None = None) -> None:
        """Lanes are about to arrive on a barrier; without an order it is one that orders everything."""
        ...

    def announcing(self, s: "Strand", mask: int, key: SyncKey) -> None:
        """Lanes change how many bytes an mbarrier waits for, without arriving on it."""
        ...

    def waiting(self, s: "Strand", mask: int, key: SyncKey, parity: int) -> None:
        """Lanes look at the parity of an mbarrier (they may do so again)."""
        ...

    def left(self, s: "Strand", mask: int, key: SyncKey, order: Order | None = None) -> None:
        """Lanes go on because a barrier's phase is complete."""
        ...

    def completed(self, cta: "Cta", key: SyncKey) -> None:
        """A phase of a barrier is complete."""
        ...

    # ---- asynchronous work

    def version(self, s: "Strand") -> int:
        """Changes when the threads of the strand's warp learn something: work issued before and
        after is then not done together."""
        ...

    def issued(self, s: "Strand", lanes: Any, line: int, engine: str, channel: Channel) -> Any:
        """Work is handed to an engine; returns the ticket that `began` gets.

        Args:
          lanes: the issuing lane, an array of lanes that issue each for itself, or None for the
            whole strand.
          channel: work of equal channels completes in order.
        """
        ...

    def began(self, ticket: Any) -> None:
        """An engine does the work of a ticket now, until `finished`."""
        ...

    def finished(self) -> None:
        """The engine's work is done."""
        ...

    def part_issued(self, s: "Strand", channel: Channel) -> None:
        """A warp did its part of work that several warps issue together (wgmma)."""
        ...

    def group_closed(self, s: "Strand", lanes: list[int], kind: str) -> None:
        """Lanes committed a group of `kind` "bulk", "copy" or "wgmma"."""
        ...

    def group_waited(
        self, s: "Strand", lanes: list[int], kind: str, newest: int, read_only: bool
    ) -> None:
        """Lanes know that all but their `newest` groups are complete (or have read)."""
        ...
