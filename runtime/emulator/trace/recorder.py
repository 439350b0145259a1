"""Records a trace: when warps ran, when engines worked, and what ended each wait.

The emulator does one thing at a time; a trace says what a machine would do at the same time. Every
warp and every engine has a clock of its own. A warp's clock advances by what its instructions take,
an engine's by what its requests take (`costs`), and a wait moves a warp's clock to the moment at
which the last arrival of the phase was made. CTAs start when an SM is free. So times follow from
dependencies; they do not predict seconds.

Each warp that may go on is picked by the lowest clock, so that engines get their requests in the
order of time. With the adversarial schedule, the order is the schedule's.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.observer import AccessSpace, Proxy
from ..core.order import Order
from ..core.scheduler import Schedule, Scheduler
from ..core.state import Cluster, Cta, Launch, Warp, WarpContext
from ..machine.chips import CHIPS
from ..machine.tensorcore import Mma
from ..machine.watch import MemoryWatch
from ..ptx.emit import BLOCKED
from ..ptx.layout import lay_out_shared
from .costs import copy_steps, mma_steps, wgmma_steps
from .ignored import PartialInspector, PartialWatch
from .program import TimedProgram
from .timeline import (
    CLUSTER_BARRIER,
    COPY_ASYNC,
    COPY_IN,
    COPY_OUT,
    FIRST_BARRIER,
    FIRST_MBARRIER,
    OTHER,
    TENSOR,
    Arrow,
    Category,
    CtaInfo,
    Names,
    Slice,
    Track,
)

Key = tuple[Any, ...]
_GROUPS = {"bulk": COPY_OUT, "copy": COPY_ASYNC, "wgmma": TENSOR}


@dataclass(slots=True)
class Ticket:
    """Work handed to an engine: by whom, when, and when it was done (-1: not yet)."""

    cta: Cta
    row: int
    line: int
    issued_at: int
    warp: int
    end: int = -1


@dataclass(slots=True)
class Phase:
    """A barrier's current phase: its number, begin, and the last arrival so far."""

    number: int = 0
    begin: int = 0
    arrivals: int = 0
    last: int = 0
    last_by: Track | None = None


@dataclass(slots=True)
class Done:
    """The phase of a barrier that completed last."""

    number: int
    time: int
    by: Track | None


@dataclass(slots=True)
class Groups:
    """Groups of copies or products of one warp: the open one, and closed ones, oldest first."""

    open: list[Ticket] = field(default_factory=list[Ticket])
    closed: deque[list[Ticket]] = field(default_factory=deque[list[Ticket]])


class _Watch(PartialWatch):
    """Tells the trace of bytes moved and signals given by the engine that works now."""

    def __init__(self, trace: "Trace", cta: Cta):
        self.trace = trace
        self.cta = cta

    def units(self, units: Any, is_write: bool, quarters: int | None = None) -> None:
        self.trace.moved(16 * int(units.size))

    def span(self, offset: int, byte_count: int, is_write: bool) -> None:
        self.trace.moved(byte_count)

    def lanes(self, offsets: Any, width: int, values: Any) -> None:
        self.trace.moved(int(offsets.size) * width)

    def signal(self, offset: int, byte_count: int) -> None:
        self.trace.signalled(self.cta, offset)


class Trace(PartialInspector):
    """The trace of one launch; events that it does not show are ignored.

    Args:
      names: the author's names for roles, barriers and regions.
      limit: slices after which no more are kept (the launch goes on).

    Attributes:
      slices, arrows, ctas: what was recorded. names, kernel: for labels.
      truncated: whether the limit was reached.
    """

    def __init__(self, names: Names | None = None, *, limit: int = 2_000_000):
        self.names = names or Names()
        self.limit = limit
        self.kernel = ""
        self.target = ""
        self.slices: list[Slice] = []
        self.arrows: list[Arrow] = []
        self.ctas: list[CtaInfo] = []
        self.warp_names: dict[Track, str] = {}
        self.barrier_names: dict[Track, str] = {}
        self.truncated = False
        self._numbers: dict[Cta, int] = {}
        self._clocks: dict[Warp, int] = {}
        self._runs: dict[Warp, Slice] = {}
        self._engines: dict[Track, int] = {}
        self._phases: dict[Key, Phase] = {}
        self._done: dict[Key, Done] = {}
        self._groups: dict[tuple[Warp, str], Groups] = {}
        self._sms: list[tuple[int, int]] = []
        self._dynamic_base = 0
        self._version = 0
        self._job: Ticket | None = None
        self._job_bytes = 0
        self._job_steps = 0
        self._job_args: dict[str, Any] = {}
        self._signals: list[tuple[Cta, int]] = []
        self._launch: Launch | None = None

    @property
    def program(self) -> TimedProgram:
        """The program of the launch."""
        assert self._launch is not None and isinstance(self._launch.program, TimedProgram)
        return self._launch.program

    @property
    def end(self) -> int:
        """The last step of the launch."""
        return max((cta.end for cta in self.ctas), default=0)

    def clock_of(self, context: WarpContext) -> int:
        """The step at which a context's warp is."""
        return self._clocks.get(context.warp, 0)

    # ---- the launch

    def launched(self, launch: Launch) -> None:
        """A launch begins; its program is a `TimedProgram` that reports here."""
        self._launch = launch
        self.kernel = launch.program.kernel.name
        self.target = launch.target
        _, self._dynamic_base = lay_out_shared(launch.program.module, launch.program.kernel)
        self._sms = [(0, sm) for sm in range(CHIPS[launch.target].multiprocessors)]

    def started(self, cluster: Cluster) -> None:
        """The CTAs of a cluster begin, when as many SMs are free."""
        places = [heapq.heappop(self._sms) for _ in cluster.ctas]
        begin = max(free for free, _ in places)
        for cta, (_, sm) in zip(cluster.ctas, places, strict=True):
            number = self._numbers[cta] = len(self.ctas)
            self.ctas.append(CtaInfo(number, cta.index, sm, begin, begin))
            for warp in cta.warps:
                self._clocks[warp] = begin
                name = self.names.warps.get(warp.index, "")
                label = f"warp {warp.index}" + (f" {name}" if name else "")
                self.warp_names[Track(number, warp.index)] = label
        self._phases[self._key(cluster.ctas[0], ("cluster",))] = Phase(begin=begin)

    def ended(self, cta: Cta) -> None:
        """All threads of a CTA have left the kernel."""
        info = self.ctas[self._numbers[cta]]
        for warp in cta.warps:
            self._close_run(warp)
            info.end = max(info.end, self._clocks[warp])
        for track, time in self._engines.items():
            if track.cta == info.number:
                info.end = max(info.end, time)
        heapq.heappush(self._sms, (info.end, info.sm))

    def finish(self) -> None:
        """The launch is over, or failed: close what is open."""
        for warp in list(self._runs):
            self._close_run(warp)
        for cta in self._numbers:
            info = self.ctas[self._numbers[cta]]
            info.end = max(info.end, *(self._clocks[warp] for warp in cta.warps))

    def memory_watch(self, cta: Cta) -> MemoryWatch:
        """The watch to which the CTA's memories report accesses of engines."""
        return _Watch(self, cta)

    # ---- warps

    def ran(self, s: WarpContext, segment: int, next_segment: int, steps: int) -> None:
        """A context ran a segment, or was blocked at its start."""
        if next_segment == BLOCKED:
            return
        s.yielding = True
        warp = s.warp
        begin = self._clocks[warp]
        end = self._clocks[warp] = begin + steps
        program = self.program
        run = self._runs.get(warp)
        track = Track(self._numbers[warp.cta], warp.index)
        line = program.segments[segment].line
        if run is None or run.end != begin:
            self._close_run(warp)
            name = self.names.warps.get(warp.index, "run")
            run = Slice(track, begin, end, name, "run", {"line": line, "instructions": 0})
            self._runs[warp] = run
        run.end = end
        run.args["instructions"] += program.counts[segment]
        run.args["to_line"] = line
        leading = program.leading[segment]
        if leading is not None and steps:
            args = {"line": leading.line, "instructions": program.counts[segment]}
            self.keep(track, begin, end, ".".join(leading.parts[:2]), "step", args)

    def _close_run(self, warp: Warp) -> None:
        run = self._runs.pop(warp, None)
        if run is not None and run.end > run.begin:
            self.keep(run.track, run.begin, run.end, run.name, "run", run.args)

    def _wait(self, s: WarpContext, until: int, name: str, by: Track | None) -> None:
        """The context's warp could not go on before `until`."""
        warp = s.warp
        begin = self._clocks[warp]
        if until <= begin:
            return
        self._close_run(warp)
        self._clocks[warp] = until
        track = Track(self._numbers[warp.cta], warp.index)
        line = self.program.segments[s.pc].line
        self.keep(track, begin, until, f"wait {name}", "wait", {"line": line})
        if by is not None and by != track:
            self.arrows.append(Arrow(by, until, track, until))

    def keep(
        self,
        track: Track,
        begin: int,
        end: int,
        name: str,
        category: Category,
        args: dict[str, Any],
    ) -> None:
        """Record a slice, unless there are too many already."""
        if len(self.slices) >= self.limit:
            self.truncated = True
            return
        self.slices.append(Slice(track, begin, end, name, category, args))

    # ---- barriers

    def _key(self, cta: Cta, key: Key) -> Key:
        return (cta.cluster.origin, *key)

    def _barrier_track(self, cta: Cta, key: Key) -> Track:
        kind, *where = key
        number = self._numbers[cta.cluster.ctas[where[0] if where else 0]]
        if kind == "mbarrier":
            return Track(number, FIRST_MBARRIER + where[1] // 8)
        return Track(number, FIRST_BARRIER + where[1] if where else CLUSTER_BARRIER)

    def barrier_name(self, key: Key) -> str:
        """The name of a barrier, or its kind and address."""
        if key[0] == "mbarrier":
            name = self.names.barriers.get(key[2] - self._dynamic_base)
            return name or f"mbarrier 0x{key[2]:x}"
        return f"barrier {key[2]}" if key[0] == "bar" else "cluster barrier"

    def _arrive(self, cta: Cta, key: Key, time: int, by: Track) -> None:
        phase = self._phases.get(self._key(cta, key))
        if phase is None:
            begin = self.ctas[self._numbers[cta]].begin
            phase = self._phases[self._key(cta, key)] = Phase(begin=begin)
        phase.arrivals += 1
        if time >= phase.last:
            phase.last, phase.last_by = time, by

    def initialised(self, s: WarpContext, lane: int, cta: Cta, offset: int) -> None:
        """mbarrier.init."""
        begin = self._clocks[s.warp]
        key = self._key(cta, ("mbarrier", cta.rank, offset))
        self._phases[key] = Phase(begin=begin)
        self._done.pop(key, None)

    def arriving(self, s: WarpContext, mask: int, key: Key, order: Order | None = None) -> None:
        """Lanes are about to arrive on a barrier."""
        by = Track(self._numbers[s.cta], s.warp.index)
        self._arrive(s.cta, key, self._clocks[s.warp], by)

    def completed(self, cta: Cta, key: Key) -> None:
        """A phase of a barrier is complete, now or when the engine that works has finished."""
        self._close_job()
        full = self._key(cta, key)
        phase = self._phases.setdefault(full, Phase())
        end = max(phase.last, phase.begin)
        track = self._barrier_track(cta, key)
        self.barrier_names.setdefault(track, self.barrier_name(key))
        args = {"arrivals": phase.arrivals, "parity": phase.number & 1}
        self.keep(track, phase.begin, end, f"phase {phase.number}", "phase", args)
        self._done[full] = Done(phase.number, end, phase.last_by)
        self._phases[full] = Phase(number=phase.number + 1, begin=end, last=end)

    def passed(self, s: WarpContext, mask: int, key: Key, order: Order | None = None) -> None:
        """Lanes go on because a barrier's phase is complete."""
        done = self._done.get(self._key(s.cta, key))
        if done is not None:
            self._wait(s, done.time, self.barrier_name(key), done.by)

    # ---- engines

    def version(self, s: WarpContext) -> int:
        """Never the same: each request has a slice of its own."""
        self._version += 1
        return self._version

    def issued(self, s: WarpContext, lanes: Any, line: int, engine: str, channel: Any) -> Ticket:
        """Work is handed to an engine."""
        opcode = self.program.line_text(line)
        head = opcode.split(";")[0]
        row = OTHER
        if "cp.async.bulk" in head or "cp.reduce.async.bulk" in head:
            row = COPY_OUT if engine == "store" else COPY_IN
        elif "tcgen05.st" in head:
            row = -1
        elif "tcgen05" in head or "wgmma" in head:
            row = TENSOR
        elif "cp.async" in head:
            row = COPY_ASYNC
        ticket = Ticket(s.cta, row, line, self._clocks[s.warp], s.warp.index)
        for kind, group_row in _GROUPS.items():
            if row == group_row:
                self._groups.setdefault((s.warp, kind), Groups()).open.append(ticket)
        return ticket

    def began(self, ticket: Ticket) -> None:
        """An engine does the work of a ticket now."""
        self._job, self._job_bytes, self._job_steps = ticket, 0, 0
        self._job_args = {}
        self._signals.clear()

    def moved(self, byte_count: int) -> None:
        """The engine that works now moved bytes of shared memory."""
        self._job_bytes += byte_count

    def multiplied(self, mma: Mma) -> None:
        """The engine that works now forms a product."""
        self._job_steps += mma_steps(mma)
        column = mma.d & 0xFFFF
        self._job_args |= {"into": self.names.of_column(column), "column": column}

    def signalled(self, cta: Cta, offset: int) -> None:
        """The engine that works now arrives on an mbarrier or completes bytes on it."""
        if self._job is not None:
            self._signals.append((cta, offset))

    def _close_job(self) -> None:
        """The time of the engine's work is known as soon as it signals: nothing follows."""
        job = self._job
        if job is None:
            return
        if job.end < 0:
            self._finish_job(job)
        by = Track(self._numbers[job.cta], job.row)
        for cta, offset in self._signals:
            self._arrive(cta, ("mbarrier", cta.rank, offset), job.end, by)
        self._signals.clear()

    def finished(self) -> None:
        """The engine's work is done."""
        self._close_job()
        self._job = None

    def _finish_job(self, job: Ticket) -> None:
        if job.row < 0:
            job.end = job.issued_at
            return
        track = Track(self._numbers[job.cta], job.row)
        begin = max(job.issued_at, self._engines.get(track, 0))
        steps = self._job_steps
        text = self.program.line_text(job.line)
        if job.row in (COPY_IN, COPY_OUT, COPY_ASYNC) and self._job_bytes:
            steps = copy_steps(self._job_bytes)
        elif "wgmma" in text:
            steps = wgmma_steps(text)
        elif "tcgen05.cp" in text or "tcgen05.shift" in text:
            steps = copy_steps(0)
        job.end = self._engines[track] = begin + steps
        info = self.ctas[track.cta]
        info.end = max(info.end, job.end)
        if steps:
            opcode = text.split()[1] if text.startswith("@") else text.split()[0]
            args = {"line": job.line, "warp": job.warp, "issued": job.issued_at, **self._job_args}
            if self._signals:
                cta, offset = self._signals[0]
                args["signals"] = self.barrier_name(("mbarrier", cta.rank, offset))
            if self._job_bytes and job.row != TENSOR:
                args["bytes"] = self._job_bytes
            self.keep(track, begin, job.end, _short(opcode), "engine", args)

    # ---- groups

    def group_closed(self, s: WarpContext, lanes: list[int], kind: str) -> None:
        """A warp's open group of copies or products is complete."""
        groups = self._groups.setdefault((s.warp, kind), Groups())
        groups.closed.append(groups.open)
        groups.open = []

    def group_waited(
        self, s: WarpContext, lanes: list[int], kind: str, newest: int, read_only: bool
    ) -> None:
        """All but the newest groups are done; newest -1 stands for everything."""
        groups = self._groups.setdefault((s.warp, kind), Groups())
        if newest < 0:
            groups.closed.append(groups.open)
            groups.open = []
        until, by = 0, None
        while len(groups.closed) > max(newest, 0):
            for ticket in groups.closed.popleft():
                if ticket.end >= until:
                    until, by = ticket.end, Track(self._numbers[ticket.cta], ticket.row)
        self._wait(s, until, f"{kind} groups", by)


class MmaSteps:
    """The observer that tells a trace how long products take."""

    def __init__(self, trace: Trace):
        self.trace = trace

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
        """Bytes were read or written: the trace counts those of engines by itself."""

    def sync(self, who: str, line: int, kind: str, target: tuple[Any, ...]) -> None:
        """A product is formed: the engine that works now is busy with it."""
        if kind == "mma":
            self.trace.multiplied(target[1])


def _short(opcode: str) -> str:
    """The telling part of an opcode."""
    parts = opcode.rstrip(";").split(".")
    if parts[0] == "tcgen05":
        kind = next((p[6:] for p in parts if p.startswith("kind::")), "")
        return f"{parts[1]} {kind}".strip()
    if parts[0] == "wgmma":
        return next((p for p in parts if p.startswith("m64n")), "wgmma")
    if "tensor" in parts:
        return f"{'reduce' if 'reduce' in parts else 'tensor'} {parts[parts.index('tensor') + 1]}"
    return "bulk" if "bulk" in parts else ".".join(parts[:2])


class TracingScheduler(Scheduler):
    """Picks, when it may, the context whose warp is furthest behind in time."""

    def __init__(
        self,
        launch: Launch,
        trace: Trace,
        schedule: Schedule = "fair",
        seed: int = 0,
        resident: int = 1,
    ):
        super().__init__(launch, schedule, seed, resident)
        self.trace = trace

    def _pick(self) -> WarpContext:
        if self.adversarial:
            return super()._pick()
        clock_of = self.trace.clock_of
        at = min(range(len(self.ready)), key=lambda i: clock_of(self.ready[i]))
        self.ready.rotate(-at)
        return self.ready.popleft()
