"""Vector clocks: what each thread knows to have happened, in all threads and engines.

An *actor* is a thread or a stream of asynchronous work that completes in order: an mbarrier (for
the copies that complete on it, counted in phases), a thread's tcgen05.mma and cp, a warp's
tcgen05.ld, and so on. The steps of an actor are numbered, and a clock has, for every actor, the
number of the last step known to have happened with all before it. Threads of a warp with the same
knowledge share a `Group`.

A clock has three rows:
  KNOWN   what happened before.
  PROXY   those of them that a proxy fence made visible to the async proxy.
  TENSOR  those of them that order the thread's own tensor-memory work (tcgen05.fence).
"""

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.state import ALL_LANES
from ..ptx.kinds import WARP_LANES
from .accesses import Alias
from .lanecopies import LaneCopies

Clock = npt.NDArray[np.int32]
# knowledge and own steps of a lane: arguments of `WarpClocks.with_lane`
LaneClock = tuple[Clock, int, int, int, Any]
KNOWN, PROXY, TENSOR = 0, 1, 2
NOBODY, EARLIER, FIRST_THREAD = (
    0,
    1,
    2,
)  # numbers of actors: no access; an earlier cluster; first thread
NEVER = np.iinfo(np.int32).max  # a step that no clock reaches
SPARE_ACTORS = 64  # engines for which clocks have room at first


@lru_cache(maxsize=1024)
def lanes_in(mask: int) -> npt.NDArray[np.intp]:
    """Lane numbers of a lane mask, ascending."""
    return np.array([lane for lane in range(WARP_LANES) if mask >> lane & 1], np.intp)


class Actors:
    """Numbers the actors of one cluster: all threads, then engines in the order of their first use.

    Attributes:
      capacity: length of new clocks.
      first_engine: number of the first actor that is not a thread.
      generic: the actors that access memory through the generic proxy: threads, their cp.async, and
        the writes of tcgen05.alloc.
    """

    def __init__(self, thread_count: int):
        self.first_engine = FIRST_THREAD + thread_count
        self.capacity = self.first_engine + SPARE_ACTORS
        self.generic = [slice(FIRST_THREAD, self.first_engine)]
        self._engines: dict[Hashable, int] = {}
        self._keys: list[Any] = []

    def engine(self, key: Hashable) -> int:
        """The actor of a stream of asynchronous work, made on first use."""
        actor = self._engines.get(key)
        if actor is None:
            actor = self._engines[key] = self.first_engine + len(self._keys)
            self._keys.append(key)
            if actor >= self.capacity:
                self.capacity += SPARE_ACTORS
        return actor

    def generic_engine(self, key: Hashable) -> int:
        """The actor of work that accesses memory through the generic proxy, made on first use."""
        actor = self.engine(key)
        if not self.is_generic(actor):
            self.generic.append(slice(actor, actor + 1))
        return actor

    def copies_of_lanes(self, key: tuple[Any, ...]) -> int:
        """The first of 32 new actors for the cp.async of a warp: lane n has the key `(*key, n)`."""
        first = self.engine((*key, 0))
        for lane in range(1, WARP_LANES):
            self.engine((*key, lane))
        self.generic.append(slice(first, first + WARP_LANES))
        return first

    @property
    def count(self) -> int:
        """How many engine actors there are so far."""
        return len(self._keys)

    def engines(self) -> list[tuple[int, Any]]:
        """(number, key) of all engine actors so far."""
        return list(enumerate(self._keys, self.first_engine))

    def key_of(self, actor: int) -> Any:
        """The key of an engine's actor; None for a thread."""
        return None if actor < self.first_engine else self._keys[actor - self.first_engine]

    def zeros(self, rows: int) -> Clock:
        """A clock without any step."""
        return np.zeros((rows, self.capacity), np.int32)

    def fit(self, clock: Clock) -> Clock:
        """The clock, extended to all present actors."""
        rows, length = clock.shape
        if length == self.capacity:
            return clock
        longer = self.zeros(rows)
        longer[:, :length] = clock
        return longer

    def is_generic(self, actor: int) -> bool:
        """Whether an actor accesses memory through the generic proxy."""
        return any(actors.start <= actor < actors.stop for actors in self.generic)

    def visible(self, clock: Clock) -> npt.NDArray[np.int32]:
        """The steps of a clock whose writes the async proxy sees: generic ones only if fenced."""
        clock = self.fit(clock)
        steps = clock[KNOWN].copy()
        for actors in self.generic:
            steps[actors] = clock[PROXY, actors]
        return steps

    def join(self, target: Clock, source: Clock) -> Clock:
        """Joins `source` into the first rows of `target`; returns it, extended if necessary."""
        target, source = self.fit(target), self.fit(source)
        rows = target[: source.shape[0]]
        np.maximum(rows, source, out=rows)
        return target


class Group:
    """Lanes of a warp with the same clock, apart from their own steps.

    Attributes:
      saved: a copy of rows KNOWN and PROXY of the present `clock`; None until it is needed.
    """

    __slots__ = ("clock", "mask", "saved")

    def __init__(self, mask: int, clock: Clock, saved: Clock | None = None):
        self.mask = mask
        self.clock = clock
        self.saved = saved

    def saved_clock(self) -> Clock:
        """A copy of rows KNOWN and PROXY, unaffected by later changes; must not be modified."""
        if self.saved is None:
            self.saved = self.clock[:TENSOR].copy()
        return self.saved


class WarpClocks:
    """The clocks of one warp's threads.

    Attributes:
      base: actor of lane 0.
      tick: number of the warp's accesses so far; all lanes of an instruction have the same tick.
      fenced: for each lane, the tick up to which its own writes are visible to the async proxy.
      lines: the PTX line of each tick.
      copies: its cp.async; None before the first.
      marked: lanes that have executed a releasing fence.
      tensor_loads: the step of the last tcgen05.ld of each position in the PTX.
      version: changes whenever the clock of some thread does.
      cluster_arrivals, cluster_waits: per lane, how often it arrived on, and waited at, the
        cluster's barrier.
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
        self.copies: LaneCopies | None = None
        self.marked = 0
        self.tensor_loads: dict[int, int] = {}
        self.groups = [Group(ALL_LANES, actors.zeros(3))]
        # group of each lane, valid for the version below
        self._numbers = np.zeros(WARP_LANES, np.intp)
        self._numbered = 0

    def step(self, line: Any) -> int:
        """Begins an access; returns its tick."""
        self.tick += 1
        self.lines.append(line)
        return self.tick

    def groups_in(self, mask: int) -> list[tuple[Group, int]]:
        """The groups of the lanes in a mask, each with the mask of its lanes among them."""
        groups = self.groups
        if len(groups) == 1:
            return [(groups[0], groups[0].mask & mask)]
        return [(group, group.mask & mask) for group in groups if group.mask & mask]

    def groups_of(self, lanes: Any, index: Any) -> Iterator[tuple[Group, Any]]:
        """The groups of lanes, each with the positions of its lanes (None: all).

        Args:
          index: positions in `lanes` to consider; None: all.
        """
        for group in tuple(self.groups):
            mine = index
            if len(self.groups) > 1:
                inside = (group.mask >> lanes & 1) != 0
                mine = np.flatnonzero(inside) if index is None else index[inside[index]]
                if not mine.size:
                    continue
            yield group, mine

    def split_groups(self, mask: int) -> list[Group]:
        """The groups of exactly the lanes in a mask, which may be changed."""
        is_numbered = self._numbered == self.version
        self.version += 1
        groups: list[Group] = []
        for group, common in self.groups_in(mask):
            if common != group.mask:
                remaining = group.mask & ~common
                if is_numbered:
                    self._numbers[lanes_in(remaining)] = len(self.groups)
                self.groups.append(Group(remaining, group.clock.copy(), group.saved))
                group.mask = common
            group.clock = self.actors.fit(group.clock)
            group.saved = None
            groups.append(group)
        if is_numbered:
            self._numbered = self.version
        return groups

    def numbers(self) -> npt.NDArray[np.intp]:
        """The number of each lane's group; must not be modified."""
        if self._numbered != self.version:
            self._numbered = self.version
            for number, group in enumerate(self.groups):
                self._numbers[lanes_in(group.mask)] = number
        return self._numbers

    def of_lane(self, lane: int) -> Group:
        """The group of a lane."""
        groups = self.groups
        return groups[0] if len(groups) == 1 else groups[int(self.numbers()[lane])]

    def of_each(self, lanes: Any, per_group: Callable[[Group], Any]) -> npt.NDArray[Any]:
        """`per_group` of the lanes' group, or a row for each lane if they have several."""
        groups = self.groups
        if len(groups) == 1:
            return per_group(groups[0])
        numbers = self.numbers()[lanes]
        first = int(numbers[0])
        if np.count_nonzero(numbers == first) == numbers.size:
            return per_group(groups[first])
        used = np.unique(numbers)
        at = np.searchsorted(used, numbers)
        rows = [per_group(groups[int(number)]) for number in used]
        return np.stack(rows)[at]

    def known_steps(self, lanes: Any) -> npt.NDArray[np.int32]:
        """The steps by actor that lanes know, without their own; a row for each lane if they
        differ.
        """
        groups = self.groups
        return self._row(groups[0]) if len(groups) == 1 else self.of_each(lanes, self._row)

    def _row(self, group: Group) -> npt.NDArray[np.int32]:
        group.clock = self.actors.fit(group.clock)
        return group.clock[KNOWN]

    def with_lane(self, known: Clock, lane: int, tick: int, fenced: int, copied: Any) -> Clock:
        """Rows KNOWN and PROXY of a clock, with a lane's own steps added.

        Args:
          known: the clock without the lane's own steps.
          tick, fenced: the lane's last own tick, and the last one that is fenced.
          copied: the last steps of its copies; None without any.
        """
        target = self.actors.fit(known).copy()
        own = self.base + lane
        target[KNOWN, own] = tick
        if target[PROXY, own] < fenced:
            target[PROXY, own] = fenced
        if self.copies is not None and copied is not None:
            stream = self.copies.first + lane
            np.maximum(target[:TENSOR, stream], copied, out=target[:TENSOR, stream])
        return target

    def lane_clock(self, lane: int) -> LaneClock:
        """The clock of a lane with its own steps, as arguments of `with_lane`."""
        copied = None if self.copies is None else self.copies.steps[:, lane].copy()
        return self.of_lane(lane).saved_clock(), lane, self.tick, int(self.fenced[lane]), copied

    def acquire_alone(self, source: Clock, lane: int) -> None:
        """Joins a clock into that of a lane; does nothing if the lane knows all of it."""
        group = self.of_lane(lane)
        group.clock = clock = self.actors.fit(group.clock)
        news = source > clock[: source.shape[0], : source.shape[1]]
        if np.count_nonzero(news):
            news[:, self.base + lane] = False
            if self.copies is not None and self.copies.first + lane < news.shape[1]:
                stream = self.copies.first + lane
                news[:, stream] &= source[:, stream] > self.copies.steps[: source.shape[0], lane]
        if np.count_nonzero(news):
            self.acquire(source, 1 << lane)

    def release(self, target: Clock, mask: int) -> Clock:
        """Joins the lanes' clocks, with their own steps, into a clock of two rows; returns it."""
        for group, common in self.groups_in(mask):
            target = self.actors.join(target, group.clock[:2])
            self._add_lane_steps(target, lanes_in(common))
        return target

    def _add_lane_steps(self, target: Clock, lanes: Any) -> None:
        """Adds the lanes' own steps to a clock."""
        own = lanes + self.base
        target[KNOWN, own] = self.tick
        target[PROXY, own] = np.maximum(target[PROXY, own], self.fenced[lanes])
        if self.copies is not None:
            stream, steps = lanes + self.copies.first, self.copies.steps[:, lanes]
            target[:TENSOR, stream] = np.maximum(target[:TENSOR, stream], steps)

    def acquire(self, source: Clock, mask: int) -> None:
        """Joins a clock into those of the lanes."""
        for group in self.split_groups(mask):
            group.clock = self.actors.join(group.clock, source)

    def synchronise(self, mask: int) -> None:
        """Synchronises lanes: all of them get the join of their clocks and own steps."""
        united = self.release(self.actors.zeros(2), mask)
        groups = self.split_groups(mask)
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
        first.saved = None

    def learn(self, mask: int, entries: tuple[tuple[int, int], ...], step: int) -> None:
        """Adds to the lanes' clocks that engines have completed everything up to `step`.

        Args:
          entries: (row, actor) of each number in a clock that becomes `step` at least.
        """
        for group in self.split_groups(mask):
            for entry in entries:
                group.clock[entry] = max(group.clock[entry], step)

    def fence_proxy(self, mask: int) -> None:
        """fence.proxy.async: makes the lanes' knowledge and steps visible to the async proxy."""
        for group in self.split_groups(mask):
            np.maximum(group.clock[PROXY], group.clock[KNOWN], out=group.clock[PROXY])
        self.fenced[lanes_in(mask)] = self.tick
        if self.copies is not None:
            self.copies.fence_proxy(lanes_in(mask))

    def order(self, mask: int, source: int, target: int) -> None:
        """tcgen05.fence: joins row `source` into row `target`."""
        for group in self.split_groups(mask):
            np.maximum(group.clock[target], group.clock[source], out=group.clock[target])

    def snapshot(self, lane: int) -> Clock:
        """The clock of a lane including its own steps."""
        clock = self.actors.fit(self.of_lane(lane).clock).copy()
        self._add_lane_steps(clock, lane)
        clock[TENSOR, self.base + lane] = self.tick
        return clock

    def actors_of(self, lanes: Any) -> npt.NDArray[np.int64]:
        """The actors of lanes, int64[n, 1]."""
        return (lanes + self.base)[:, None]

    def alias_of(self, lanes: Any) -> Alias:
        """The actors of the lanes' own copies, and the steps that the lanes know to be complete."""
        copies = self.copies
        if copies is None:
            return None
        return (lanes + copies.first)[:, None], copies.known[lanes][:, None]

    def copies_of(self, key: tuple[Any, ...]) -> LaneCopies:
        """The warp's cp.async, made on first use with actors named after `key`."""
        if self.copies is None:
            self.copies = LaneCopies(self.actors.copies_of_lanes(key))
        return self.copies

    def copies_waited(self, lanes: Any, newest: int) -> None:
        """cp.async.wait_group of lanes."""
        if self.copies is not None:
            self.copies.wait(lanes, newest)
            self.version += 1
