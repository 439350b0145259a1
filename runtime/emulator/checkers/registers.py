"""Rules of registers: written before read, not changed under wgmma, shared within masks."""

from typing import Any

from ..core.state import Launch, WarpContext
from ..ptx.flow import unfenced_products
from .findings import Finding
from .report import current_line
from .tensor import TensorChecks


class RegisterChecks(TensorChecks):
    """Reports wrong uses of registers that the translated kernel and collectives notice."""

    _unfenced: dict[int, list[str]]

    def launched(self, launch: Launch) -> None:
        """Finds the products that lack a wgmma.fence on some path of the kernel."""
        super().launched(launch)
        program = launch.program
        self._unfenced = unfenced_products(program.kernel, program.graph)

    def read_unwritten(self, s: WarpContext, names: str) -> None:
        """A context reads registers that no path to there writes."""
        message = f"{names} are read and nothing before that writes them"
        self._report(s, "uninitialised", message, names, "reads", current_line())

    def registers_changed(self, s: WarpContext, line: int, names: str) -> None:
        """Registers of wgmma were written before the wait."""
        message = (
            f"{names} belong to wgmma.mma_async until wgmma.wait_group has waited for it, and were "
            "written before that"
        )
        self._report(s, "wgmma", message, names, "waits", current_line(), line)

    def misused_members(self, s: WarpContext, opcode: str, message: str) -> None:
        """A member mask does not fit the lanes that execute an instruction."""
        self._report(s, "warp", message, opcode, "executes", current_line())

    def check_product(self, s: WarpContext) -> None:
        """wgmma.mma_async is issued."""
        names = self._unfenced.get(s.segment.first)
        if names is not None:
            shown = ", ".join(names[:4]) + (", .." if len(names) > 4 else "")
            message = (
                "wgmma.fence is missing between other uses of the registers of wgmma.mma_async (or "
                f"the kernel's begin) and it: {shown}"
            )
            self._report(s, "wgmma", message, shown, "executes", current_line())

    def _report(
        self,
        s: WarpContext,
        check: str,
        message: str,
        names: str,
        action: str,
        line: Any,
        earlier_line: int = 0,
    ) -> None:
        step_log = self.state_of(s.cta).step_log
        earlier = step_log.describe(s.where(), "issues", earlier_line) if earlier_line else None
        current = step_log.describe(s.where(), action, line)
        self.reporter.add(Finding(check, message, names, 0, len(names), current, earlier))
