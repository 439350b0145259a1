"""Checks of strong accesses and memory fences, and of global memory that clusters share."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.observer import StrongKind
from ..core.order import CtaId, Order
from ..core.state import Cta, WarpContext
from ..machine.memory import GlobalMemory, SharedMemory
from ..ptx.kinds import WARP_LANES
from .clocks import KNOWN, NOBODY, Clock, WarpClocks
from .findings import User
from .other_clusters import NOTHING, Bundle, ClusterClocks
from .report import current_line, global_place, shared_place
from .shadow import Conflict
from .spaces import Accessor, ByteSpace, Stored
from .state import CheckBase, ClusterState
from .strong import Strong

ALL = np.arange(WARP_LANES)
Steps = npt.NDArray[np.int32]


class StrongAccessChecks(CheckBase):
    """Follows strong accesses, and compares accesses with those of other clusters."""

    def spaces_of(
        self, memory: Any, addresses: Any, width: int, state: ClusterState
    ) -> list[tuple[ByteSpace, Any]]:
        """The shadows that lanes access, each with the positions in `addresses` (None: all)."""
        if isinstance(memory, SharedMemory):
            owner = self.owner_of(memory, state)
            return [(state.ctas[owner.rank].shared, None)]
        if isinstance(memory, GlobalMemory) and self.globals is not None:
            return self.globals.lanes(addresses, width, state)
        return []

    @staticmethod
    def owner_of(memory: SharedMemory, state: ClusterState) -> Cta:
        """The CTA that has this shared memory."""
        ctas = state.ctas
        if len(ctas) == 1:
            return ctas[0].cta
        return next(known.cta for known in ctas if known.cta.shared is memory)

    def report_access(
        self,
        state: ClusterState,
        space: ByteSpace,
        owner: Cta | None,
        conflict: Conflict,
        user: User,
        known: Clock,
    ) -> None:
        """Reports a conflict in shared memory, or in global memory, which has no owner.

        Args:
          state: the cluster of the earlier access.
          known: the accessor's clock for that cluster.
        """
        is_global = owner is None
        place = global_place(space, conflict) if is_global else shared_place(owner, space, conflict)
        self.reporter.conflict(state.step_log, conflict, place, user, known)

    def note_constants(self, state: ClusterState, starts: Any, width: int, user: User) -> None:
        """Checks an access to global memory, in kernels that load through the read-only path.

        Memory that the kernel may not write, such as operands, is not tracked.
        """
        if self.constants is None:
            return
        if not user[2] and self.globals is not None and starts.size:
            if self.globals.is_writeable(starts, width) is False:
                return
        finding = self.constants.note(state.step_log, starts, width, user)
        if finding is not None:
            self.reporter.add(finding)

    # ---- strong accesses

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
        """Strong accesses (atomic, volatile, relaxed, acquire, release) of lanes."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        line = current_line()
        tick = warp.step(line)
        owner = self.owner_of(memory, state) if isinstance(memory, SharedMemory) else None
        if owner is None and not isinstance(memory, GlobalMemory):
            return  # local memory
        if owner is None:
            self.note_constants(state, addresses, width, (warp.where, line, kind != "load"))
        cta_id = (state.number, s.cta.rank)
        strong = Strong(cta_id, order.scope)
        where = ("global",) if owner is None else (state.number, owner.rank)
        chosen = ALL if lanes is None else np.asarray(lanes)
        for space, index in self.spaces_of(memory, addresses, width, state):
            at, here = (addresses, chosen) if index is None else (addresses[index], chosen[index])
            access = (at, width, strong, kind)
            self._check_strong(state, space, owner, access, (warp, here, line, tick))
        self._carry(state, warp, where, chosen, addresses, cta_id, kind, order)

    def _carry(
        self,
        state: ClusterState,
        warp: WarpClocks,
        where: tuple[Any, ...],
        lanes: Any,
        addresses: Any,
        cta_id: CtaId,
        kind: StrongKind,
        order: Order,
    ) -> None:
        """Passes knowledge by strong accesses of lanes, lane after lane."""
        releases, other_clusters = self.release_table, state.other_clusters
        locations = releases.locations(where)
        marked = 0 if kind == "load" else warp.marked
        for lane, address in zip(lanes.tolist(), addresses.tolist(), strict=True):
            location = locations.get(address)
            if location is None and not order.releases and not marked >> lane & 1:
                continue  # nothing to release, and nothing to acquire
            heads, is_acquired = None, False
            if kind != "store":
                heads = releases.read(location, cta_id, order)
                key, actor = (where, address), warp.base + lane
                observed = releases.observe(key, state.number, cta_id, actor, heads, order)
                learnt, is_acquired = observed
                for bundle in learnt:
                    self.learn(state, warp, lane, bundle)
            if kind != "load":
                read_heads = heads if kind == "update" else None
                releases.write(
                    locations,
                    address,
                    other_clusters,
                    cta_id,
                    warp,
                    lane,
                    order,
                    read_heads=read_heads,
                    is_acquired=is_acquired,
                )

    def _check_strong(
        self,
        state: ClusterState,
        space: ByteSpace,
        owner: Cta | None,
        access: tuple[Any, int, Strong, StrongKind],
        lanes_of: tuple[WarpClocks, Any, Any, int],
    ) -> None:
        """Reports strong accesses of lanes that are races.

        Args:
          access: addresses, width, CTA and scope, kind.
          lanes_of: the warp of the lanes, their numbers, line and tick.
        """
        addresses, width, strong, kind = access
        warp, here, line, tick = lanes_of
        is_write = kind != "load"

        known = warp.known_steps(here)
        accessor = Accessor(warp.actors_of(here), tick, known, known, alias=warp.alias_of(here))
        conflict = space.strong_lanes(addresses, width, accessor, strong, kind)
        if conflict is not None:
            lane = int(here[conflict.position // max(1, width // space.granule)])
            user = (f"{warp.where} lane {lane}", line, is_write)
            self.report_access(state, space, owner, conflict, user, warp.of_lane(lane).clock)
        if owner is not None or self.globals is None:
            return
        scope = strong.scope
        others = self.globals.of_other_clusters(
            space, addresses, width, state, is_write=is_write, scope=scope
        )
        for other, their_state in others:
            foreign = self._accessor_in(state, their_state, warp, here)
            conflict = other.strong_lanes(addresses, width, foreign, strong, kind)
            if conflict is not None:
                lane = int(here[conflict.position // max(1, width // other.granule)])
                self._report_other_cluster(
                    their_state, other, conflict, state, warp, lane, (line, is_write)
                )

    def _report_other_cluster(
        self,
        their_state: ClusterState,
        space: ByteSpace,
        conflict: Conflict,
        state: ClusterState,
        warp: WarpClocks,
        lane: int,
        access: tuple[int, bool],
    ) -> None:
        """Reports a lane's access, its line and whether it writes, which races between clusters."""
        user = (f"{warp.where} lane {lane}", *access)
        known = state.other_clusters.known(warp.of_lane(lane).clock)
        self.report_access(
            their_state, space, None, conflict, user, _knowledge_of(their_state, known)
        )

    @staticmethod
    def _accessor_in(
        state: ClusterState, their_state: ClusterState, warp: WarpClocks, here: Any
    ) -> Accessor:
        """Lanes as an accessor of another cluster's memory."""

        other_clusters = state.other_clusters
        steps = warp.of_each(
            here, lambda group: _knowledge_of(their_state, other_clusters.known(group.clock))[KNOWN]
        )
        return _foreign_accessor(steps)

    def learn(self, state: ClusterState, warp: WarpClocks, lane: int, bundle: Bundle) -> None:
        """A lane acquires a bundle."""
        own = bundle.of(state.number)
        if own is not None:
            warp.acquire_alone(own, lane)
        state.other_clusters.learn(warp, lane, bundle)

    def memory_fence(self, s: WarpContext, mask: int, order: Order) -> None:
        """fence and membar: strong reads before it acquire, strong writes after it release."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        cta_id = (state.number, s.cta.rank)
        for lane, bundle in self.release_table.fence(
            state.other_clusters, cta_id, warp, mask, order
        ):
            self.learn(state, warp, lane, bundle)
        self.release_table.mark(state.other_clusters, warp, mask, order)

    # ---- other clusters

    def check_other_clusters(
        self,
        space: ByteSpace,
        addresses: Any,
        width: int,
        state: ClusterState,
        lanes_of: tuple[WarpClocks, Any, Any, bool],
        stored: Stored | None,
    ) -> None:
        """Reports weak accesses of lanes to global memory that race with those of other clusters.

        Args:
          lanes_of: their warp, numbers, line and whether they write.
        """
        assert self.globals is not None
        warp, here, line, is_write = lanes_of
        for other, their_state in self.globals.of_other_clusters(
            space, addresses, width, state, is_write=is_write
        ):
            foreign = self._accessor_in(state, their_state, warp, here)
            conflict = other.lanes(addresses, width, foreign, is_write, stored)
            if conflict is not None:
                lane = int(here[conflict.position // max(1, width // other.granule)])
                self._report_other_cluster(
                    their_state, other, conflict, state, warp, lane, (line, is_write)
                )

    def box_access(
        self,
        box: tuple[int, Any, Any],
        state: ClusterState,
        accessor: Accessor,
        clock: Clock,
        user: User,
    ) -> None:
        """An engine accesses a strided box of global memory; its last dimension is contiguous
        bytes.

        Args:
          box: address, shape, strides.
          accessor, clock: the accessor, and its clock.
        """
        if self.globals is None:
            return
        address, shape, strides = box
        starts = np.array([address])
        for count, stride in zip(shape[:-1], strides[:-1], strict=True):
            starts = np.add.outer(starts, np.arange(int(count)) * int(stride)).reshape(-1)
        is_write = user[2]
        self.note_constants(state, starts, int(shape[-1]), user)
        for space, rows, width in self.globals.rows(starts, int(shape[-1]), state):
            conflict = space.rows(rows, width, accessor, is_write)
            if conflict is not None:
                self.report_access(state, space, None, conflict, user, clock)
            others = self.globals.of_other_clusters(space, rows, width, state, is_write=is_write)
            bundle = state.other_clusters.known(clock) if others else NOTHING
            for other, their_state in others:
                known = _knowledge_of(their_state, bundle)
                foreign = _foreign_accessor(their_state.actors.visible(known))
                foreign = replace(foreign, adds=accessor.adds, strong=accessor.strong)
                conflict = other.rows(rows, width, foreign, is_write)
                if conflict is not None:
                    self.report_access(their_state, other, None, conflict, user, known)


def _knowledge_of(their_state: ClusterState, parts: ClusterClocks) -> Clock:
    """The part of knowledge that is about a cluster, extended to its present actors."""
    known = parts.get(their_state.number)
    return their_state.actors.zeros(2) if known is None else their_state.actors.fit(known)


def _foreign_accessor(steps: Steps) -> Accessor:
    """An accessor from another cluster."""
    return Accessor(NOBODY, 0, steps, steps, is_recorded=False)
