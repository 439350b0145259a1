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

from .touches import Alias, Mask, Pool, Steps, Touches, Where, actors_of, cells_of, steps_of

__all__ = ["Agreement", "Alias", "Conflict", "Shadow", "Steps", "Where"]


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


@dataclass(slots=True)
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
        cells = np.zeros((4, *shape), np.int64)
        self.writes, self.reads = Touches(cells[0], pool), Touches(cells[1], pool)
        self.earlier_writes, self.earlier_reads = Touches(cells[2], pool), Touches(cells[3], pool)
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
        alias: Alias = None,
    ) -> Conflict | None:
        """Record a write.

        Args:
          actor: one actor, or an array that broadcasts over the granules.
          known: steps by actor that the writer knows of earlier writes, as `Touches.unknown`; known_reads: of reads.
          agreement: of a weak store, whose `at` is an integer array.

        Returns:
          The first earlier access that the writer does not know of.
        """
        written, read = self.writes.cells[at], self.reads.cells[at]
        bad, count = self.writes.unknown(written, actor, known, alias)
        joins: Mask | None = None
        if agreement is not None:
            writers = actors_of(written)
            repeats = (writers == actor) | (writers < 0)
            if count:
                repeats |= bad
            if np.count_nonzero(repeats):
                agreed: Mask = repeats & self._agrees(at, actor, known, agreement, alias)
                joins = agreed if np.count_nonzero(agreed) else None
                if count:
                    bad &= ~agreed
                    count = int(np.count_nonzero(bad))
        found = None
        if count:
            found = self._conflict(self.writes, at, bad, actor, known, alias, was_write=True)
        was_read = np.count_nonzero(read)
        if was_read:
            bad, count = self.reads.unknown(read, actor, known_reads, alias)
            if found is None and count:
                who = (actor, known_reads, alias)
                found = self._conflict(self.reads, at, bad, *who, was_write=False)
        if joins is None:
            self._replace(at, written, read, cells_of(actor, step), agreement, bool(was_read))
            return found
        actors = np.broadcast_to(actor, joins.shape)
        self._add(self.writes, at[joins], actors[joins], step)
        others = ~joins
        if np.count_nonzero(others):
            cells = cells_of(actors[others], step)
            present = (written[others], read[others])
            self._replace(at[others], *present, cells, agreement, bool(was_read))
        return found

    def _agrees(
        self, at: Where, actor: Any, known: Steps, agreement: Agreement, alias: Alias
    ) -> Mask:
        """Where a weak store may join the last write, whatever orders the two."""
        agrees = self.element_bytes[at] == agreement.element_bytes
        if np.count_nonzero(agrees):
            agrees &= agreement.is_there()
        if np.count_nonzero(agrees):
            for earlier in (self.earlier_writes, self.earlier_reads):
                agrees &= ~earlier.unknown(earlier.cells[at], actor, known, alias)[0]
        return agrees

    def _replace(
        self,
        at: Where,
        written: Any,
        read: Any,
        cells: Any,
        agreement: Agreement | None,
        was_read: bool,
    ) -> None:
        """A write takes the place of what was written and read."""
        if agreement is None:
            self.element_bytes[at] = 0
            if was_read:
                self.reads.put(at, 0)
        else:
            self.element_bytes[at] = agreement.element_bytes
            self.reads.hand_over(self.earlier_reads, at, read)
            if was_read:
                self.reads.cells[at] = 0
            self.writes.hand_over(self.earlier_writes, at, written)
        self.writes.put(at, cells)

    def read(
        self,
        at: Where,
        actor: Any,
        step: int,
        known: Steps,
        known_reads: Steps,
        alias: Alias = None,
    ) -> Conflict | None:
        """Record a read; arguments and result as `write`."""
        bad, count = self.writes.unknown(self.writes.cells[at], actor, known, alias)
        found = None
        if count:
            found = self._conflict(self.writes, at, bad, actor, known, alias, was_write=True)
        cells = cells_of(actor, step)
        read = self.reads.cells[at]
        if np.count_nonzero(read) and (
            (self.reads.has_rows and np.count_nonzero(read < 0))
            or self.reads.unknown(read, actor, known_reads, alias)[1]
        ):
            everywhere = np.ones(read.shape, np.bool_)
            self._share(self.reads, at, everywhere, actor, step)
            return found
        self.reads.put(at, cells)
        if isinstance(actor, np.ndarray):
            lost = self.reads.cells[at] != cells
            if np.count_nonzero(lost):
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
        alias: Alias = None,
    ) -> Conflict | None:
        """What `write` or `read` would return; nothing is recorded."""
        bad, count = self.writes.unknown(self.writes.cells[at], actor, known, alias)
        if agreement is not None and count:
            bad &= ~self._agrees(at, actor, known, agreement, alias)
            count = int(np.count_nonzero(bad))
        if count:
            return self._conflict(self.writes, at, bad, actor, known, alias, was_write=True)
        read = self.reads.cells[at]
        if is_write and np.count_nonzero(read):
            bad, count = self.reads.unknown(read, actor, known_reads, alias)
            if count:
                who = (actor, known_reads, alias)
                return self._conflict(self.reads, at, bad, *who, was_write=False)
        return None

    def _add(self, touches: Touches, numbers: Any, actors: Any, step: int) -> None:
        """One access more of granules of a one-dimensional shadow, by number."""
        alone = actors_of(touches.cells[numbers]) == actors
        touches.cells[numbers[alone]] = cells_of(actors[alone], step)
        if np.count_nonzero(alone) < alone.size:
            touches.share(numbers[~alone], actors[~alone], step)

    def _share(self, touches: Touches, at: Where, chosen: Mask, actor: Any, step: int) -> None:
        numbers = np.broadcast_to(self._numbers[at], chosen.shape)[chosen]
        touches.share(numbers, np.broadcast_to(actor, chosen.shape)[chosen], step)

    def _conflict(
        self,
        touches: Touches,
        at: Where,
        bad: Mask,
        own: Any,
        known: Steps,
        alias: Alias,
        *,
        was_write: bool,
    ) -> Conflict:
        places = np.flatnonzero(bad)
        position = int(places[0])
        granules = np.broadcast_to(self._numbers[at], bad.shape).ravel()
        granule = int(granules[position])
        each = (own, *(alias or ()))
        mine = [int(np.broadcast_to(part, bad.shape).ravel()[position]) for part in each]
        if known.ndim > 1:
            known = known[position // bad.shape[1]]
        second = (mine[1], mine[2]) if alias is not None else None
        actor, step = touches.culprit(granule, mine[0], known, second)
        concerned = np.unique(granules[places])
        low, high = int(concerned[0]), int(concerned[-1])
        return Conflict(granule, actor, step, was_write, position, int(concerned.size), low, high)

    def touched_by(self, actor: int, step: int, is_write: bool) -> tuple[int, int] | None:
        """The first and the last granule whose last write, or read, an actor made from a step on."""
        cells = (self.writes if is_write else self.reads).cells
        found = np.flatnonzero((actors_of(cells) == actor) & (steps_of(cells) >= step))
        return (int(found[0]), int(found[-1])) if found.size else None
