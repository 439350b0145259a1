"""From actors and ticks back to words: who did something, on which line of the PTX."""

import inspect
from collections import Counter
from typing import Any

from ..ptx.translate import Program
from ..state import Cta
from .clocks import EARLIER, FIRST_THREAD, KNOWN, Actors, Clock, WarpClocks
from .findings import Access, CheckError, CheckMode, Finding
from .shadow import Conflict
from .spaces import ByteSpace

GENERATED = "segment"  # name of the functions that `ptx.translate` makes
MAX_FINDINGS = 100  # of each check, collected per launch: one that is often found hides no other

_RACE = (
    "nothing orders these accesses: no mbarrier phase, barrier, commit, bulk group or "
    "bar.warp.sync leads from the earlier to the later"
)
_PROXY = (
    "the bytes were written through the generic proxy: fence.proxy.async is missing between the "
    "write and the engine's access"
)
_TENSOR = (
    "nothing orders these accesses to tensor memory: it takes tcgen05.wait and "
    "fence::before_thread_sync (or a commit), an arrival, a wait for it, and "
    "fence::after_thread_sync"
)
_TENSOR_AFTER = (
    "the wait that orders these accesses to tensor memory is not followed by "
    "tcgen05.fence::after_thread_sync"
)


def current_line() -> Any:
    """Where the generated code is that called us: resolved by `Lines.number` when needed."""
    frame: Any = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != GENERATED:
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lineno)


def line_number(program: Program, line: Any) -> int:
    """The PTX line of what `current_line` returned, or of a number; 0 when unknown."""
    if isinstance(line, int):
        return line
    return 0 if line is None else program.ptx_line(*line) or 0


class Chronicle:
    """Remembers where every step of every actor of a cluster happened.

    Attributes:
      warps: by CTA rank and warp. steps: lines of engine steps, by actor and step.
    """

    def __init__(self, program: Program, actors: Actors, threads_per_cta: int):
        self.program = program
        self.actors = actors
        self.threads_per_cta = threads_per_cta
        self.warps: list[list[WarpClocks]] = []
        self.steps: dict[tuple[int, int], tuple[Any, str]] = {}

    def note(self, actor: int, step: int, line: Any, who: str) -> None:
        """An engine's step begins at a PTX line, issued by `who`; the first note stays."""
        self.steps.setdefault((actor, step), (line, who))

    def access(self, actor: int, step: int, is_write: bool) -> Access:
        """The access of an actor at a step."""
        action = "writes" if is_write else "reads"
        if actor == EARLIER:
            return Access("a CTA of another cluster", action, 0, "")
        if actor < self.actors.first_engine:
            rank, thread = divmod(actor - FIRST_THREAD, self.threads_per_cta)
            warp = self.warps[rank][thread // 32]
            line = warp.lines[step] if step < len(warp.lines) else None
            return self.spell(f"{warp.where} lane {thread % 32}", action, line)
        key = self.actors.key_of(actor)
        line, who = self.steps.get((actor, step), (None, "an engine"))
        if key[0] == "copy":
            rank, number, lane = (int(part) for part in key[1:])
            warp = self.warps[rank][number]
            line = None if warp.copies is None else warp.copies.line_of(lane, step)
            who = f"{warp.where} lane {lane}"
        return self.spell(f"{engine_name(key)}, issued by {who},", action, line)

    def spell(self, who: str, action: str, line: Any) -> Access:
        """An access with the text of its line."""
        number = line_number(self.program, line)
        if not number:
            return Access(who, action, 0, "")
        program = self.program
        return Access(who, action, number, program.line_text(number), program.origin(number))


def engine_name(key: Any) -> str:
    """An engine's actor in words."""
    kind = key[0]
    if kind == "mbarrier":
        return f"the copy engine (completes on mbarrier 0x{key[2]:x} of CTA rank {key[1]})"
    names = {
        "tensor": "the tensor core",
        "tmem-load": "tcgen05.ld",
        "tmem-store": "tcgen05.st",
        "alloc": "tcgen05.alloc",
        "bulk-read": "the copy engine (bulk group)",
        "bulk-write": "the copy engine (bulk group)",
        "copy": "cp.async",
        "wgmma": "the tensor core (wgmma)",
    }
    return names.get(kind, str(kind))


def shared_place(cta: Cta, space: ByteSpace, conflict: Conflict) -> tuple[str, int, int]:
    """Name, address and size of a conflict in shared memory."""
    return _place(f"shared memory of {cta.where()}", space, conflict)


def global_place(space: ByteSpace, conflict: Conflict) -> tuple[str, int, int]:
    """Name, address and size of a conflict in global memory."""
    return _place("global memory", space, conflict)


def _place(memory: str, space: ByteSpace, conflict: Conflict) -> tuple[str, int, int]:
    address, size = space.range_of(conflict)
    count = conflict.count * space.granule
    return f"{memory}, 0x{address:x}..0x{address + size:x} ({count} B of it)", address, size


class Reporter:
    """Collects findings, each pair of lines once, or raises the first.

    Args:
      checks: the names of `findings.CHECKS` that count.
    """

    def __init__(self, checks: frozenset[str], mode: CheckMode):
        self.checks = checks
        self.mode: CheckMode = mode
        self.findings: list[Finding] = []
        self._seen: set[tuple[str, int, int]] = set()
        self._counts: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Report a finding.

        Raises:
          CheckError: in mode "raise".
        """
        earlier = finding.earlier.line if finding.earlier else 0
        key = (finding.check, finding.current.line, earlier)
        if finding.check not in self.checks or key in self._seen:
            return
        self._seen.add(key)
        self._counts[finding.check] += 1
        if self._counts[finding.check] <= MAX_FINDINGS:
            self.findings.append(finding)
        if self.mode == "raise":
            raise CheckError([finding])

    def conflict(
        self,
        chronicle: Chronicle,
        conflict: Conflict,
        place: tuple[str, int, int],
        current: tuple[str, Any, bool],
        known: Clock,
        *,
        in_tensor_memory: bool = False,
    ) -> None:
        """Report an access that does not know of an earlier one.

        Args:
          place: name, address and size of what both touch. current: who, line, whether it writes.
          known: the accessor's clock, which tells a missing fence from a missing wait.
        """
        who, line, is_write = current
        name, address, size = place
        is_known = bool(known[KNOWN, conflict.actor] >= conflict.step)
        if in_tensor_memory:
            check, message = "tensor", _TENSOR_AFTER if is_known else _TENSOR
        elif is_known and chronicle.actors.is_generic(conflict.actor):
            check, message = "proxy", _PROXY
        else:
            check, message = "race", _RACE
        self.add(
            Finding(
                check,
                message,
                name,
                address,
                size,
                chronicle.spell(who, "writes" if is_write else "reads", line),
                chronicle.access(conflict.actor, conflict.step, conflict.was_write),
            )
        )
