"""The outcome of a launch on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.errors import LaunchError
from attn_mlir.runtime.emulator import Stats
from attn_mlir.runtime.emulator.checkers import Finding
from attn_mlir.runtime.emulator.trace import Trace


@dataclass(frozen=True)
class Report:
    """The outcome of a launch; as text it names the lines of the PTX.

    Attributes:
      entry: name of the kernel.
      stats: instructions and time; None of a launch that failed.
      findings: what the checkers found, also before a failure.
      error: why the launch failed: a `KernelFault`, a `DeadlockError`, an `InstructionLimitError`
        or another `LaunchError`; None.
      trace: of a launch that was traced, also of one that failed.
    """

    entry: str
    stats: Stats | None
    findings: Sequence[Finding] = ()
    error: LaunchError | None = None
    trace: Trace | None = None

    @property
    def ok(self) -> bool:
        """Whether the kernel came to its end and nothing was found."""
        return self.error is None and not self.findings

    def __str__(self) -> str:
        blocks = [str(finding) for finding in self.findings]
        if self.error is not None:
            blocks.append(f"{type(self.error).__name__}: {self.error}")
        count = len(self.findings)
        found = "no findings" if not count else f"{count} finding{'s' if count > 1 else ''}"
        if self.stats is None:
            summary = f"{self.entry}: failed, {found}"
        else:
            summary = f"{self.entry}: {self.stats.warp_instructions:,} warp-instructions, {found}"
        return "\n\n".join([summary, *blocks])
