"""Replays a recorded cluster on the machine code: event-driven, in clocks.

Each partition of a multiprocessor issues one instruction a clock. A warp may issue when its stall
count has run down, the scoreboards that the instruction names are zero and its unit is free; of
several warps the last one goes on unless it yields, else the one that has waited longest. Engines
and barriers are in `engines`.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .chips import Values
from .engines import Barrier, Cell, Multiprocessor, Product
from .join import Issue, Joined, Walk
from .record import Arrival, ClusterRecord, Conflicts, Request, Waiting
from .sass import Instruction
from .units import LITE, NONE, UNIT_NAMES, UNITS, XU, Cost, bank_reads, cost_of

PARTITIONS = 4  # of a multiprocessor
GROUP_WARPS = 4
SHOWN_WAIT = 12  # clocks from which a wait is a span of the timeline
NEVER = float("inf")

_SHAPE = re.compile(r"^(\d+)x(\d+)x(\d+)$")
_GROUPS_LEFT = re.compile(r"(0x[0-9a-f]+|\d+)\s*$")

Names = Callable[[tuple[object, ...]], str]


@dataclass(slots=True)
class Wait:
    """A warp stood from `begin` to `end` for a cause."""

    begin: float
    end: float
    cause: str
    line: int


@dataclass(slots=True)
class WarpTimes:
    """What the replay found out about a warp.

    Attributes:
      lost: clocks by cause. stalls: clocks of stall counts beyond one per instruction.
      loops: by back edge (first and last address), when each turn ended.
      clocks: when it read the clock.
      end: when it left the kernel; where its record was cut, when that was.
    """

    cta: int
    index: int
    issued: int = 0
    begin: float = 0.0
    end: float = 0.0
    stalls: float = 0.0
    lost: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    waits: list[Wait] = field(default_factory=list[Wait])
    loops: dict[tuple[int, int], list[float]] = field(
        default_factory=dict[tuple[int, int], list[float]]
    )
    clocks: list[float] = field(default_factory=list[float])
    is_cut: bool = False
    is_stuck: bool = False
    products: int = 0


@dataclass(slots=True)
class Replayed:
    """A cluster on the time axis.

    Attributes:
      clocks: from the first instruction to the end of the last warp that was recorded to its end.
      units: busy clocks of each unit of a partition, by multiprocessor and partition.
      products: clocks that products need, by multiprocessor.
    """

    warps: list[WarpTimes]
    multiprocessors: list[Multiprocessor]
    clocks: float
    units: list[list[list[float]]]
    issued: list[list[int]]
    is_complete: bool
    unmatched: dict[str, int]


class _Partition:
    """The warps and units of a quarter of a multiprocessor."""

    __slots__ = ("at", "banks", "busy", "free", "issued", "last", "number", "queued", "sm", "warps")

    def __init__(self, number: int, sm: int):
        self.number, self.sm = number, sm
        self.warps: list[_Warp] = []
        self.free = [0.0] * (UNITS + 1)
        self.busy = [0.0] * (UNITS + 1)
        self.banks = [0.0, 0.0]
        self.issued = 0
        self.last: _Warp | None = None
        self.at = 0.0
        self.queued = NEVER


class _Warp:
    __slots__ = (
        "after", "boards", "cause", "current", "gate", "group", "groups", "partition",
        "pending_stores", "previous", "ready", "stream", "times", "walk",
    )  # fmt: skip

    def __init__(self, times: WarpTimes, partition: _Partition, walk: Walk):
        self.times, self.partition, self.walk = times, partition, walk
        self.stream: Iterator[Issue] = iter(walk)
        self.boards: list[list[Cell]] = [[] for _ in range(6)]
        self.gate: Cell | None = None
        self.groups: list[Cell] = []
        self.group: _Group | None = None
        self.current: Issue | None = None
        self.previous: Instruction | None = None
        self.after = self.ready = 0.0
        self.cause = ""
        self.pending_stores: list[float] = []


@dataclass(slots=True)
class _Group:
    """A warpgroup's products, in order."""

    number: int
    products: list[Product] = field(default_factory=list[Product])


class Replay:
    """One replay of one cluster.

    Args:
      names: gives a barrier key a name.
      stores_read: bulk groups are waited for until they have read, not until they are complete.
      resident: copies of the cluster's CTA that share a multiprocessor.
      keep: waits and engines' spans are kept for a timeline.
    """

    def __init__(
        self,
        joined: Joined,
        record: ClusterRecord,
        values: Values,
        *,
        names: Names,
        stores_read: bool = True,
        resident: int = 1,
        keep: bool = False,
    ):
        self.joined, self.record, self.values = joined, record, values
        self._window = values["collector_clocks"]
        self.names, self.stores_read, self.keep = names, stores_read, keep
        count = len(record.ctas)
        self.sms = [Multiprocessor(values, self._at, keep) for _ in range(count)]
        self.partitions = [[_Partition(n, sm) for n in range(PARTITIONS)] for sm in range(count)]
        self.warps: list[_Warp] = []
        self._heap: list[tuple[float, int, _Partition | Callable[[float], None]]] = []
        self._serial = 0
        self._barriers: dict[int, dict[tuple[object, ...], Barrier]] = {}
        for copy in range(resident):
            self._add_cluster(copy)

    def _add_cluster(self, copy: int) -> None:
        record = self.record
        barriers = {
            key: Barrier(self.names(key), phases, record.completed.get(key, 0))
            for key, phases in record.phases.items()
        }
        groups: dict[tuple[int, int], _Group] = {}
        per_cta = len(record.warps) // len(record.ctas)
        for one in record.warps:
            number = copy * per_cta + one.index
            partition = self.partitions[one.cta][number % PARTITIONS]
            times = WarpTimes(one.cta, number)
            warp = _Warp(times, partition, Walk(self.joined, one))
            warp.group = groups.setdefault(
                (one.cta, one.index // GROUP_WARPS), _Group(number // GROUP_WARPS)
            )
            partition.warps.append(warp)
            self.warps.append(warp)
            self._barriers[id(warp)] = barriers

    def run(self) -> Replayed:
        """Replays the cluster to its end, or to where its record ends."""
        for warp in self.warps:
            self._fetch(warp)
        heap = self._heap
        while heap:
            time, _, what = heapq.heappop(heap)
            if not isinstance(what, _Partition):
                what(time)
            elif time == what.queued:
                what.queued = NEVER
                self._turn(what, time)
        return self._result()

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        """Calls a function at a time."""
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, act))

    # ---- partitions

    def _queue(self, partition: _Partition, time: float) -> None:
        time = max(time, partition.at)
        if time < partition.queued:
            partition.queued = time
            self._serial += 1
            heapq.heappush(self._heap, (time, self._serial, partition))

    def _turn(self, partition: _Partition, now: float) -> None:
        chosen: _Warp | None = None
        following = NEVER
        free = partition.free
        fetched = max(partition.banks) - self._window  # the collector takes operands from then on
        for warp in partition.warps:
            ready = warp.ready
            if ready > now:
                following = min(following, ready)
                continue
            assert warp.current is not None
            cost = warp.current.instruction.cost
            assert isinstance(cost, Cost)
            available = free[cost.unit]
            if cost.either:
                available = min(available, free[LITE])
            if cost.unit <= XU:
                available = max(available, fetched)
            if available > now:
                following = min(following, available)
            elif chosen is None or self._goes_before(partition, warp, chosen):
                chosen = warp
        if chosen is None:
            if following < NEVER:
                self._queue(partition, following)
            return
        partition.at = now + 1
        partition.last = chosen
        partition.issued += 1
        self._issue(chosen, now)
        self._queue(partition, now + 1)

    @staticmethod
    def _goes_before(partition: _Partition, warp: _Warp, other: _Warp) -> bool:
        """Whether a ready warp issues before another: the last one, else the one that waits
        longest.
        """
        last = partition.last
        if last is warp or last is other:
            assert last is not None and last.previous is not None
            if not last.previous.control.yields:
                return last is warp
            return last is other
        return warp.after < other.after

    # ---- warps

    def _fetch(self, warp: _Warp) -> None:
        """The warp's next instruction, and the earliest clock at which it may issue."""
        warp.current = next(warp.stream, None)
        if warp.current is None:
            warp.ready = NEVER
            warp.times.is_cut = warp.walk.is_cut
            warp.times.end = warp.after
            return
        one = warp.current.instruction
        if one.cost is None:
            one.cost = cost_of(one)
        previous = warp.previous
        if previous is not None and one.address <= previous.address:
            edge = (one.address, previous.address)
            warp.times.loops.setdefault(edge, []).append(warp.after)
        self._check(warp)

    def _check(self, warp: _Warp) -> None:
        """Finds the warp's `ready`; if it depends on what is not known yet, comes back later."""
        assert warp.current is not None
        one = warp.current.instruction
        cost = one.cost
        assert isinstance(cost, Cost)
        ready, cause = warp.after, ""
        warp.ready = NEVER
        needed: list[Cell] = [] if warp.gate is None else [warp.gate]
        for number in one.control.waits:
            needed += warp.boards[number]
        if cost.action == "groups":
            match = _GROUPS_LEFT.search(one.operands)
            allowed = int(match[1], 0) if match else 0
            needed += warp.groups[: max(0, len(warp.groups) - allowed)]
        elif cost.action == "depbar":
            needed += self._depbar(warp, one)
        elif cost.action == "product":
            depth, made = int(self.values["tensor_depth"]), self.sms[warp.partition.sm].made
            assert warp.group is not None
            is_new = warp.times.products == len(warp.group.products)
            if is_new and len(made) >= depth:
                needed.append(made[-depth].ended)
        for cell in needed:
            if cell.time is None:
                cell.waiters.append(lambda: self._check(warp))
                return
            if cell.time > ready:
                ready, cause = cell.time, cell.label
        for number in one.control.waits:
            warp.boards[number].clear()
        if cost.action == "groups":
            match = _GROUPS_LEFT.search(one.operands)
            allowed = int(match[1], 0) if match else 0
            del warp.groups[: max(0, len(warp.groups) - allowed)]
        warp.gate = None
        warp.ready, warp.cause = ready, cause
        self._queue(warp.partition, ready)

    @staticmethod
    def _depbar(warp: _Warp, one: Instruction) -> list[Cell]:
        """What `DEPBAR.LE SBn, k` waits for: all but the k youngest on scoreboard n."""
        operands = re.search(r"SB(\d+), (0x[0-9a-f]+|\d+)", one.operands)
        if operands is None:
            return []
        pending = warp.boards[int(operands[1])]
        return pending[: max(0, len(pending) - int(operands[2], 0))]

    def _issue(self, warp: _Warp, now: float) -> None:
        issue = warp.current
        assert issue is not None
        one = issue.instruction
        cost = one.cost
        assert isinstance(cost, Cost)
        self._account(warp, now, cost)
        free = warp.partition.free
        executes = not (issue.has_slot and issue.slot is None)
        unit = cost.unit
        if unit != NONE and executes:
            sm = self.sms[warp.partition.sm]
            interval = float(cost.interval)
            if cost.either:
                sm.stolen[warp.partition.number] += 1
                if sm.tensor.is_active and free[XU] > now:
                    free[XU] += sm.tensor.slows_fma
                if free[LITE] <= free[unit]:
                    unit = LITE
            elif unit <= XU and sm.tensor.is_active:
                interval += self.values["tensor_slows"]
            free[unit] = now + interval
            if unit <= XU:
                banks = warp.partition.banks
                reads = bank_reads(one, warp.previous)
                banks[0] = max(banks[0], now) + reads[0]
                banks[1] = max(banks[1], now) + reads[1]
            warp.partition.busy[unit] += interval
        if one.base in ("CS2R", "S2UR", "S2R") and "SR_CLOCK" in one.operands:
            warp.times.clocks.append(now)
        warp.after = now + one.control.stall
        warp.times.stalls += one.control.stall - 1
        warp.times.issued += 1
        result = self._act(warp, issue, cost, now) if executes else None
        self._raise(warp, one, cost, now, result)
        warp.previous = one
        self._fetch(warp)

    def _account(self, warp: _Warp, now: float, cost: Cost) -> None:
        """Books the clocks since the warp could have issued without waiting."""
        times = warp.times
        if times.issued == 0:
            times.begin = now
            return
        lost = warp.ready - warp.after
        if lost > 0:
            times.lost[warp.cause] += lost
            if self.keep and lost >= SHOWN_WAIT:
                assert warp.current is not None
                line = warp.current.instruction.line
                times.waits.append(Wait(warp.after, warp.ready, warp.cause, line))
        beyond = now - warp.ready
        if beyond > 0:
            unit_wait = 0.0
            if cost.unit != NONE:
                available = warp.partition.free[cost.unit]
                if cost.either:
                    available = min(available, warp.partition.free[LITE])
                unit_wait = min(beyond, max(0.0, available - warp.ready))
            if unit_wait:
                times.lost[f"{UNIT_NAMES[cost.unit]} taken"] += unit_wait
            if beyond > unit_wait:
                times.lost["issue slot"] += beyond - unit_wait

    def _raise(
        self, warp: _Warp, one: Instruction, cost: Cost, now: float, result: Cell | None
    ) -> None:
        """Raises the scoreboards that an instruction names."""
        control = one.control
        if control.write is None and control.read is None:
            return
        latency = self.values[cost.latency] if cost.latency else 10.0
        if result is None:
            result = Cell(_cause(one), now + latency)
        if control.write is not None:
            warp.boards[control.write].append(result)
        if control.read is not None:
            read = result
            if cost.action not in ("flush",) and result.time is not None:
                read = Cell(_cause(one), min(result.time, now + self.values["sts_read"]))
            elif cost.action != "flush":
                read = Cell(_cause(one), now + self.values["sts_read"])
            warp.boards[control.read].append(read)

    # ---- what instructions do

    def _act(self, warp: _Warp, issue: Issue, cost: Cost, now: float) -> Cell | None:
        """The effects of an instruction; returns when its result is there, if that is special."""
        match cost.action:
            case "product":
                self._product(warp, issue.instruction, now)
            case "group":
                warp.gate = Cell("warpgroup fence", now + self.values["group_latency"])
            case "flush":
                done = max(warp.pending_stores, default=now)
                warp.pending_stores = []
                if not self.stores_read:
                    done += self.values["store_latency"]
                return Cell("bulk stores", max(done, now))
            case "wait" | "arrive" | "bar" | "cluster" | "copy" | "shared":
                result: Cell | None = None
                for event in issue.slot or ():
                    result = self._event(warp, issue.instruction, event, now) or result
                return result
            case _:
                pass
        return None

    def _event(self, warp: _Warp, one: Instruction, event: object, now: float) -> Cell | None:
        values = self.values
        barriers = self._barriers[id(warp)]
        match event:
            case Waiting(key, phase):
                if key not in barriers:
                    barriers[key] = Barrier(self.names(key), [], 0)
                over = barriers[key].over(phase)
                if one.base == "SYNCS":
                    return self._later(
                        over, now, values["try_wait_latency"], values["wake_latency"]
                    )
                extra = values["cluster_latency"]
                warp.gate = self._later(over, now, values["arrive_latency"], extra)
            case Arrival(key, count, phase):
                barrier = barriers[key]
                if key[0] == "mbarrier":
                    sync = self.sms[warp.partition.sm].sync
                    _, end = sync.take(now, values["arrive_interval"], "", False)
                    barrier.arrive(end + values["arrive_latency"], count)
                else:
                    barrier.arrive(now, count)
                if phase >= 0:
                    extra = self._bar_latency(barrier, phase)
                    warp.gate = self._later(barrier.over(phase), now - 1, 0, extra)
            case Request(shared_bytes, signals, is_store):
                sm = self.sms[warp.partition.sm]
                if is_store:
                    warp.pending_stores.append(sm.store(now, shared_bytes, "store"))
                    return None
                ctas = len({key[1] for key, _ in signals}) or 1
                done = sm.load(now, shared_bytes / ctas, self._filled(signals))
                for key, byte_count in signals:
                    barriers[key].arrive(done, 0 if byte_count else 1, byte_count)
            case Conflicts(wavefronts):
                sm = self.sms[warp.partition.sm]
                _, end = sm.port.take(now, wavefronts, "", False)
                latency = "lds_latency" if one.base.startswith("LDS") else "sts_read"
                return Cell(_cause(one), end - 1 + values[latency])
            case _:
                pass
        return None

    def _filled(self, signals: list[tuple[tuple[object, ...], int]]) -> str:
        return self.names(signals[0][0]) if signals else "copy"

    def _bar_latency(self, barrier: Barrier, phase: int) -> float:
        warps = barrier.needs[phase].arrivals / 32 if phase < len(barrier.needs) else 1
        return self.values["bar_latency"] + self.values["bar_per_warp"] * warps

    @staticmethod
    def _later(over: Cell, now: float, least: float, extra: float) -> Cell:
        """The time at which a warp sees that a phase is over."""
        cell = Cell(over.label)

        def know() -> None:
            assert over.time is not None
            late = over.time + extra if over.time > now else now
            cell.resolve(max(late, now + least))

        if over.time is None:
            over.waiters.append(know)
        else:
            know()
        return cell

    def _product(self, warp: _Warp, one: Instruction, now: float) -> None:
        group = warp.group
        assert group is not None
        number = warp.times.products
        warp.times.products += 1
        if number == len(group.products):
            label = "tensor core"
            product = Product(group.number, product_clocks(one), Cell("tensor queue"), Cell(label))
            group.products.append(product)
            made = self.sms[warp.partition.sm].made
            made.append(product)
            del made[:-64]
        product = group.products[number]
        product.parts += 1
        product.time = max(product.time, now)
        if one.operands.rstrip().endswith("gsb0"):
            warp.groups.append(product.done)
        if product.parts == GROUP_WARPS:
            self.sms[warp.partition.sm].tensor.multiply(product)

    # ---- the result

    def _result(self) -> Replayed:
        unmatched: dict[str, int] = defaultdict(int)
        for warp in self.warps:
            if warp.current is not None:
                warp.times.is_stuck = True
                warp.times.end = warp.after
            if not warp.times.is_cut and not warp.times.is_stuck:
                for (line, kind), count in warp.walk.unmatched.items():
                    if kind != "shared":
                        unmatched[f"{kind} at PTX line {line}"] += count
        times = [warp.times for warp in self.warps]
        return Replayed(
            warps=times,
            multiprocessors=self.sms,
            clocks=max((one.end for one in times), default=0.0),
            units=[[one.busy for one in sm] for sm in self.partitions],
            issued=[[one.issued for one in sm] for sm in self.partitions],
            is_complete=not any(one.is_cut or one.is_stuck for one in times),
            unmatched=dict(unmatched),
        )


def product_clocks(one: Instruction) -> float:
    """Clocks for which one warpgroup's product keeps the tensor cores of a multiprocessor.

    N/2 for m64nN and 32 bytes of K; with A in shared memory at least 16 + N/4, the operands' bytes
    over 128 (Luo et al., arXiv 2501.12084, table of wgmma).
    """
    for suffix in one.suffixes:
        if shape := _SHAPE.match(suffix):
            columns = int(shape[2])
            sources = one.operands.split(",")
            shared = len(sources) > 1 and "gdesc" in sources[1]
            return max(columns / 2, (16 if shared else 0) + columns / 4)
    return 128.0


def _cause(one: Instruction) -> str:
    """How the table of waits names an instruction's result."""
    return {
        "MUFU": "MUFU result", "SHFL": "shuffle result", "SYNCS": "barrier instruction",
    }.get(one.base, f"{one.base} result")  # fmt: skip


def barrier_names(names: Mapping[int, str] = MappingProxyType({}), base: int = 0) -> Names:
    """Names of barriers: those given by offset in dynamic shared memory, else kind and address.

    Args:
      base: where dynamic shared memory begins.
    """

    def name(key: tuple[object, ...]) -> str:
        kind, *where = key
        if kind == "mbarrier":
            offset = where[1]
            assert isinstance(offset, int)
            return names.get(offset - base) or f"mbarrier {offset:#x}"
        return f"barrier {where[1]}" if kind == "bar" else "cluster barrier"

    return name
