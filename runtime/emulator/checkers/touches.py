"""The accesses of one kind (reads or writes) that each granule of a shadow remembers.

Usually it is a single one, as (actor, step). For several actors that do not know of each other, the
granule has a row of a pool instead, with one step per actor.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int32]
Where = Any  # an index of granules: slices or integer arrays
Mask = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.int64]
Alias = (
    tuple[Any, Any] | None
)  # a second actor of the accessor, with its last step: arrays like `own`
_STEP_BITS = 32
_STEP = (1 << _STEP_BITS) - 1
_POOL_ROWS = 64  # rows of a new pool; its width is a multiple of this as well
_POOL_GROWTH = 4  # factor by which the rows grow


def steps_of(cells: Cells) -> Cells:
    """The steps of cells."""
    return cells & _STEP


def actors_of(cells: Cells) -> Cells:
    """The actors of cells."""
    return cells >> _STEP_BITS


def cells_of(actor: Any, step: int) -> Any:
    """The cells for actors, an int or int64[...], at a step."""
    return actor << _STEP_BITS | step


class Pool:
    """Rows of steps by actor, for granules with several actors."""

    def __init__(self) -> None:
        self.steps: Steps = np.zeros((0, 0), np.int32)
        self._next = 0  # rows from here on have never been taken, and are zero
        self._returned: npt.NDArray[np.intp] = np.zeros(0, np.intp)

    def take(self, count: int, width: int) -> npt.NDArray[np.intp]:
        """Numbers of `count` rows of zeros, for actors below `width`."""
        self.widen(width)
        split = max(len(self._returned) - count, 0)
        self._returned, again = self._returned[:split], self._returned[split:]
        self.steps[again] = 0
        first, self._next = self._next, self._next + count - len(again)
        if self._next > self.steps.shape[0]:
            after = max(_POOL_ROWS, _POOL_GROWTH * self.steps.shape[0], self._next)
            # memory is allocated by page on first use
            more = np.zeros((after, self.steps.shape[1]), np.int32)
            more[:first] = self.steps[:first]
            self.steps = more
        return np.concatenate([again, np.arange(first, self._next, dtype=np.intp)])

    def widen(self, width: int) -> None:
        """Makes room for actors below `width`."""
        rows, before = self.steps.shape
        if width > before:
            wider = np.zeros((rows, -(-width // _POOL_ROWS) * _POOL_ROWS), np.int32)
            wider[: self._next, :before] = self.steps[: self._next]
            self.steps = wider

    def give_back(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Takes back rows that no granule uses any more."""
        self._returned = np.concatenate([self._returned, np.unique(rows).astype(np.intp)])


class Touches:
    """Accesses by granule.

    Attributes:
      cells: actor and step as a pair in 64 bits. Actor 0 stands for no access; a negative actor
        -n-1 for row n of the pool, with step 0.
    """

    def __init__(self, cells: Cells, pool: Pool):
        self.cells = cells
        self._pool = pool
        self.has_rows = False

    def unknown(
        self, cells: Cells, own: Any, known: Steps, alias: Alias = None
    ) -> tuple[Mask, int]:
        """Where there are accesses of others than `own` that `known` does not include, and how many.

        Args:
          cells: the cells of the granules.
          known: steps by actor, as one array or with a row for each index of the cells' first axis.
        """
        actors, steps = actors_of(cells), steps_of(cells)
        inside = np.maximum(actors, 0) if self.has_rows else actors
        if known.ndim == 1:
            bad = known[inside] < steps
        else:
            bad = known[np.arange(known.shape[0])[:, None], inside] < steps
        count = int(np.count_nonzero(bad))
        if count:
            bad &= actors != own
            if alias is not None:
                bad &= (actors != alias[0]) | (steps > alias[1])
            count = int(np.count_nonzero(bad))
        if self.has_rows and np.count_nonzero(shared := actors < 0):
            rows = known if known.ndim == 1 else known[np.nonzero(shared)[0]]
            each = [np.broadcast_to(part, actors.shape)[shared] for part in (own, *(alias or ()))]
            late = self._late(actors[shared], rows, each[0], tuple(each[1:]))
            bad[shared] = late.any(axis=1)
            count = int(np.count_nonzero(bad))
        return bad, count

    def culprit(
        self, number: int, own: int, known: Steps, alias: tuple[int, int] | None
    ) -> tuple[int, int]:
        """Actor and step of an access to a granule (by flat number) that `unknown` has found."""
        cell = self.cells.reshape(-1)[number : number + 1]
        actor, step = int(actors_of(cell)[0]), int(steps_of(cell)[0])
        if actor >= 0:
            return actor, step
        one = tuple(np.array([part]) for part in alias or ())
        late = self._late(np.array([actor]), known, np.array([own]), one)[0]
        who = int(np.flatnonzero(late)[0])
        return who, int(self._pool.steps[-1 - actor, who])

    def _late(self, actors: Any, known: Steps, own: Any, alias: tuple[Any, ...]) -> Mask:
        """For granules with rows, by actor: whether it has a step that `known` does not include."""
        steps = self._pool.steps[-1 - actors]
        width = min(steps.shape[1], known.shape[-1])
        late: Mask = steps[:, :width] > known[..., :width]
        inside = own < width
        late[np.flatnonzero(inside), own[inside]] = False
        if alias:
            other, until = alias
            rows = np.flatnonzero(other < width)
            late[rows, other[rows]] &= steps[rows, other[rows]] > until[rows]
        return late

    def put(self, at: Where, cells: Any) -> None:
        """Replaces the cells of granules."""
        if self.has_rows:
            actors = actors_of(self.cells[at])
            shared = actors < 0
            if np.count_nonzero(shared):
                self._pool.give_back(-1 - actors[shared])
        self.cells[at] = cells

    def hand_over(self, other: "Touches", at: Where, cells: Cells) -> None:
        """Moves `cells` from these granules to `other`, replacing its cells; the caller puts new ones here."""
        if other.has_rows:
            other.put(at, cells)
        else:
            other.cells[at] = cells
        if self.has_rows:
            other.has_rows = True
            self.cells[at] = 0

    def share(self, numbers: Any, actors: Any, step: int) -> None:
        """Adds an access to granules by flat number; arguments int[n]."""
        flat = self.cells.reshape(-1)
        present = flat[numbers]
        width = max(int(actors.max()), int(actors_of(present).max())) + 1
        alone = np.unique(numbers[present >= 0])
        if alone.size:
            before = flat[alone]
            rows = self._pool.take(alone.size, width)
            self._pool.steps[rows, actors_of(before)] = steps_of(before)
            self._pool.steps[rows, 0] = 0
            flat[alone] = cells_of(-1 - rows, 0)
            self.has_rows = True
        self._pool.widen(width)
        self._pool.steps[-1 - actors_of(flat[numbers]), actors] = step

    def replace_all(self, actor: int, step: int) -> None:
        """Replaces all accesses so far by one actor's at one step."""
        self.put(self.cells != 0, cells_of(actor, step))
        self.has_rows = False

    def refine(self, factor: int) -> None:
        """Divides each granule of a one-dimensional shadow into `factor` equal ones."""
        self.cells = np.repeat(self.cells, factor)
        actors = actors_of(self.cells)
        shared = np.flatnonzero(actors < 0)
        if shared.size:
            rows = -1 - actors[shared]
            fresh = self._pool.take(shared.size, self._pool.steps.shape[1])
            self._pool.steps[fresh] = self._pool.steps[rows]
            self.cells[shared] = cells_of(-1 - fresh, 0)
            self._pool.give_back(rows)
