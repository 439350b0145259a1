"""Vector clocks: what each thread knows of what all threads and engines did.

An *actor* is a thread or a stream of asynchronous work that completes in order: an mbarrier (for
the copies that complete on it, counted in phases), a thread's tcgen05.mma and cp, a warp's
tcgen05.ld, and so on. A clock says for every actor up to which of its steps everything is known to
have happened. Threads of a warp that know the same share a `Group`.

A clock has three rows:
  KNOWN   what happened before.
  PROXY   the part of it that a proxy fence made visible to the async proxy.
  TENSOR  the part of it that orders the thread's own tensor-memory work (tcgen05.fence).
"""

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ptx.kinds import WARP_LANES
from ..state import ALL_LANES

Clock = npt.NDArray[np.int32]
KNOWN, PROXY, TENSOR = 0, 1, 2
NOBODY, EARLIER, FIRST_THREAD = 0, 1, 2  # actors: never accessed; an earlier cluster; threads
NEVER = np.iinfo(np.int32).max  # a step that nobody gets to know
SPARE_ACTORS = 64  # engines that fit before the clocks of a cluster have to grow


@lru_cache(maxsize=1024)
def lanes_in(mask: int) -> npt.NDArray[np.intp]:
    """Lane numbers of a lane mask, ascending."""
    return np.array([lane for lane in range(WARP_LANES) if mask >> lane & 1], np.intp)


class Actors:
    """Numbers the actors of one cluster: all threads, then engines as they come.

    Attributes:
      capacity: length of clocks made now.
      first_engine: number of the first actor that is not a thread.
    """

    def __init__(self, thread_count: int):
        self.first_engine = FIRST_THREAD + thread_count
        self.capacity = self.first_engine + SPARE_ACTORS
        self._engines: dict[Hashable, int] = {}
        self._keys: list[Any] = []

    def engine(self, key: Hashable) -> int:
        """The actor of an asynchronous stream of work, made when first asked for."""
        found = self._engines.get(key)
        if found is None:
            found = self._engines[key] = self.first_engine + len(self._keys)
            self._keys.append(key)
            if found >= self.capacity:
                self.capacity *= 2
        return found

    def engines(self) -> list[tuple[int, Any]]:
        """(number, key) of all engine actors so far."""
        return list(enumerate(self._keys, self.first_engine))

    def key_of(self, actor: int) -> Any:
        """The key that `engine` was asked with, or None for a thread."""
        return None if actor < self.first_engine else self._keys[actor - self.first_engine]

    def zeros(self, rows: int) -> Clock:
        """A clock that knows nothing."""
        return np.zeros((rows, self.capacity), np.int32)

    def fit(self, clock: Clock) -> Clock:
        """The clock, long enough for all actors of now."""
        short = self.capacity - clock.shape[1]
        return clock if not short else np.pad(clock, ((0, 0), (0, short)))

    def join(self, target: Clock, source: Clock) -> Clock:
        """The first rows of `target` also know what `source` knows; returns `target`, fitted."""
        target, source = self.fit(target), self.fit(source)
        rows = target[: source.shape[0]]
        np.maximum(rows, source, out=rows)
        return target


class Group:
    """Lanes of a warp that know the same, apart from what each did itself."""

    __slots__ = ("clock", "mask")

    def __init__(self, mask: int, clock: Clock):
        self.mask = mask
        self.clock = clock


class WarpClocks:
    """The clocks of one warp's threads.

    Attributes:
      base: actor of lane 0.
      tick: accesses of the warp so far; one instruction's lanes share a tick.
      fenced: per lane, the tick up to which its own writes are visible to the async proxy.
      lines: where in the PTX each tick happened.
      version: changes whenever the knowledge of some thread does.
      cluster_arrivals, cluster_waits: per lane, how often it arrived on, and waited at, the cluster's barrier.
    """

    def __init__(self, actors: Actors, base: int, where: str):
        self.actors = actors
        self.base = base
        self.where = where
        self.tick = 0
        self.fenced = np.zeros(WARP_LANES, np.int32)
        self.lines: list[Any] = [None]
        self.version = 0
        self.cluster_arrivals = np.zeros(WARP_LANES, np.int32)
        self.cluster_waits = np.zeros(WARP_LANES, np.int32)
        self.groups = [Group(ALL_LANES, actors.zeros(3))]

    def step(self, line: Any) -> int:
        """Begin an access; returns its tick."""
        self.tick += 1
        self.lines.append(line)
        return self.tick

    def touching(self, mask: int) -> list[tuple[Group, int]]:
        """The groups of some lanes, each with those of the lanes that are in it."""
        groups = self.groups
        if len(groups) == 1:
            return [(groups[0], groups[0].mask & mask)]
        return [(group, group.mask & mask) for group in groups if group.mask & mask]

    def groups_of(self, lanes: Any, index: Any) -> Iterator[tuple[Group, Any]]:
        """The groups of some of `lanes`, each with the positions in it of those that are meant (None: all).

        Args:
          index: positions in `lanes` of those that are meant; None: all.
        """
        for group in tuple(self.groups):
            mine = index
            if len(self.groups) > 1:
                inside = (group.mask >> lanes & 1) != 0
                mine = np.flatnonzero(inside) if index is None else index[inside[index]]
                if not mine.size:
                    continue
            yield group, mine

    def exactly(self, mask: int) -> list[Group]:
        """The groups of some lanes, split so that no other lanes are in them, to be changed."""
        self.version += 1
        found: list[Group] = []
        for group, common in self.touching(mask):
            if common != group.mask:
                self.groups.append(Group(group.mask & ~common, group.clock.copy()))
                group.mask = common
            group.clock = self.actors.fit(group.clock)
            found.append(group)
        return found

    def of_lane(self, lane: int) -> Group:
        """The group of a lane."""
        return next(group for group in self.groups if group.mask >> lane & 1)

    def release(self, target: Clock, mask: int) -> Clock:
        """Add what the lanes know and did to a clock of two rows; returns it."""
        for group, common in self.touching(mask):
            target = self.actors.join(target, group.clock[:2])
            own = lanes_in(common) + self.base
            target[KNOWN, own] = self.tick
            target[PROXY, own] = np.maximum(target[PROXY, own], self.fenced[own - self.base])
        return target

    def acquire(self, source: Clock, mask: int, *, tensor: bool) -> None:
        """The lanes learn a clock.

        Args:
          tensor: it orders tensor-memory work as well (kernels without tcgen05.fence).
        """
        for group in self.exactly(mask):
            group.clock = self.actors.join(group.clock, source)
            if tensor:
                rows = group.clock
                np.maximum(rows[TENSOR], rows[KNOWN], out=rows[TENSOR])

    def unite(self, mask: int) -> None:
        """The lanes synchronised with each other: all know what each of them knew and did."""
        united = self.release(self.actors.zeros(2), mask)
        groups = self.exactly(mask)
        if not groups:
            return
        tensor = np.maximum.reduce([group.clock[TENSOR] for group in groups])
        first = groups[0]
        first.mask = 0
        for group in groups:
            if group is not first:
                self.groups.remove(group)
        first.mask = mask & ALL_LANES
        first.clock = np.concatenate([self.actors.fit(united), tensor[None]])

    def learn(self, mask: int, rows: tuple[int, ...], actor: int, step: int) -> None:
        """The lanes learn that an engine completed everything up to `step`."""
        for group in self.exactly(mask):
            for row in rows:
                group.clock[row, actor] = max(group.clock[row, actor], step)

    def fence_proxy(self, mask: int) -> None:
        """fence.proxy.async: what the lanes know and did becomes visible to the async proxy."""
        for group in self.exactly(mask):
            np.maximum(group.clock[PROXY], group.clock[KNOWN], out=group.clock[PROXY])
        self.fenced[lanes_in(mask)] = self.tick

    def order(self, mask: int, source: int, target: int) -> None:
        """tcgen05.fence: row `target` learns row `source`."""
        for group in self.exactly(mask):
            np.maximum(group.clock[target], group.clock[source], out=group.clock[target])

    def snapshot(self, lane: int) -> Clock:
        """What a lane knows now, with what it did itself."""
        clock = self.actors.fit(self.of_lane(lane).clock).copy()
        own = self.base + lane
        clock[KNOWN, own] = clock[TENSOR, own] = self.tick
        clock[PROXY, own] = self.fenced[lane]
        return clock
