"""Records a run of the emulator: which way each warp branched, and what it did to barriers and
engines.

The record has no times. For each warp it holds, by PTX line, the outcomes of branches and the
events of each execution in order; the replay finds out when they happen.
"""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from attn_mlir.errors import LaunchError

from ..emulator.core.observer import SyncKey
from ..emulator.core.order import Order
from ..emulator.core.state import Cluster, Cta, Launch, Unstarted, WarpContext
from ..emulator.isa.translate import Translation
from ..emulator.machine.memory import SharedMemory
from ..emulator.machine.tensorcore import Mma
from ..emulator.machine.watch import MemoryWatch
from ..emulator.ptx.ast import Instruction, Kernel, Module
from ..emulator.ptx.cfg import branch_targets, is_exit
from ..emulator.ptx.emit import BLOCKED
from ..emulator.ptx.layout import lay_out_shared
from ..emulator.ptx.program import NO_SEGMENT, Generated, Program, Segment
from ..emulator.trace.ignored import PartialInspector, PartialWatch

Kind = Literal["arrive", "wait", "bar", "cluster", "copy", "shared", "mma", "commit"]
TAKEN, PASSED, BOTH = 1, 0, 2  # outcomes of a branch; others are numbers of brx targets, from 3
FIRST_TARGET = 3
SHARED_BANKS = 32  # of 4 bytes; CUDA programming guide, shared memory
BANK_BYTES = 4
DEFAULT_LIMIT = 600_000  # warp-instructions of one launch: about ten seconds of recording


class EnoughRecordedError(LaunchError):
    """Ends a launch whose record has reached its limit."""


@dataclass(slots=True)
class Arrival:
    """Lanes arrive on a barrier, and wait for it if `phase` is one."""

    key: SyncKey
    count: int
    phase: int = -1


@dataclass(slots=True)
class Waiting:
    """A warp waits for a phase of an mbarrier; -1 stands for one that was over from the start."""

    key: SyncKey
    phase: int


@dataclass(slots=True)
class Request:
    """Work of a copy engine, or a commit of the tensor core.

    Attributes:
      shared_bytes: that the engine moves to or from shared memory, of all CTAs.
      signals: barriers with the bytes that they get; 0 bytes are an arrival.
      is_store: from shared memory.
    """

    shared_bytes: int = 0
    signals: list[tuple[SyncKey, int]] = field(default_factory=list[tuple[SyncKey, int]])
    is_store: bool = False


@dataclass(slots=True)
class Conflicts:
    """A shared-memory access: for how many clocks it holds the port."""

    wavefronts: int


@dataclass(slots=True)
class Multiplication:
    """A product of the tensor core with its sums in tensor memory (tcgen05.mma).

    Attributes:
      m, n: rows and columns, of both CTAs of a pair. ctas: 1, or 2 for a pair.
      a_in_tmem: A is read from tensor memory, else from shared memory.
    """

    m: int
    n: int
    ctas: int
    a_in_tmem: bool


Event = Arrival | Waiting | Request | Conflicts | Multiplication
Slot = list[Event] | None  # of one execution of one instruction; None: its guard was false


@dataclass(slots=True)
class WarpRecord:
    """The record of one warp, by PTX line.

    Attributes:
      outcomes: of the conditional branches and exits of a line, in order.
      slots: by line and kind, what each execution did, in order.
      instructions: PTX instructions executed.
    """

    index: int
    cta: int
    outcomes: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    slots: dict[tuple[int, Kind], deque[Slot]] = field(
        default_factory=dict[tuple[int, Kind], deque[Slot]]
    )
    instructions: int = 0


@dataclass(slots=True)
class Phase:
    """How much a barrier needs to complete one phase: lanes and engines that arrive, and bytes."""

    arrivals: int = 0
    bytes: int = 0


@dataclass(slots=True)
class ClusterRecord:
    """The record of one cluster's CTAs.

    Attributes:
      warps: of all its CTAs, in order.
      phases: of each barrier, in order; the last one may be incomplete.
      completed: phases that each barrier completed.
      is_complete: False if the record was cut off at its limit.
    """

    ctas: list[tuple[int, int, int]]
    warps: list[WarpRecord] = field(default_factory=list[WarpRecord])
    phases: dict[SyncKey, list[Phase]] = field(default_factory=dict[SyncKey, list[Phase]])
    completed: dict[SyncKey, int] = field(default_factory=dict[SyncKey, int])
    is_complete: bool = False

    def phase(self, key: SyncKey) -> Phase:
        """The open phase of a barrier."""
        return self.phases.setdefault(key, [Phase()])[-1]


def kind_of(instruction: Instruction) -> Kind | None:
    """The kind of events that a PTX instruction makes."""
    parts = instruction.parts
    match parts[:2]:
        case ("mbarrier", "arrive" | "arrive_drop"):
            return "arrive"
        case ("mbarrier", "try_wait" | "test_wait"):
            return "wait"
        case ("cp", "async") if "mbarrier" in parts:
            return "arrive"
        case ("cp" | "cp.reduce", _) if "bulk" in parts:
            return None if instruction.has("commit_group", "wait_group") else "copy"
        case ("clusterlaunchcontrol", "try_cancel"):
            return "copy"
        case ("barrier" | "bar", _):
            if "warp" in parts:
                return None
            return "cluster" if "cluster" in parts else "bar"
        case ("tcgen05", "mma" | "commit"):
            return "mma" if parts[1] == "mma" else "commit"
        case ("ld" | "st" | "ldmatrix" | "stmatrix", _) if any(
            part.startswith("shared") for part in parts
        ):
            return "shared"
        case _:
            return None


@dataclass(slots=True)
class _Layout:
    """The static part of a segment's record: lines of its events, and how it ends."""

    events: list[tuple[int, Kind]]
    line: int
    targets: tuple[int, ...]
    is_branch: bool
    is_exit: bool


class RecordedProgram(Translation):
    """A program whose segments report to a recorder. One per launch."""

    def __init__(self, module: Module, kernel: Kernel, recorder: "Recorder"):
        super().__init__(module, kernel)
        self.recorder = recorder

    def generate(self, segment: Segment, masked: bool) -> Generated:
        made = super().generate(segment, masked)
        made.function = self._recorded(segment.number, made.function)
        return made

    def _recorded(
        self, number: int, function: Callable[[Any, list[Any]], int]
    ) -> Callable[[Any, list[Any]], int]:
        ran = self.recorder.ran

        def recorded(s: Any, registers: list[Any]) -> int:
            mask = s.mask
            following = function(s, registers)
            if following != BLOCKED:
                ran(s, number, following, mask)
            return following

        return recorded


class _Watch(PartialWatch):
    """Adds what the engine at work moves and signals to its request."""

    def __init__(self, recorder: "Recorder", cta: Cta):
        self.recorder, self.cta = recorder, cta

    def units(self, units: Any, is_write: bool, quarters: int | None = None) -> None:
        self.recorder.moved(16 * int(units.size), is_write)

    def span(self, offset: int, byte_count: int, is_write: bool) -> None:
        self.recorder.moved(byte_count, is_write)

    def lanes(self, offsets: Any, width: int, values: Any) -> None:
        self.recorder.moved(int(offsets.size) * width, True)

    def signal(self, offset: int, byte_count: int) -> None:
        self.recorder.signalled(("mbarrier", self.cta.rank, offset), byte_count)


class Recorder(PartialInspector):
    """Records the first clusters of a launch, or those with the given numbers.

    Args:
      numbers: of the clusters, counted from 0 with x fastest.
      limit: PTX warp-instructions, after which the launch ends.

    Attributes:
      clusters: one record for each. count: clusters of the launch.
      reached_limit: the record was cut off.
      dynamic_base: address of dynamic shared memory.
      program: of the launch.
    """

    def __init__(self, numbers: range = range(1), *, limit: int = DEFAULT_LIMIT):
        self.numbers, self.limit = numbers, limit
        self.clusters: list[ClusterRecord] = []
        self.count = self.dynamic_base = 0
        self.reached_limit = False
        self.program: RecordedProgram
        self._layouts: list[_Layout | None] = []
        self._record: dict[Cluster, ClusterRecord] = {}
        self._warps: dict[Any, WarpRecord] = {}
        self._pending: dict[WarpContext, list[tuple[int, Event]]] = {}
        self._parities: dict[tuple[WarpContext, SyncKey], int] = {}
        self._request: tuple[Request, ClusterRecord] | None = None
        self._version = 0
        self._executed = 0

    # ---- the launch

    def make_program(self, module: Module, kernel: Kernel) -> Program:
        """The program of the launch, which reports here."""
        self.program = RecordedProgram(module, kernel, self)
        self._layouts = [None] * len(self.program.segments)
        _, self.dynamic_base = lay_out_shared(module, kernel)
        return self.program

    def chosen(self, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> Unstarted:
        """The clusters that run."""
        count = int(np.prod([g // c for g, c in zip(grid, cluster, strict=True)]))
        self.count = count
        clusters = range(self.numbers.start, min(self.numbers.stop, count), self.numbers.step)
        return Unstarted(grid, cluster, clusters)

    def launched(self, launch: Launch) -> None:
        """Nothing to do before the first cluster."""

    def started(self, cluster: Cluster) -> None:
        record = self._record[cluster] = ClusterRecord([cta.index for cta in cluster.ctas])
        self.clusters.append(record)
        for cta in cluster.ctas:
            for warp in cta.warps:
                self._warps[warp] = WarpRecord(warp.index, cta.rank)
                record.warps.append(self._warps[warp])

    def ended(self, cta: Cta) -> None:
        record = self._record[cta.cluster]
        record.is_complete = cta.cluster.live_ctas <= 1

    def memory_watch(self, cta: Cta) -> MemoryWatch:
        return _Watch(self, cta)

    # ---- warps

    def ran(self, s: WarpContext, number: int, following: int, mask: int) -> None:
        """A context of lanes `mask` ran a segment to its end."""
        layout = self._layouts[number] or self._lay_out(number)
        warp = self._warps[s.warp]
        warp.instructions += self.program.counts[number]
        if layout.events:
            self._keep(warp, layout, self._pending.pop(s, []))
        if layout.is_branch:
            warp.outcomes.setdefault(layout.line, []).append(_outcome(layout, s, following, mask))
        elif layout.is_exit:
            has_ended = following < 0
            warp.outcomes.setdefault(layout.line, []).append(TAKEN if has_ended else PASSED)
        self._executed += self.program.counts[number]
        if self._executed > self.limit:
            self.reached_limit = True
            raise EnoughRecordedError("the record has reached its limit")

    def _lay_out(self, number: int) -> _Layout:
        program = self.program
        segment, code = program.segments[number], program.kernel.instructions
        inside = code[segment.first : segment.last]
        events: list[tuple[int, Kind]] = [
            (one.line, kind) for one in inside if (kind := kind_of(one)) is not None
        ]
        last = inside[-1] if inside else None
        is_branch = last is not None and (
            (last.parts[0] == "bra" and last.guard is not None) or last.parts[0] == "brx"
        )
        targets: tuple[int, ...] = ()
        if last is not None and is_branch:
            places = branch_targets(program.kernel, last)
            targets = tuple(program.segment_of(at) for at in places)
        leaves = last is not None and is_exit(last) and last.guard is not None
        line = last.line if last is not None else 0
        layout = self._layouts[number] = _Layout(events, line, targets, is_branch, leaves)
        return layout

    def _keep(self, warp: WarpRecord, layout: _Layout, events: list[tuple[int, Event]]) -> None:
        """Hands the events of a segment to the instructions that made them."""
        by_line: dict[int, deque[Event]] = {}
        for line, event in events:
            by_line.setdefault(line, deque()).append(event)
        for line, kind in layout.events:
            of_line = by_line.get(line)
            count = sum(1 for other in layout.events if other == (line, kind))
            slot: Slot = None
            if of_line:
                fitting = [one for one in of_line if _fits(one, kind)]
                taken = fitting if count == 1 else fitting[:1]
                for one in taken:
                    of_line.remove(one)
                slot = taken or None
            if slot is None and kind == "wait":
                continue  # tried in vain: it waits again
            warp.slots.setdefault((line, kind), deque()).append(slot)

    def _line(self) -> int:
        """The PTX line of the instruction whose generated code runs now."""
        frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            line = self.program.ptx_line(frame.f_code, frame.f_lineno)
            if line:
                return line
            frame = frame.f_back
        return 0

    def _note(self, s: WarpContext, event: Event) -> None:
        self._pending.setdefault(s, []).append((self._line(), event))

    # ---- barriers

    def initialised(self, s: WarpContext, lane: int, cta: Cta, offset: int) -> None:
        """Phases are counted on: a barrier that is set up again has later ones."""

    def arriving(self, s: WarpContext, mask: int, key: SyncKey, order: Order | None = None) -> None:
        record, count = self._record[s.cta.cluster], mask.bit_count()
        record.phase(key).arrivals += count
        self._note(s, Arrival(key, count))

    def completed(self, cta: Cta, key: SyncKey) -> None:
        record = self._record[cta.cluster]
        record.phase(key)
        record.phases[key].append(Phase())
        record.completed[key] = record.completed.get(key, 0) + 1

    def waiting(self, s: WarpContext, mask: int, key: SyncKey, parity: int) -> None:
        self._parities[s, key] = parity

    def passed(self, s: WarpContext, mask: int, key: SyncKey, order: Order | None = None) -> None:
        done = self._record[s.cta.cluster].completed.get(key, 0)
        if key[0] == "mbarrier":
            parity = self._parities.pop((s, key), (done - 1) & 1)
            phase = done - 1 if (done - 1) & 1 == parity else done - 2
            self._note(s, Waiting(key, phase))
            return
        for _, event in self._pending.get(s, []):
            if isinstance(event, Arrival) and event.key == key and event.phase < 0:
                event.phase = done - 1
                return
        self._note(s, Waiting(key, done - 1))

    # ---- memory and engines

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
        if isinstance(memory, SharedMemory):
            self._note(s, Conflicts(wavefronts(addresses, width)))

    def version(self, s: WarpContext) -> int:
        self._version += 1
        return self._version

    def multiplying(self, s: WarpContext, op: Mma) -> None:
        n, m = 8 * (op.idesc >> 17 & 0x3F), 16 * (op.idesc >> 24 & 0x1F)
        event = Multiplication(m, n, op.cta_group, op.a_in_tmem)
        self._pending.setdefault(s, []).append((s.segment.line, event))

    def issued(
        self, s: WarpContext, lanes: Any, line: int, engine: str, channel: Any
    ) -> tuple[Request, ClusterRecord]:
        request = Request(is_store=engine == "store")
        self._pending.setdefault(s, []).append((line, request))
        return request, self._record[s.cta.cluster]

    def began(self, ticket: tuple[Request, ClusterRecord]) -> None:
        self._request = ticket

    def finished(self) -> None:
        self._request = None

    def moved(self, byte_count: int, is_write: bool) -> None:
        """The engine at work moves bytes of shared memory."""
        if self._request is not None:
            self._request[0].shared_bytes += byte_count

    def signalled(self, key: SyncKey, byte_count: int) -> None:
        """The engine at work arrives on a barrier (0 bytes) or completes bytes on it."""
        if self._request is None:
            return
        request, record = self._request
        request.signals.append((key, byte_count))
        phase = record.phase(key)
        if byte_count:
            phase.bytes += byte_count
        else:
            phase.arrivals += 1

    def group_closed(self, s: WarpContext, lanes: list[int], kind: str) -> None:
        """Scoreboards of the machine code hold what is waited for."""

    def group_waited(
        self, s: WarpContext, lanes: list[int], kind: str, newest: int, read_only: bool
    ) -> None:
        """Scoreboards of the machine code hold what is waited for."""


def _fits(event: Event, kind: Kind) -> bool:
    match kind:
        case "arrive":
            return isinstance(event, Arrival | Request)
        case "wait":
            return isinstance(event, Waiting)
        case "bar" | "cluster":
            return isinstance(event, Arrival | Waiting)
        case "shared":
            return isinstance(event, Conflicts)
        case "mma":
            return isinstance(event, Multiplication)
        case _:
            return isinstance(event, Request)


def _outcome(layout: _Layout, s: WarpContext, following: int, mask: int) -> int:
    if len(layout.targets) != 1:
        return (
            FIRST_TARGET + layout.targets.index(following)
            if following in layout.targets
            else PASSED
        )
    if following >= 0 and s.mask != mask:
        return BOTH if layout.targets[0] != NO_SEGMENT else PASSED
    goal = layout.targets[0]
    return TAKEN if following == goal or (following < 0 and goal == NO_SEGMENT) else PASSED


def wavefronts(addresses: Any, width: int) -> int:
    """Clocks for which an access of up to 32 lanes holds the port of shared memory.

    Each bank gives one word of 4 bytes a clock; lanes that read the same word share it. Accesses of
    8 and 16 bytes go in 2 and 4 parts of 16 and 8 lanes.
    """
    where = np.asarray(addresses).astype(np.int64).ravel() & 0xFFFFFF
    parts = max(1, width // BANK_BYTES)
    step = max(1, 32 // parts)
    total = 0
    for first in range(0, len(where), step):
        words = (where[first : first + step, None] // BANK_BYTES + np.arange(parts)).ravel()
        banks = np.bincount(np.unique(words) % SHARED_BANKS, minlength=1)
        total += int(banks.max())
    return max(1, total)
