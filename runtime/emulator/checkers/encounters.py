"""Strong accesses and memory fences of threads, and accesses to global memory that other clusters share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..inspector import StrongKind
from ..machine.memory import GlobalMemory, SharedMemory
from ..order import Order
from ..ptx.kinds import WARP_LANES
from ..state import Cta, Strand
from .clocks import KNOWN, NOBODY, Clock, Group, WarpClocks
from .meetings import NOTHING, Bundle, seen_by_engines
from .report import current_line, global_place, shared_place
from .shadow import Conflict
from .spaces import Actor, ByteSpace, Stored
from .state import CheckBase, ClusterState
from .strong import Strong

ALL = np.arange(WARP_LANES)
Steps = npt.NDArray[np.int32]
User = tuple[str, Any, bool]  # who, line, whether it writes


class EncounterChecks(CheckBase):
    """Follows strong accesses, and who of other clusters accessed what is accessed now."""

    def spaces_of(
        self, memory: Any, addresses: Any, width: int, state: ClusterState
    ) -> list[tuple[ByteSpace, Any]]:
        """The shadows of what lanes access, each with the positions in `addresses` (None: all)."""
        if isinstance(memory, SharedMemory):
            owner = self.owner_of(memory, state)
            return [(state.ctas[owner.rank].shared, None)]
        if isinstance(memory, GlobalMemory) and self.globals is not None:
            return self.globals.lanes(addresses, width, state)
        return []

    @staticmethod
    def owner_of(memory: SharedMemory, state: ClusterState) -> Cta:
        """The CTA whose shared memory it is."""
        return next(known.cta for known in state.ctas if known.cta.shared is memory)

    def report_access(
        self,
        state: ClusterState,
        space: ByteSpace,
        owner: Cta | None,
        conflict: Conflict,
        user: User,
        known: Clock,
    ) -> None:
        """A finding about shared memory, or about global memory, which has no owner.

        Args:
          state: of the cluster that the earlier access is of. known: of its steps.
        """
        is_global = owner is None
        place = global_place(space, conflict) if is_global else shared_place(owner, space, conflict)
        self.reporter.conflict(state.chronicle, conflict, place, user, known)

    # ---- strong accesses

    def meeting(
        self,
        s: Strand,
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        kind: StrongKind,
        order: Order,
    ) -> None:
        """Strong accesses (atomic, volatile, relaxed, acquire, release) of lanes."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        line = current_line()
        tick = warp.step(line)
        owner = self.owner_of(memory, state) if isinstance(memory, SharedMemory) else None
        if owner is None and not isinstance(memory, GlobalMemory):
            return  # a thread's own
        place = (state.number, s.cta.rank)
        strong = Strong(place, order.scope)
        where = ("global",) if owner is None else (state.number, owner.rank)
        chosen = ALL if lanes is None else np.asarray(lanes)
        for space, index in self.spaces_of(memory, addresses, width, state):
            for group, mine in warp.groups_of(chosen, index):
                at, who = (addresses, chosen) if mine is None else (addresses[mine], chosen[mine])
                access = (at, width, strong, kind)
                self._meet(state, space, owner, group, access, (warp, who, line, tick))
        for lane, address in zip(chosen.tolist(), addresses.tolist(), strict=True):
            key = (*where, address)
            heads = {} if kind == "store" else self.meetings.read(key, place, order)
            actor = warp.base + lane
            for bundle in self.meetings.see(key, state.outside, place, actor, heads, order):
                self.learn(state, warp, lane, bundle)
            if kind != "load":
                keeps = heads if kind == "update" else {}
                self.meetings.write(key, state.outside, place, warp, lane, order, keeps=keeps)

    def _meet(
        self,
        state: ClusterState,
        space: ByteSpace,
        owner: Cta | None,
        group: Group,
        access: tuple[Any, int, Strong, StrongKind],
        lanes_of: tuple[WarpClocks, Any, Any, int],
    ) -> None:
        """Are strong accesses of lanes of a group races?

        Args:
          access: addresses, width, place and scope, kind. lanes_of: the warp of the lanes, their numbers, line and tick.
        """
        addresses, width, strong, kind = access
        warp, here, line, tick = lanes_of
        is_write = kind != "load"

        def user_of(space: ByteSpace, conflict: Conflict) -> User:
            lane = int(here[conflict.position // max(1, width // space.granule)])
            return f"{warp.where} lane {lane}", line, is_write

        group.clock = clock = state.actors.fit(group.clock)
        actors = (warp.base + here).astype(np.int32)[:, None]
        who = Actor(actors, tick, clock[KNOWN], clock[KNOWN])
        conflict = space.meet(addresses, width, who, strong, kind)
        if conflict is not None:
            self.report_access(state, space, owner, conflict, user_of(space, conflict), clock)
        if owner is not None or self.globals is None:
            return
        scope = strong.scope
        others = self.globals.others(space, addresses, width, state, is_write=is_write, scope=scope)
        bundle = state.outside.known(clock) if others else NOTHING
        for other, theirs in others:
            known = _known(theirs, bundle)
            conflict = other.meet(addresses, width, _stranger(known[KNOWN]), strong, kind)
            if conflict is not None:
                self.report_access(theirs, other, None, conflict, user_of(other, conflict), known)

    def learn(self, state: ClusterState, warp: WarpClocks, lane: int, bundle: Bundle) -> None:
        """A lane acquired something."""
        own = bundle.get(state.number)
        if own is not None:
            warp.acquire(own, 1 << lane, tensor=not self.strict_fences)
        state.outside.learn(warp, lane, bundle)

    def memory_fence(self, s: Strand, mask: int, order: Order) -> None:
        """fence and membar: strong reads before it acquire, strong writes after it release."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        place = (state.number, s.cta.rank)
        for lane, bundle in self.meetings.fence(state.outside, place, warp, mask, order):
            self.learn(state, warp, lane, bundle)
        self.meetings.mark(state.outside, warp, mask, order)

    # ---- other clusters

    def look_at_others(
        self,
        space: ByteSpace,
        addresses: Any,
        width: int,
        state: ClusterState,
        clock: Clock,
        user_of: Callable[[int], User],
        *,
        is_write: bool,
        stored: Stored | None = None,
    ) -> None:
        """Do weak accesses of lanes to global memory race with those of other clusters?

        Args:
          user_of: who it is at a position of `addresses`.
        """
        if self.globals is None or not self.globals.crosses:
            return
        others = self.globals.others(space, addresses, width, state, is_write=is_write)
        bundle = state.outside.known(clock) if others else NOTHING
        for other, theirs in others:
            known = _known(theirs, bundle)
            conflict = other.lanes(addresses, width, _stranger(known[KNOWN]), is_write, stored)
            if conflict is not None:
                user = user_of(conflict.position // max(1, width // other.granule))
                self.report_access(theirs, other, None, conflict, user, known)

    def box_access(
        self,
        box: tuple[int, Any, Any],
        state: ClusterState,
        who: Actor,
        clock: Clock,
        user: User,
    ) -> None:
        """An engine accesses a strided box of global memory; its last dimension is contiguous bytes.

        Args:
          box: address, shape, strides. who, clock: what it knows, and of whom.
        """
        if self.globals is None:
            return
        address, shape, strides = box
        starts = np.array([address])
        for count, stride in zip(shape[:-1], strides[:-1], strict=True):
            starts = np.add.outer(starts, np.arange(int(count)) * int(stride)).reshape(-1)
        is_write = user[2]
        for space, rows, width in self.globals.rows(starts, int(shape[-1]), state):
            conflict = space.rows(rows, width, who, is_write)
            if conflict is not None:
                self.report_access(state, space, None, conflict, user, clock)
            others = self.globals.others(space, rows, width, state, is_write=is_write)
            bundle = state.outside.known(clock) if others else NOTHING
            for other, theirs in others:
                known = _known(theirs, bundle)
                stranger = _stranger(seen_by_engines(known, theirs.actors))
                stranger = replace(stranger, adds=who.adds, strong=who.strong)
                conflict = other.rows(rows, width, stranger, is_write)
                if conflict is not None:
                    self.report_access(theirs, other, None, conflict, user, known)


def _known(theirs: ClusterState, bundle: Bundle) -> Clock:
    """What a bundle knows of a cluster, by its actors of now."""
    known = bundle.get(theirs.number)
    return theirs.actors.zeros(2) if known is None else theirs.actors.fit(known)


def _stranger(steps: Steps) -> Actor:
    """One of another cluster, who looks at what this one did."""
    return Actor(NOBODY, 0, steps, steps, is_recorded=False)
