"""The checkers: a happens-before race detector and the rules of barriers and proxies.

An inspector of a launch. Happens-before follows program order, mbarrier phases, named and cluster
barriers, bar.warp.sync, commits, bulk groups, tcgen05.wait and proxy fences, and nothing else:
lanes that merely reconverge do not learn from each other.
"""

from typing import Any

from ..core.state import Cta
from ..machine.faults import Fault
from .engines import EngineChecks
from .findings import CheckMode, Finding
from .report import Reporter, current_line


class Watch:
    """Reports the engines' accesses to one CTA's memories to the checker."""

    def __init__(self, checker: EngineChecks, cta: Cta):
        self._checker = checker
        self._cta = cta

    def units(self, units: Any, is_write: bool, quarters: int | None = None) -> None:
        """16-byte units of shared memory."""
        self._checker.engine_access(self._cta, ("units", units, quarters), is_write)

    def span(self, offset: int, byte_count: int, is_write: bool) -> None:
        """Consecutive bytes of shared memory."""
        self._checker.engine_access(self._cta, ("span", offset, byte_count), is_write)

    def lanes(self, offsets: Any, width: int, values: Any) -> None:
        """Bytes that are written to shared memory at several offsets."""
        self._checker.engine_access(self._cta, ("lanes", offsets, width, values), True)

    def cells(self, first_lane: int, lanes: int, column: int, columns: int, is_write: bool) -> None:
        """A box of tensor memory."""
        self._checker.engine_cells(self._cta, (first_lane, lanes, column, columns), is_write)

    def unpromised(self, message: str, column: int, columns: int) -> None:
        """Work on tensor memory that rests on what PTX does not promise."""
        self._checker.engine_unpromised(self._cta, message, column, columns)

    def signal(self, offset: int, byte_count: int) -> None:
        """An arrival or bytes on an mbarrier."""
        self._checker.engine_signal(self._cta, offset)


class EveryWatch:
    """Reports the engines' accesses to global memory to the checker."""

    def __init__(self, checker: EngineChecks):
        self._checker = checker

    def box(
        self, address: int, shape: Any, strides: Any, is_write: bool, adds: bool = False
    ) -> None:
        """A strided box of bytes."""
        self._checker.engine_global(("box", address, shape, strides, adds), is_write)


class Checker(EngineChecks):
    """An `Inspector` that looks for accesses that the architecture does not order.

    Args:
      checks: names of `findings.CHECKS`.
      mode: "raise" a `CheckError` at the first finding, or "collect" them in `findings`.
    """

    def __init__(self, checks: frozenset[str], mode: CheckMode = "raise"):
        super().__init__(Reporter(checks, mode))

    @property
    def findings(self) -> list[Finding]:
        """The findings so far."""
        return self.reporter.findings

    def memory_watch(self, cta: Cta) -> Watch:
        """The watch of one CTA's memories."""
        return Watch(self, cta)

    def unwritten(self, cta: Cta, memory: str, fault: Fault, extent: int) -> None:
        """Report a read of memory that nothing wrote."""
        ticket, running = self._ticket, cta.launch.scheduler.running
        if "uninitialised" not in self.reporter.checks or running is None:
            raise fault
        address = fault.address or 0
        place = f"{memory} of {cta.where()}, "
        if memory == "tensor memory":
            address &= 0xFFFF
            place += f"columns {address}..{address + extent - 1}"
        else:
            place += f"0x{address:x}..0x{address + extent:x}"
        who, line = (
            (running.where(), current_line()) if ticket is None else (ticket.name, ticket.line)
        )
        current = self.state_of(running.cta).step_log.describe(who, "reads", line)
        message = f"{fault.message}: what is there is not defined"
        self.reporter.add(Finding("uninitialised", message, place, address, extent, current))
