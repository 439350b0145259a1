"""Knowledge of threads about other clusters.

Each cluster numbers its own actors. A thread learns about other clusters by a `Bundle`, as a step
of an actor of its own cluster, so that this knowledge passes on like all knowledge there.

A bundle is closed: it includes all that its clocks know by way of such steps. So if one thread has
learned a bundle and another thread learns from it, the later bundle has all that the two know of
other clusters, and nothing has to be joined.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .clocks import KNOWN, PROXY, Actors, Clock, LaneClock, WarpClocks

ClusterClocks = Mapping[int, Clock]  # rows KNOWN and PROXY by number of the cluster
NOTHING: ClusterClocks = {}
# clocks with a cached result: that of a group of lanes, and of lanes that have just left it
RECENT = 4


def _join(clocks: list[Clock]) -> Clock:
    """The join of clocks; must not be modified."""
    if len(clocks) == 1:
        return clocks[0]
    width = max(clock.shape[1] for clock in clocks)
    each = [clock for clock in clocks if clock.shape[1] == width]
    result: Clock = np.maximum.reduce(each)
    for clock in clocks:
        if clock.shape[1] < width:
            rows = result[:, : clock.shape[1]]
            np.maximum(rows, clock, out=rows)
    return result


def _includes(known: Clock | None, clock: Clock) -> bool:
    """Whether `known` includes a clock."""
    if known is None or known is clock:
        return known is not None
    width = clock.shape[1]
    return known.shape[1] >= width and bool((known[:, :width] >= clock).all())


def _joined(parts: Iterable[ClusterClocks]) -> ClusterClocks:
    """The join of several parts."""
    by_cluster: dict[int, dict[int, Clock]] = {}  # each clock once, as many are equal
    for one in parts:
        for cluster, clock in one.items():
            by_cluster.setdefault(cluster, {})[id(clock)] = clock
    return {cluster: _join(list(clocks.values())) for cluster, clocks in by_cluster.items()}


class Bundle:
    """The knowledge that a release passes on.

    Attributes:
      cluster: number of the releasing thread's cluster, or of one such thread's.
      is_plain: whether what is known of other clusters follows from the clock.
    """

    __slots__ = ("_clocks", "_release", "cluster", "is_plain")

    def __init__(self, cluster: int, clock: Clock, others: ClusterClocks, *, is_plain: bool):
        self.cluster = cluster
        self.is_plain = is_plain
        self._clocks: tuple[Clock, ClusterClocks] | None = (clock, others)
        self._release: tuple[OtherClusters, WarpClocks, LaneClock] | None = None

    @staticmethod
    def of_lane(other_clusters: "OtherClusters", warp: WarpClocks, known: LaneClock) -> "Bundle":
        """The bundle of a lane; its clock is computed only if it is needed, which is rare."""
        bundle = object.__new__(Bundle)
        bundle.cluster, bundle.is_plain = other_clusters.number, True
        bundle._clocks, bundle._release = None, (other_clusters, warp, known)
        return bundle

    def _made(self) -> tuple[Clock, ClusterClocks]:
        if self._clocks is None:
            assert self._release is not None
            other_clusters, warp, known = self._release
            clock = warp.with_lane(*known)
            self._clocks, self._release = (clock, other_clusters.known(clock)), None
        return self._clocks

    @property
    def clock(self) -> Clock:
        """The clock for the bundle's own cluster."""
        return self._made()[0]

    @property
    def others(self) -> ClusterClocks:
        """The clocks for other clusters."""
        return self._made()[1]

    def of(self, cluster: int) -> Clock | None:
        """The clock for a cluster; None if nothing is known of it."""
        return self.clock if cluster == self.cluster else self.others.get(cluster)

    def without(self, cluster: int) -> ClusterClocks:
        """The clocks for all clusters but one."""
        if cluster == self.cluster:
            return self.others
        result = {self.cluster: self.clock, **self.others}
        result.pop(cluster, None)
        return result


def united(bundles: Iterable[Bundle]) -> Bundle:
    """The join of several bundles."""
    first, *rest = bundles
    for other in rest:
        mine = other.of(first.cluster)
        clock = first.clock if mine is None else _join([first.clock, mine])
        others = _joined([first.others, other.without(first.cluster)])
        is_plain = first.is_plain and other.is_plain and first.cluster == other.cluster
        first = Bundle(first.cluster, clock, others, is_plain=is_plain)
    return first


@dataclass(frozen=True, slots=True)
class _Step:
    """A thread's knowledge of other clusters from some step on.

    Attributes:
      included: for each thread of its cluster, in the order of `OtherClusters`, the last step that
        this includes.
      count: the sum of these.
    """

    parts: ClusterClocks
    included: npt.NDArray[np.int32]
    count: int


class OtherClusters:
    """Knowledge of one cluster's threads about other clusters.

    Args:
      number: number of the cluster.
    """

    def __init__(self, number: int, actors: Actors):
        self.number = number
        self._actors = actors
        # actors of the threads that have learned something, ascending
        self._numbers = np.zeros(0, np.intp)
        self._positions: dict[int, int] = {}  # and their positions there
        self._steps: list[list[_Step]] = []  # steps of each of them; the first one knows nothing
        self._latest = np.zeros(0, np.int32)  # number of the last step of each
        self._counts = np.zeros(0, np.int64)  # and its count
        # cached knowledge by the clocks' steps of these actors
        self._recent: dict[bytes, ClusterClocks] = {}

    def learn(self, warp: WarpClocks, lane: int, bundle: Bundle) -> None:
        """A lane acquires a bundle; the part about its own cluster is in its clock already."""
        if bundle.is_plain and bundle.cluster == self.number:
            return
        others = bundle.without(self.number)
        if not others:
            return
        actor = self._actors.engine(("other-clusters", warp.base + lane))
        index = self._positions.get(actor)
        if index is None:
            index = self._positions[actor] = len(self._steps)
            self._numbers = np.append(self._numbers, actor)
            self._latest, self._counts = np.append(self._latest, 0), np.append(self._counts, 0)
            self._steps.append([_Step(NOTHING, np.zeros(0, np.int32), 0)])
        steps = self._steps[index]
        mine = warp.of_lane(lane).clock
        before = self.known(mine)
        if any(not _includes(before.get(cluster), clock) for cluster, clock in others.items()):
            inside = self._numbers[self._numbers < mine.shape[1]]
            included = np.zeros(self._numbers.size, np.int32)
            included[: inside.size] = mine[KNOWN, inside]
            included[index] = len(steps)
            parts = others if not before else _joined([before, others])
            self._latest[index], self._counts[index] = len(steps), included.sum()
            steps.append(_Step(parts, included, int(self._counts[index])))
        warp.learn(1 << lane, ((KNOWN, actor),), len(steps) - 1)

    def known(self, clock: Clock) -> ClusterClocks:
        """The knowledge of other clusters that a clock stands for."""
        numbers = self._numbers
        if not numbers.size:
            return NOTHING
        inside = numbers if numbers[-1] < clock.shape[1] else numbers[numbers < clock.shape[1]]
        steps, fenced = clock[KNOWN, inside], clock[PROXY, inside]
        some = np.flatnonzero(steps)
        if not some.size:
            return NOTHING
        if some.size == 1 and not fenced[some[0]]:
            return self._steps[int(some[0])][int(steps[some[0]])].parts
        if not np.count_nonzero(fenced) and (widest := self._widest(some, steps)) is not None:
            return widest.parts
        key = steps.tobytes() + fenced.tobytes()
        result = self._recent.get(key)
        if result is None:
            if len(self._recent) == RECENT:
                del self._recent[next(iter(self._recent))]
            result = self._recent[key] = self._united(some, steps, fenced)
        return result

    def _widest(self, some: Any, steps: Any) -> _Step | None:
        """A thread's last step that includes the steps of all, if there is one."""
        counts = np.where(steps[some] == self._latest[some], self._counts[some], -1)
        at = int(some[counts.argmax()])
        step = self._steps[at][-1]
        included = step.included
        is_all = included.size >= steps.size and bool((included[: steps.size] >= steps).all())
        return step if is_all and steps[at] == self._latest[at] else None

    def _united(self, some: Any, steps: Any, fenced: Any) -> ClusterClocks:
        """The join of several threads' steps."""
        actors: list[int] = some.tolist()
        each: list[_Step] = [self._steps[at][int(steps[at])] for at in actors]
        if not np.count_nonzero(fenced):
            widest = max(each, key=lambda step: step.count)
            included = widest.included
            left = [
                step
                for at, step in zip(actors, each, strict=True)
                if at >= included.size or included[at] < steps[at]
            ]
            return widest.parts if not left else _joined(s.parts for s in (widest, *left))
        joined = [step.parts for step in each]
        # a proxy fence covers what was known of other clusters
        for at in np.flatnonzero(fenced).tolist():
            fenced_clocks = self._steps[at][int(fenced[at])].parts
            joined.append(
                {c: np.stack([rows[KNOWN], rows[KNOWN]]) for c, rows in fenced_clocks.items()}
            )
        return _joined(joined)
