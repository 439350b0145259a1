"""Base of inspectors of time: accesses, fences and allocations are part of a warp's steps."""

from ..core.state import Cta, LaunchInspector
from ..machine.faults import Fault
from ..machine.watch import MemoryWatch


class PartialInspector(LaunchInspector):
    """Ignores every event that a subclass does not handle."""

    def unwritten(self, cta: Cta, memory: str, fault: Fault, extent: int) -> None:
        """Ends the launch, as without an inspector."""
        raise fault


class PartialWatch(MemoryWatch):
    """Ignores every access that a subclass does not handle."""
