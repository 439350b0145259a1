"""Shadow memory: who wrote and who read each granule last, checked and updated an access at a time.

Weak stores that agree. PTX does not ask for freedom from data races: of two stores of the same size
to the same place that nothing orders, neither precedes the other in coherence order, and who is
ordered after both may read either (PTX ISA, memory consistency model: coherence, uniform-size data
races). Where both store the same bytes there is nothing to tell them apart, so this is no finding.
It takes stores of one element size (of mixed sizes the model says nothing), and one that agrees with
what is there has to be ordered against everything that the first such store was: the accesses before
it. A granule therefore remembers all stores that agree, each of which a later access has to know of,
and what they replaced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .touches import Mask, Pool, Steps, Touches, Where

__all__ = ["Agreement", "Conflict", "Shadow", "Steps", "Where"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An earlier access that the present one does not know of.

    Attributes:
      granule: flat index. actor, step: the earlier access. was_write: what it was.
      position: flat index into the present access, to tell which lane it was.
      count: granules in conflict. low, high: the first and the last of them.
    """

    granule: int
    actor: int
    step: int
    was_write: bool
    position: int
    count: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a weak store would have to agree on with others.

    Attributes:
      element_bytes: its element size; -1 of a bulk reduction.
      is_there: whether the bytes that it stores are there already: bool, broadcasts over `at`.
    """

    element_bytes: int
    is_there: Callable[[], Mask]


@lru_cache(maxsize=64)
def numbers_of(shape: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """The flat numbers of granules; not to be written."""
    return np.arange(int(np.prod(shape)), dtype=np.intp).reshape(shape)


class Shadow:
    """Shadow of one memory.

    Args:
      shape: granules; accesses index them with slices or integer arrays.

    Attributes:
      writes, reads: since, and with, the last write that did not agree with the one before it.
      earlier_writes, earlier_reads: what that one replaced, if it was a weak store.
      element_bytes: of that one if it was a weak store, else 0.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        pool = Pool()
        self.writes, self.reads = Touches(shape, pool), Touches(shape, pool)
        self.earlier_writes, self.earlier_reads = Touches(shape, pool), Touches(shape, pool)
        self.element_bytes = np.zeros(shape, np.int8)
        self._numbers = numbers_of(shape)

    @property
    def _all(self) -> tuple[Touches, ...]:
        return self.writes, self.reads, self.earlier_writes, self.earlier_reads

    def refine(self, factor: int) -> None:
        """Make granules of a one-dimensional shadow smaller: each becomes `factor` equal ones."""
        for touches in self._all:
            touches.refine(factor)
        self.element_bytes = np.repeat(self.element_bytes, factor)
        self.shape = (self.shape[0] * factor,)
        self._numbers = numbers_of(self.shape)

    def replace_all(self, actor: int, step: int) -> None:
        """All accesses so far were made by one actor at one step."""
        for touches in self._all:
            touches.replace_all(actor, step)

    def write(
        self,
        at: Where,
        actor: Any,
        step: int,
        known: Steps,
        known_reads: Steps,
        agreement: Agreement | None = None,
    ) -> Conflict | None:
        """Record a write.

        Args:
          actor: one actor, or an array that broadcasts over the granules.
          known: steps by actor that the writer knows of earlier writes, as `Touches.unknown`; known_reads: of reads.
          agreement: of a weak store, whose `at` is an integer array.

        Returns:
          The first earlier access that the writer does not know of.
        """
        bad = self.writes.unknown(at, actor, known)
        agrees: Mask | None = None
        if agreement is not None:
            writers = self.writes.actor[at]
            repeats = bad | (writers == actor) | (writers < 0)
            if repeats.any():
                joins = repeats & self._agrees(at, actor, known, agreement)
                bad &= ~joins
                agrees = joins
        found = None
        if bad.any():
            found = self._conflict(self.writes, at, bad, actor, known, was_write=True)
        if self.reads.actor[at].any():
            bad = self.reads.unknown(at, actor, known_reads)
            if found is None and bad.any():
                found = self._conflict(self.reads, at, bad, actor, known_reads, was_write=False)
        if agrees is None or not agrees.any():
            self._replace(at, actor, step, agreement)
            return found
        actors = np.broadcast_to(actor, agrees.shape)
        self._add(self.writes, at[agrees], actors[agrees], step)
        if not agrees.all():
            self._replace(at[~agrees], actors[~agrees], step, agreement)
        return found

    def _agrees(self, at: Where, actor: Any, known: Steps, agreement: Agreement) -> Mask:
        """Where a weak store may join the last write, whatever orders the two."""
        agrees = self.element_bytes[at] == agreement.element_bytes
        if agrees.any():
            agrees &= agreement.is_there()
        if agrees.any():
            agrees &= ~self.earlier_writes.unknown(at, actor, known)
            agrees &= ~self.earlier_reads.unknown(at, actor, known)
        return agrees

    def _replace(self, at: Where, actor: Any, step: int, agreement: Agreement | None) -> None:
        if agreement is None:
            self.element_bytes[at] = 0
            self.reads.put(at, 0, 0)
        else:
            self.element_bytes[at] = agreement.element_bytes
            self.reads.move_to(self.earlier_reads, at)
            self.writes.move_to(self.earlier_writes, at)
        self.writes.put(at, actor, step)

    def read(
        self, at: Where, actor: Any, step: int, known: Steps, known_reads: Steps
    ) -> Conflict | None:
        """Record a read; arguments and result as `write`."""
        bad = self.writes.unknown(at, actor, known)
        found = None
        if bad.any():
            found = self._conflict(self.writes, at, bad, actor, known, was_write=True)
        readers = self.reads.actor[at]
        if readers.any() and (
            (readers < 0).any() or self.reads.unknown(at, actor, known_reads).any()
        ):
            everywhere = np.ones(readers.shape, np.bool_)
            self._share(self.reads, at, everywhere, actor, step)
            return found
        self.reads.put(at, actor, step)
        if isinstance(actor, np.ndarray):
            lost = self.reads.actor[at] != actor
            if lost.any():
                self._share(self.reads, at, lost, actor, step)
        return found

    def look(
        self,
        at: Where,
        actor: Any,
        known: Steps,
        known_reads: Steps,
        *,
        is_write: bool,
        agreement: Agreement | None = None,
    ) -> Conflict | None:
        """What `write` or `read` would return; nothing is recorded."""
        bad = self.writes.unknown(at, actor, known)
        if agreement is not None and bad.any():
            bad &= ~self._agrees(at, actor, known, agreement)
        if bad.any():
            return self._conflict(self.writes, at, bad, actor, known, was_write=True)
        if is_write and self.reads.actor[at].any():
            bad = self.reads.unknown(at, actor, known_reads)
            if bad.any():
                return self._conflict(self.reads, at, bad, actor, known_reads, was_write=False)
        return None

    def _add(self, touches: Touches, numbers: Any, actors: Any, step: int) -> None:
        """One access more of granules of a one-dimensional shadow, by number."""
        alone = touches.actor[numbers] == actors
        touches.step[numbers[alone]] = step
        if not alone.all():
            touches.share(numbers[~alone], actors[~alone], step)

    def _share(self, touches: Touches, at: Where, chosen: Mask, actor: Any, step: int) -> None:
        numbers = np.broadcast_to(self._numbers[at], chosen.shape)[chosen]
        touches.share(numbers, np.broadcast_to(actor, chosen.shape)[chosen], step)

    def _conflict(
        self, touches: Touches, at: Where, bad: Mask, own: Any, known: Steps, *, was_write: bool
    ) -> Conflict:
        places = np.flatnonzero(bad)
        position = int(places[0])
        granules = np.broadcast_to(self._numbers[at], bad.shape).ravel()
        granule = int(granules[position])
        mine = int(np.broadcast_to(own, bad.shape).ravel()[position])
        if known.ndim > 1:
            known = known[position // bad.shape[1]]
        actor, step = touches.culprit(granule, mine, known)
        concerned = np.unique(granules[places])
        low, high = int(concerned[0]), int(concerned[-1])
        return Conflict(granule, actor, step, was_write, position, int(concerned.size), low, high)

    def touched_by(self, actor: int, step: int, is_write: bool) -> tuple[int, int] | None:
        """The first and the last granule whose last write, or read, an actor made from a step on."""
        touches = self.writes if is_write else self.reads
        found = np.flatnonzero((touches.actor == actor) & (touches.step >= step))
        return (int(found[0]), int(found[-1])) if found.size else None
