"""The accesses of one kind that each granule of a shadow remembers.

Mostly it is one, as (actor, step). When several actors count that do not know of each other, the granule
has a row of a pool with one step per actor instead.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int32]
Where = Any  # an index into the granules: slices, or integer arrays
Mask = npt.NDArray[np.bool_]
_POOL_ROWS = 64  # rows of the first pool; it doubles


class Pool:
    """Rows of steps by actor, for granules with several actors."""

    def __init__(self) -> None:
        self.steps: Steps = np.zeros((_POOL_ROWS, 0), np.int32)
        self._free = list(range(_POOL_ROWS))

    def take(self, count: int, width: int) -> npt.NDArray[np.intp]:
        """Numbers of `count` rows of zeros, for actors below `width`."""
        while len(self._free) < count:
            before = self.steps.shape[0]
            self.steps = np.pad(self.steps, ((0, before), (0, 0)))
            self._free += range(before, 2 * before)
        self.widen(width)
        rows = np.array(self._free[len(self._free) - count :], np.intp)
        del self._free[len(self._free) - count :]
        self.steps[rows] = 0
        return rows

    def widen(self, width: int) -> None:
        """Make room for actors below `width`."""
        more = width - self.steps.shape[1]
        if more > 0:
            self.steps = np.pad(self.steps, ((0, 0), (0, more)))

    def give_back(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Rows that no granule has any more."""
        self._free += np.unique(rows).tolist()


class Touches:
    """Accesses by granule.

    Attributes:
      actor: who; 0 nobody; below 0 row -n-1 of the pool. step: its step; 0 where there is a row.
    """

    def __init__(self, shape: tuple[int, ...], pool: Pool):
        self.actor = np.zeros(shape, np.int32)
        self.step = np.zeros(shape, np.int32)
        self._pool = pool
        self._has_rows = False

    def unknown(self, at: Where, own: Any, known: Steps) -> Mask:
        """Where there are accesses of others than `own` that `known` does not reach.

        Args:
          known: steps by actor, of all; or a row for each along the first axis of what is accessed.
        """
        actors = self.actor[at]
        if known.ndim == 1:
            bad = known.take(actors, mode="clip") < self.step[at]
        else:
            inside = np.clip(actors, 0, known.shape[1] - 1)
            bad = np.take_along_axis(known, inside, axis=1) < self.step[at]
        if bad.any():
            bad &= actors != own
        if self._has_rows and (actors < 0).any():
            shared = actors < 0
            rows = known if known.ndim == 1 else known[np.nonzero(shared)[0]]
            late = self._late(actors[shared], np.broadcast_to(own, actors.shape)[shared], rows)
            bad[shared] = late.any(axis=1)
        return bad

    def culprit(self, number: int, own: int, known: Steps) -> tuple[int, int]:
        """Actor and step of an access to the granule of a flat number that `unknown` is about."""
        actor, step = int(self.actor.flat[number]), int(self.step.flat[number])
        if actor >= 0:
            return actor, step
        late = self._late(np.array([actor]), np.array([own]), known)[0]
        who = int(np.flatnonzero(late)[0])
        return who, int(self._pool.steps[-1 - actor, who])

    def _late(self, actors: Any, own: Any, known: Steps) -> Mask:
        """Of granules with rows, by actor: whether it has a step that `known` does not reach."""
        steps = self._pool.steps[-1 - actors]
        width = min(steps.shape[1], known.shape[-1])
        late: Mask = steps[:, :width] > known[..., :width]
        inside = own < width
        late[np.flatnonzero(inside), own[inside]] = False
        return late

    def put(self, at: Where, actor: Any, step: int) -> None:
        """One access instead of what was there."""
        self._release(at)
        self.actor[at] = actor
        self.step[at] = step

    def move_to(self, other: "Touches", at: Where) -> None:
        """`other` gets what is there in place of its own; nothing is left here."""
        other._release(at)
        other._has_rows |= self._has_rows
        other.actor[at] = self.actor[at]
        other.step[at] = self.step[at]
        self.actor[at] = 0
        self.step[at] = 0

    def share(self, numbers: Any, actors: Any, step: int) -> None:
        """One access more of granules by flat number: int[n] each."""
        own, steps = self.actor.reshape(-1), self.step.reshape(-1)
        actors = actors.astype(np.intp)
        width = max(int(actors.max()), int(own[numbers].max())) + 1
        alone = np.unique(numbers[own[numbers] >= 0])
        if alone.size:
            rows = self._pool.take(alone.size, width)
            self._pool.steps[rows, own[alone]] = steps[alone]
            self._pool.steps[rows, 0] = 0
            own[alone] = -1 - rows
            steps[alone] = 0
            self._has_rows = True
        self._pool.widen(width)
        self._pool.steps[-1 - own[numbers], actors] = step

    def replace_all(self, actor: int, step: int) -> None:
        """All accesses so far were made by one actor at one step."""
        self.put(self.actor != 0, actor, step)
        self._has_rows = False

    def refine(self, factor: int) -> None:
        """Each granule of one dimension becomes `factor` equal ones."""
        self.actor = np.repeat(self.actor, factor)
        self.step = np.repeat(self.step, factor)
        shared = np.flatnonzero(self.actor < 0)
        if shared.size:
            rows = -1 - self.actor[shared]
            fresh = self._pool.take(shared.size, self._pool.steps.shape[1])
            self._pool.steps[fresh] = self._pool.steps[rows]
            self.actor[shared] = -1 - fresh
            self._pool.give_back(rows)

    def _release(self, at: Where) -> None:
        if not self._has_rows:
            return
        actors = self.actor[at]
        if (actors < 0).any():
            self._pool.give_back(-1 - actors[actors < 0])
