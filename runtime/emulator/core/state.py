"""The running state: the launch, its clusters and CTAs, warps, and the contexts of diverged warps.

A *context* is a set of lanes of one warp that execute together. A warp starts as one context; a
branch on which its lanes disagree makes two, and they become one again at the branch's
post-dominator (a *join*). Contexts are scheduled independently, so lanes that spin in one branch
do not keep those of the other from going on.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..machine.chips import CHIPS
from ..machine.mbarrier import MBarrierTable
from ..machine.memory import GlobalMemory, SharedMemory
from ..machine.tensorcore import TensorCore
from ..machine.tmem import TensorMemory
from ..ptx.kinds import WARP_LANES
from ..ptx.layout import NO_LOCALS, LocalLayout
from ..ptx.program import NO_SEGMENT, Program, Segment, SegmentFunction
from .launch_errors import lanes_text
from .observer import Inspector, Observer
from .order import Order

ALL_LANES = (1 << WARP_LANES) - 1
Dim3 = tuple[int, int, int]
Engine = Literal["load", "store", "tensor"]

LOCAL_WINDOW = 0x6800_0000_0000  # generic address of local (per-thread) memory
SHARED_WINDOW = 0x7000_0000_0000  # generic address of shared::cluster address 0
SHARED_WINDOW_END = SHARED_WINDOW + (1 << 32)

_LANE_BITS = np.left_shift(np.uint32(1), np.arange(WARP_LANES, dtype=np.uint32))


def lanes_of_mask(mask: int) -> npt.NDArray[np.bool_]:
    """bool[32] of a lane bit mask."""
    return (np.uint32(mask) & _LANE_BITS) != 0


def mask_of_lanes(lanes: npt.NDArray[np.bool_]) -> int:
    """The lane bit mask of bool[32]."""
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


@dataclass(slots=True, eq=False)
class Join:
    """The join point of a diverged context's lanes.

    Attributes:
      segment: the segment at which they reconverge, or NO_SEGMENT when all exit first.
      pending: lanes that have not arrived (those that exited no longer count).
      arrived: lanes that wait there.
      parent: the join of the reconverged lanes.
      base: of local variables, in the function that the lanes are in: where its frame begins.
    """

    segment: int
    pending: int
    arrived: int
    parent: "Join | None"
    base: int = 0


IN_CALL = -8  # no segment: lanes reconverge after a call by returning


@dataclass(slots=True, eq=False)
class Call(Join):
    """A call that lanes are in: the joins below it are those of its caller.

    Attributes:
      site: where it was made, and `after` the segment behind it.
      caller_base: where the caller's frame begins.
      saved: of a function that calls itself, the registers by index before the call.
    """

    site: Any = None
    after: int = NO_SEGMENT
    caller_base: int = 0
    saved: dict[int, Any] = field(default_factory=dict[int, Any])


def call_of(join: Join | None) -> Call | None:
    """The innermost call that lanes with this join are in."""
    while join is not None and not isinstance(join, Call):
        join = join.parent
    return join


@dataclass(slots=True)
class Wait:
    """The reason for which a context waits: the key that wakes it, and a text for reports."""

    key: tuple[Any, ...]
    describe: Callable[[], str]
    may_expire: bool = False


@dataclass(slots=True, eq=False)
class AsyncGroup:
    """A group of asynchronous copies of some threads; `reads`/`writes` count unfinished ones."""

    reads: int = 0
    writes: int = 0


class WarpContext:
    """Lanes of one warp that execute together.

    Attributes:
      mask, lanes, lane_bytes: the lanes as a bit mask, as bool[32], and as its bytes.
      pc: number of the next segment.
      table: the program's functions for full or for partial contexts.
      wait: why it does not run, or None.
      order: of the loads, stores and atomics under way; None for weak ones.
      local_base: where the frame of the function begins in local memory.
      sync: progress within a blocking instruction (what was already done before it blocked).
    """

    __slots__ = (
        "cta",
        "join",
        "join_segment",
        "lane_bytes",
        "lanes",
        "launch",
        "local_base",
        "mask",
        "order",
        "pc",
        "polled",
        "sync",
        "table",
        "wait",
        "warp",
        "yielding",
    )

    def __init__(self, warp: "Warp", mask: int, pc: int, join: Join | None):
        self.warp = warp
        self.cta = warp.cta
        self.launch = warp.cta.launch
        self.pc = pc
        self.wait: Wait | None = None
        self.sync: Any = None
        self.polled = -1
        self.yielding = False
        self.order: Order | None = None
        self.set_join(join)
        self.set_mask(mask)

    def set_mask(self, mask: int) -> None:
        """Change the lanes that belong to the context."""
        program = self.launch.program
        self.mask = mask
        self.table: list[SegmentFunction | None]
        self.table = program.full if mask == ALL_LANES else program.masked
        self.lanes = lanes_of_mask(mask)
        self.lane_bytes = self.lanes.tobytes()

    def set_join(self, join: Join | None) -> None:
        """Change the innermost join."""
        self.join = join
        self.join_segment = NO_SEGMENT if join is None else join.segment
        self.local_base = 0 if join is None else join.base

    @property
    def segment(self) -> Segment:
        """The segment at which it stands."""
        return self.launch.program.segments[self.pc]

    def observe(self, kind: str, target: tuple[Any, ...]) -> None:
        """Reports a synchronisation event to the launch's observer, if there is one."""
        observer = self.launch.observer
        if observer is not None:
            observer.sync(self.where(), self.segment.line, kind, target)

    def where(self, mask: int | None = None) -> str:
        """CTA, warp and lanes, for messages; all lanes of the context if none are given."""
        lanes = lanes_text(self.mask if mask is None else mask)
        return f"{self.cta.where()} warp {self.warp.index} lanes {lanes}"


class Scheduling(Protocol):
    """The instructions' side of the scheduler.

    Attributes:
      progress: grows whenever something changes that a polling context may see.
      warp_instructions: executed so far.
      running: the context that runs, or ran last.
    """

    progress: int
    warp_instructions: int
    running: WarpContext | None

    def post(
        self,
        channel: Any,
        run: Callable[[list[Any]], None],
        payload: Any,
        context: WarpContext,
        merge_key: Any = None,
        *,
        engine: Engine = "load",
        lane: Any = None,
    ) -> None:
        """Hand work to an engine.

        Args:
          channel: work of equal channels stays in order; None orders nothing.
          lane: the issuing lane, an array of lanes that issue each for itself what is done at once,
            or None when the whole context issues together.
        """

    def block(
        self,
        context: WarpContext,
        key: tuple[Any, ...],
        describe: Callable[[], str],
        may_expire: bool = False,
    ) -> None:
        """Take a context out of the ready ones until `wake(key)`."""

    def wake(self, key: tuple[Any, ...]) -> None:
        """Makes the contexts that wait on `key` ready: its state changed."""

    def spurious(self) -> bool:
        """Whether a try_wait that could wait returns false instead (adversarial only)."""
        ...

    def late(self) -> bool:
        """Whether to do something at the last moment instead of now, by chance."""
        ...

    def enqueue(self, context: WarpContext) -> None:
        """Add a context that starts at a segment which may itself be its next join."""

    def merge(self, context: WarpContext, others: list[WarpContext]) -> None:
        """Make one context of several that stand at the same instruction and wait to converge."""

    def exited(self, context: WarpContext, mask: int) -> None:
        """Lanes of a context left the kernel."""


class Warp:
    """32 threads: registers, contexts, and what each thread has under way.

    Attributes:
      registers: lane arrays by register index; None for one that a tcgen05.ld will deliver.
      alive: lanes that have not left the kernel.
      cluster_arrivals, cluster_waits: by lane, how often it arrived on, and waited at, the
        cluster's barrier.
      loads: (register index, storage kind, values) that tcgen05.wait::ld delivers.
      bulk_groups, copy_groups: closed groups per lane, oldest first, of bulk copies to global
        memory and of cp.async; `bulk_open`, `copy_open` the groups that the next commit closes.
    """

    def __init__(self, cta: "Cta", index: int, alive: int):
        self.cta = cta
        self.index = index
        self.registers: list[Any] = list(cta.launch.program.initial)
        self.alive = alive
        self.started = alive
        self.contexts = [WarpContext(self, alive, 0, None)]
        self.loads: list[Any] = []
        self.stores_pending = 0
        self.cluster_arrivals = np.zeros(WARP_LANES, np.int64)
        self.cluster_waits = np.zeros(WARP_LANES, np.int64)
        self.bulk_open: dict[int, AsyncGroup] = {}
        self.bulk_groups: dict[int, list[AsyncGroup]] = {}
        self.copy_open: dict[int, AsyncGroup] = {}
        self.copy_groups: dict[int, list[AsyncGroup]] = {}
        self.wgmma: Any = None
        self.local: npt.NDArray[np.uint8] | None = None
        self.local_written: npt.NDArray[np.bool_] | None = None
        self.special = _special_registers(self)


@dataclass(slots=True)
class NamedBarrier:
    """A bar/barrier resource.

    Attributes:
      arrived: of the current phase, by warp: masks of lanes, one per time that the warp came. A
        barrier counts threads and not who they are, so that a warp may come more than once.
    """

    phase: int = 0
    arrived: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    expected: int = 0
    votes: list[bool] = field(default_factory=list[bool])
    result: tuple[int, int, int] = (0, 0, 0)


def add_arrival(times: list[int], mask: int) -> None:
    """Note that lanes of a warp came to a barrier.

    Args:
      times: masks of the lanes that came a first, a second, .. time; parts of a diverged warp come
        together.
    """
    for position, there in enumerate(times):
        times[position] = there | mask
        mask &= there
        if not mask:
            return
    times.append(mask)


class Cta:
    """One thread block: shared and tensor memory, barriers and warps."""

    def __init__(self, launch: "Launch", cluster: "Cluster", rank: int, index: Dim3):
        self.launch = launch
        self.cluster = cluster
        self.rank = rank
        self.index = index
        self.shared = SharedMemory(launch.shared_bytes, launch.track_initialised)
        self.tmem = TensorMemory(launch.track_initialised)
        self.mbarriers = MBarrierTable(self._phase_completed)
        self.named: dict[int, NamedBarrier] = {}
        self.warpgroups: dict[int, Any] = {}
        self.register_pool: Any = None
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.thread_count = threads
        self.warps = [
            Warp(self, warp, (1 << min(WARP_LANES, threads - first)) - 1)
            for warp, first in enumerate(range(0, threads, WARP_LANES))
        ]
        self.live_warps = len(self.warps)
        if launch.inspector is not None:
            watch = launch.inspector.memory_watch(self)
            self.shared.watch = self.tmem.watch = self.mbarriers.watch = watch
            unwritten = launch.inspector.unwritten
            self.shared.unwritten = partial(unwritten, self, "shared memory")
            self.tmem.unwritten = partial(unwritten, self, "tensor memory")

    def _phase_completed(self, offset: int) -> None:
        if self.launch.inspector is not None:
            self.launch.inspector.completed(self, ("mbarrier", self.rank, offset))
        self.launch.scheduler.wake(("mbarrier", self.where_rank, offset))

    @property
    def where_rank(self) -> tuple[Dim3, int]:
        """Identity of the CTA in wait keys."""
        return (self.index, self.rank)

    def where(self) -> str:
        """The CTA, for messages."""
        return "cta ({},{},{})".format(*self.index)


class Cluster:
    """CTAs that share a cluster-wide shared window; one CTA when launched without clusters.

    Attributes:
      barrier_phase: completed phases of the cluster's barrier.
      barrier_arrived: by (CTA rank, warp): masks of the lanes that arrived in the open phase and,
        where they did not wait in between, in those that follow.
    """

    def __init__(self, launch: "Launch", origin: Dim3):
        self.launch = launch
        self.origin = origin
        shape = launch.cluster
        self.ctas: list[Cta] = []
        self.ctas += [
            Cta(launch, self, x + shape[0] * (y + shape[1] * z), _add(origin, (x, y, z)))
            for z in range(shape[2])
            for y in range(shape[1])
            for x in range(shape[0])
        ]
        self.barrier_phase = 0
        self.barrier_arrived: dict[tuple[int, int], list[int]] = {
            (cta.rank, warp.index): [] for cta in self.ctas for warp in cta.warps
        }
        self.tmem_votes: dict[tuple[Any, ...], set[int]] = {}
        self.live_ctas = len(self.ctas)


class Unstarted:
    """The clusters of a grid that have not started, x fastest; they take no memory before they do.

    Args:
      numbers: of the clusters, counted from 0; all of the grid when None.
    """

    def __init__(self, grid: Dim3, cluster: Dim3, numbers: range | None = None):
        self._grid, self._cluster = grid, cluster
        self._counts = tuple(g // c for g, c in zip(grid, cluster, strict=True))
        across, down, deep = self._counts
        self._numbers = range(across * down * deep) if numbers is None else numbers

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def take(self) -> Dim3:
        """The origin of the next one, which is none of them any more."""
        number = self._numbers[0]
        self._numbers = self._numbers[1:]
        across, down, _ = self._counts
        x, y, z = self._cluster
        return (number % across * x, number // across % down * y, number // (across * down) * z)

    def share(self, part: int, parts: int) -> "Unstarted":
        """Every `parts`-th one, beginning with number `part`."""
        return Unstarted(self._grid, self._cluster, self._numbers[part::parts])


@dataclass(eq=False)
class Launch:
    """One kernel launch.

    Attributes:
      parameters: the parameter bytes, uint8[n]; `param_address` is where they are mapped.
      workspace: address of the bytes by which the CTAs of a grid wait for each other, as a driver
        gives them to cooperative launches; 0 where the kernel does not ask.
      symbols: address of each .global and .const variable that the kernel reaches, by its key.
      shared_bytes: static plus dynamic shared memory per CTA.
      early_loads: positions of the tcgen05.ld whose registers are read before tcgen05.wait::ld.
      strict_reads: an engine's write needs a proxy fence behind generic reads of the same bytes of
        shared memory.
      output: gets what the kernel prints.
      remaining: the clusters that have not started.
      instruction_limit: warp-instructions after which the launch is given up.
    """

    program: Program
    memory: GlobalMemory
    grid: Dim3
    block: Dim3
    cluster: Dim3
    shared_bytes: int
    dynamic_shared_bytes: int
    parameters: npt.NDArray[np.uint8]
    param_address: int
    workspace: int
    symbols: dict[str, int]
    target: str
    tensor_core: TensorCore
    remaining: "Unstarted"
    instruction_limit: int
    track_initialised: bool = False
    observer: Observer | None = None
    inspector: "LaunchInspector | None" = None
    early_loads: frozenset[int] = frozenset()
    strict_reads: bool = True
    constants: dict[Any, Any] = field(default_factory=dict[Any, Any])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    local: LocalLayout = NO_LOCALS
    output: Callable[[str], object] = sys.stdout.write
    _scheduler: "Scheduling | None" = None

    @property
    def scheduler(self) -> "Scheduling":
        """The scheduler of this launch."""
        assert self._scheduler is not None
        return self._scheduler

    @scheduler.setter
    def scheduler(self, scheduler: "Scheduling") -> None:
        self._scheduler = scheduler

    def __post_init__(self) -> None:
        self.is_watched = self.observer is not None or self.inspector is not None

    def count(self, what: str, amount: int = 1) -> None:
        """Add to a statistic."""
        self.counters[what] = self.counters.get(what, 0) + amount


LaunchInspector = Inspector[Launch, Cluster, Cta, WarpContext]


def _add(a: Dim3, b: Dim3) -> Dim3:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _special_registers(warp: Warp) -> dict[str, Any]:
    """The special registers that do not change while a warp runs, as uint32[32]."""
    cta = warp.cta
    launch, cluster = cta.launch, cta.cluster
    block, shape = launch.block, launch.cluster
    thread = np.arange(WARP_LANES, dtype=np.uint32) + np.uint32(warp.index * WARP_LANES)
    lane = np.arange(WARP_LANES, dtype=np.uint32)
    values: dict[str, Any] = {
        "%tid.x": thread % block[0],
        "%tid.y": thread // block[0] % block[1],
        "%tid.z": thread // (block[0] * block[1]),
        "%laneid": lane,
        "%lanemask_eq": _LANE_BITS,
        "%lanemask_lt": _LANE_BITS - np.uint32(1),
        "%lanemask_le": _LANE_BITS - np.uint32(1) | _LANE_BITS,
        "%lanemask_gt": ~(_LANE_BITS - np.uint32(1) | _LANE_BITS),
        "%lanemask_ge": ~(_LANE_BITS - np.uint32(1)),
    }
    uniform: dict[str, int] = {
        "%warpid": warp.index,
        "%nwarpid": 64,
        "%smid": 0,
        "%nsmid": CHIPS[launch.target].multiprocessors,
        "%gridid": 1,
        "%cluster_ctarank": cta.rank,
        "%cluster_nctarank": shape[0] * shape[1] * shape[2],
        "%is_explicit_cluster": int(shape != (1, 1, 1)),
        "%dynamic_smem_size": launch.dynamic_shared_bytes,
        "%total_smem_size": launch.shared_bytes,
        "%envreg1": launch.workspace >> 32,  # as CUDA's cooperative groups read them
        "%envreg2": launch.workspace & 0xFFFF_FFFF,
    }
    for axis, name in enumerate("xyz"):
        uniform[f"%ntid.{name}"] = block[axis]
        uniform[f"%ctaid.{name}"] = cta.index[axis]
        uniform[f"%nctaid.{name}"] = launch.grid[axis]
        uniform[f"%cluster_ctaid.{name}"] = cta.index[axis] - cluster.origin[axis]
        uniform[f"%cluster_nctaid.{name}"] = shape[axis]
        uniform[f"%clusterid.{name}"] = cluster.origin[axis] // shape[axis]
        uniform[f"%nclusterid.{name}"] = launch.grid[axis] // shape[axis]
    for name, value in uniform.items():
        values[name] = np.full(WARP_LANES, value, np.uint32)
    return {name: value.astype(np.uint32) for name, value in values.items()}
