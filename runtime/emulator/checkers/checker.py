"""The checkers: a happens-before race detector and the rules of barriers and proxies.

An inspector of a launch. Knowledge travels along program order, mbarrier phases, named and cluster
barriers, bar.warp.sync, commits, bulk groups, tcgen05.wait and proxy fences, and along nothing
else: lanes that merely reconverge do not learn from each other.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np

from ..inspector import Channel, SyncKey
from ..machine.memory import SharedMemory
from ..ptx.kinds import WARP_LANES
from ..state import ALL_LANES, Cluster, Cta, Launch, Strand
from .barriers import Barriers, MBarrier
from .clocks import KNOWN, TENSOR, Actors, Clock, WarpClocks, lanes_in
from .engines import Ticket
from .findings import CheckError, CheckMode, Finding
from .report import Chronicle, current_line
from .shadow import Conflict
from .spaces import Actor, ByteSpace, TensorSpace

_ALL = np.arange(WARP_LANES)
MAX_FINDINGS = 100  # collected per launch


class _CtaState:
    """What is tracked per CTA."""

    def __init__(self, cta: Cta, warps: list[WarpClocks]):
        self.cta = cta
        self.warps = warps
        self.shared = ByteSpace(cta.shared.data.size)
        self.tmem = TensorSpace()


class _ClusterState:
    """What is tracked per cluster. `groups`: closed groups per (warp clocks, lane, kind)."""

    def __init__(self, cluster: Cluster):
        launch = cluster.launch
        per_cta = len(cluster.ctas[0].warps) * WARP_LANES
        self.actors = Actors(per_cta * len(cluster.ctas))
        self.chronicle = Chronicle(launch.program, self.actors, per_cta)
        self.barriers = Barriers(self.actors)
        self.steps: dict[int, int] = {}
        self.groups: dict[Hashable, list[int]] = {}
        self.parts: dict[Hashable, Clock] = {}
        self.ctas: list[_CtaState] = []
        for cta in cluster.ctas:
            warps = [
                WarpClocks(
                    self.actors,
                    1 + cta.rank * per_cta + warp.index * WARP_LANES,
                    f"{cta.where()} warp {warp.index}",
                )
                for warp in cta.warps
            ]
            self.chronicle.warps.append(warps)
            self.ctas.append(_CtaState(cta, warps))

    def next_step(self, actor: int) -> int:
        """The number of an engine's next piece of work."""
        self.steps[actor] = self.steps.get(actor, 0) + 1
        return self.steps[actor]


class _Watch:
    """Reports the engines' accesses in one CTA to the checker."""

    def __init__(self, checker: "Checker", cta: Cta):
        self.checker = checker
        self.cta = cta

    def units(self, units: Any, is_write: bool) -> None:
        self.checker.engine_access(self.cta, ("units", units), is_write)

    def span(self, offset: int, byte_count: int, is_write: bool) -> None:
        self.checker.engine_access(self.cta, ("span", offset, byte_count), is_write)

    def lanes(self, offsets: Any, width: int, is_write: bool) -> None:
        self.checker.engine_access(self.cta, ("lanes", offsets, width), is_write)

    def cells(self, first_lane: int, lanes: int, column: int, columns: int, is_write: bool) -> None:
        self.checker.engine_cells(self.cta, (first_lane, lanes, column, columns), is_write)

    def box(self, address: int, shape: Any, strides: Any, is_write: bool) -> None:
        pass

    def signal(self, offset: int, byte_count: int) -> None:
        self.checker.engine_signal(self.cta, offset, byte_count)


class Checker:
    """An `Inspector` that looks for what the architecture does not order.

    Args:
      checks: names of `findings.CHECKS`.
      mode: "raise" a `CheckError` at the first finding, or "collect" them in `findings`.
    """

    def __init__(self, checks: frozenset[str], mode: CheckMode = "raise"):
        self.checks = checks
        self.mode: CheckMode = mode
        self.findings: list[Finding] = []
        self._seen: set[tuple[str, int, int]] = set()
        self._states: dict[int, _ClusterState] = {}
        self._ticket: Ticket | None = None
        self._strict_fences = True
        self._strict_loads = True

    # ---- the launch

    def launched(self, launch: Launch) -> None:
        """Kernels that use tcgen05.fence (or wait::ld) at all are held to it everywhere."""
        code = launch.program.kernel.instructions
        self._strict_fences = any(
            i.parts[0] == "tcgen05" and i.parts[1].startswith("fence") for i in code
        )
        self._strict_loads = launch.strict_loads

    def started(self, cluster: Cluster) -> None:
        """Begin with a cluster of which nobody knows anything."""
        self._states[id(cluster)] = _ClusterState(cluster)

    def ended(self, cta: Cta) -> None:
        """Check that nothing is left under way."""
        cluster = cta.cluster
        if all(not other.live_warps for other in cluster.ctas):
            self._states.pop(id(cluster), None)

    def memory_watch(self, cta: Cta) -> _Watch:
        """The watch of one CTA's memories."""
        return _Watch(self, cta)

    # ---- helpers

    def _state(self, cta: Cta) -> _ClusterState:
        return self._states[id(cta.cluster)]

    def _warp(self, s: Strand) -> WarpClocks:
        return self._state(s.cta).ctas[s.cta.rank].warps[s.warp.index]

    def _report(self, finding: Finding) -> None:
        if finding.check not in self.checks:
            return
        earlier = finding.earlier.line if finding.earlier else 0
        key = (finding.check, finding.current.line, earlier)
        if key in self._seen or len(self.findings) >= MAX_FINDINGS:
            return
        self._seen.add(key)
        self.findings.append(finding)
        if self.mode == "raise":
            raise CheckError([finding])

    def _conflict(
        self,
        state: _ClusterState,
        conflict: Conflict,
        place: tuple[str, int, int],
        current: tuple[str, Any, bool],
        known: Clock,
        tensor: bool,
    ) -> None:
        """Report an access that does not know of an earlier one.

        Args:
          place: name, address and size of what both touch. current: who, line, whether it writes.
          known: the accessor's clock.
        """
        who, line, is_write = current
        name, address, size = place
        chronicle = state.chronicle
        earlier = chronicle.access(conflict.actor, conflict.step, conflict.was_write)
        check, message = (
            "race",
            (
                "nothing orders these accesses: no mbarrier phase, barrier, commit, bulk group or "
                "bar.warp.sync leads from the earlier to the later"
            ),
        )
        is_known = known[KNOWN, conflict.actor] >= conflict.step
        if tensor:
            check = "tensor"
            if is_known:
                message = (
                    "the wait that orders these is not followed by tcgen05.fence::after_thread_sync"
                )
            else:
                message = (
                    "nothing orders these accesses to tensor memory: it takes tcgen05.wait and "
                    "fence::before_thread_sync (or a commit), an arrival, a wait for it, and "
                    "fence::after_thread_sync"
                )
        elif is_known and conflict.actor < state.actors.first_engine:
            check = "proxy"
            message = (
                "the bytes were written through the generic proxy: fence.proxy.async is missing "
                "between the write and the engine's access"
            )
        self._report(
            Finding(
                check,
                message,
                f"{name} ({conflict.count} granules in conflict)",
                address,
                size,
                chronicle.spell(who, "writes" if is_write else "reads", line),
                earlier,
            )
        )

    # ---- generic accesses

    def access(
        self, s: Strand, lanes: Any, memory: Any, addresses: Any, width: int, is_write: bool
    ) -> None:
        """Loads and stores of lanes."""
        if not isinstance(memory, SharedMemory):
            return
        state = self._state(s.cta)
        owner = next(c for c in state.ctas if c.cta.shared is memory)
        warp = self._warp(s)
        line = current_line()
        tick = warp.step(line)
        chosen = _ALL if lanes is None else np.asarray(lanes)
        for group in warp.groups:
            if len(warp.groups) == 1:
                here, at = chosen, addresses
            else:
                mine = (group.mask >> chosen & 1) != 0
                here, at = chosen[mine], addresses[mine]
            if not here.size:
                continue
            group.clock = state.actors.fit(group.clock)
            known = group.clock[KNOWN]
            actors = (warp.base + here).astype(np.int32)[:, None]
            conflict = owner.shared.lanes(at, width, Actor(actors, tick, known, known), is_write)
            if conflict is not None:
                lane = int(here[conflict.position * here.size // self._size(here, width, owner)])
                self._shared_conflict(
                    state,
                    owner,
                    conflict,
                    (f"{warp.where} lane {lane}", line, is_write),
                    group.clock,
                )

    @staticmethod
    def _size(here: Any, width: int, owner: _CtaState) -> int:
        return here.size * max(1, width // owner.shared.granule)

    def _shared_conflict(
        self,
        state: _ClusterState,
        owner: _CtaState,
        conflict: Conflict,
        current: tuple[str, Any, bool],
        known: Clock,
    ) -> None:
        address, size = owner.shared.range_of(conflict)
        name = f"shared memory of {owner.cta.where()}, 0x{address:x}..0x{address + size:x}"
        self._conflict(state, conflict, (name, address, size), current, known, False)

    def fence(self, s: Strand, mask: int, opcode: str) -> None:
        """Fences of the proxies, of mbarrier inits and of tensor memory."""
        warp = self._warp(s)
        if opcode.startswith("fence.proxy.async"):
            warp.fence_proxy(mask)
            self._state(s.cta).barriers.fence_inits(warp, lanes_in(mask))
        elif opcode.startswith("fence.mbarrier_init"):
            self._state(s.cta).barriers.fence_inits(warp, lanes_in(mask))
        elif opcode.endswith("before_thread_sync"):
            warp.order(mask, TENSOR, KNOWN)
        elif opcode.endswith("after_thread_sync"):
            warp.order(mask, KNOWN, TENSOR)

    def warp_synced(self, s: Strand, mask: int) -> None:
        """bar.warp.sync."""
        self._warp(s).unite(mask)

    # ---- barriers

    def initialised(self, s: Strand, lane: int, cta: Cta, offset: int) -> None:
        """mbarrier.init."""
        key = ("mbarrier", cta.rank, offset)
        self._state(s.cta).barriers.initialise(key, self._warp(s), lane, current_line())

    def _check_init(
        self, state: _ClusterState, barrier: MBarrier, key: SyncKey, known: Clock, own: Any,
        who: str, line: Any, *, remote: bool,
    ) -> None:  # fmt: skip
        if not state.barriers.knows_init(barrier, known, own):
            message = "the mbarrier is used before its init is known here: a barrier is missing"
        elif remote and not barrier.is_fenced:
            message = (
                "the init is not visible to engines and other CTAs: fence.mbarrier_init (or "
                "fence.proxy.async) is missing after it"
            )
        else:
            return
        chronicle = state.chronicle
        init = barrier.init_actor
        earlier = chronicle.access(init, barrier.init_tick, True)
        self._report(
            Finding(
                "mbarrier",
                message,
                f"mbarrier 0x{key[2]:x} of CTA rank {key[1]}",
                key[2],
                8,
                chronicle.spell(who, "uses it", line),
                earlier,
            )
        )

    def arriving(self, s: Strand, mask: int, key: SyncKey) -> None:
        """Arrivals of lanes on any barrier."""
        state, warp = self._state(s.cta), self._warp(s)
        barrier: Any
        if key[0] == "mbarrier":
            barrier = state.barriers.mbarrier(key)
            if barrier is None:
                return
            remote = key[1] != s.cta.rank
            self._check_thread(s, state, warp, barrier, key, mask, remote)
        else:
            barrier = state.barriers.named(key)
        barrier.arriving = warp.release(barrier.arriving, mask)

    def _check_thread(
        self,
        s: Strand,
        state: _ClusterState,
        warp: WarpClocks,
        barrier: MBarrier,
        key: SyncKey,
        mask: int,
        remote: bool,
    ) -> None:
        for group, common in warp.touching(mask):
            own = lanes_in(common) + warp.base
            if not remote and group.clock[KNOWN, barrier.init_actor] >= barrier.init_tick:
                continue
            self._check_init(
                state, barrier, key, group.clock, own, s.where(), current_line(), remote=remote
            )

    def waiting(self, s: Strand, mask: int, key: SyncKey, parity: int) -> None:
        """A look at an mbarrier's parity: is it the phase that the thread means?"""
        state, warp = self._state(s.cta), self._warp(s)
        barrier = state.barriers.mbarrier(key)
        if barrier is None:
            return
        self._check_thread(s, state, warp, barrier, key, mask, False)
        for group, _ in warp.touching(mask):
            known = int(state.actors.fit(group.clock)[KNOWN, barrier.actor])
            phase = barrier.intended(known, parity)
            if barrier.phase >= phase + 2:
                self._overrun(s, state, key, barrier, phase)

    def _overrun(
        self, s: Strand, state: _ClusterState, key: SyncKey, barrier: MBarrier, phase: int
    ) -> None:
        self._report(
            Finding(
                "mbarrier",
                f"the thread waits for phase {phase} by its parity, but {barrier.phase} phases "
                "are complete: the barrier does not wait for this thread",
                f"mbarrier 0x{key[2]:x} of CTA rank {key[1]}",
                key[2],
                8,
                state.chronicle.spell(s.where(), "waits", current_line()),
            )
        )

    def left(self, s: Strand, mask: int, key: SyncKey) -> None:
        """Lanes go on after a barrier: they know what its phase carries."""
        state, warp = self._state(s.cta), self._warp(s)
        if key[0] == "mbarrier":
            barrier = state.barriers.mbarrier(key)
            if barrier is None:
                return
        else:
            barrier = state.barriers.named(key)
        warp.acquire(barrier.done, mask, tensor=not self._strict_fences)
        if len(warp.groups) > 1 and key[0] == "bar" and mask == ALL_LANES:
            warp.unite(mask)

    def completed(self, cta: Cta, key: SyncKey) -> None:
        """A phase of a barrier is complete."""
        state = self._state(cta)
        barrier = state.barriers.table.get(key)
        if barrier is None:
            return
        if isinstance(barrier, MBarrier):
            barrier.arriving = state.actors.fit(barrier.arriving)
            barrier.arriving[KNOWN, barrier.actor] = barrier.phase + 1
        barrier.complete(state.actors)

    # ---- tensor memory

    def tensor_access(
        self, s: Strand, boxes: list[tuple[int, int, int, int]], is_write: bool
    ) -> None:
        """tcgen05.ld and st of a warp."""
        state, warp = self._state(s.cta), self._warp(s)
        line = current_line()
        kind = "tmem-store" if is_write else "tmem-load"
        actor = state.actors.engine((kind, s.cta.rank, s.warp.index))
        step = state.next_step(actor)
        state.chronicle.note(actor, step, line, warp.where)
        space = state.ctas[s.cta.rank].tmem
        for group, _ in warp.touching(s.mask):
            group.clock = state.actors.fit(group.clock)
            known = group.clock[TENSOR]
            for box in boxes:
                conflict = space.box(*box, Actor(actor, step, known, known), is_write)
                if conflict is not None:
                    self._tensor_conflict(
                        state, s.cta, conflict, (warp.where, line, is_write), group.clock
                    )
        if not is_write and not self._strict_loads:
            warp.learn(s.mask, (KNOWN, TENSOR), actor, step)

    def _tensor_conflict(
        self,
        state: _ClusterState,
        cta: Cta,
        conflict: Conflict,
        current: tuple[str, Any, bool],
        known: Clock,
    ) -> None:
        half, column = divmod(conflict.granule, 512)
        name = (
            f"tensor memory of {cta.where()}, lanes {half * 16}..{half * 16 + 15}, column {column}"
        )
        self._conflict(state, conflict, (name, column, 1), current, known, True)

    def tensor_waited(self, s: Strand, is_write: bool) -> None:
        """tcgen05.wait: the warp's loads or stores are complete."""
        state, warp = self._state(s.cta), self._warp(s)
        kind = "tmem-store" if is_write else "tmem-load"
        actor = state.actors.engine((kind, s.cta.rank, s.warp.index))
        rows = (TENSOR,) if self._strict_fences else (KNOWN, TENSOR)
        warp.learn(s.mask, rows, actor, state.steps.get(actor, 0))

    def deallocating(self, s: Strand, column: int, count: int) -> None:
        """tcgen05.dealloc: everything in these columns must be known to be over."""
        state, warp = self._state(s.cta), self._warp(s)
        group = warp.touching(s.mask)[0][0]
        group.clock = clock = state.actors.fit(group.clock)
        known = np.maximum(clock[KNOWN], clock[TENSOR])
        line = current_line()
        own = warp.base + int(lanes_in(s.mask)[0])
        conflict = state.ctas[s.cta.rank].tmem.box(
            0, 128, column, count, Actor(own, warp.step(line), known, known), True
        )
        if conflict is not None:
            self._tensor_conflict(state, s.cta, conflict, (warp.where, line, True), clock)

    # ---- asynchronous work

    def version(self, s: Strand) -> int:
        """How often the warp's knowledge changed."""
        return self._warp(s).version

    def issued(
        self, s: Strand, lanes: Any, line: int, engine: str, channel: Channel
    ) -> Ticket | None:
        """A ticket with what the issuing thread knows."""
        state, warp = self._state(s.cta), self._warp(s)
        lane = lanes if isinstance(lanes, int) else int(lanes_in(s.mask)[0])
        kind = "" if channel is None else str(channel[0])
        if kind == "tmem-store":
            return None  # recorded when it was issued
        actor = self._stream(state, s, lane, kind, engine)
        step = state.next_step(actor) if actor else 0
        who = f"{warp.where} lane {lane}"
        if actor:
            state.chronicle.note(actor, step, line, who)
        clock = warp.snapshot(lane)
        part = state.parts.pop(channel, None) if kind == "wgmma" else None
        if part is not None:
            clock = state.actors.join(clock, part)
        return Ticket(
            s.cta, lane, engine, line, who, clock, warp.base + lane, actor, step, warp.version
        )

    def part_issued(self, s: Strand, channel: Channel) -> None:
        """wgmma: what each of the four warps knows."""
        state, warp = self._state(s.cta), self._warp(s)
        clock = warp.release(state.actors.zeros(2), s.mask)
        earlier = state.parts.get(channel)
        state.parts[channel] = clock if earlier is None else state.actors.join(clock, earlier)

    def began(self, ticket: Ticket | None) -> None:
        """Accesses from here on are the engine's."""
        self._ticket = ticket

    def finished(self) -> None:
        """Accesses from here on are threads'."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.pending.clear()

    def engine_access(self, cta: Cta, what: tuple[Any, ...], is_write: bool) -> None:
        """An engine touches shared memory."""
        ticket = self._ticket
        if ticket is None:
            return
        if not ticket.actor:
            ticket.pending.append((cta, what, is_write))
            return
        state = self._state(cta)
        owner = state.ctas[cta.rank]
        who = ticket.accessor(state.actors)
        if what[0] == "units":
            conflict = owner.shared.units(what[1], who, is_write)
        elif what[0] == "lanes":
            conflict = owner.shared.lanes(what[1], what[2], who, is_write)
        else:
            conflict = owner.shared.span(what[1], what[2], who, is_write)
        if conflict is not None:
            name = f"{ticket.who}'s {_ENGINES[ticket.engine]}"
            self._shared_conflict(
                state, owner, conflict, (name, ticket.line, is_write), ticket.clock
            )

    def engine_cells(self, cta: Cta, box: tuple[int, int, int, int], is_write: bool) -> None:
        """An engine touches tensor memory."""
        ticket = self._ticket
        if ticket is None:
            return
        state = self._state(cta)
        row = TENSOR if self._strict_fences else KNOWN
        who = ticket.accessor(state.actors, row, fenced=False)
        conflict = state.ctas[cta.rank].tmem.box(*box, who, is_write)
        if conflict is not None:
            name = f"{ticket.who}'s tensor core work"
            self._tensor_conflict(state, cta, conflict, (name, ticket.line, is_write), ticket.clock)

    def engine_signal(self, cta: Cta, offset: int, byte_count: int) -> None:
        """An engine arrives on an mbarrier or completes bytes of its transaction count."""
        ticket = self._ticket
        if ticket is None:
            return
        state = self._state(cta)
        key = ("mbarrier", cta.rank, offset)
        barrier = state.barriers.mbarrier(key)
        if barrier is None:
            return
        own = (ticket.own,)
        clock = ticket.clock = state.actors.fit(ticket.clock)
        name = f"{ticket.who}'s {_ENGINES[ticket.engine]}"
        self._check_init(state, barrier, key, clock, own, name, ticket.line, remote=True)
        if ticket.actor:
            barrier.arriving = state.actors.join(barrier.arriving, ticket.released(state.actors))
            return
        ticket.actor, ticket.step = barrier.actor, barrier.phase + 1
        state.chronicle.note(ticket.actor, ticket.step, ticket.line, ticket.who)
        pending, ticket.pending = ticket.pending, []
        for goal, what, is_write in pending:
            self.engine_access(goal, what, is_write)
        ticket.actor = 0

    def group_closed(self, s: Strand, lanes: list[int], kind: str) -> None:
        """A commit of bulk or cp.async groups."""
        state = self._state(s.cta)
        for lane in lanes:
            actor = self._group_actor(state, s, lane, kind)
            closed = state.groups.setdefault((actor, lane, kind), [])
            closed.append(state.steps.get(actor, 0))

    def group_waited(
        self, s: Strand, lanes: list[int], kind: str, newest: int, read_only: bool
    ) -> None:
        """A wait for groups: the lanes know that the older ones are over."""
        state, warp = self._state(s.cta), self._warp(s)
        for lane in lanes:
            actor = self._group_actor(state, s, lane, kind)
            closed = state.groups.get((actor, lane, kind), [])
            if newest < 0:
                step = state.steps.get(actor, 0)
            else:
                step = closed[-1 - newest] if len(closed) > newest else 0
            if step:
                warp.learn(1 << lane, (KNOWN,), actor, step)

    @staticmethod
    def _stream(state: _ClusterState, s: Strand, lane: int, kind: str, engine: str) -> int:
        """The actor of work of a channel; 0 for copies, whose mbarrier is known when they end."""
        rank, warp = s.cta.rank, s.warp.index
        if kind == "tensor":
            return state.actors.engine(("tensor", rank, warp, lane))
        if kind == "copy":
            return state.actors.engine(("copy", rank, warp))
        if kind == "wgmma":
            return state.actors.engine(("wgmma", rank, warp // 4))
        return state.actors.engine(("bulk-read", rank, warp, lane)) if engine == "store" else 0

    @staticmethod
    def _group_actor(state: _ClusterState, s: Strand, lane: int, kind: str) -> int:
        if kind == "bulk":
            return state.actors.engine(("bulk-read", s.cta.rank, s.warp.index, lane))
        if kind == "copy":
            return state.actors.engine(("copy", s.cta.rank, s.warp.index))
        return state.actors.engine(("wgmma", s.cta.rank, s.warp.index // 4))


_ENGINES = {"load": "copy", "store": "bulk store", "tensor": "tensor core work"}
