"""Checks that mbarriers, and the shared memory of other CTAs, exist while they are used.

A CTA may use the shared memory of another when it knows that this has begun, and may not end before
others have finished using its own. One of its threads has to know of each such use, or has to have
waited at the cluster's barrier for a phase in which the other thread arrived after the use. An
arrival on an mbarrier is complete with the phase that counts it, whatever its scope.
"""

from typing import Any

import numpy as np

from ..core.observer import StrongKind
from ..core.order import Order
from ..core.state import Cta, WarpContext
from ..machine.memory import SharedMemory
from .barriers import MBarrier
from .clocks import KNOWN, WarpClocks, lanes_in
from .findings import Finding
from .report import current_line
from .state import MBARRIER_BYTES, ClusterState, CtaState, RemoteUse
from .strong_accesses import ALL, StrongAccessChecks


class LifetimeChecks(StrongAccessChecks):
    """Follows where mbarriers are, and uses of other CTAs' shared memory."""

    # ---- mbarriers

    def is_barrier(self, cta: Cta, offset: int) -> bool:
        """Whether an mbarrier lives at an offset."""
        return bool(self.state_of(cta).ctas[cta.rank].live[offset // MBARRIER_BYTES])

    def set_barrier(self, cta: Cta, offset: int, *, lives: bool) -> None:
        """Marks bytes as an mbarrier, or as plain memory again."""
        owned = self.state_of(cta).ctas[cta.rank]
        owned.live[offset // MBARRIER_BYTES] = lives
        if lives:
            low, high = owned.live_reach
            end = offset + MBARRIER_BYTES
            owned.live_reach = (min(low, offset), max(high, end)) if high else (offset, end)

    def report_barrier_use(
        self, owned: CtaState, words: Any, who: str, action: str, line: Any
    ) -> None:
        """Reports mbarriers among 8-byte words of shared memory that an ordinary access uses."""
        live = owned.live[words]
        if not np.count_nonzero(live):
            return
        offset = int(np.broadcast_to(words, live.shape)[live][0]) * MBARRIER_BYTES
        message = (
            "these bytes are a live mbarrier, which only mbarrier operations may use: "
            "mbarrier.inval is missing before, or the address is wrong"
        )
        place = f"mbarrier 0x{offset:x} of CTA rank {owned.cta.rank}"
        state = self.state_of(owned.cta)
        key = ("mbarrier", owned.cta.rank, offset)
        barrier = state.barriers.mbarrier(key)
        init = None
        if barrier is not None:
            init = state.step_log.access(barrier.init_actor, barrier.init_tick, True)
        current = state.step_log.describe(who, action, line)
        self.reporter.add(
            Finding("mbarrier", message, place, offset, MBARRIER_BYTES, current, init)
        )

    def strong_access(
        self,
        s: WarpContext,
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        kind: StrongKind,
        order: Order,
    ) -> None:
        """Strong accesses of lanes."""
        super().strong_access(s, lanes, memory, addresses, width, kind, order)
        if isinstance(memory, SharedMemory):
            owner = self.owner_of(memory, self.state_of(s.cta))
            action = "reads" if kind == "load" else "writes"
            chosen = ALL if lanes is None else lanes
            tick = self.warp_of(s).tick
            self.watch_owner(s, chosen, owner, addresses, width, tick, action, current_line())

    # ---- other CTAs

    def watch_owner(
        self,
        s: WarpContext,
        lanes: Any,
        owner: Cta,
        addresses: Any,
        width: int,
        tick: int,
        action: str,
        line: Any,
    ) -> None:
        """Lanes access shared memory: checks mbarriers there, and notes use of another CTA's."""
        owned = self.state_of(s.cta).ctas[owner.rank]
        low, high = owned.live_reach
        first = max(low - width + 1, 0)
        number = addresses.dtype.type
        # Unsigned addresses below `first` come out as large.
        if np.count_nonzero(addresses - number(first) < number(high - first)):
            self._report_barrier_lanes(s, owned, addresses, width, action, line)
        if owner is not s.cta:
            self.note_remote_use(s, lanes, owned, int(addresses.min()), width, tick, action, line)

    def _report_barrier_lanes(
        self, s: WarpContext, owned: CtaState, addresses: Any, width: int, action: str, line: Any
    ) -> None:
        """Reports mbarriers that lanes use by ordinary accesses."""
        words = np.minimum(addresses // addresses.dtype.type(MBARRIER_BYTES), owned.live.size - 1)
        self.report_barrier_use(owned, words, self.warp_of(s).where, action, line)
        if width > MBARRIER_BYTES:
            words = np.minimum(words + 1, owned.live.size - 1)
            self.report_barrier_use(owned, words, self.warp_of(s).where, action, line)

    def note_remote_use(
        self,
        s: WarpContext,
        lanes: Any,
        owned: CtaState,
        address: int,
        byte_count: int,
        tick: int,
        action: str,
        line: Any,
        arrival: MBarrier | None = None,
    ) -> None:
        """Notes that lanes use the shared memory of another CTA of the cluster.

        Args:
          arrival: the mbarrier that they arrive on, if that is the use.
        """
        warp, owner = self.warp_of(s), owned.cta
        place = f"shared memory of {owner.where()}, 0x{address:x}..0x{address + byte_count:x}"
        if not owner.live_warps:
            current = self.state_of(s.cta).step_log.describe(warp.where, action, line)
            message = f"{owner.where()} has ended, and its shared memory with it: {_REMEDY}"
            self.reporter.add(Finding("exit", message, place, address, byte_count, current))
            return
        too_early = [
            lane
            for lane in np.asarray(lanes).tolist()
            if not self.state_of(s.cta).actors.fit(warp.of_lane(lane).clock)[KNOWN, owned.start]
        ]
        if too_early:
            who = f"{warp.where} lane {too_early[0]}"
            current = self.state_of(s.cta).step_log.describe(who, action, line)
            message = (
                f"{owner.where()} may not have begun: a CTA may use the shared memory of another "
                "when it knows that this runs, by barrier.cluster.arrive of all its threads and "
                "barrier.cluster.wait here"
            )
            self.reporter.add(Finding("start", message, place, address, byte_count, current))
        for lane in np.asarray(lanes).tolist():
            arrivals = int(warp.cluster_arrivals[lane])
            actor, phase = (0, 0) if arrival is None else (arrival.actor, arrival.phase + 1)
            use = RemoteUse(tick, arrivals, phase, action, place, address, byte_count)
            owned.remote_uses[warp.base + lane, actor] = use

    def check_remote_uses(self, state: ClusterState, owned: CtaState) -> None:
        """A CTA ends: checks that it knows of all uses of its shared memory by others."""
        if not owned.remote_uses:
            return
        groups = [group for warp in owned.warps for group in warp.groups]
        known = np.max([state.actors.fit(group.clock)[KNOWN] for group in groups], axis=0)
        waited = max(int(warp.cluster_waits.max()) for warp in owned.warps)
        for (thread, actor), use in owned.remote_uses.items():
            if known[thread] >= use.step or waited > use.arrivals:
                continue
            if use.phase and known[actor] >= use.phase:
                continue
            access = state.step_log.access(thread, use.step, use.action == "writes")
            current = state.step_log.describe(access.who, use.action, access.line)
            message = f"nothing makes {owned.cta.where()} stay until this is done: {_REMEDY}"
            at = (use.place, use.address, use.byte_count)
            self.reporter.add(Finding("exit", message, *at, current))

    def cluster_arriving(self, s: WarpContext, warp: WarpClocks, mask: int) -> None:
        """Lanes execute barrier.cluster.arrive."""
        lanes = lanes_in(mask)
        if (warp.cluster_arrivals[lanes] > warp.cluster_waits[lanes]).any():
            current = self.state_of(s.cta).step_log.describe(s.where(), "arrives", current_line())
            message = (
                "barrier.cluster.arrive of a thread that has not waited for the phase that it "
                "arrived in before: barrier.cluster.wait is missing before it"
            )
            self.reporter.add(Finding("barrier", message, "the cluster's barrier", 0, 1, current))
        warp.cluster_arrivals[lanes] += 1

    def cluster_passed(self, s: WarpContext, warp: WarpClocks, mask: int) -> None:
        """Lanes are through barrier.cluster.wait."""
        lanes = lanes_in(mask)
        warp.cluster_waits[lanes] += 1
        if (warp.cluster_waits[lanes] > warp.cluster_arrivals[lanes]).any():
            current = self.state_of(s.cta).step_log.describe(s.where(), "waits", current_line())
            message = (
                "barrier.cluster.wait of a thread that has not arrived in this phase: "
                "barrier.cluster.arrive is missing before it"
            )
            self.reporter.add(Finding("barrier", message, "the cluster's barrier", 0, 1, current))
            warp.cluster_waits[lanes] = np.minimum(
                warp.cluster_waits[lanes], warp.cluster_arrivals[lanes]
            )


_REMEDY = (
    "barrier.cluster.arrive after the last use and barrier.cluster.wait before the end are missing"
)
