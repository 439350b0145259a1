"""The state of the checkers for a running cluster, and what all of them use."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.order import Scope, order_of_access
from ..core.state import ALL_LANES, Cluster, Cta, Launch, WarpContext
from ..machine.faults import Fault
from ..machine.memory import ByteRange, GlobalMemory
from ..native import Machine, machine
from ..ptx.kinds import WARP_LANES
from .barriers import Barriers
from .clocks import EARLIER, FIRST_THREAD, KNOWN, NEVER, Actors, Clock, WarpClocks
from .constants import ConstantReads
from .other_clusters import OtherClusters
from .releases import ReleaseTable
from .report import Reporter, StepLog
from .spaces import UNIT_BYTES, ByteSpace, TensorSpace
from .tensorwork import TensorWork

MBARRIER_BYTES = 8
_PAGE_BITS = 16
# bytes of a page of global memory; no aligned access of a lane crosses its end
PAGE_BYTES = 1 << _PAGE_BITS
CACHED_MOMENTS = 256  # most instructions in which equal copies of several lanes are recognised
# finished clusters that are kept, as their stores to global memory may still be in progress
FINISHED_CLUSTERS = 4


@dataclass(slots=True)
class RemoteUse:
    """The last use of a CTA's shared memory by a thread of another CTA.

    Attributes:
      step: the thread's step.
      arrivals: how often the thread had arrived on the cluster's barrier.
      phase: of an arrival on an mbarrier, the number of phases that are complete with it; else 0.
    """

    step: int
    arrivals: int
    phase: int
    action: str
    place: str
    address: int
    byte_count: int


class CtaState:
    """A CTA's clocks and shadows.

    Attributes:
      live: for each 8 bytes of shared memory, whether they are an mbarrier; none is outside of
        `live_reach`, in bytes.
      start: the actor whose first step is that the CTA begins.
      remote_uses: uses by threads of other CTAs, by thread and, for arrivals, actor of the mbarrier
        (else 0).
    """

    def __init__(self, cta: Cta, warps: list[WarpClocks], start: int, native: Machine | None):
        self.cta = cta
        self.start = start
        self.warps = warps
        data = cta.shared.data
        self.shared = ByteSpace(data.size, machine=native, data=data)
        self.tmem = TensorSpace()
        self.live = np.zeros(-(-cta.shared.data.size // MBARRIER_BYTES), np.bool_)
        self.live_reach: tuple[int, int] = (0, 0)
        self.remote_uses: dict[tuple[int, int], RemoteUse] = {}


class ClusterState:
    """A cluster's actors, barriers and CTAs.

    Attributes:
      tensor: its actors that access tensor memory.
      number: number of clusters of the launch that began before it.
      steps: number of pieces of work so far, by engine actor.
      groups: last step of each closed group, by (actor, lane, kind).
      parts: clocks of warps that issued their part of unfinished wgmma, oldest first, by channel
        and warp.
      products: number of wgmma of which a warp has issued its part, by (actor, warp).
      pairs: (actor, step) of a CTA pair's allocation, until the second CTA has received it.
      other_clusters: knowledge of its threads about other clusters.
      committed: by the actor of a stream of work, the phases of mbarriers (by their actors) that
        its commits completed; a later commit of the same thread implies them.
    """

    def __init__(self, cluster: Cluster, number: int, native: Machine | None):
        self.cluster = cluster
        self.number = number
        per_cta = len(cluster.ctas[0].warps) * WARP_LANES
        self.actors = Actors(per_cta * len(cluster.ctas))
        self.step_log = StepLog(cluster.launch.program, self.actors, per_cta)
        self.barriers = Barriers(self.actors)
        self.tensor = TensorWork(self.actors)
        self.steps: dict[int, int] = {}
        self.groups: dict[Hashable, list[int]] = {}
        self.parts: dict[Hashable, tuple[list[Clock], ...]] = {}
        self.other_clusters = OtherClusters(number, self.actors)
        self.products: dict[tuple[int, int], int] = {}
        self.pairs: dict[Hashable, tuple[int, int]] = {}
        self.committed: dict[int, dict[int, int]] = {}
        self._recent: dict[tuple[int, ...], set[Hashable]] = {}
        self.ctas: list[CtaState] = []
        for cta in cluster.ctas:
            warps = [
                WarpClocks(
                    self.actors,
                    FIRST_THREAD + cta.rank * per_cta + warp.index * WARP_LANES,
                    f"{cta.where()} warp {warp.index}",
                )
                for warp in cta.warps
            ]
            start = self.actors.engine(("start", cta.rank))
            for warp in warps:  # its own threads know that a CTA has begun
                warp.learn(ALL_LANES, ((KNOWN, start),), 1)
            self.step_log.warps.append(warps)
            self.ctas.append(CtaState(cta, warps, start, native))

    def is_repeated(self, moment: tuple[int, ...], work: Hashable) -> bool:
        """Whether another lane of the same instruction has already done the same work."""
        done = self._recent.setdefault(moment, set())
        if len(self._recent) > CACHED_MOMENTS:
            del self._recent[next(iter(self._recent))]
        if work in done:
            return True
        done.add(work)
        return False

    def next_step(self, actor: int) -> int:
        """The number of an engine's next piece of work."""
        self.steps[actor] = self.steps.get(actor, 0) + 1
        return self.steps[actor]


class GlobalSpaces:
    """The shadows of mapped arrays that a kernel may write, by page, made on first access.

    Args:
      orders_clusters: whether strong accesses to global memory may order accesses of different
        clusters. Each cluster then has its own shadows, and is compared with those of others
        (`of_other_clusters`); otherwise accesses of different clusters are never ordered.
    """

    def __init__(self, memory: GlobalMemory, orders_clusters: bool, native: Machine | None):
        self._native = native
        self.memory = memory
        self.orders_clusters = orders_clusters
        self._spaces: dict[tuple[int, int], tuple[ByteSpace, ClusterState]] = {}
        self._users: dict[int, PageUsers] = {}
        self._writeable: dict[int, bool | None] = {}

    def lanes(self, addresses: Any, width: int, state: ClusterState) -> list[tuple[ByteSpace, Any]]:
        """The shadows that lanes access, each with the positions in `addresses` (None: all).

        Addresses outside of mappings are left to the machine, which refuses them; read-only memory
        needs no shadow.
        """
        page = int(addresses[0]) // PAGE_BYTES
        if np.count_nonzero(addresses >> _PAGE_BITS == page) == addresses.size:
            may_write = self._may_write(page)
            if may_write is not None:
                space = self._page(page * PAGE_BYTES, state) if may_write else None
                return [] if space is None else [(space, None)]
        may_write = self.is_writeable(addresses, width)
        if may_write is False:
            return []
        if may_write:
            used = np.ones(addresses.size, np.bool_)
        else:
            used = np.array([self._is_writeable(int(at), width) for at in addresses], np.bool_)
        pages = addresses.astype(np.int64) // PAGE_BYTES
        result: list[tuple[ByteSpace, Any]] = []
        for page in np.unique(pages[used]).tolist():
            space = self._page(page * PAGE_BYTES, state)
            if space is not None:
                result.append((space, np.flatnonzero(used & (pages == page))))
        return result

    def rows(
        self, starts: Any, width: int, state: ClusterState
    ) -> list[tuple[ByteSpace, Any, int]]:
        """The shadows of rows of bytes, each with the starts of its rows and their width."""
        if not self._is_writeable(int(starts[0]), 1):
            return []
        result: list[tuple[ByteSpace, Any, int]] = []
        left: list[tuple[Any, int]] = [(starts, width)]
        while left:
            rows, count = left.pop()
            room = PAGE_BYTES - rows % PAGE_BYTES
            # rows that continue on the next page
            for size in np.unique(room[room < count]).tolist():
                cut = rows[room == size]
                left += [(cut, size), (cut + size, count - size)]
            whole = rows[room >= count]
            pages = whole // PAGE_BYTES
            for page in np.unique(pages).tolist():
                space = self._page(page * PAGE_BYTES, state)
                if space is not None:
                    result.append((space, whole[pages == page], count))
        return result

    def is_writeable(self, addresses: Any, width: int) -> bool | None:
        """Whether the mapping with the bytes of all lanes is writeable; None if there is none."""
        first = int(addresses.min())
        mapping = self._mapping(first, int(addresses.max()) - first + width)
        return None if mapping is None else bool(mapping.data.flags.writeable)

    def _may_write(self, page: int) -> bool | None:
        """Whether the mappings on a page may be written; None if some may and some not."""
        if page not in self._writeable:
            first, end = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
            ranges = self.memory.ranges
            flags = {r.data.flags.writeable for r in ranges if r.base < end and first < r.end}
            self._writeable[page] = flags.pop() if len(flags) == 1 else None
        return self._writeable[page]

    def _mapping(self, address: int, byte_count: int) -> ByteRange | None:
        try:
            return self.memory.find(address, byte_count)
        except Fault:
            return None

    def _is_writeable(self, address: int, byte_count: int) -> bool:
        mapping = self._mapping(address, byte_count)
        return mapping is not None and bool(mapping.data.flags.writeable)

    def _page(self, address: int, state: ClusterState) -> ByteSpace | None:
        page = address // PAGE_BYTES
        key = (page, state.number if self.orders_clusters else 0)
        cached = self._spaces.get(key)
        if cached is None:
            cached = (ByteSpace(PAGE_BYTES, page * PAGE_BYTES, self._native), state)
            if self.orders_clusters:
                self._users.setdefault(page, PageUsers()).spaces[state.number] = cached
        elif cached[1] is state:
            return cached[0]
        elif cached[1].number > state.number:
            return None  # a late store of a finished cluster
        else:
            cached = (cached[0], state)
            cached[0].shadow.replace_all(EARLIER, NEVER)
        self._spaces[key] = cached
        return cached[0]

    def of_other_clusters(
        self,
        space: ByteSpace,
        addresses: Any,
        width: int,
        state: ClusterState,
        *,
        is_write: bool,
        scope: Scope | None = None,
    ) -> list[tuple[ByteSpace, ClusterState]]:
        """The shadows of other clusters with which an access may conflict; also notes the access.

        Args:
          scope: scope of a strong access; None for a weak one.
        """
        users = self._users.get(space.base // PAGE_BYTES) if self.orders_clusters else None
        if users is None:
            return []
        return users.note(addresses - space.base, width, state.number, is_write, scope)


class PageUsers:
    """Which clusters accessed each 16-byte unit of a page.

    Attributes:
      spaces: shadow and state of each cluster by number.
    """

    def __init__(self) -> None:
        self.spaces: dict[int, tuple[ByteSpace, ClusterState]] = {}
        # by (strong, write): for each unit the cluster's number + 1, or -1 for several clusters
        self._cluster_of = np.zeros((2, 2, PAGE_BYTES // UNIT_BYTES), np.int32)
        self._has_narrow_scope = False

    def note(
        self, offsets: Any, width: int, number: int, is_write: bool, scope: Scope | None
    ) -> list[tuple[ByteSpace, ClusterState]]:
        """Other clusters with possibly conflicting accesses of `width` bytes at the offsets."""
        units = offsets.astype(np.int64) // UNIT_BYTES
        if width > UNIT_BYTES:
            units = np.add.outer(units, np.arange(-(-width // UNIT_BYTES))).ravel()
        if not units.size or int(units.min()) < 0 or int(units.max()) >= self._cluster_of.shape[-1]:
            return []  # the machine refuses it
        is_strong = scope is not None
        self._has_narrow_scope |= is_strong and scope < Scope.GPU
        own = number + 1
        present = self._cluster_of[:, :, units]
        foreign = (present != own) & (present != 0)
        mine = present[int(is_strong), int(is_write)]
        if np.count_nonzero(mine == own) < mine.size:
            self._cluster_of[int(is_strong), int(is_write), units] = np.where(
                (mine == 0) | (mine == own), own, -1
            )
        if not np.count_nonzero(foreign):
            return []
        if is_strong and not self._has_narrow_scope:
            foreign[1] = False  # strong accesses that reach each other are no races
        if not is_write:
            foreign[:, 0] = False
        numbers = set(present[foreign].tolist())
        if -1 in numbers:
            return [user for cluster, user in self.spaces.items() if cluster != number]
        return [self.spaces[other - 1] for other in sorted(numbers)]


class CheckBase:
    """State and lookups that all checkers share.

    Args:
      checks: names of `findings.CHECKS`.
    """

    def __init__(self, reporter: Reporter):
        self.reporter = reporter
        self.strict_reads = True
        self.states: dict[int, ClusterState] = {}
        self._started = 0
        self._native: Machine | None = None
        self.globals: GlobalSpaces | None = None
        self.constants: ConstantReads | None = None
        self.release_table = ReleaseTable()

    def launched(self, launch: Launch) -> None:
        """Finds whether the kernel orders clusters, and its read-only loads."""
        code = launch.program.kernel.instructions
        self.strict_reads = launch.strict_reads
        self._native = machine() if launch.program.native else None
        orders_clusters = any(
            order_of_access(i.parts) is not None
            for i in code
            if i.parts[0] in ("atom", "red", "ld", "st")
            and not i.has("shared", "shared::cta", "shared::cluster", "async")
        )
        self.globals = GlobalSpaces(launch.memory, orders_clusters, self._native)
        constants = ConstantReads(launch.program)
        self.constants = constants if constants.lines else None

    def started(self, cluster: Cluster) -> None:
        """Makes the state of a new cluster."""
        self.states[id(cluster)] = ClusterState(cluster, self._started, self._native)
        self._started += 1
        for key in list(self.states)[:-FINISHED_CLUSTERS]:
            if not self.states[key].cluster.live_ctas:
                del self.states[key]

    def state_of(self, cta: Cta) -> ClusterState:
        """The state of a CTA's cluster."""
        return self.states[id(cta.cluster)]

    def warp_of(self, s: WarpContext) -> WarpClocks:
        """The clocks of a context's warp."""
        return self.state_of(s.cta).ctas[s.cta.rank].warps[s.warp.index]
