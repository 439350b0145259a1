"""How strong accesses and fences pass knowledge between threads (PTX ISA, memory consistency
model).

A *release* (a releasing write, or a fence and then a strong write) attaches its thread's knowledge
to the location that it writes; following atomics there add to it, other writes replace it. A thread
that reads the location with an *acquire* (an acquiring read, or a strong read and then a fence)
learns it, if each of the two threads is in the scope of the other. A relaxed access passes nothing
by itself; a fence passes all that its thread had learned (it is cumulative).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.order import CtaId, Order, Scope
from .clocks import Clock, WarpClocks, lanes_in
from .other_clusters import Bundle, OtherClusters, united

Head = tuple[CtaId, Scope]  # number of the first operation of a release
Thread = tuple[CtaId, int]  # CTA and actor of a release


@dataclass(frozen=True, slots=True)
class Heads:
    """The releases that a write is part of.

    Attributes:
      bundles: the knowledge of each of them.
      total: their joined knowledge if each has the widest scope; enough for an acquire of that
        scope.
      root: the same for all `Heads` that atomics make by adding to these.
      thread: the thread that made all of them, which learns nothing from them; None for several.
    """

    bundles: dict[Head, Bundle]
    total: Bundle | None
    root: object
    thread: Thread | None = None

    @staticmethod
    def of(bundles: dict[Head, Bundle]) -> "Heads":
        """The `Heads` of these releases."""
        is_wide = all(scope >= Scope.GPU for _, scope in bundles)
        return Heads(bundles, united(bundles.values()) if is_wide and bundles else None, object())

    def usable(self, cta_id: CtaId, scope: Scope) -> tuple[list[Bundle], bool]:
        """The bundles that a thread acquires with a scope, and whether these are all."""
        if self.total is not None and scope >= Scope.GPU:
            return [self.total], True
        bundles = [
            bundle
            for (other, reach), bundle in self.bundles.items()
            if reach.includes(other, cta_id) and scope.includes(cta_id, other)
        ]
        return bundles, len(bundles) == len(self.bundles)

    def replaces(self, earlier: "Heads") -> bool:
        """Whether these include all of earlier ones: same thread, scopes at least as wide."""
        same_thread = self.thread is not None and self.thread == earlier.thread
        return same_thread and earlier.bundles.keys() <= self.bundles.keys()

    def then(self, other: "Heads", *, is_acquired: bool) -> "Heads":
        """The releases after an atomic that read these and made others.

        Args:
          is_acquired: whether the atomic's thread has learned all that these pass on.
        """
        bundles = self.bundles.copy()
        for head, bundle in other.bundles.items():
            before = None if is_acquired else bundles.get(head)
            bundles[head] = bundle if before is None else united([before, bundle])
        if self.total is None or other.total is None:
            return Heads(bundles, None, self.root)
        total = other.total if is_acquired else united([self.total, other.total])
        return Heads(bundles, total, self.root)


NONE = Heads({}, None, None)
MOST_OBSERVED = 8  # releases of one location that are kept apart for a later fence


@dataclass(slots=True)
class Location:
    """A location in memory with strong accesses, after its first release.

    Attributes:
      writer, scope: thread and scope of the last strong write.
      heads: the releases that this write is part of.
      released: by thread, its last release here, of which also its later writes are part.
    """

    writer: CtaId
    scope: Scope
    heads: Heads = NONE
    released: dict[Thread, Heads] = field(default_factory=dict[Thread, Heads])


@dataclass(slots=True)
class Mark:
    """The clock of a group of lanes at a fence.

    Attributes:
      clock: rows KNOWN and PROXY.
      tick, fenced, copied: of their warp, for the own steps of each lane; `copied` has both rows.
    """

    clock: Clock
    tick: int
    fenced: npt.NDArray[np.int32]
    copied: npt.NDArray[np.int32] | None


@dataclass(slots=True)
class Lane:
    """Fences and strong reads of a thread whose effect is still to come.

    Attributes:
      marks: its last releasing fence by scope.
      heads: the releases that these give its strong writes, made on first use.
      observed: the releases that its strong reads observed, by location, for later fences.
    """

    marks: dict[Scope, Mark] = field(default_factory=dict[Scope, Mark])
    heads: Heads | None = None
    observed: dict[Any, list[Heads]] = field(default_factory=dict[Any, list[Heads]])


class ReleaseTable:
    """The strong accesses of a launch, in execution order."""

    def __init__(self) -> None:
        self._locations: dict[Any, dict[int, Location]] = {}
        self._lanes: dict[tuple[int, int], Lane] = {}

    def locations(self, where: Any) -> dict[int, Location]:
        """The locations of a memory, by address."""
        return self._locations.setdefault(where, {})

    def _lane(self, cluster: int, actor: int) -> Lane:
        return self._lanes.setdefault((cluster, actor), Lane())

    # ---- what a thread gives

    def fenced_by(
        self, other_clusters: OtherClusters, cta_id: CtaId, warp: WarpClocks, lane: int
    ) -> Heads:
        """The releases of a strong write that fences before it cause."""
        known = self._lanes.get((other_clusters.number, warp.base + lane))
        if known is None or not known.marks:
            return NONE
        if known.heads is None:
            known.heads = Heads.of(
                {
                    (cta_id, scope): self._marked(other_clusters, warp, lane, mark)
                    for scope, mark in known.marks.items()
                }
            )
        return known.heads

    @staticmethod
    def _marked(other_clusters: OtherClusters, warp: WarpClocks, lane: int, mark: Mark) -> Bundle:
        copied = None if mark.copied is None else mark.copied[:, lane]
        known = (mark.clock, lane, mark.tick, int(mark.fenced[lane]), copied)
        return Bundle.of_lane(other_clusters, warp, known)

    # ---- accesses

    def write(
        self,
        locations: dict[int, Location],
        address: int,
        other_clusters: OtherClusters,
        cta_id: CtaId,
        warp: WarpClocks,
        lane: int,
        order: Order,
        *,
        read_heads: Heads | None,
        is_acquired: bool,
    ) -> None:
        """A strong write of a lane.

        Args:
          read_heads: for an atomic, the releases that it read; else None.
          is_acquired: whether it has learned all that they pass on.
        """
        thread = (cta_id, warp.base + lane)
        location = locations.get(address)
        if order.releases:
            bundle = Bundle.of_lane(other_clusters, warp, warp.lane_clock(lane))
            is_wide = order.scope >= Scope.GPU
            total = bundle if is_wide else None
            heads = Heads({(cta_id, order.scope): bundle}, total, object(), thread)
        else:
            heads = self.fenced_by(other_clusters, cta_id, warp, lane)
            before = None if location is None else location.released.get(thread)
            if before is not None:
                heads = before.then(heads, is_acquired=False) if heads.bundles else before
        if location is None:
            if not heads.bundles:
                return
            location = locations[address] = Location(cta_id, order.scope)
        if order.releases:
            location.released[thread] = heads
        if read_heads is not None and read_heads.bundles and not heads.replaces(read_heads):
            heads = read_heads.then(heads, is_acquired=is_acquired) if heads.bundles else read_heads
        location.writer, location.scope, location.heads = cta_id, order.scope, heads

    @staticmethod
    def read(location: Location | None, cta_id: CtaId, order: Order) -> Heads:
        """The releases that a strong read of a thread at `cta_id` observes."""
        if location is None or not (
            order.scope.includes(cta_id, location.writer)
            and location.scope.includes(location.writer, cta_id)
        ):
            return NONE
        return location.heads

    def observe(
        self, key: Any, cluster: int, cta_id: CtaId, actor: int, heads: Heads, order: Order
    ) -> tuple[list[Bundle], bool]:
        """A thread observes releases: acquires those returned, the others by its next fence."""
        if not heads.bundles or heads.thread == (cta_id, actor):
            return [], True
        if order.acquires:
            return heads.usable(cta_id, order.scope)
        observed = self._lane(cluster, actor).observed.setdefault(key, [])
        if observed and observed[-1].root is heads.root:
            observed[-1] = heads
            return [], False
        observed.append(heads)
        if len(observed) > MOST_OBSERVED:
            bundles: dict[Head, Bundle] = {}
            for one in observed:
                for head, bundle in one.bundles.items():
                    before = bundles.get(head)
                    bundles[head] = bundle if before is None else united([before, bundle])
            observed[:] = [Heads.of(bundles)]
        return [], False

    # ---- fences

    def fence(
        self,
        other_clusters: OtherClusters,
        cta_id: CtaId,
        warp: WarpClocks,
        mask: int,
        order: Order,
    ) -> list[tuple[int, Bundle]]:
        """A fence of lanes: yields each lane with what it acquires."""
        learnt: list[tuple[int, Bundle]] = []
        if order.acquires:
            for lane in lanes_in(mask).tolist():
                known = self._lanes.get((other_clusters.number, warp.base + lane))
                if known is not None and known.observed:
                    bundles = self._acquired(known, cta_id, order.scope)
                    learnt += [(lane, bundle) for bundle in bundles]
        return learnt

    @staticmethod
    def _acquired(lane: Lane, cta_id: CtaId, scope: Scope) -> list[Bundle]:
        """The bundles that a fence acquires of observed releases; others stay for later fences."""
        acquired: list[Bundle] = []
        for key, observed in list(lane.observed.items()):
            left: list[Heads] = []
            for heads in observed:
                bundles, is_all = heads.usable(cta_id, scope)
                acquired += bundles
                if not is_all:
                    left.append(heads)
            lane.observed[key] = left
            if not left:
                del lane.observed[key]
        return acquired

    def mark(
        self, other_clusters: OtherClusters, warp: WarpClocks, mask: int, order: Order
    ) -> None:
        """A releasing fence of lanes: their next strong writes release what they know now."""
        if not order.releases:
            return
        warp.marked |= mask
        copied = None if warp.copies is None else warp.copies.steps.copy()
        for group, common in warp.groups_in(mask):
            mark = Mark(group.saved_clock(), warp.tick, warp.fenced.copy(), copied)
            for lane in lanes_in(common).tolist():
                known = self._lane(other_clusters.number, warp.base + lane)
                known.marks[order.scope] = mark
                known.heads = None
