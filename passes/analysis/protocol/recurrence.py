"""Turns that a run may leave out, since the network only does again in them what it has just done.

After each round of all processes the state of a run is compared with an earlier one. They are alike
if

1. every process is at the same place of its program, with fewer turns left in one loop at most;
2. ring instances are alike: the sides of an instance are as far from one another, and at the same
   stage where slots of other rings overlap its own; processes hold the same slots; and either each
   slot that may be asked for has been taken before, in both, or no step has been taken between
   them;
3. counts of events are in the same order: of two counts of one component, either can be looked at,
   if one is smaller, equal or larger in the earlier state, it is so in the later one. What can be
   looked at is what a process that has not ended knows, what handovers pass on that are still to be
   heard, the steps that may still be asked for, and the last step of each side.

That is all there is to the future of a run. Which step is next, and whether it has to wait, follows
from 1 and 2 alone. Whether a step knows what it has to know follows from 3, as nothing is ever done
with counts but to take the larger of two, to ask whether one reaches another, and to count an
event, which is larger than all before. Each of these gives in the later state what it gives in the
earlier one, and leaves the two alike. So the later state goes on as the earlier one did, through a
state that is alike again, for as long as there are turns.

A run without these turns ends as the run with them. So does the order of rings: whether all of one
ring is known where another is acquired is asked of the last step of each side of the one. Where it
does not move between the two states, 3 answers alike in each repetition. Where it does, the other
ring either has been acquired before, which knew nothing of what came later, or is acquired behind
all repetitions, where 3 answers.

How many turns a step takes to be heard of everywhere is not bounded by what 1 and 2 see: in a row
of roles of which each hands over before it hears, it is as many as there are roles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .clocks import Clock, Clocks
from .ports import Port, RingInstance, Side
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


class _State(NamedTuple):
    """The comparison of two states whose processes are at the same places and whose ring
    instances are alike.

    Attributes:
      left: for each process, the turns left in the loops where it is.
      counts: all that can be looked at, as clocks.
    """

    left: list[tuple[int, ...]]
    counts: list[Clock]


class Recurrence:
    """Looks out for states that are alike, in one run.

    Args:
      clocks: what is computed with its clocks.
      runners: its processes, at the begin of the run.
    """

    def __init__(self, clocks: Clocks, runners: Sequence[Runner]):
        self._clocks = clocks
        self._runners = runners
        taken = [(runner, port) for runner in runners for port in runner.ports()]
        self._instances = _instances([port for _, port in taken])
        self._held = [
            (runner.slots, port.slot, port.mine)
            for runner, port in taken
            if port.step.kind in ("commit", "release")
        ]
        self._copied = [
            (runner.slots, slot, side)
            for runner, port in taken
            for slot, (_, sides) in port.copied
            for side in sides
        ]
        self._earlier: dict[object, _State] = {}

    def skip(self) -> Skip | None:
        """Leaves out turns of the loops where processes are, as many as there are; says which, if
        any.
        """
        runners = self._runners
        if not any(frame.left for runner in runners for frame in runner.frames):
            return None
        key = (
            tuple(tuple((id(f.body), f.at) for f in runner.frames) for runner in runners),
            tuple(instance.distances() for instance in self._instances),
            tuple(max(slots[slot] - len(side.ticks), -1) for slots, slot, side in self._held),
            tuple(_ahead(slots[slot], side) for slots, slot, side in self._copied),
        )
        now = _State([tuple(f.left for f in runner.frames) for runner in runners], self._counts())
        earlier = self._earlier.get(key)
        self._earlier[key] = now
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
        if times == 0 or not _in_same_order(earlier.counts, now.counts, self._clocks):
            return None
        loops: dict[int, tuple[Path, int]] = {}
        for number, (at, turns) in moving.items():
            frames = runners[number].frames
            frames[at].left -= times * turns
            loops[number] = tuple(frame.at - 1 for frame in frames[:at]), turns
        self._earlier.clear()
        return Skip(loops, times)

    def _counts(self) -> list[Clock]:
        """All counts that can be looked at; an event is the clock that knows of it alone."""
        found = [clock for runner in self._runners for clock in runner.clocks()]
        for instance in self._instances:
            found += instance.counts()
        for slots, slot, side in self._copied:
            if 0 <= slots[slot] < len(side.ticks):
                found.append(side.ticks[slots[slot]])
        return found


@dataclass(frozen=True)
class _Instance:
    """A ring instance, with the sides that take part in a run.

    Attributes:
      at: the ring instance.
      sides: with their kinds of step.
    """

    at: RingInstance
    sides: list[tuple[str, Side]]

    def distances(self) -> tuple[int, ...]:
        """How far sides are from one another; the turns that are not there yet, of those that may
        be asked for; and the stage, where it matters.
        """
        turn = len(self.sides[0][1].ticks)
        apart = (len(side.ticks) - turn for _, side in self.sides)
        stage = turn % self.at.stages if self.at.is_shared else 0
        return (min(self._reused(), 0), stage, *apart)

    def counts(self) -> Iterator[Clock]:
        """The knowledge that handovers pass on and which steps they are, as far back as a step may
        ask, and the last steps.

        A wait asks of the turn that is next to be waited for; an acquire, of the turn whose
        slot is next to be acquired again, and of the last turns of slots that overlap.
        """
        waited, reused = self._least("wait"), max(self._reused(), 0)
        for kind, side in self.sides:
            is_early = kind in ("commit", "acquire") and not self.at.is_shared
            start = waited if is_early else reused
            yield from side.ticks[min(start, len(side.ticks) - 1) :] if side.ticks else ()
            yield from side.clocks[start:]

    def _reused(self) -> int:
        return self._least("acquire") - self.at.stages

    def _least(self, kind: str) -> int:
        """Turns of which all sides have taken the steps of a kind."""
        return min((len(side.ticks) for mine, side in self.sides if mine == kind), default=0)


def _instances(taken: Sequence[Port]) -> list[_Instance]:
    """The ring instances of a network, with the sides of the steps that a run takes."""
    instances: dict[RingInstance, dict[Side, str]] = {}
    for port in taken:
        instances.setdefault(port.at, {})[port.mine] = port.step.kind
    return [
        _Instance(instance, [(kind, side) for side, kind in sides.items()])
        for instance, sides in instances.items()
    ]


def _ahead(turn: int, side: Side) -> int:
    """How far a slot's turn is ahead of who waits for it; -1 if it has been waited for, -2 if there
    is none.
    """
    return -2 if turn < 0 else max(turn - len(side.ticks), -1)


def _in_same_order(before: Sequence[Clock], after: Sequence[Clock], clocks: Clocks) -> bool:
    """Whether the counts of each component are in the same order in both lists of clocks."""
    if len(before) != len(after):
        return False
    both = dict.fromkeys(zip(before, after, strict=True))
    columns = [zip(*map(clocks.counts, side), strict=True) for side in zip(*both, strict=True)]
    return all(
        x < other_x and y < other_y
        for counts in zip(*columns, strict=True)
        for (x, y), (other_x, other_y) in pairwise(sorted(set(zip(*counts, strict=True))))
    )
