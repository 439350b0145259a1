"""Asynchronous work in the checkers: a ticket from its issue to its completion."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.observer import Channel
from ..core.order import Scope
from ..core.state import Cta, WarpContext
from ..machine.memory import reach_of
from ..machine.tensorcore import Mma
from .clocks import KNOWN, NEVER, Actors, Clock, WarpClocks, lanes_in
from .findings import Finding
from .registers import RegisterChecks
from .spaces import UNIT_BYTES, Accessor, Stored, quarters_of, reach_of_units
from .state import MBARRIER_BYTES, ClusterState
from .strong import Strong
from .tensor import Box

GROUP_WARPS = 4  # warps that issue a wgmma together
COPY_TAG = 64  # added to the bytes of a cp.async: it agrees with others alone, not with stores
LaneGroups = list[tuple[Clock, Any]]  # clocks of threads, each with the positions of its lanes
_ENGINES = {"load": "copy", "store": "bulk store", "tensor": "tensor core work"}


@dataclass(frozen=True, slots=True)
class LaneWork:
    """One cp.async of several lanes, which are independent pieces of work.

    Attributes:
      lanes: their numbers.
      steps: their steps; the actor of lane n's copies is `first` + n.
      known: clocks of their threads, without own steps, which go up to `tick`.
    """

    warp: WarpClocks
    lanes: npt.NDArray[np.intp]
    steps: npt.NDArray[np.int32]
    first: int
    known: LaneGroups
    tick: int

    def name(self, position: int) -> str:
        """The thread that issued the copy of a lane, in words."""
        return f"{self.warp.where} lane {int(self.lanes[position])}'s {_ENGINES['load']}"


@dataclass(slots=True)
class Ticket:
    """One piece of asynchronous work.

    Attributes:
      cta: the CTA of the issuing thread.
      engine: "load", "store" or "tensor".
      line, who: PTX line and thread of the issue, for reports.
      clock: the clock of the issuing thread.
      own: the actor of the issuing thread.
      actor, step: the actor in whose order the work completes, and its step there; actor 0 until
        the work's mbarrier is known.
      writer: the actor in whose order its writes to global memory complete; 0 for `actor`.
      moment: identifies the execution of the instruction; lanes that issue equal work count once.
      is_generic: whether it accesses memory through the generic proxy (cp.async).
      overtakes: whether its writes to shared memory may overtake reads of the generic proxy that
        are ordered before them, unless a proxy fence is.
      pending: accesses that are checked once the mbarrier is known.
      work: for cp.async, which each lane issues by itself; other attributes are then the first
        lane's.
      warps: for wgmma, the clocks of the four warps, which each issue their part.
    """

    cta: Cta
    engine: str
    line: Any
    who: str
    clock: Clock
    own: int
    actor: int
    step: int
    writer: int
    moment: tuple[int, ...]
    is_generic: bool
    overtakes: bool
    pending: list[Any] = field(default_factory=list[Any])
    work: LaneWork | None = None
    warps: tuple[Clock, ...] = ()

    @property
    def name(self) -> str:
        """The engine and the issuing thread, in words."""
        return f"{self.who}'s {_ENGINES[self.engine]}"

    def accessor(
        self, actors: Actors, *, is_fenced: bool, actor: int, overtakes: bool = False
    ) -> Accessor:
        """The accessor of shared or global memory that this work is.

        Args:
          is_fenced: whether writes of the generic proxy need a proxy fence to be visible.
          overtakes: whether reads of the generic proxy need one as well; `is_fenced` is then True.
        """
        self.clock = actors.fit(self.clock)
        reads = self.clock[KNOWN].copy()
        if self.engine == "tensor":
            reads[self.actor] = NEVER  # work of the same actor is pipelined
        writes = reads
        if is_fenced:
            writes = actors.visible(self.clock)
            writes[self.actor] = reads[self.actor]
        if overtakes:
            return Accessor(actor, self.step, writes, writes, ordered=reads)
        return Accessor(actor, self.step, writes, reads)

    def released(self, actors: Actors) -> Clock:
        """The clock that an arrival on completion passes on: its actor up to this step.

        It includes what the issuing thread had learned, but none of the thread's own steps.
        """
        clock = actors.fit(self.clock)[:2].copy()
        clock[:, self.own] = 0
        clock[KNOWN, self.actor] = max(clock[KNOWN, self.actor], self.step)
        return clock


def _identity(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return array


def _extent(region: tuple[Any, ...]) -> tuple[int, int]:
    """The first byte of shared memory that an engine accesses, and the end of the last one."""
    if region[0] == "units":
        low, high = reach_of_units(region[1])
        return UNIT_BYTES * low, UNIT_BYTES * high
    if region[0] == "lanes":
        return reach_of(region[1].ravel(), region[2])
    return int(region[1]), int(region[1] + region[2])


def _words(region: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    """The 8-byte words of shared memory that an engine accesses."""
    if region[0] == "units":
        units: npt.NDArray[np.int64] = region[1].ravel()
        return np.concatenate([2 * units, 2 * units + 1])
    if region[0] == "lanes":
        words: npt.NDArray[np.int64] = region[1].astype(np.int64) // MBARRIER_BYTES
        return np.concatenate([words, words + 1]) if region[2] > MBARRIER_BYTES else words
    first, end = int(region[1]), int(region[1] + region[2])
    return np.arange(first // MBARRIER_BYTES, -(-end // MBARRIER_BYTES))


def _same(region: tuple[Any, ...]) -> tuple[Any, ...]:
    """A key for what an engine accesses; arrays are compared by identity."""
    return tuple(_key(part) for part in region)


def _key(part: Any) -> Any:
    if hasattr(part, "dtype"):
        return id(part)
    if isinstance(part, list):
        return str(part)  # pyright: ignore[reportUnknownArgumentType]
    return part


def steps_of_lanes(actors: Actors, known: LaneGroups, count: int) -> npt.NDArray[np.int32]:
    """The steps by actor that lanes know: one array, or a row for each lane if clocks differ."""
    first = actors.fit(known[0][0])
    if len(known) == 1:
        return first[KNOWN]
    rows = np.empty((count, first.shape[1]), np.int32)
    for clock, positions in known:
        rows[positions] = actors.fit(clock)[KNOWN]
    return rows


class EngineChecks(RegisterChecks):
    """Follows the work of engines."""

    _ticket: Ticket | None = None

    # ---- from issue to completion

    def version(self, s: WarpContext) -> int:
        """A number that changes with the clocks of the context's warp."""
        return self.warp_of(s).version

    def multiplying(self, s: WarpContext, op: Mma) -> None:
        """Records nothing: a product is judged by its accesses."""

    def issued(
        self, s: WarpContext, lanes: Any, line: int, engine: str, channel: Channel
    ) -> Ticket | None:
        """Makes a ticket with the clock of the issuing thread."""
        kind = "" if channel is None else str(channel[0])
        if kind == "tmem-store":
            return None  # recorded when it was issued
        if lanes is None:
            lanes = int(lanes_in(s.mask)[0])
        if isinstance(lanes, int):
            return self._issued_by(s, lanes, line, engine, kind, channel)
        warp = self.warp_of(s)
        copies = warp.copies_of(("copy", s.cta.rank, s.warp.index))
        steps = copies.issue(lanes, line)
        known = [(group.saved_clock(), at) for group, at in warp.groups_of(lanes, None)]
        work = LaneWork(warp, lanes, steps, copies.first, known, warp.tick)
        lane, clock = int(lanes[0]), known[0][0]
        ticket = Ticket(
            s.cta,
            engine,
            line,
            f"{warp.where} lane {lane}",
            clock,
            warp.base + lane,
            copies.first + lane,
            int(steps[0]),
            0,
            (),
            is_generic=True,
            overtakes=False,
        )
        ticket.work = work
        return ticket

    def _issued_by(
        self, s: WarpContext, lane: int, line: int, engine: str, kind: str, channel: Channel
    ) -> Ticket:
        state, warp = self.state_of(s.cta), self.warp_of(s)
        if kind == "copy":
            copies = warp.copies_of(("copy", s.cta.rank, s.warp.index))
            actor = copies.first + lane
            step = int(copies.issue(np.array([lane]), line)[0])
        else:
            actor = self._actor_of(state, s, lane, kind, engine)
            step = state.next_step(actor) if actor else 0
        who = f"{warp.where} lane {lane}"
        writer = 0
        if actor and kind != "copy":
            state.step_log.note(actor, step, line, who)
        if actor and engine == "store":
            writer = state.actors.engine(("bulk-write", s.cta.rank, s.warp.index, lane))
            state.step_log.note(writer, step, line, who)
        clock = warp.snapshot(lane)
        parts = [queue.pop(0) for queue in state.parts[channel]] if kind == "wgmma" else ()
        own = warp.base + lane
        moment = (s.cta.rank, s.warp.index, line, warp.tick, warp.version)
        is_generic = kind == "copy"
        overtakes = self.strict_reads and kind not in ("copy", "remote")
        ticket = Ticket(
            s.cta, engine, line, who, clock, own, actor, step, writer, moment, is_generic, overtakes
        )
        ticket.warps = tuple(state.actors.fit(part) for part in parts)
        return ticket

    @staticmethod
    def _actor_of(state: ClusterState, s: WarpContext, lane: int, kind: str, engine: str) -> int:
        """The actor of a channel's work; 0 for copies, which learn their mbarrier at their end."""
        rank, warp = s.cta.rank, s.warp.index
        if kind == "tensor":
            return state.actors.engine(("tensor", rank, warp, lane))
        if kind == "wgmma":
            return state.actors.engine(("wgmma", rank, warp // 4))
        return state.actors.engine(("bulk-read", rank, warp, lane)) if engine == "store" else 0

    def part_issued(self, s: WarpContext, channel: Channel) -> None:
        """wgmma: keeps the clock of a warp that has issued its part."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        self.check_product(s)
        product = (self._group_actor(state, s, 0, "wgmma"), s.warp.index)
        state.products[product] = state.products.get(product, 0) + 1
        queues = state.parts.setdefault(channel, ([], [], [], []))
        queues[s.warp.index % GROUP_WARPS].append(warp.release(state.actors.zeros(2), s.mask))

    def began(self, ticket: Ticket | None) -> None:
        """Accesses from here on are the engine's."""
        self._ticket = ticket

    def current_actor(self) -> int:
        """The actor of the work in progress; 0 without any."""
        return 0 if self._ticket is None else self._ticket.actor

    def finished(self) -> None:
        """Accesses from here on are threads'."""
        self._ticket = None

    # ---- what engines access

    def engine_access(self, cta: Cta, region: tuple[Any, ...], is_write: bool) -> None:
        """An engine accesses memory.

        Args:
          region: ("units", indices), ("lanes", offsets, width, values) or ("span", offset, byte
            count) of the CTA's shared memory; ("box", address, shape, strides, adds) of global
            memory.
        """
        ticket = self._ticket
        if ticket is None or id(cta.cluster) not in self.states:
            return
        if not ticket.actor:
            ticket.pending.append((cta, region, is_write))
            return
        state = self.state_of(cta)
        if is_write and region[0] != "box":
            owned = state.ctas[cta.rank]
            (low, high), (first, last) = _extent(region), owned.live_reach
            if low < last and first < high:
                self.report_barrier_use(owned, _words(region), ticket.name, "writes", ticket.line)
        if ticket.work is not None:
            self._copies_of_lanes(state, cta, ticket, ticket.work, region, is_write)
            return
        if state.is_repeated(ticket.moment, (cta.rank, is_write, *_same(region))):
            return
        space = state.ctas[cta.rank].shared
        if region[0] == "box":
            self._global_access(state, ticket, region, is_write)
            return
        if ticket.warps:
            self._operand_of_warps(state, cta, ticket, region)
            return
        accessor = ticket.accessor(
            state.actors,
            is_fenced=not ticket.is_generic,
            actor=ticket.actor,
            overtakes=ticket.overtakes,
        )
        if region[0] == "units":
            conflict = space.units(region[1], accessor, is_write)
        elif region[0] == "lanes":
            conflict = space.lanes(region[1], region[2], accessor, is_write)
        else:
            conflict = space.span(region[1], region[2], accessor, is_write)
        if conflict is not None:
            user = (ticket.name, ticket.line, is_write)
            self.report_access(state, space, cta, conflict, user, ticket.clock)

    def _operand_of_warps(
        self, state: ClusterState, cta: Cta, ticket: Ticket, region: tuple[Any, ...]
    ) -> None:
        """An operand of wgmma: each of the unordered four warps must know its writes."""
        _, units, axis = region
        space = state.ctas[cta.rank].shared
        fitted = [state.actors.fit(clock) for clock in ticket.warps]
        if axis is None:
            work = [(units, np.minimum.reduce(fitted))]
        else:
            work = list(zip(quarters_of(units, axis), fitted, strict=True))
        for part, clock in work:
            ticket.clock = clock
            accessor = ticket.accessor(
                state.actors,
                is_fenced=True,
                actor=ticket.actor,
                overtakes=ticket.overtakes,
            )
            conflict = space.units(part, accessor, False)
            if conflict is not None:
                user = (ticket.name, ticket.line, False)
                self.report_access(state, space, cta, conflict, user, clock)

    def _copies_of_lanes(
        self,
        state: ClusterState,
        cta: Cta,
        ticket: Ticket,
        work: LaneWork,
        region: tuple[Any, ...],
        is_write: bool,
    ) -> None:
        """cp.async of several lanes, each with its own clock and its own completion.

        Lanes that copy the same bytes to one address do not race, like stores that agree.
        """
        _, offsets, width, values = region
        space = state.ctas[cta.rank].shared
        starts: npt.NDArray[np.int64] = offsets.reshape(-1)
        known = steps_of_lanes(state.actors, work.known, work.lanes.size)
        _, first, inverse = np.unique(starts, return_index=True, return_inverse=True)
        overlap = first.size < starts.size  # lanes copy to one place
        if overlap:
            batches = [np.array([position]) for position in range(starts.size)]
        else:
            steps = np.unique(work.steps).tolist()
            batches = [np.flatnonzero(work.steps == step) for step in steps]
        for mine in batches:
            lanes = work.lanes[mine][:, None]
            rows = known if known.ndim == 1 else known[mine]
            own, alias = (
                work.first + lanes,
                (work.warp.base + lanes, np.full_like(lanes, work.tick)),
            )
            accessor = Accessor(own, int(work.steps[mine[0]]), rows, rows, alias=alias)
            stored = None
            if overlap:
                before = first[inverse[mine]]
                present = ~values[mine] if before[0] == mine[0] else values[before]
                stored = Stored(COPY_TAG + width, values[mine], partial(_identity, present))
            conflict = space.lanes(starts[mine], width, accessor, is_write, stored)
            if conflict is not None:
                position = int(mine[conflict.position // max(1, width // space.granule)])
                clock = next(c for c, at in work.known if at is None or position in at)
                user = (work.name(position), ticket.line, is_write)
                self.report_access(state, space, cta, conflict, user, state.actors.fit(clock))

    def _global_access(
        self, state: ClusterState, ticket: Ticket, region: tuple[Any, ...], is_write: bool
    ) -> None:
        actor = (ticket.writer if is_write else 0) or ticket.actor
        box, adds = (region[1], region[2], region[3]), bool(region[4])
        strong = Strong((state.number, ticket.cta.rank), Scope.GPU) if adds else None
        accessor = ticket.accessor(state.actors, is_fenced=True, actor=actor)
        user = (ticket.name, ticket.line, is_write)
        accessor = replace(accessor, adds=adds, strong=strong)
        self.box_access(box, state, accessor, ticket.clock, user)

    def engine_global(self, region: tuple[Any, ...], is_write: bool) -> None:
        """An engine accesses global memory."""
        if self._ticket is not None:
            self.engine_access(self._ticket.cta, region, is_write)

    def engine_cells(self, cta: Cta, box: Box, is_write: bool) -> None:
        """An engine accesses tensor memory."""
        ticket = self._ticket
        if ticket is None or id(cta.cluster) not in self.states:
            return
        state = self.state_of(cta)
        ticket.clock = clock = state.actors.fit(ticket.clock)
        over, promised = orders = state.tensor.orders(clock)
        if ticket.engine == "tensor":  # work of the same actor is pipelined
            over[ticket.actor] = NEVER
            if promised is not None:
                orders = over, promised.copy()
                orders[1][ticket.actor] = NEVER
        current = (ticket.name, ticket.line, is_write)
        self.tensor_cells(cta, box, (ticket.actor, ticket.step), orders, current, clock)

    def engine_unpromised(self, cta: Cta, message: str, column: int, columns: int) -> None:
        """An engine's work on columns of tensor memory rests on what PTX does not promise."""
        ticket = self._ticket
        if ticket is None or id(cta.cluster) not in self.states:
            return
        place = f"tensor memory of {cta.where()}, columns {column}..{column + columns - 1}"
        current = self.state_of(cta).step_log.describe(ticket.name, "reads", ticket.line)
        self.reporter.add(Finding("unpromised", message, place, column, columns, current))

    def engine_signal(self, cta: Cta, offset: int) -> None:
        """An engine arrives on an mbarrier or completes bytes of its transaction count."""
        ticket = self._ticket
        if ticket is None or id(cta.cluster) not in self.states:
            return
        state = self.state_of(cta)
        key = ("mbarrier", cta.rank, offset)
        barrier = state.barriers.mbarrier(key)
        if barrier is None:
            return
        clock = ticket.clock = state.actors.fit(ticket.clock)
        user = (ticket.name, ticket.line)
        # A commit (PTX ISA, tcgen05.commit) and a cp.async arrive through the generic proxy.
        needs_fence = not ticket.is_generic and ticket.engine != "tensor"
        self.check_init(state, barrier, key, clock, [ticket.own], user, needs_fence=needs_fence)
        if ticket.actor:
            barrier.arriving = state.actors.join(barrier.arriving, ticket.released(state.actors))
            for actor, phase in state.committed.get(ticket.actor, {}).items():
                barrier.arriving[KNOWN, actor] = max(barrier.arriving[KNOWN, actor], phase)
            return
        barrier.copies = barrier.phase + 1
        ticket.actor, ticket.step = barrier.actor, barrier.phase + 1
        state.step_log.note(ticket.actor, ticket.step, ticket.line, ticket.who)
        pending, ticket.pending = ticket.pending, []
        for goal, region, is_write in pending:
            self.engine_access(goal, region, is_write)
        ticket.actor = 0

    # ---- groups

    def group_closed(self, s: WarpContext, lanes: list[int], kind: str) -> None:
        """A commit of bulk, cp.async or wgmma groups."""
        if kind == "copy":
            copies = self.warp_of(s).copies
            if copies is not None:
                copies.close(np.array(lanes))
            return
        state = self.state_of(s.cta)
        for lane in lanes:
            actor = self._group_actor(state, s, lane, kind)
            closed = state.groups.setdefault((actor, lane, s.warp.index), [])
            steps = state.steps.get(actor, 0)
            if kind == "wgmma":  # other warps may not have issued their parts of these products yet
                steps = state.products.get((actor, s.warp.index), 0)
            closed.append(steps)

    def group_waited(
        self, s: WarpContext, lanes: list[int], kind: str, newest: int, read_only: bool
    ) -> None:
        """A wait for groups: the lanes learn that the older ones are complete."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        if kind == "copy":
            warp.copies_waited(np.array(lanes), newest)
            return
        for lane in lanes:
            actor = self._group_actor(state, s, lane, kind)
            closed = state.groups.get((actor, lane, s.warp.index), [])
            if newest < 0:
                step = state.steps.get(actor, 0)
            else:
                step = closed[-1 - newest] if len(closed) > newest else 0
            if not step:
                continue
            mask = s.mask if kind == "wgmma" else 1 << lane
            warp.learn(mask, ((KNOWN, actor),), step)
            if kind == "bulk" and not read_only:
                writer = state.actors.engine(("bulk-write", s.cta.rank, s.warp.index, lane))
                warp.learn(mask, ((KNOWN, writer),), step)

    @staticmethod
    def _group_actor(state: ClusterState, s: WarpContext, lane: int, kind: str) -> int:
        rank, warp = s.cta.rank, s.warp.index
        if kind == "wgmma":
            return state.actors.engine((kind, rank, warp // 4))
        return state.actors.engine(("bulk-read", rank, warp, lane))

    # ---- the end

    def ended(self, cta: Cta) -> None:
        """All threads of a CTA have exited: no work may be in progress that uses its memory."""
        state = self.state_of(cta)
        for actor, step in list(state.steps.items()):
            key = state.actors.key_of(actor)
            if key[0] != "bulk-read" or key[1] != cta.rank:
                continue
            warp: WarpClocks = state.ctas[cta.rank].warps[int(key[2])]
            known = int(state.actors.fit(warp.of_lane(int(key[3])).clock)[KNOWN, actor])
            if known < step:
                message = (
                    "the thread does not wait for its bulk store to have read shared memory "
                    "(cp.async.bulk.commit_group, then wait_group or wait_group.read)"
                )
                self._report_exit(state, cta, actor, known + 1, False, message)
        for barrier in state.barriers.of_cta(cta.rank):
            everyone = [g.clock for w in state.ctas[cta.rank].warps for g in w.groups]
            known = max(int(state.actors.fit(c)[KNOWN, barrier.actor]) for c in everyone)
            if known < barrier.copies:
                message = "no thread of the CTA waits for the copy into its shared memory"
                self._report_exit(state, cta, barrier.actor, barrier.copies, True, message)
        self._check_transactions(state, cta)
        self.check_remote_uses(state, state.ctas[cta.rank])

    def _report_exit(
        self, state: ClusterState, cta: Cta, actor: int, step: int, is_write: bool, message: str
    ) -> None:
        current = state.step_log.access(actor, step, is_write)
        address, size = state.ctas[cta.rank].shared.touched_by(actor, step, is_write)
        place = (
            f"shared memory of {cta.where()}, 0x{address:x}..0x{address + size:x}, at the CTA's end"
        )
        self.reporter.add(Finding("exit", message, place, address, size, current))

    def _check_transactions(self, state: ClusterState, cta: Cta) -> None:
        """Reports mbarriers of a finished CTA that received bytes which no thread expected."""
        for offset in cta.mbarriers.offsets():
            extra = -cta.mbarriers.get(offset).tx
            barrier = state.barriers.mbarrier(("mbarrier", cta.rank, offset))
            if extra <= 0 or barrier is None or not barrier.copies:
                continue
            message = (
                f"{extra} bytes more than expect_tx announced have arrived, in a phase that is "
                "still open at the CTA's end"
            )
            place = f"mbarrier 0x{offset:x} of CTA rank {cta.rank}"
            current = state.step_log.access(barrier.actor, barrier.copies, True)
            self.reporter.add(Finding("mbarrier", message, place, offset, 8, current))
