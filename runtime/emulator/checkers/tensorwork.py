"""The order of accesses to tensor memory: by PTX, and by what the assembler and silicon do.

PTX orders tcgen05 operations of two threads by `tcgen05.wait` (or a commit) and
`tcgen05.fence`. A fence becomes a NOP: the assembler moves no tcgen05 operation over a wait
or an arrival. So a clock says both: row KNOWN of a warp's loads (or stores) has those that a fence
handed on, and the actor beside it those that are over.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .clocks import KNOWN, TENSOR, Actors, Clock
from .spaces import Steps

_KINDS = ("tensor", "tmem-load", "tmem-store", "alloc")  # of actors that access tensor memory


class TensorWork:
    """The actors of a cluster that access tensor memory."""

    def __init__(self, actors: Actors):
        self._actors = actors
        self._known_count = 0
        self._all = np.zeros(0, np.intp)
        self._work = np.zeros(0, np.intp)
        self._ends = np.zeros(0, np.intp)

    def end_of(self, key: tuple[Any, ...]) -> int:
        """The actor whose steps are the loads or stores of a warp that are over.

        Args:
          key: of the actor whose steps are those that tcgen05.fence hands on.
        """
        return self._actors.engine(("over", key))

    def orders(self, clock: Clock) -> tuple[Steps, Steps | None]:
        """The steps by actor that are ordered before a thread's access of tensor memory.

        Args:
          clock: of three rows, for all present actors.

        Returns:
          Those that are over, and those that PTX orders; None when these are the same.
        """
        if self._known_count != self._actors.count:
            self._find()
        over = clock[KNOWN].copy()
        over[self._work] = clock[KNOWN, self._ends]
        promised = clock[TENSOR]
        if np.count_nonzero(over[self._all] > promised[self._all]):
            return over, promised
        return over, None

    def _find(self) -> None:
        keys: dict[Any, int] = {key: actor for actor, key in self._actors.engines()}
        ends = {key[1]: actor for key, actor in keys.items() if key[0] == "over"}
        self._all = self._numbers(actor for key, actor in keys.items() if key[0] in _KINDS)
        self._work = self._numbers(keys[key] for key in ends)
        self._ends = self._numbers(ends.values())
        self._known_count = self._actors.count

    @staticmethod
    def _numbers(actors: Any) -> npt.NDArray[np.intp]:
        return np.array(list(actors), np.intp)
