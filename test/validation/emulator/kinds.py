"""A pair of kernels: one that is wrong, and its near miss that is right.

A line that begins with `<wrong>` is in the first only, one with `<right>` in the second only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_mlir.runtime.emulator import DeadlockError, KernelFault
from attn_mlir.runtime.emulator.checkers import Finding
from attn_mlir.validation.emulator.checked import SHARED, findings_of, names_in, program, wait

DEADLOCK = "deadlock"
POISON = "poison"
SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
PLACELESS = (
    "tensor",
    "unpromised",
    "barrier",
    "warp",
    "wgmma",
)  # findings that are not about bytes


@dataclass(frozen=True)
class Kind:
    """A kind of finding.

    Attributes:
      title: what is wrong, as the page calls it. found: a name of CHECKS, a FaultKind, "poison" or
        "deadlock".
      says: part of the message.
      case: which of several pairs of one kind.
      ctas: CTAs in each cluster. clusters: clusters in the grid.
      one_sided: there is no second access that it could name.
      options: of the emulator.
      rule: what of the PTX ISA decides between the two, where it hangs on a sentence (`rules.py`).
    """

    title: str
    found: str
    body: str
    says: str = ""
    case: str = ""
    threads: int = 64
    ctas: int = 1
    clusters: int = 1
    one_sided: bool = False
    target: str = "sm_100a"
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    rule: str = ""

    @property
    def name(self) -> str:
        """The pair's name among all."""
        return f"{self.title}: {self.case}" if self.case else self.title

    def text(self, *, is_wrong: bool) -> str:
        """The PTX of the kernel, or of its near miss."""
        cut = "right" if is_wrong else "wrong"
        body = self.body if cut in names_in(self.body) else f"{self.body}\n<{cut}>"
        return program(body, cut, ".param .u64 out", shared=SHARED, target=self.target)


def spin(bar: str, parity: int) -> str:
    """Wait for a phase, in one line."""
    return wait(bar, parity).replace("\n", " ")


def run(kind: Kind, *, is_wrong: bool, **options: Any) -> list[Finding]:
    """What the checkers find.

    Raises:
      KernelFault: the machine refuses the kernel before a checker finds anything.
      DeadlockError: nothing goes on.
    """
    return findings_of(
        kind.text(is_wrong=is_wrong),
        [np.zeros(1024, np.uint32)],
        block=(kind.threads, 1, 1),
        grid=(kind.ctas * kind.clusters, 1, 1),
        cluster=(kind.ctas, 1, 1),
        target=kind.target,
        **kind.options,
        **options,
    )


def check_wrong(kind: Kind) -> None:
    """The wrong kernel is found out, with what its kind says and the lines concerned."""
    try:
        found = run(kind, is_wrong=True)
    except DeadlockError as error:
        assert kind.found == DEADLOCK and re.search(kind.says, str(error))
        return
    except KernelFault as error:
        assert error.kind == kind.found and kind.says in str(error), error
        assert error.line or "end of the kernel" in str(error)
        return
    matching = [f for f in found if f.check == kind.found and kind.says in str(f)]
    assert matching, found
    finding = matching[0]
    sides = [finding.current] if kind.one_sided else [finding.current, finding.earlier]
    for side in sides:
        assert side is not None and side.line and side.text and "cta (" in side.who
    assert finding.byte_count > 0
    if finding.check not in PLACELESS and "tensor memory" not in finding.place and finding.address:
        assert f"0x{finding.address:x}" in finding.place
