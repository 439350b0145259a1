"""What strong accesses and fences carry from thread to thread (PTX ISA, memory consistency model).

A *release* (a releasing write, or a fence and then a strong write) leaves with the place that it writes what its thread
knew; atomics that follow there add to it, other writes replace it. Who reads the place with an *acquire* (an acquiring
read, or a strong read and then a fence) learns it, if each of the two is in the scope of the other. A relaxed access
carries nothing by itself, and a fence carries all that its thread had learnt (it is cumulative).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..order import Order, Place, Scope
from .clocks import Clock, WarpClocks, lanes_in
from .outside import Bundle, Outside, united

Head = tuple[Place, Scope]  # of the first operation of a release
Thread = tuple[Place, int]  # its CTA and its actor


@dataclass(frozen=True, slots=True)
class Heads:
    """Releases that a write is part of.

    Attributes:
      bundles: what each of them hands on.
      total: what they do together, if each reaches everybody; a thread that acquires everywhere needs nothing else.
      root: is the same in those that atomics made of these, adding to them.
      thread: the one that made all of them, which has nothing to learn from them; None for several.
    """

    bundles: dict[Head, Bundle]
    total: Bundle | None
    root: object
    thread: Thread | None = None

    @staticmethod
    def of(bundles: dict[Head, Bundle]) -> "Heads":
        """These releases."""
        is_wide = all(scope >= Scope.GPU for _, scope in bundles)
        return Heads(bundles, united(bundles.values()) if is_wide and bundles else None, object())

    def usable(self, place: Place, scope: Scope) -> tuple[list[Bundle], bool]:
        """What a thread at a place acquires of them, reaching as far as `scope`; and whether that is all of it."""
        if self.total is not None and scope >= Scope.GPU:
            return [self.total], True
        found = [
            bundle
            for (other, reach), bundle in self.bundles.items()
            if reach.includes(other, place) and scope.includes(place, other)
        ]
        return found, len(found) == len(self.bundles)

    def replaces(self, earlier: "Heads") -> bool:
        """Whether these hand on all that earlier ones do: releases of one thread that reach as far."""
        is_own = self.thread is not None and self.thread == earlier.thread
        return is_own and earlier.bundles.keys() <= self.bundles.keys()

    def then(self, other: "Heads", *, is_acquired: bool) -> "Heads":
        """With those of an atomic that read these.

        Args:
          is_acquired: the atomic knows of all that these hand on.
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
MOST_SEEN = 8  # writes of one place that are kept apart for a fence to come


@dataclass(slots=True)
class Location:
    """A place in memory that strong accesses meet at, once a release was there.

    Attributes:
      writer, scope: of the last strong write. heads: the releases that it is part of.
      released: the last release at this place by thread, which also the thread's later writes are part of.
    """

    writer: Place
    scope: Scope
    heads: Heads = NONE
    released: dict[Thread, Heads] = field(default_factory=dict[Thread, Heads])


@dataclass(slots=True)
class Mark:
    """What the lanes of a group knew at a fence.

    Attributes:
      clock: rows KNOWN and PROXY. tick, fenced, copied: of their warp, for what each lane did itself, `copied` in such rows.
    """

    clock: Clock
    tick: int
    fenced: npt.NDArray[np.int32]
    copied: npt.NDArray[np.int32] | None


@dataclass(slots=True)
class Lane:
    """What strong accesses of a thread wait for.

    Attributes:
      marks: its last releasing fence by scope. heads: what they give its strong writes, once asked for.
      seen: what its strong reads saw, for fences to come, by place.
    """

    marks: dict[Scope, Mark] = field(default_factory=dict[Scope, Mark])
    heads: Heads | None = None
    seen: dict[Any, list[Heads]] = field(default_factory=dict[Any, list[Heads]])


class Meetings:
    """The strong accesses of a launch, in execution order."""

    def __init__(self) -> None:
        self._places: dict[Any, dict[int, Location]] = {}
        self._lanes: dict[tuple[int, int], Lane] = {}

    def locations(self, where: Any) -> dict[int, Location]:
        """The places of a memory, by address."""
        return self._places.setdefault(where, {})

    def _lane(self, cluster: int, actor: int) -> Lane:
        return self._lanes.setdefault((cluster, actor), Lane())

    # ---- what a thread gives

    def fenced_by(self, outside: Outside, place: Place, warp: WarpClocks, lane: int) -> Heads:
        """What a strong write of a lane carries because of the fences before it."""
        known = self._lanes.get((outside.number, warp.base + lane))
        if known is None or not known.marks:
            return NONE
        if known.heads is None:
            known.heads = Heads.of(
                {
                    (place, scope): self._marked(outside, warp, lane, mark)
                    for scope, mark in known.marks.items()
                }
            )
        return known.heads

    @staticmethod
    def _marked(outside: Outside, warp: WarpClocks, lane: int, mark: Mark) -> Bundle:
        copied = None if mark.copied is None else mark.copied[:, lane]
        known = (mark.clock, lane, mark.tick, int(mark.fenced[lane]), copied)
        return Bundle.of_lane(outside, warp, known)

    # ---- accesses

    def write(
        self,
        locations: dict[int, Location],
        address: int,
        outside: Outside,
        place: Place,
        warp: WarpClocks,
        lane: int,
        order: Order,
        *,
        keeps: Heads | None,
        is_acquired: bool,
    ) -> None:
        """A strong write of a lane.

        Args:
          keeps: of an atomic: the releases that it read. is_acquired: it knows of what they hand on.
        """
        thread = (place, warp.base + lane)
        location = locations.get(address)
        if order.releases:
            bundle = Bundle.of_lane(outside, warp, warp.known_by(lane))
            is_wide = order.scope >= Scope.GPU
            total = bundle if is_wide else None
            heads = Heads({(place, order.scope): bundle}, total, object(), thread)
        else:
            heads = self.fenced_by(outside, place, warp, lane)
            before = None if location is None else location.released.get(thread)
            if before is not None:
                heads = before.then(heads, is_acquired=False) if heads.bundles else before
        if location is None:
            if not heads.bundles:
                return
            location = locations[address] = Location(place, order.scope)
        if order.releases:
            location.released[thread] = heads
        if keeps is not None and keeps.bundles and not heads.replaces(keeps):
            heads = keeps.then(heads, is_acquired=is_acquired) if heads.bundles else keeps
        location.writer, location.scope, location.heads = place, order.scope, heads

    @staticmethod
    def read(location: Location | None, place: Place, order: Order) -> Heads:
        """The releases that a strong read of a thread at `place` observes."""
        if location is None or not (
            order.scope.includes(place, location.writer)
            and location.scope.includes(location.writer, place)
        ):
            return NONE
        return location.heads

    def see(
        self, key: Any, cluster: int, place: Place, actor: int, heads: Heads, order: Order
    ) -> tuple[list[Bundle], bool]:
        """A thread saw releases: what it acquires at once, and whether that is all. Without that, its next fence does."""
        if not heads.bundles or heads.thread == (place, actor):
            return [], True
        if order.acquires:
            return heads.usable(place, order.scope)
        seen = self._lane(cluster, actor).seen.setdefault(key, [])
        if seen and seen[-1].root is heads.root:
            seen[-1] = heads
            return [], False
        seen.append(heads)
        if len(seen) > MOST_SEEN:
            bundles: dict[Head, Bundle] = {}
            for one in seen:
                for head, bundle in one.bundles.items():
                    before = bundles.get(head)
                    bundles[head] = bundle if before is None else united([before, bundle])
            seen[:] = [Heads.of(bundles)]
        return [], False

    # ---- fences

    def fence(
        self, outside: Outside, place: Place, warp: WarpClocks, mask: int, order: Order
    ) -> list[tuple[int, Bundle]]:
        """A fence of lanes: (lane, what it acquires)."""
        learnt: list[tuple[int, Bundle]] = []
        if order.acquires:
            for lane in lanes_in(mask).tolist():
                known = self._lanes.get((outside.number, warp.base + lane))
                if known is not None and known.seen:
                    bundles = self._acquired(known, place, order.scope)
                    learnt += [(lane, bundle) for bundle in bundles]
        return learnt

    @staticmethod
    def _acquired(lane: Lane, place: Place, scope: Scope) -> list[Bundle]:
        """What a fence acquires of what a lane saw; what it does not reach stays for another one."""
        acquired: list[Bundle] = []
        for key, seen in list(lane.seen.items()):
            left: list[Heads] = []
            for heads in seen:
                bundles, is_all = heads.usable(place, scope)
                acquired += bundles
                if not is_all:
                    left.append(heads)
            lane.seen[key] = left
            if not left:
                del lane.seen[key]
        return acquired

    def mark(self, outside: Outside, warp: WarpClocks, mask: int, order: Order) -> None:
        """A releasing fence of lanes: what they know now goes with their next strong writes."""
        if not order.releases:
            return
        warp.marked |= mask
        copied = None if warp.copies is None else warp.copies.steps.copy()
        for group, common in warp.touching(mask):
            mark = Mark(group.as_now(), warp.tick, warp.fenced.copy(), copied)
            for lane in lanes_in(common).tolist():
                known = self._lane(outside.number, warp.base + lane)
                known.marks[order.scope] = mark
                known.heads = None
