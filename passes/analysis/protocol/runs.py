"""The runs that have been made, and those that they stand for.

A run that has left turns out (`recurrence`) stands for all with any number of these turns.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from .program import Program, Repeat, Shape, shape
from .recurrence import Path, Skip
from .simulate import Network
from .skeleton import Sizes
from .trace import Trace


@dataclass(frozen=True)
class _Family:
    """Runs that differ in numbers of turns.

    Attributes:
      turns: the fewest, of all loops of all processes.
      more: what may be added any number of times, turns by loop, and a loop that only this adds
        turns to.
    """

    turns: tuple[int, ...]
    more: list[tuple[dict[int, int], int]]

    def has(self, turns: Sequence[int]) -> bool:
        """Whether a run of these turns is one of them."""
        rest = [some - least for some, least in zip(turns, self.turns, strict=True)]
        for loops, own in self.more:
            times = rest[own] // loops[own]
            if times < 0:
                return False
            for loop, per in loops.items():
                rest[loop] -= times * per
        return not any(rest)


@dataclass
class Runs:
    """Runs of one network."""

    network: Network
    _families: dict[object, list[_Family]] = field(default_factory=lambda: defaultdict(list))
    _shapes: dict[int, Shape] = field(default_factory=dict[int, Shape])

    def make(self, sizes: Sizes, tiles: Sequence[Sizes]) -> Trace | None:
        """Runs the network for given sizes and work tiles; None where an earlier run stands for
        this one.

        Raises:
          VerifyError: as of `Network.run`.
        """
        programs = self.network.programs(sizes, tiles)
        shapes = [self._shape(body) for body in programs]
        turns = tuple(count for one in shapes for count in one.turns)
        families = self._families[tuple(one.outline for one in shapes)]
        if any(family.has(turns) for family in families):
            return None
        skips: list[Skip] = []
        trace = self.network.run(sizes, tiles, skips=skips)
        firsts = list(accumulate((len(one.turns) for one in shapes), initial=0))
        families.append(_family(turns, skips, programs, firsts))
        return trace

    def _shape(self, body: Program) -> Shape:
        if id(body) not in self._shapes:
            self._shapes[id(body)] = shape(body)
        return self._shapes[id(body)]


def _family(
    turns: Sequence[int], skips: Sequence[Skip], programs: Sequence[Program], firsts: Sequence[int]
) -> _Family:
    """The runs for which one stands.

    Args:
      turns: its own, of all loops.
      skips: what it has left out.
      programs: of its processes.
      firsts: for each process, the number of its first loop.
    """
    left_out: list[tuple[dict[int, int], int]] = []
    for skip in skips:
        found = {n: _number(programs[n], path) for n, (path, _) in skip.loops.items()}
        if None not in found.values():
            loops = {firsts[n] + (found[n] or 0): per for n, (_, per) in skip.loops.items()}
            left_out.append((loops, skip.times))
    more: list[tuple[dict[int, int], int]] = []
    least = list(turns)
    for loops, times in left_out:
        others = {loop for other, _ in left_out if other is not loops for loop in other}
        if own := [loop for loop in loops if loop not in others]:
            more.append((loops, own[0]))
            for loop, per in loops.items():
                least[loop] -= times * per
    return _Family(tuple(least), more)


def _number(body: Program, path: Path) -> int | None:
    """The number of a loop among those of a program; None if it lies in one that turns more than
    once.
    """
    number = 0
    for depth, at in enumerate(path):
        before = (shape((item,)) for item in body[:at])
        number += sum(len(one.turns) for one in before)
        repeat = body[at]
        assert isinstance(repeat, Repeat)
        if depth + 1 < len(path):
            if repeat.turns > 1:
                return None
            number += 1
        body = repeat.body
    return number
