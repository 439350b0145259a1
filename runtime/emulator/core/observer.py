"""Interfaces of a launch's watchers: by words (`Observer`), or by objects (`Inspector`).

Events come in execution order; those of an inspector come before they take effect. The checkers
and the trace are inspectors. A launch has at most one of each; without one (None) an event costs
one comparison.
"""

from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..machine.faults import Fault
from ..machine.watch import MemoryWatch
from .order import Order

AccessSpace = Literal["global", "shared", "tmem"]
Proxy = Literal["generic", "async", "tensor"]
Channel = tuple[Any, ...] | None  # of `Scheduler.post`
StrongKind = Literal["load", "store", "update"]  # "update" is an atomic
SyncKey = tuple[Any, ...]  # ("bar", CTA rank, number), ("mbarrier", CTA rank, offset), ("cluster",)

LaunchT = TypeVar("LaunchT", contravariant=True)
ClusterT = TypeVar("ClusterT", contravariant=True)
CtaT = TypeVar("CtaT", contravariant=True)
ContextT = TypeVar("ContextT", contravariant=True)


class Observer(Protocol):
    """Receives every memory access and synchronisation of a launch, in execution order."""

    def access(
        self,
        who: str,
        line: int,
        proxy: Proxy,
        space: AccessSpace,
        cta: int,
        addresses: npt.NDArray[np.integer[Any]],
        width: int,
        is_write: bool,
    ) -> None:
        """`width` bytes at each address were read or written.

        Args:
          who: the warp or engine, such as "cta 0 warp 3".
          line: PTX line.
          cta: rank in the grid of the CTA that owns the memory; 0 for global memory.
        """

    def sync(self, who: str, line: int, kind: str, target: tuple[Any, ...]) -> None:
        """A synchronisation event, or a tensor-core instruction.

        Args:
          kind: "init", "arrive", "complete_tx" and "wait" of mbarriers, "barrier", "fence",
            "commit" (when issued; its arrival follows), and "mma" when a product is formed.
          target: what it acts on: ("mbarrier", CTA rank, offset), ("bar", CTA rank, number),
            ("cluster",), (fence opcode,) or (CTA rank, `machine.tensorcore.Mma`).
        """


class Inspector(Protocol[LaunchT, ClusterT, CtaT, ContextT]):
    """Receives every memory access and synchronisation of a launch, as the machine's objects.

    The type parameters are the classes of `state`, which names its inspector by this protocol.
    """

    # ---- the launch

    def launched(self, launch: LaunchT) -> None:
        """A launch begins."""

    def started(self, cluster: ClusterT) -> None:
        """The CTAs of a cluster begin."""

    def ended(self, cta: CtaT) -> None:
        """All threads of a CTA have left the kernel."""

    def memory_watch(self, cta: CtaT) -> MemoryWatch:
        """The watch to which the CTA's memories report accesses of engines."""
        ...

    def unwritten(self, cta: CtaT, memory: str, fault: Fault, extent: int) -> None:
        """A CTA's memory is read where nothing wrote, in launches that track this.

        Args:
          memory: "shared memory" or "tensor memory". fault: what to raise to end the launch; else
            what is there is read. extent: bytes, or columns of tensor memory.
        """

    # ---- threads

    def access(
        self,
        s: ContextT,
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        is_write: bool,
        values: Any = None,
        element_bytes: int = 0,
    ) -> None:
        """Lanes of a context access `width` bytes each through the generic proxy.

        Args:
          lanes: their numbers, or None for all 32. addresses: one per lane.
          values, element_bytes: of st: uint8[lanes, width], not yet in memory, and the element's
            size.
        """

    def strong_access(
        self,
        s: ContextT,
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        kind: StrongKind,
        order: Order,
    ) -> None:
        """Strong accesses (atomic, volatile, relaxed, acquire, release) of lanes, like `access`."""

    def tensor_access(
        self, s: ContextT, boxes: list[tuple[int, int, int, int]], is_write: bool
    ) -> None:
        """tcgen05.ld or .st of (first lane, lanes, first column, columns) boxes is issued."""

    def named_foreign_lane(self, s: ContextT, address: int, taken: int) -> None:
        """A tcgen05.ld or .st names a lane of another warp's quarter; `taken` is accessed."""

    def tensor_waited(self, s: ContextT, is_write: bool) -> None:
        """tcgen05.wait::ld or ::st has been passed."""

    def allocated(self, s: ContextT, offset: int, column: int, count: int, group: int) -> None:
        """tcgen05.alloc of a cta_group gave columns of the own CTA."""

    def deallocating(self, s: ContextT, column: int, count: int) -> None:
        """tcgen05.dealloc of columns of the own CTA."""

    def read_unwritten(self, s: ContextT, names: str) -> None:
        """A context reads registers that no path to there writes."""

    def registers_changed(self, s: ContextT, line: int, names: str) -> None:
        """Registers of a wgmma.mma_async at a line were written before the wait that covers it."""

    def misused_members(self, s: ContextT, opcode: str, message: str) -> None:
        """A warp-wide instruction whose member mask and lanes do not go together."""

    def fence(self, s: ContextT, mask: int, opcode: str) -> None:
        """Lanes execute a fence."""

    def warp_synced(self, s: ContextT, mask: int) -> None:
        """Lanes synchronised by bar.warp.sync."""

    def initialised(self, s: ContextT, lane: int, cta: CtaT, offset: int) -> None:
        """mbarrier.init."""

    def invalidated(self, s: ContextT, lane: int, cta: CtaT, offset: int) -> None:
        """mbarrier.inval."""

    def arriving(self, s: ContextT, mask: int, key: SyncKey, order: Order | None = None) -> None:
        """Lanes are about to arrive on a barrier; order None orders everything."""

    def expecting_tx(self, s: ContextT, mask: int, key: SyncKey) -> None:
        """Lanes change how many bytes an mbarrier waits for, without arriving on it."""

    def waiting(self, s: ContextT, mask: int, key: SyncKey, parity: int) -> None:
        """Lanes test the parity of an mbarrier, perhaps again."""

    def passed(self, s: ContextT, mask: int, key: SyncKey, order: Order | None = None) -> None:
        """Lanes pass a barrier, whose phase is complete."""

    def completed(self, cta: CtaT, key: SyncKey) -> None:
        """A phase of a barrier is complete."""

    # ---- asynchronous work

    def version(self, s: ContextT) -> int:
        """Changes when the threads of the context's warp learn something: work issued before and
        after is then not done together."""
        ...

    def multiplying(self, s: ContextT, op: Any) -> None:
        """A lane is about to issue `op`, a `machine.tensorcore.Mma`."""

    def issued(self, s: ContextT, lanes: Any, line: int, engine: str, channel: Channel) -> Any:
        """Work is handed to an engine; returns the ticket that `began` gets.

        Args:
          lanes: the issuing lane, an array of lanes that issue each for itself, or None for the
            whole context.
          channel: work of equal channels completes in order.
        """

    def began(self, ticket: Any) -> None:
        """An engine does the work of a ticket now, until `finished`."""

    def finished(self) -> None:
        """The engine's work is done."""

    def part_issued(self, s: ContextT, channel: Channel) -> None:
        """A warp did its part of work that several warps issue together (wgmma)."""

    def group_closed(self, s: ContextT, lanes: list[int], kind: str) -> None:
        """Lanes committed a group of `kind` "bulk", "copy" or "wgmma"."""

    def group_waited(
        self, s: ContextT, lanes: list[int], kind: str, newest: int, read_only: bool
    ) -> None:
        """Lanes know that all but their `newest` groups are complete (or have read)."""
