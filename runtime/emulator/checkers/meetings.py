"""What strong accesses and fences carry from thread to thread (PTX ISA, memory consistency model).

A *release* (a releasing write, or a fence and then a strong write) leaves with the place that it writes what its thread
knew; atomics that follow there add to it, other writes replace it. Who reads the place with an *acquire* (an acquiring
read, or a strong read and then a fence) learns it, if each of the two is in the scope of the other. A relaxed access
carries nothing by itself, and a fence carries all that its thread had learnt (it is cumulative).

Clusters count their actors each for itself. What a thread knows of another cluster is a `Bundle` that it once acquired: a
step of an actor of its own cluster, so that knowledge of it travels as all knowledge does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..order import Order, Place, Scope
from .clocks import FIRST_THREAD, KNOWN, PROXY, Actors, Clock, WarpClocks, lanes_in

Bundle = Mapping[int, Clock]  # rows KNOWN and PROXY of what is known, by number of the cluster
Head = tuple[Place, Scope]  # of the first operation of a release
Heads = dict[Head, Bundle]
NOTHING: Bundle = {}


def _join(first: Clock, second: Clock) -> Clock:
    """What two clocks know together, as a new one, or the same when they are one."""
    if first is second:
        return first
    short, long = sorted((first, second), key=lambda clock: clock.shape[1])
    result = long.copy()
    rows = result[:, : short.shape[1]]
    np.maximum(rows, short[: rows.shape[0]], out=rows)
    return result


def united(bundles: Iterable[Bundle]) -> Bundle:
    """What several bundles know together."""
    result: dict[int, Clock] = {}
    for bundle in bundles:
        for cluster, clock in bundle.items():
            known = result.get(cluster)
            result[cluster] = clock if known is None else _join(known, clock)
    return result


@dataclass(slots=True)
class Location:
    """A place in memory that strong accesses meet at.

    Attributes:
      writer, scope: of the last strong write. heads: the releases that it is part of.
      released: the releases at this place by thread, which also the thread's later writes are part of.
    """

    writer: Place
    scope: Scope
    heads: Heads
    released: dict[tuple[Place, int], Heads] = field(default_factory=dict[tuple[Place, int], Heads])


@dataclass(slots=True)
class Mark:
    """What the lanes of a group knew at a fence.

    Attributes:
      clock: rows KNOWN and PROXY. tick: of their warp. fenced: as in `WarpClocks`.
    """

    clock: Clock
    tick: int
    fenced: npt.NDArray[np.int32]


@dataclass(slots=True)
class Lane:
    """What strong accesses of a thread wait for.

    Attributes:
      marks: its last releasing fence by scope. seen: what its strong reads saw, for fences to come, by place.
    """

    marks: dict[Scope, Mark] = field(default_factory=dict[Scope, Mark])
    seen: dict[tuple[Any, Head], Bundle] = field(default_factory=dict[tuple[Any, Head], Bundle])


class Outside:
    """What the threads of one cluster know of other clusters.

    Args:
      number: of the cluster.
    """

    def __init__(self, number: int, actors: Actors):
        self.number = number
        self._actors = actors
        self._bundles: dict[int, list[Bundle]] = {}  # by actor; one per step, from step 0

    def learn(self, warp: WarpClocks, lane: int, bundle: Bundle) -> None:
        """A lane acquired something."""
        others = {cluster: clock for cluster, clock in bundle.items() if cluster != self.number}
        if not others:
            return
        actor = self._actors.engine(("outside", warp.base + lane))
        steps = self._bundles.setdefault(actor, [NOTHING])
        last = steps[-1]
        if any(last.get(cluster) is not clock for cluster, clock in others.items()):
            steps.append(united([last, others]))
        warp.learn(1 << lane, (KNOWN,), actor, len(steps) - 1)

    def known(self, clock: Clock) -> Bundle:
        """What one knows of other clusters whose clock it is."""
        found: list[Bundle] = []
        for actor, steps in self._bundles.items():
            if actor >= clock.shape[1] or not clock[KNOWN, actor]:
                continue
            found.append(steps[int(clock[KNOWN, actor])])
            if clock[PROXY, actor]:  # a proxy fence followed, which covers what was known of them
                seen = steps[int(clock[PROXY, actor])]
                found.append({c: np.stack([rows[KNOWN], rows[KNOWN]]) for c, rows in seen.items()})
        return found[0] if len(found) == 1 else united(found)


class Meetings:
    """The strong accesses of a launch, in execution order."""

    def __init__(self) -> None:
        self._locations: dict[Any, Location] = {}
        self._lanes: dict[tuple[int, int], Lane] = {}

    def _lane(self, cluster: int, actor: int) -> Lane:
        return self._lanes.setdefault((cluster, actor), Lane())

    # ---- what a thread gives

    def bundle(self, outside: Outside, warp: WarpClocks, lane: int) -> Bundle:
        """All that a lane knows and did."""
        clock = warp.release(warp.actors.zeros(2), 1 << lane)
        return {outside.number: clock, **outside.known(clock)}

    def _marked(self, outside: Outside, warp: WarpClocks, lane: int, mark: Mark) -> Bundle:
        clock, own = mark.clock.copy(), warp.base + lane
        clock[KNOWN, own] = mark.tick
        clock[PROXY, own] = max(clock[PROXY, own], int(mark.fenced[lane]))
        return {outside.number: clock, **outside.known(clock)}

    def fenced_by(self, outside: Outside, place: Place, warp: WarpClocks, lane: int) -> Heads:
        """What a strong write of a lane carries because of the fences before it."""
        known = self._lanes.get((outside.number, warp.base + lane))
        if known is None:
            return {}
        return {
            (place, scope): self._marked(outside, warp, lane, mark)
            for scope, mark in known.marks.items()
        }

    # ---- accesses

    def write(
        self,
        key: Any,
        outside: Outside,
        place: Place,
        warp: WarpClocks,
        lane: int,
        order: Order,
        *,
        keeps: Heads,
    ) -> None:
        """A strong write of a lane; an atomic `keeps` what it read."""
        thread = (place, warp.base + lane)
        location = self._locations.get(key)
        released = {} if location is None else location.released
        if order.releases:
            heads: Heads = {(place, order.scope): self.bundle(outside, warp, lane)}
            released[thread] = heads
        else:
            heads = {**released.get(thread, {}), **self.fenced_by(outside, place, warp, lane)}
        for head, bundle in keeps.items():
            heads[head] = united([heads[head], bundle]) if head in heads else bundle
        self._locations[key] = Location(place, order.scope, heads, released)

    def read(self, key: Any, place: Place, order: Order) -> Heads:
        """The releases that a strong read of a thread at `place` observes."""
        location = self._locations.get(key)
        if location is None:
            return {}
        if not (
            order.scope.includes(place, location.writer)
            and location.scope.includes(location.writer, place)
        ):
            return {}
        return location.heads

    def see(
        self, key: Any, outside: Outside, place: Place, actor: int, heads: Heads, order: Order
    ) -> list[Bundle]:
        """A thread saw releases: what it acquires at once. The rest is left for its next fence."""
        usable = {head: b for head, b in heads.items() if head[1].includes(head[0], place)}
        if not usable:
            return []
        if order.acquires:
            return [b for (other, _), b in usable.items() if order.scope.includes(place, other)]
        seen = self._lane(outside.number, actor).seen
        for head, bundle in usable.items():
            seen[key, head] = bundle
        return []

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
                    learnt += self._acquired(known, place, lane, order)
        return learnt

    @staticmethod
    def _acquired(lane: Lane, place: Place, number: int, order: Order) -> list[tuple[int, Bundle]]:
        fit = [key for key in lane.seen if order.scope.includes(place, key[1][0])]
        return [(number, lane.seen.pop(key)) for key in fit]

    def mark(self, outside: Outside, warp: WarpClocks, mask: int, order: Order) -> None:
        """A releasing fence of lanes: what they know now goes with their next strong writes."""
        if not order.releases:
            return
        for group, common in warp.touching(mask):
            fitted = warp.actors.fit(group.clock)
            mark = Mark(fitted[:2].copy(), warp.tick, warp.fenced.copy())
            for lane in lanes_in(common).tolist():
                self._lane(outside.number, warp.base + lane).marks[order.scope] = mark


def seen_by_engines(clock: Clock, actors: Actors) -> npt.NDArray[np.int32]:
    """Steps that the async proxy sees of a clock: threads' writes as far as a proxy fence covers them."""
    steps = clock[KNOWN].copy()
    threads = slice(FIRST_THREAD, actors.first_engine)
    steps[threads] = clock[PROXY, threads]
    return steps
