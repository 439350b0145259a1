"""Replays a recorded cluster on the machine code: event-driven, in clocks.

Each partition of a multiprocessor issues one instruction a clock. A warp may issue when its stall
count has run down, the scoreboards that the instruction names are zero and its unit is free; of
several warps the last one goes on unless it yields, else the one that has waited longest. Effects
on barriers and engines are in `effects`.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Callable

from .chips import Values
from .effects import GROUP_WARPS, Effects, Names, result_name
from .engines import PARTITIONS, Barrier, Cell, Multiprocessor
from .join import Joined, Walk
from .record import ClusterRecord
from .sass import Instruction
from .units import LITE, NONE, UNIT_NAMES, XU, Cost, bank_reads, cost_of
from .warps import NEVER, Group, Partition, Replayed, Wait, Warp, WarpTimes

SHOWN_WAIT = 12  # clocks from which a wait is a span of the timeline

_GROUPS_LEFT = re.compile(r"(0x[0-9a-f]+|\d+)\s*$")


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
        self.names, self.keep = names, keep
        count = len(record.ctas)
        self.sms = [Multiprocessor(values, self._at, keep) for _ in range(count)]
        self.effects = Effects(self.sms, values, names, stores_read=stores_read)
        self.partitions = [[Partition(n, sm) for n in range(PARTITIONS)] for sm in range(count)]
        self.warps: list[Warp] = []
        self._heap: list[tuple[float, int, Partition | Callable[[float], None]]] = []
        self._serial = 0
        for copy in range(resident):
            self._add_cluster(copy)

    def _add_cluster(self, copy: int) -> None:
        record = self.record
        barriers = {
            key: Barrier(self.names(key), phases, record.completed.get(key, 0))
            for key, phases in record.phases.items()
        }
        groups: dict[tuple[int, int], Group] = {}
        per_cta = len(record.warps) // len(record.ctas)
        for one in record.warps:
            number = copy * per_cta + one.index
            partition = self.partitions[one.cta][number % PARTITIONS]
            times = WarpTimes(one.cta, number)
            warp = Warp(times, partition, Walk(self.joined, one), barriers)
            warp.group = groups.setdefault(
                (one.cta, one.index // GROUP_WARPS), Group(number // GROUP_WARPS)
            )
            partition.warps.append(warp)
            self.warps.append(warp)

    def run(self) -> Replayed:
        """Replays the cluster to its end, or to where its record ends."""
        for warp in self.warps:
            self._fetch(warp)
        heap = self._heap
        while heap:
            time, _, what = heapq.heappop(heap)
            if not isinstance(what, Partition):
                what(time)
            elif time == what.queued:
                what.queued = NEVER
                self._issue_next(what, time)
        return self._result()

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        """Calls a function at a time."""
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, act))

    # ---- partitions

    def _queue(self, partition: Partition, time: float) -> None:
        time = max(time, partition.at)
        if time < partition.queued:
            partition.queued = time
            self._serial += 1
            heapq.heappush(self._heap, (time, self._serial, partition))

    def _issue_next(self, partition: Partition, now: float) -> None:
        chosen: Warp | None = None
        following = NEVER
        free = partition.free
        fetched = max(partition.banks) - self._window  # the collector takes operands from then on
        lane = self.sms[partition.sm].tensor.lanes[partition.number]
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
                if available <= now:
                    available = lane.available(now, cost.unit < XU)
            if available > now:
                following = min(following, available)
            elif chosen is None or self._has_priority(partition, warp, chosen):
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
    def _has_priority(partition: Partition, warp: Warp, other: Warp) -> bool:
        """Whether a ready warp issues before another: the last one, else the longest waiting."""
        last = partition.last
        if last is warp or last is other:
            assert last is not None and last.previous is not None
            if not last.previous.control.yields:
                return last is warp
            return last is other
        return warp.after < other.after

    # ---- warps

    def _fetch(self, warp: Warp) -> None:
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

    def _check(self, warp: Warp) -> None:
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
    def _depbar(warp: Warp, one: Instruction) -> list[Cell]:
        """The results that `DEPBAR.LE SBn, k` waits for: all but the k youngest on scoreboard n."""
        operands = re.search(r"SB(\d+), (0x[0-9a-f]+|\d+)", one.operands)
        if operands is None:
            return []
        pending = warp.boards[int(operands[1])]
        return pending[: max(0, len(pending) - int(operands[2], 0))]

    def _issue(self, warp: Warp, now: float) -> None:
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
            if cost.either and free[LITE] <= free[unit]:
                unit = LITE
            free[unit] = now + interval
            if unit <= XU:
                sm.tensor.lanes[warp.partition.number].issue(now, unit < XU)
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
        result = self.effects.act(warp, issue, cost, now) if executes else None
        self._raise(warp, one, cost, now, result)
        warp.previous = one
        self._fetch(warp)

    def _account(self, warp: Warp, now: float, cost: Cost) -> None:
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
        self, warp: Warp, one: Instruction, cost: Cost, now: float, result: Cell | None
    ) -> None:
        """Raises the scoreboards that an instruction names."""
        control = one.control
        if control.write is None and control.read is None:
            return
        latency = self.values[cost.latency] if cost.latency else 10.0
        if result is None:
            result = Cell(result_name(one), now + latency)
        if control.write is not None:
            warp.boards[control.write].append(result)
        if control.read is not None:
            read = result
            if cost.action not in ("flush",) and result.time is not None:
                read = Cell(result_name(one), min(result.time, now + self.values["sts_read"]))
            elif cost.action != "flush":
                read = Cell(result_name(one), now + self.values["sts_read"])
            warp.boards[control.read].append(read)

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
