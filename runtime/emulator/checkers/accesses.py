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
# a second actor of the accessor, with its last step: arrays like `own`
Alias = tuple[Any, Any] | None
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
    """Rows of steps by actor, for granules with several actors.

    A row belongs to one granule, which gives it back, or is common to all that have had the same
    accesses. Common rows never change; those that no granule has any more are found when rows run
    out.

    Attributes:
      steps: by row and actor.
      is_common: by row.
      has_common: whether there are or were common rows.
      users: those whose granules have the rows.
    """

    def __init__(self) -> None:
        self.steps: Steps = np.zeros((0, 0), np.int32)
        self.is_common: Mask = np.zeros(0, np.bool_)
        self.has_common = False
        self.users: list[Accesses] = []
        self._next = 0  # rows from here on have never been taken, and are zero
        self._returned: npt.NDArray[np.intp] = np.zeros(0, np.intp)

    def take(self, count: int, width: int, *, common: bool) -> npt.NDArray[np.intp]:
        """Numbers of `count` rows of zeros, for actors below `width`."""
        self.widen(width)
        if self._next + count - len(self._returned) > self.steps.shape[0]:
            self._make_room(count)
        split = max(len(self._returned) - count, 0)
        self._returned, again = self._returned[:split], self._returned[split:]
        self.steps[again] = 0
        first, self._next = self._next, self._next + count - len(again)
        rows = np.concatenate([again, np.arange(first, self._next, dtype=np.intp)])
        self.is_common[rows] = common
        self.has_common |= common
        return rows

    def _make_room(self, count: int) -> None:
        """Takes back all rows that no granule has, and adds rows if these are few."""
        is_used = np.zeros(self._next, np.bool_)
        for accesses in self.users:
            is_used[accesses.rows_of_all()] = True
        self._returned = np.flatnonzero(~is_used)
        rows, width = self.steps.shape
        if len(self._returned) < max(count, rows // _POOL_GROWTH):
            after = max(_POOL_ROWS, _POOL_GROWTH * rows, self._next + count)
            more = np.zeros((after, width), np.int32)  # memory is allocated by page on first use
            more[: self._next] = self.steps[: self._next]
            self.steps = more
            self.is_common = np.concatenate([self.is_common, np.zeros(after - rows, np.bool_)])

    def widen(self, width: int) -> None:
        """Makes room for actors below `width`."""
        rows, before = self.steps.shape
        if width > before:
            wider = np.zeros((rows, -(-width // _POOL_ROWS) * _POOL_ROWS), np.int32)
            wider[: self._next, :before] = self.steps[: self._next]
            self.steps = wider

    def make_common(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Rows may belong to several granules from here on."""
        self.is_common[rows] = True
        self.has_common |= bool(rows.size)

    def give_back(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Takes back rows of granules that do not use them any more."""
        own = rows[~self.is_common[rows]] if self.has_common else rows
        if own.size:
            self._returned = np.concatenate([self._returned, np.unique(own).astype(np.intp)])


class Accesses:
    """Accesses by granule.

    Attributes:
      cells: actor and step as a pair in 64 bits. Actor 0 stands for no access; a negative actor
        -n-1 for row n of the pool, with step 0.
    """

    def __init__(self, cells: Cells, pool: Pool):
        self.cells = cells
        self._pool = pool
        self.has_rows = False
        pool.users.append(self)

    def rows_of_all(self) -> npt.NDArray[np.int64]:
        """The rows that its granules have."""
        actors = actors_of(self.cells)
        return -1 - actors[actors < 0]

    def unordered(
        self, cells: Cells, own: Any, known: Steps, alias: Alias = None
    ) -> tuple[Mask, int]:
        """The granules with accesses of others that `known` does not include, and how many.

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

    def conflicting(
        self, number: int, own: int, known: Steps, alias: tuple[int, int] | None
    ) -> tuple[int, int]:
        """Actor and step of an access to a granule (by flat number) that `unordered` has found."""
        cell = self.cells.reshape(-1)[number : number + 1]
        actor, step = int(actors_of(cell)[0]), int(steps_of(cell)[0])
        if actor >= 0:
            return actor, step
        one = tuple(np.array([part]) for part in alias or ())
        late = self._late(np.array([actor]), known, np.array([own]), one)[0]
        other = int(np.flatnonzero(late)[0])
        return other, int(self._pool.steps[-1 - actor, other])

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

    def hand_over(self, other: "Accesses", at: Where, cells: Cells) -> None:
        """Moves `cells` of these granules to `other`; the caller puts new ones here."""
        if other.has_rows:
            other.put(at, cells)
        else:
            other.cells[at] = cells
        if self.has_rows:
            other.has_rows = True
            self.cells[at] = 0

    def share(self, numbers: Any, actor: Any, step: int) -> None:
        """Adds an access to granules by flat number, int[n], of one actor or of int[n]."""
        flat, pool = self.cells.reshape(-1), self._pool
        present = flat[numbers]
        before = actors_of(present)
        is_one = isinstance(actor, int)
        last = actor if is_one else int(np.maximum.reduce(actor))
        width = max(last, int(np.maximum.reduce(before))) + 1
        pool.widen(width)
        rows = -1 - before
        has_own = before < 0
        if pool.has_common:
            has_own[has_own] = ~pool.is_common[rows[has_own]]
        if np.count_nonzero(has_own) < has_own.size:
            self.has_rows = True
            others = ~has_own
            cells = present[others]
            if is_one:  # those that had the same accesses have the same again
                cells, again = np.unique(cells, return_inverse=True)
                new = self._copies(cells, width, common=True)
                pool.steps[new, actor] = step
                flat[numbers[others]] = cells_of(-1 - new, 0)[again]
                rows = rows[has_own]
            else:
                new = self._copies(cells, width, common=False)
                flat[numbers[others]] = cells_of(-1 - new, 0)  # a granule's last one counts
                rows = -1 - actors_of(flat[numbers])
        pool.steps[rows, actor] = step

    def _copies(self, cells: Cells, width: int, *, common: bool) -> npt.NDArray[np.intp]:
        """New rows with the accesses of cells."""
        pool = self._pool
        rows = pool.take(cells.size, width, common=common)
        actors = actors_of(cells)
        alone = actors >= 0
        pool.steps[rows[alone], actors[alone]] = steps_of(cells[alone])
        pool.steps[rows[~alone]] = pool.steps[-1 - actors[~alone]]
        return rows

    def replace_all(self, actor: int, step: int) -> None:
        """Replaces all accesses so far by one actor's at one step."""
        self.put(self.cells != 0, cells_of(actor, step))
        self.has_rows = False

    def refine(self, factor: int) -> None:
        """Divides each granule of a one-dimensional shadow into `factor` equal ones."""
        self.cells = np.repeat(self.cells, factor)
        self._pool.make_common(self.rows_of_all())
