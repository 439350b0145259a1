"""Checks of what threads do: loads and stores, fences, barriers."""

from functools import partial
from typing import Any

import numpy as np

from ..core.observer import SyncKey
from ..core.order import CtaId, Order, Scope, order_of_fence
from ..core.state import ALL_LANES, Cta, WarpContext
from ..machine.memory import GlobalMemory, SharedMemory
from .barriers import Barrier, MBarrier
from .clocks import KNOWN, PROXY, TENSOR, Clock, WarpClocks, lanes_in
from .findings import Finding
from .lifetimes import LifetimeChecks
from .other_clusters import NOTHING, Bundle
from .releases import Heads
from .report import current_line
from .spaces import Accessor, ByteSpace, Stored
from .state import MBARRIER_BYTES, ClusterState
from .strong_accesses import ALL


def _present(memory: SharedMemory | GlobalMemory, addresses: Any, width: int) -> Any:
    """uint8[lanes, width]: the bytes in memory, written or not."""
    if isinstance(memory, GlobalMemory):
        return memory.load(addresses, width)
    return memory.data[addresses.astype(np.int64)[:, None] + np.arange(width)]


class ThreadChecks(LifetimeChecks):
    """Follows what each thread does, and its clock."""

    # ---- memory

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
        """Loads and stores of lanes."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        line = current_line()
        tick = warp.step(line)
        chosen = ALL if lanes is None else np.asarray(lanes)
        owner: Cta | None = None
        if isinstance(memory, SharedMemory):
            owner = self.owner_of(memory, state)
            action = "writes" if is_write else "reads"
            self.watch_owner(s, chosen, owner, addresses, width, tick, action, line)
        elif isinstance(memory, GlobalMemory):
            self.note_constants(state, addresses, width, (warp.where, line, is_write))
        for space, index in self.spaces_of(memory, addresses, width, state):
            data = (values, element_bytes) if is_write else ()
            if index is None and self._records(warp, chosen, space, owner, addresses, width, data):
                continue
            for mine in (
                self._looks(warp, chosen, addresses, index, values) if is_write else [index]
            ):
                here, at, bytes_of = chosen, addresses, values
                if mine is not None:
                    here, at = chosen[mine], addresses[mine]
                    bytes_of = None if values is None else values[mine]
                stored = None
                if bytes_of is not None:
                    stored = Stored(element_bytes, bytes_of, partial(_present, memory, at, width))
                lanes_of = (warp, here, line, is_write)
                self._access_of(state, space, owner, at, width, tick, lanes_of, stored)

    def _records(
        self,
        warp: WarpClocks,
        lanes: Any,
        space: ByteSpace,
        owner: Cta | None,
        addresses: Any,
        width: int,
        stored: tuple[Any, ...],
    ) -> bool:
        """Records a usual access natively; False, without effect, if it is another.

        Args:
          stored: bytes of a write (None if nothing is known of them) and element size.
        """
        if stored and stored[0] is None:
            return False
        if owner is None and self.globals is not None and self.globals.orders_clusters:
            return False
        known = warp.known_steps(lanes)
        return space.records(addresses, width, lanes, warp.base, warp.tick, known, stored)

    @staticmethod
    def _looks(warp: WarpClocks, lanes: Any, addresses: Any, index: Any, values: Any) -> list[Any]:
        """Positions of lanes whose writes can be checked together (None: all).

        Lanes that store other bytes to a place than the first of them are separated, since that is
        a race; if nothing is known of the bytes, so are those with different clocks that may write
        the same place.
        """
        at = addresses if index is None else addresses[index]
        if len(set(at.tolist())) == at.size:
            return [index]
        if values is None:
            return [mine for _, mine in warp.groups_of(lanes, index)]
        _, first, places = np.unique(at, return_index=True, return_inverse=True)
        stored = values if index is None else values[index]
        differs = (stored != stored[first][places]).any(axis=1)
        if not np.count_nonzero(differs):
            return [index]
        first_ones, others = np.flatnonzero(~differs), np.flatnonzero(differs)
        return [first_ones, others] if index is None else [index[first_ones], index[others]]

    def _access_of(
        self,
        state: ClusterState,
        space: ByteSpace,
        owner: Cta | None,
        at: Any,
        width: int,
        tick: int,
        lanes_of: tuple[WarpClocks, Any, Any, bool],
        stored: Stored | None,
    ) -> None:
        """Lanes access the memory of one shadow.

        Args:
          at, stored: addresses, and data of a weak store, by lane.
          lanes_of: their warp, numbers, line and whether they write.
        """
        warp, here, line, is_write = lanes_of
        known = warp.known_steps(here)
        accessor = Accessor(warp.actors_of(here), tick, known, known, alias=warp.alias_of(here))
        conflict = space.lanes(at, width, accessor, is_write, stored)

        if owner is None and self.globals is not None and self.globals.orders_clusters:
            self.check_other_clusters(space, at, width, state, lanes_of, stored)
        if conflict is not None:
            lane = int(here[conflict.position // max(1, width // space.granule)])
            user = (f"{warp.where} lane {lane}", line, is_write)
            self.report_access(state, space, owner, conflict, user, warp.of_lane(lane).clock)

    def fence(self, s: WarpContext, mask: int, opcode: str) -> None:
        """Fences of memory, of the proxies, of mbarrier inits and of tensor memory."""
        warp = self.warp_of(s)
        order = order_of_fence(opcode)
        if order is not None:
            self.memory_fence(s, mask, order)
        words = opcode.split(".")
        if "proxy" in words and ("async" in words or "async::generic" in words):
            warp.fence_proxy(mask)
            self.state_of(s.cta).barriers.fence_inits(warp, lanes_in(mask))
        elif "mbarrier_init" in words:
            self.state_of(s.cta).barriers.fence_inits(warp, lanes_in(mask))
        elif opcode.endswith("before_thread_sync"):
            warp.order(mask, TENSOR, KNOWN)
        elif opcode.endswith("after_thread_sync"):
            warp.order(mask, KNOWN, TENSOR)

    def warp_synced(self, s: WarpContext, mask: int) -> None:
        """bar.warp.sync."""
        self.warp_of(s).synchronise(mask)

    # ---- barriers

    def initialised(self, s: WarpContext, lane: int, cta: Cta, offset: int) -> None:
        """mbarrier.init."""
        key = ("mbarrier", cta.rank, offset)
        if not self.is_barrier(cta, offset):  # otherwise it repeats the same init
            self.access(s, np.array([lane]), cta.shared, np.array([offset]), MBARRIER_BYTES, True)
            self.set_barrier(cta, offset, lives=True)
        barriers = self.state_of(s.cta).barriers
        barriers.initialise(key, self.warp_of(s), lane, current_line())

    def invalidated(self, s: WarpContext, lane: int, cta: Cta, offset: int) -> None:
        """mbarrier.inval."""
        self.set_barrier(cta, offset, lives=False)
        self.access(s, np.array([lane]), cta.shared, np.array([offset]), MBARRIER_BYTES, True)

    def arriving(self, s: WarpContext, mask: int, key: SyncKey, order: Order | None = None) -> None:
        """Arrivals of lanes on any barrier."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        barrier: Barrier
        rank = s.cta.rank
        if key[0] == "mbarrier":
            mbarrier = state.barriers.mbarrier(key)
            if mbarrier is None:
                return
            rank = int(key[1])
            self._check_user(s, warp, mbarrier, key, mask)
            if rank != s.cta.rank:
                line = current_line()
                tick = warp.step(line)
                owned = state.ctas[rank]
                self.note_remote_use(
                    s, lanes_in(mask), owned, key[2], 8, tick, "arrives", line, mbarrier
                )
            barrier = mbarrier
        else:
            barrier = state.barriers.named(key)
            if key[0] == "cluster" and len(state.ctas) > 1:
                rank = -1  # for all lanes
            if key[0] == "cluster":
                self.cluster_arriving(s, warp, mask)
        own, goal = (state.number, s.cta.rank), (state.number, rank)
        if order is None or (order.releases and order.scope.includes(own, goal)):
            barrier.arriving = warp.release(barrier.arriving, mask)
        elif order.scope.includes(own, goal):
            for lane in lanes_in(mask).tolist():
                self._arrive_relaxed(state, warp, lane, barrier, own, goal)

    def _arrive_relaxed(
        self,
        state: ClusterState,
        warp: WarpClocks,
        lane: int,
        barrier: Barrier,
        own: CtaId,
        goal: CtaId,
    ) -> None:
        """A relaxed arrival passes on fenced releases and inits, and that its CTA has begun."""
        heads = self.release_table.fenced_by(state.other_clusters, own, warp, lane)
        for (_, scope), bundle in heads.bundles.items():
            if scope.includes(own, goal):
                barrier.arriving = state.actors.join(barrier.arriving, bundle.clock)
        passed_on = [(state.ctas[own[1]].start, 1)]
        if (fenced := state.barriers.fenced_inits(warp.base + lane)) is not None:
            passed_on.append(fenced)
        barrier.arriving = state.actors.fit(barrier.arriving)
        for actor, step in passed_on:
            barrier.arriving[KNOWN, actor] = max(barrier.arriving[KNOWN, actor], step)

    def expecting_tx(self, s: WarpContext, mask: int, key: SyncKey) -> None:
        """mbarrier.expect_tx and complete_tx: reports threads that do not know of the init."""
        barrier = self.state_of(s.cta).barriers.mbarrier(key)
        if barrier is not None:
            self._check_user(s, self.warp_of(s), barrier, key, mask)

    def waiting(self, s: WarpContext, mask: int, key: SyncKey, parity: int) -> None:
        """A test of an mbarrier's parity: reports one that may mean another phase."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        barrier = state.barriers.mbarrier(key)
        if barrier is None:
            return
        self._check_user(s, warp, barrier, key, mask)
        for group, _ in warp.groups_in(mask):
            known = int(state.actors.fit(group.clock)[KNOWN, barrier.actor])
            phase = barrier.intended(known, parity)
            if barrier.phase >= phase + 2:
                message = (
                    f"the thread waits for phase {phase} by its parity, but {barrier.phase} phases "
                    "are complete: the barrier does not wait for this thread"
                )
                self.report_mbarrier(state, key, message, s.where(), "waits", current_line())

    def passed(self, s: WarpContext, mask: int, key: SyncKey, order: Order | None = None) -> None:
        """Lanes continue after a barrier: they learn what its completed phases pass on."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        if key[0] == "cluster":
            self.cluster_passed(s, warp, mask)
        if key[0] == "mbarrier":
            barrier = state.barriers.mbarrier(key)
            if barrier is None:
                return
        else:
            barrier = state.barriers.named(key)
        if order is not None and not order.acquires:
            cta_id = (state.number, s.cta.rank)
            head = ((state.number, key[1]), Scope.SYS)
            bundle = Bundle(state.number, barrier.done.copy(), NOTHING, is_plain=True)
            heads = Heads.of({head: bundle})
            for lane in lanes_in(mask).tolist():
                self.release_table.observe(
                    key, state.number, cta_id, warp.base + lane, heads, order
                )
            return
        warp.acquire(barrier.done, mask)
        if len(warp.groups) > 1 and key[0] == "bar" and mask == ALL_LANES:
            warp.synchronise(mask)

    def completed(self, cta: Cta, key: SyncKey) -> None:
        """A phase of a barrier is complete; the CTA may be finished, if an engine completes it."""
        state = self.states.get(id(cta.cluster))
        if state is None:
            return
        barrier = state.barriers.table.get(key)
        if barrier is None:
            return
        if isinstance(barrier, MBarrier):
            barrier.arriving = state.actors.fit(barrier.arriving)
            barrier.arriving[KNOWN, barrier.actor] = barrier.phase + 1
            if self.current_actor():
                phases = state.committed.setdefault(self.current_actor(), {})
                phases[barrier.actor] = barrier.phase + 1
        barrier.complete(state.actors)

    def current_actor(self) -> int:
        """The actor of the work in progress; 0 without any."""
        return 0

    def _check_user(
        self, s: WarpContext, warp: WarpClocks, barrier: MBarrier, key: SyncKey, mask: int
    ) -> None:
        """Reports a thread that uses an mbarrier and does not know of its init.

        Threads use it through the generic proxy, as its init does: a release and an acquire order
        the two, in other CTAs as well. A relaxed arrival passes on fenced inits alone.
        """
        for group, common in warp.groups_in(mask):
            group.clock = self.state_of(s.cta).actors.fit(group.clock)
            if not barrier.is_known(group.clock):
                own = (lanes_in(common) + warp.base).tolist()
                user = (s.where(), current_line())
                state = self.state_of(s.cta)
                self.check_init(state, barrier, key, group.clock, own, user, needs_fence=False)

    def check_init(
        self,
        state: ClusterState,
        barrier: MBarrier,
        key: SyncKey,
        known: Clock,
        own: list[int],
        user: tuple[str, Any],
        *,
        needs_fence: bool,
    ) -> None:
        """Reports a user of an mbarrier that does not know of its init.

        fence.mbarrier_init has to be executed by the thread of the init. fence.proxy.async may be
        anywhere between the init and the use (PTX ISA, proxy-preserved base causality order);
        Triton puts it before the copy. The thread of the init knows of it, the other lanes of its
        warp do not.

        Args:
          known, own: the user's clock and actors.
          user: the user in words, and its line.
          needs_fence: whether the user is an engine, which uses it through the async proxy.
        """
        if not barrier.is_known(known) and any(actor != barrier.init_actor for actor in own):
            message = (
                "the mbarrier is used before its init is known here: a barrier is missing (one "
                "with a relaxed arrival takes fence.mbarrier_init before it)"
            )
        elif needs_fence and not (
            barrier.is_fenced or known[PROXY, barrier.init_actor] >= barrier.init_tick
        ):
            message = (
                "the init is not visible to engines: fence.mbarrier_init (or "
                "fence.proxy.async) is missing between it and the use"
            )
        else:
            return
        self.report_mbarrier(state, key, message, user[0], "uses it", user[1], barrier)

    def report_mbarrier(
        self,
        state: ClusterState,
        key: SyncKey,
        message: str,
        who: str,
        action: str,
        line: Any,
        barrier: MBarrier | None = None,
    ) -> None:
        """Reports a finding about an mbarrier, with its init if `barrier` is given."""
        step_log = state.step_log
        init = None
        if barrier is not None:
            init = step_log.access(barrier.init_actor, barrier.init_tick, True)
        place = f"mbarrier 0x{key[2]:x} of CTA rank {key[1]}"
        current = step_log.describe(who, action, line)
        self.reporter.add(Finding("mbarrier", message, place, key[2], 8, current, init))
