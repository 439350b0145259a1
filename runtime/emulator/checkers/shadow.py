"""Shadow memory: who wrote and who read each granule last, checked and updated an access at a time.

A granule remembers its last write and one read as (actor, step). When several actors that do not
know of each other read the same granule, it gets a row of a pool with one step per actor instead.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int32]
Where = Any  # an index into the granules: slices, or integer arrays
_POOL_ROWS = 64  # rows of the first pool; it doubles


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


class Shadow:
    """Shadow of one memory.

    Args:
      shape: granules; accesses index them with slices or integer arrays.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.write_actor = np.zeros(shape, np.int32)
        self.write_step = np.zeros(shape, np.int32)
        self.read_actor = np.zeros(shape, np.int32)  # below 0: row -n-1 of the pool
        self.read_step = np.zeros(shape, np.int32)
        self._numbers = np.arange(int(np.prod(shape)), dtype=np.intp).reshape(shape)
        self._pool: Steps = np.zeros((_POOL_ROWS, 0), np.int32)
        self._free = list(range(_POOL_ROWS))

    def refine(self, factor: int) -> None:
        """Make granules of a one-dimensional shadow smaller: each becomes `factor` equal ones."""
        self._spread_pool(factor)
        for name in ("write_actor", "write_step", "read_actor", "read_step"):
            setattr(self, name, np.repeat(getattr(self, name), factor))
        self.shape = (self.shape[0] * factor,)
        self._numbers = np.arange(self.shape[0], dtype=np.intp)
        shared = np.flatnonzero(self.read_actor < 0)
        if shared.size:
            rows = -1 - self.read_actor[shared]
            fresh = self._take_rows(shared.size, self._pool.shape[1])
            self._pool[fresh] = self._pool[rows]
            self.read_actor[shared] = -1 - fresh
            self._free += np.unique(rows).tolist()

    def forget_readers(self, actor: int, step: int) -> None:
        """All reads so far were made by one actor at one step."""
        read = self.read_actor != 0
        self.read_actor[read] = actor
        self.read_step[read] = step
        self._free = list(range(self._pool.shape[0]))

    def _spread_pool(self, factor: int) -> None:
        used = self._pool.shape[0] - len(self._free)
        while len(self._free) < used * factor:
            self._grow_rows()

    def write(
        self, at: Where, actor: Any, step: int, known: Steps, known_reads: Steps
    ) -> Conflict | None:
        """Record a write.

        Args:
          actor: one actor, or an array that broadcasts over the granules.
          known: steps by actor that the writer knows of earlier writes; known_reads: of reads.

        Returns:
          The first earlier access that the writer does not know of.
        """
        found = self._unknown_write(at, actor, known)
        readers = self.read_actor[at]
        if readers.any():
            bad = (known_reads[np.maximum(readers, 0)] < self.read_step[at]) & (readers != actor)
            bad &= readers > 0
            if found is None and bad.any():
                found = self._conflict(at, bad, readers, self.read_step[at], was_write=False)
            if (readers < 0).any():
                later = self._clear_pool(at, readers, actor, known_reads)
                found = found or later
            self.read_actor[at] = 0
        self.write_actor[at] = actor
        self.write_step[at] = step
        return found

    def read(
        self, at: Where, actor: Any, step: int, known: Steps, known_reads: Steps
    ) -> Conflict | None:
        """Record a read; arguments and result as `write`."""
        found = self._unknown_write(at, actor, known)
        readers = self.read_actor[at]
        if not readers.any():
            self.read_actor[at] = actor
            self.read_step[at] = step
            lost = self.read_actor[at] != actor if isinstance(actor, np.ndarray) else None
            if lost is not None and lost.any():
                self._share(at, lost, actor, step)
            return found
        alone = readers >= 0
        alone &= (known_reads[np.maximum(readers, 0)] >= self.read_step[at]) | (readers == actor)
        if alone.all():
            self.read_actor[at] = actor
            self.read_step[at] = step
            lost = self.read_actor[at] != actor if isinstance(actor, np.ndarray) else None
            if lost is not None and lost.any():
                self._share(at, lost, actor, step)
            return found
        self._share(at, np.ones(readers.shape, np.bool_), actor, step)
        return found

    def _unknown_write(self, at: Where, actor: Any, known: Steps) -> Conflict | None:
        writers = self.write_actor[at]
        steps = self.write_step[at]
        bad = known[writers] < steps
        if not bad.any():
            return None
        bad &= writers != actor
        if not bad.any():
            return None
        return self._conflict(at, bad, writers, steps, was_write=True)

    def _conflict(
        self, at: Where, bad: Any, actors: Any, steps: Any, *, was_write: bool
    ) -> Conflict:
        places = np.flatnonzero(bad)
        first = int(places[0])
        granules = np.broadcast_to(self._numbers[at], bad.shape).ravel()
        concerned = np.unique(granules[places])
        return Conflict(
            int(granules[first]),
            int(actors.ravel()[first]),
            int(steps.ravel()[first]),
            was_write,
            first,
            int(concerned.size),
            int(concerned[0]),
            int(concerned[-1]),
        )

    # ---- granules with several readers

    def _share(self, at: Where, chosen: Any, actor: Any, step: int) -> None:
        """Give granules pool rows that hold their reader so far and the new one."""
        granules = np.broadcast_to(self._numbers[at], chosen.shape)[chosen]
        actors = np.broadcast_to(actor, chosen.shape)[chosen].astype(np.intp)
        readers = self.read_actor.reshape(-1)
        steps = self.read_step.reshape(-1)
        width = max(int(actors.max()), int(readers[granules].max())) + 1
        alone = np.unique(granules[readers[granules] >= 0])
        if alone.size:
            rows = self._take_rows(alone.size, width)
            self._pool[rows] = 0
            self._pool[rows, readers[alone]] = steps[alone]
            self._pool[rows, 0] = 0
            readers[alone] = -1 - rows
        elif width > self._pool.shape[1]:
            self._widen(width)
        self._pool[-1 - readers[granules], actors] = step

    def _take_rows(self, count: int, width: int) -> npt.NDArray[np.intp]:
        while len(self._free) < count:
            self._grow_rows()
        if width > self._pool.shape[1]:
            self._widen(width)
        rows = np.array(self._free[-count:], np.intp)
        del self._free[-count:]
        return rows

    def _grow_rows(self) -> None:
        before = self._pool.shape[0]
        self._pool = np.pad(self._pool, ((0, before), (0, 0)))
        self._free += range(before, 2 * before)

    def _widen(self, width: int) -> None:
        self._pool = np.pad(self._pool, ((0, 0), (0, width - self._pool.shape[1])))

    def _clear_pool(self, at: Where, readers: Any, actor: Any, known: Steps) -> Conflict | None:
        """Check a write against all readers of shared granules, whose rows become free."""
        shared = readers < 0
        rows = -1 - readers[shared]
        steps = self._pool[rows]
        width = min(steps.shape[1], known.size)
        bad = steps[:, :width] > known[:width]
        own = np.broadcast_to(actor, readers.shape)[shared]
        inside = own < width
        bad[np.flatnonzero(inside), own[inside]] = False
        self._free += np.unique(rows).tolist()
        places = np.flatnonzero(bad.any(axis=1))
        if not places.size:
            return None
        first = int(places[0])
        who = int(np.flatnonzero(bad[first])[0])
        position = int(np.flatnonzero(shared)[first])
        granules = np.broadcast_to(self._numbers[at], readers.shape).ravel()
        concerned = np.unique(granules[np.flatnonzero(shared)[places]])
        return Conflict(
            int(granules[position]),
            who,
            int(steps[first, who]),
            False,
            position,
            int(concerned.size),
            int(concerned[0]),
            int(concerned[-1]),
        )

    def touched_by(self, actor: int, step: int, is_write: bool) -> tuple[int, int] | None:
        """The first and the last granule whose last write, or read, an actor made from a step on."""
        actors, steps = (
            (self.write_actor, self.write_step) if is_write else (self.read_actor, self.read_step)
        )
        found = np.flatnonzero((actors == actor) & (steps >= step))
        return (int(found[0]), int(found[-1])) if found.size else None
