"""Turns that a run may leave out, since the network only does again in them what it has just done.

Whenever no process can go on, the state of a run is compared with an earlier one. They are alike if

1. every process is at the same place of its program, with fewer turns left in one loop at most;
2. every count of a ring way has grown by the same number, its shift, which is 0 or more, and rings that share a
   place have the same shift; what has been acquired is at least a lap where it has grown;
3. every count of a clock that may still be heard of, or that a process has, either has grown as that component's
   events have (it moves), or is the same (it is frozen). No frozen one is larger than one that moves, or than the
   number of an event of the component that a process may still ask for.

From here on all that a step looks at is the same in both states, up to the shifts: what it waits for is there in both
or in neither, and so is what it has to know, as sums and maxima of counts that move keep their order with each other
and with those that are frozen. So the later state with some turns left goes on like the earlier one with as many, and
what has happened in between happens again as long as there are turns for it. A run without these turns ends as the run
with them; which ring is used before which is the same as well, as each ring that moves has been used before and
between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .clocks import COUNT, FIELD_BITS, Clock, Clocks, Tick, tick
from .ports import Ports, RingWay, Side
from .runner import Runner

Path = tuple[int, ...]  # numbers of items, from the outside in, that lead to a loop in a program


class Skip(NamedTuple):
    """Turns left out.

    Attributes:
      loops: for each process that goes on, by number, a loop and its turns in one repetition.
      times: repetitions left out.
    """

    loops: dict[int, tuple[Path, int]]
    times: int


@dataclass(frozen=True)
class _State:
    """A state of the network.

    Attributes:
      left: for each process, the turns left in the loops where it is.
      clocks: for each process, what it knows; nothing behind its end.
      slots: for each process, the turns of its slots.
      steps: for each ring way, the number of steps of each side.
      counts: events by component.
    """

    left: list[tuple[int, ...]]
    clocks: list[tuple[Clock, ...]]
    slots: list[list[int]]
    steps: list[list[int]]
    counts: list[int]


class Recurrence:
    """Looks out for states that are alike, in one run.

    Args:
      ports: of the network.
      clocks: what is computed with its clocks.
      runners: its processes, at the begin of the run.
    """

    def __init__(self, ports: Ports, clocks: Clocks, runners: Sequence[Runner]):
        self.clocks = clocks
        self._runners = runners
        taken = [port for runner in runners for port in runner.ports()]
        sides = {id(port.mine): None for port in taken}
        self.ways = [_Way.of(way, sides) for way in dict.fromkeys(port.at for port in taken)]
        numbers = {way.way: number for number, way in enumerate(self.ways)}
        self.partners = [
            (number, numbers[other])
            for number, way in enumerate(self.ways)
            if (other := ports.partner(way.way)) in numbers
        ]
        self.slots = [
            {
                port.slot: (numbers[port.at], self.ways[numbers[port.at]].number_of(port.mine))
                for port in runner.ports()
                if port.step.kind in ("commit", "release")
            }
            for runner in runners
        ]
        self._is_watched = not any(port.copied for port in taken)
        self._earlier: dict[object, _State] = {}

    def skip(self, counts: Sequence[int]) -> Skip | None:
        """Leaves out turns of the loops where processes are, as many as there are; says which, if any.

        Args:
          counts: events so far, by component.
        """
        runners = self._runners
        if not self._is_watched or not any(f.left for runner in runners for f in runner.frames):
            return None
        where = tuple(tuple((id(f.body), f.at) for f in runner.frames) for runner in runners)
        steps = [way.steps() for way in self.ways]
        relative = tuple(tuple(n - numbers[0] for n in numbers) for numbers in steps)
        now = _State(
            [tuple(frame.left for frame in runner.frames) for runner in runners],
            [runner.clocks() for runner in runners],
            [list(runner.slots) for runner in runners],
            steps,
            list(counts),
        )
        earlier = self._earlier.get((where, relative))
        self._earlier[where, relative] = now
        if earlier is None:
            return None
        moving: dict[int, tuple[int, int]] = {}
        for number, (before, after) in enumerate(zip(earlier.left, now.left, strict=True)):
            changed = [at for at, left in enumerate(before) if left != after[at]]
            if changed:
                moving[number] = changed[0], before[changed[0]] - after[changed[0]]
            if len(changed) > 1 or (changed and moving[number][1] < 0):
                return None
        if not moving:
            return None
        times = min(runners[n].frames[at].left // turns for n, (at, turns) in moving.items())
        if times == 0 or not _Comparison(self, earlier, now).are_alike():
            return None
        loops: dict[int, tuple[Path, int]] = {}
        for number, (at, turns) in moving.items():
            frames = runners[number].frames
            frames[at].left -= times * turns
            loops[number] = tuple(frame.at - 1 for frame in frames[:at]), turns
        self._earlier.clear()
        return Skip(loops, times)


@dataclass(frozen=True)
class _Way:
    """A ring way, with the sides that take part in a run."""

    way: RingWay
    kinds: list[str]
    sides: list[Side]

    @classmethod
    def of(cls, way: RingWay, taking_part: dict[int, None]) -> "_Way":
        found = [(kind, s) for (kind, _), s in way.sides.items() if id(s) in taking_part]
        return cls(way, [kind for kind, _ in found], [side for _, side in found])

    def steps(self) -> list[int]:
        """The number of steps of each side."""
        return [len(side.ticks) for side in self.sides]

    def number_of(self, side: Side) -> int:
        """The number of a side among those that take part."""
        return next(number for number, mine in enumerate(self.sides) if mine is side)

    def least(self, kind: str, steps: Sequence[int]) -> int:
        """The least number of steps of a kind."""
        return min(
            (n for n, mine in zip(steps, self.kinds, strict=True) if mine == kind), default=0
        )


class _Comparison:
    """Whether two states of a run are alike."""

    def __init__(self, run: Recurrence, earlier: _State, now: _State):
        self._run = run
        self._clocks = run.clocks
        self._earlier, self._now = earlier, now
        grown = [b - a for a, b in zip(earlier.counts, now.counts, strict=True)]
        self._shift: Clock = sum(tick(component, n) for component, n in enumerate(grown))
        self._active = run.clocks.filled(self._shift)
        self._all: Clock = run.clocks.ones * COUNT
        self._frozen: Clock = (
            0  # the largest counts that are frozen, of components with events between
        )
        self._least: Clock = self._all  # the smallest counts that move

    def are_alike(self) -> bool:
        """Whether they are, see the module."""
        ways, before, after = self._run.ways, self._earlier.steps, self._now.steps
        shifts: list[int] = []
        for way, a, b in zip(ways, before, after, strict=True):
            shift = b[0] - a[0]
            is_lapped = not shift or way.least("acquire", a) >= way.way.stages
            if not is_lapped or any(y - x != shift for x, y in zip(a, b, strict=True)):
                return False
            shifts.append(shift)
        if any(shifts[number] != shifts[other] for number, other in self._run.partners):
            return False
        return (
            self._slots_are_alike(shifts)
            and all(
                self._is_alike(x, y)
                for process in zip(self._earlier.clocks, self._now.clocks, strict=True)
                for x, y in zip(*process, strict=True)
            )
            and all(self._way_is_alike(n, shift) for n, shift in enumerate(shifts))
            and self._clocks.covers(self._least, self._frozen)
        )

    def _slots_are_alike(self, shifts: Sequence[int]) -> bool:
        """Slots have moved on with their ring, or been handed over before."""
        both = zip(self._run.slots, self._earlier.slots, self._now.slots, strict=True)
        for handed_over, before, after in both:
            for slot, (way, side) in handed_over.items():
                is_over = before[slot] < self._earlier.steps[way][side]
                has_stayed = before[slot] == after[slot] and is_over
                if after[slot] - before[slot] != shifts[way] and not has_stayed:
                    return False
        return True

    def _way_is_alike(self, number: int, shift: int) -> bool:
        """What has happened at a ring way, as far back as a step may still ask."""
        way = self._run.ways[number]
        starts = {kind: start for start, kinds in self._asked(number) for kind in kinds}
        for kind, side, count in zip(
            way.kinds, way.sides, self._earlier.steps[number], strict=True
        ):
            for turn in range(max(starts[kind], 0), count):
                if not self._tick_is_alike(side.ticks[turn], side.ticks[turn + shift]):
                    return False
                if side.clocks and not self._is_alike(side.clocks[turn], side.clocks[turn + shift]):
                    return False
        return True

    def _asked(self, number: int) -> Iterator[tuple[int, tuple[str, str]]]:
        """The first turns of which a step may ask: whose slots are waited for, and are acquired again."""
        steps = self._earlier.steps
        numbers = [number, *(other for mine, other in self._run.partners if mine == number)]
        ways = [(self._run.ways[n], steps[n]) for n in numbers]
        waited = min(way.least("wait", mine) for way, mine in ways)
        acquired = min(way.least("acquire", mine) - way.way.stages for way, mine in ways)
        yield waited, ("commit", "acquire")
        yield acquired, ("release", "wait")

    def _is_alike(self, before: Clock, after: Clock) -> bool:
        """Whether each count of a clock moves or is frozen, of which note is taken."""
        grown = after - before
        moving = self._clocks.filled(grown) if grown else 0
        if grown != self._shift & moving:
            return False
        frozen = before & self._active & ~moving
        self._frozen = self._clocks.join(self._frozen, frozen)
        self._least = self._clocks.meet(self._least, before & moving | self._all & ~moving)
        return True

    def _tick_is_alike(self, before: Tick, after: Tick) -> bool:
        """Whether an event moves or is the same, of which note is taken: who knows of it has a count as large."""
        if before == after:
            self._frozen = self._clocks.join(self._frozen, before & self._active)
            return True
        shift = (before.bit_length() - 1) // FIELD_BITS * FIELD_BITS
        field = COUNT << shift
        if after - before != self._shift & field:
            return False
        number = before - (1 << shift)
        self._least = self._clocks.meet(self._least, number | self._all & ~field)
        return True
