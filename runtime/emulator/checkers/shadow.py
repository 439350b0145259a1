"""Shadow memory: the last writers and readers of each granule, checked and updated by each access.

Weak stores that agree. PTX does not forbid data races: of two unordered stores of the same size to
the same place, neither precedes the other in coherence order, and a read that is ordered after both
may see either (PTX ISA, memory consistency model: coherence, uniform-size data races). If both
store the same bytes, the result is the same, so this is no finding. It requires stores of one
element size (the model says nothing about mixed sizes), and a store that agrees with the last one
has to be ordered after the same accesses as that one. A granule therefore remembers all stores that
agree, of which later accesses must know each, and the accesses before them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .accesses import Accesses, Alias, Mask, Pool, Steps, Where, actors_of, cells_of, steps_of

__all__ = ["Agreement", "Alias", "Conflict", "Shadow", "Steps", "Where"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An earlier access that the present one does not know of.

    Attributes:
      granule: flat index.
      actor, step: the earlier access.
      was_write: whether the earlier access is a write.
      position: flat index into the present access, from which its lane follows.
      count: number of granules in conflict.
      low, high: the first and the last of them.
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
    """The properties of a weak store that have to agree with those of others.

    Attributes:
      element_bytes: its element size; -1 for a bulk reduction.
      is_there: whether memory has these bytes already; bool, broadcasts over `at`.
    """

    element_bytes: int
    is_there: Callable[[], Mask]


@lru_cache(maxsize=64)
def numbers_of(shape: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """The flat numbers of granules; must not be modified."""
    return np.arange(int(np.prod(shape)), dtype=np.intp).reshape(shape)


class Shadow:
    """The shadow of one memory.

    Args:
      shape: granules; accesses index them with slices or integer arrays.

    Attributes:
      writes, reads: the accesses from the last write on that did not agree with the one before it.
      earlier_writes, earlier_reads: the accesses before that write, if it was a weak store.
      element_bytes: element size of that write if it was a weak store, else 0.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        pool = Pool()
        cells = np.zeros((4, *shape), np.int64)
        self.writes, self.reads = Accesses(cells[0], pool), Accesses(cells[1], pool)
        self.earlier_writes, self.earlier_reads = Accesses(cells[2], pool), Accesses(cells[3], pool)
        self.element_bytes = np.zeros(shape, np.int8)
        self._numbers = numbers_of(shape)

    @property
    def _all(self) -> tuple[Accesses, ...]:
        return self.writes, self.reads, self.earlier_writes, self.earlier_reads

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The memory by granule, until it is refined: the cells, and element sizes."""
        return *(accesses.cells for accesses in self._all), self.element_bytes

    def refine(self, factor: int) -> None:
        """Divides each granule of a one-dimensional shadow into `factor` equal ones."""
        for accesses in self._all:
            accesses.refine(factor)
        self.element_bytes = np.repeat(self.element_bytes, factor)
        self.shape = (self.shape[0] * factor,)
        self._numbers = numbers_of(self.shape)

    def replace_all(self, actor: int, step: int) -> None:
        """Replaces all accesses so far by one actor's at one step."""
        for accesses in self._all:
            accesses.replace_all(actor, step)

    def write(
        self,
        at: Where,
        actor: Any,
        step: int,
        known: Steps,
        known_reads: Steps,
        agreement: Agreement | None = None,
        alias: Alias = None,
        *,
        ordered: Steps | None = None,
    ) -> Conflict | None:
        """Records a write.

        Args:
          actor: one actor, or an array that broadcasts over the granules.
          known, known_reads: steps by actor that the writer knows, of earlier writes and of earlier
            reads; see `Accesses.unordered`.
          agreement: for a weak store, whose `at` is an integer array; else None.
          ordered: steps of the reads that are ordered before it at all, where `known_reads` asks
            for more; a read that is not among them is the conflict before all others.

        Returns:
          The first earlier access that the writer does not know of, or None.
        """
        written, read = self.writes.cells[at], self.reads.cells[at]
        bad, count = self.writes.unordered(written, actor, known, alias)
        shared: Mask | None = None
        if agreement is not None:
            writers = actors_of(written)
            candidates = (writers == actor) | (writers < 0)
            if count:
                candidates |= bad
            if np.count_nonzero(candidates):
                agreed: Mask = candidates & self._agrees(at, actor, known, agreement, alias)
                shared = agreed if np.count_nonzero(agreed) else None
                if count:
                    bad &= ~agreed
                    count = int(np.count_nonzero(bad))
        conflict = None
        if count:
            conflict = self._conflict(self.writes, at, bad, actor, known, alias, was_write=True)
        was_read = np.count_nonzero(read)
        if was_read:
            bad, count = self.reads.unordered(read, actor, known_reads, alias)
            if count and ordered is not None:
                races, raced = self.reads.unordered(read, actor, ordered, alias)
                if raced:
                    bad, known_reads = races, ordered
            if conflict is None and count:
                accessor = (actor, known_reads, alias)
                conflict = self._conflict(self.reads, at, bad, *accessor, was_write=False)
        if shared is None:
            self._replace(at, written, read, cells_of(actor, step), agreement, bool(was_read))
            return conflict
        actors = np.broadcast_to(actor, shared.shape)
        self._add(self.writes, at[shared], actors[shared], step)
        others = ~shared
        if np.count_nonzero(others):
            cells = cells_of(actors[others], step)
            present = (written[others], read[others])
            self._replace(at[others], *present, cells, agreement, bool(was_read))
        return conflict

    def _agrees(
        self, at: Where, actor: Any, known: Steps, agreement: Agreement, alias: Alias
    ) -> Mask:
        """The granules where a weak store agrees with the last write: no race, in any order."""
        agrees = self.element_bytes[at] == agreement.element_bytes
        if np.count_nonzero(agrees):
            agrees &= agreement.is_there()
        if np.count_nonzero(agrees):
            for earlier in (self.earlier_writes, self.earlier_reads):
                agrees &= ~earlier.unordered(earlier.cells[at], actor, known, alias)[0]
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
        """Replaces earlier accesses of granules by a write."""
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
        """Records a read; arguments and result as `write`."""
        bad, count = self.writes.unordered(self.writes.cells[at], actor, known, alias)
        conflict = None
        if count:
            conflict = self._conflict(self.writes, at, bad, actor, known, alias, was_write=True)
        cells = cells_of(actor, step)
        read = self.reads.cells[at]
        if np.count_nonzero(read) and (
            (self.reads.has_rows and np.count_nonzero(read < 0))
            or self.reads.unordered(read, actor, known_reads, alias)[1]
        ):
            numbers = np.broadcast_to(self._numbers[at], read.shape).ravel()
            is_one = isinstance(actor, int)
            actors = actor if is_one else np.broadcast_to(actor, read.shape).ravel()
            self.reads.share(numbers, actors, step)
            return conflict
        self.reads.put(at, cells)
        if not isinstance(actor, int):
            lost = self.reads.cells[at] != cells
            if np.count_nonzero(lost):
                numbers = np.broadcast_to(self._numbers[at], lost.shape)[lost]
                self.reads.share(numbers, np.broadcast_to(actor, lost.shape)[lost], step)
        return conflict

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
        """The result of `write` or `read`; records nothing."""
        bad, count = self.writes.unordered(self.writes.cells[at], actor, known, alias)
        if agreement is not None and count:
            bad &= ~self._agrees(at, actor, known, agreement, alias)
            count = int(np.count_nonzero(bad))
        if count:
            return self._conflict(self.writes, at, bad, actor, known, alias, was_write=True)
        read = self.reads.cells[at]
        if is_write and np.count_nonzero(read):
            bad, count = self.reads.unordered(read, actor, known_reads, alias)
            if count:
                accessor = (actor, known_reads, alias)
                return self._conflict(self.reads, at, bad, *accessor, was_write=False)
        return None

    def _add(self, accesses: Accesses, numbers: Any, actors: Any, step: int) -> None:
        """Adds an access to granules, by number, of a one-dimensional shadow."""
        alone = actors_of(accesses.cells[numbers]) == actors
        accesses.cells[numbers[alone]] = cells_of(actors[alone], step)
        if np.count_nonzero(alone) < alone.size:
            accesses.share(numbers[~alone], actors[~alone], step)

    def _conflict(
        self,
        accesses: Accesses,
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
        actor, step = accesses.conflicting(granule, mine[0], known, second)
        concerned = np.unique(granules[places])
        low, high = int(concerned[0]), int(concerned[-1])
        return Conflict(granule, actor, step, was_write, position, int(concerned.size), low, high)

    def touched_by(self, actor: int, step: int, is_write: bool) -> tuple[int, int] | None:
        """The first and last granule whose last write (or read) is an actor's, from a step on."""
        cells = (self.writes if is_write else self.reads).cells
        granules = np.flatnonzero((actors_of(cells) == actor) & (steps_of(cells) >= step))
        return (int(granules[0]), int(granules[-1])) if granules.size else None
