"""Strong accesses (atomic, volatile, relaxed, acquire, release) to one memory, word by word.

They are no races among themselves as long as each is in the other's scope, but they are with weak accesses that nothing
orders. There are few of them: flags, counters, accumulators.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..order import Place, Scope
from .shadow import Steps

WORD_BYTES = 4  # accesses are kept by words, each with the bytes of the word that it touches
ALL_BYTES = (1 << WORD_BYTES) - 1
UNIT_BYTES = 16  # of the marks that tell quickly where there are none


@dataclass(slots=True)
class Strong:
    """What one actor did to a word.

    Attributes:
      written, read: its last steps; 0 for never. scope: the narrowest of the accesses.
      touched: a bit for each byte of the word that one of them reaches.
    """

    place: Place
    scope: Scope
    written: int = 0
    read: int = 0
    touched: int = 0


def _touched(word: int, offset: int, width: int) -> int:
    """The bytes of a word that lie among `width` from `offset`, a multiple of it, on: a bit for each."""
    if width >= WORD_BYTES:
        return ALL_BYTES
    begin = max(offset - word * WORD_BYTES, 0)
    end = min(offset + width - word * WORD_BYTES, WORD_BYTES)
    return (1 << end) - (1 << begin)


def _words(offset: int, width: int) -> range:
    """The words that hold these bytes."""
    return range(offset // WORD_BYTES, (offset + width - 1) // WORD_BYTES + 1)


class StrongWords:
    """The strong accesses of one cluster to the bytes [0, byte_count) of one memory.

    Attributes:
      is_narrow: some of them may not reach everybody.
    """

    def __init__(self, byte_count: int):
        self.is_narrow = False
        self._marked = np.zeros(-(-byte_count // UNIT_BYTES), np.bool_)
        self._words: dict[int, dict[int, Strong]] = {}

    def any(self, units: Any) -> npt.NDArray[np.bool_]:
        """Whether there are strong accesses to 16-byte units, by index."""
        return self._marked[units]

    def record(
        self,
        offsets: npt.NDArray[np.int64],
        width: int,
        actors: list[int],
        step: int,
        strong: Strong,
        kind: str,
    ) -> None:
        """A strong "load", "store" or "update" of each of some threads at `strong.place` with its scope.

        Args:
          offsets: multiples of `width`, which is a power of two.
        """
        self.is_narrow |= strong.scope < Scope.GPU
        for start in range(0, width, UNIT_BYTES):
            self._marked[(offsets + start) // UNIT_BYTES] = True
        for offset, actor in zip(offsets.tolist(), actors, strict=True):
            for word in _words(offset, width):
                here = self._words.setdefault(word, {})
                known = here.get(actor)
                if known is None:
                    known = here[actor] = Strong(strong.place, strong.scope)
                elif strong.scope < known.scope:
                    known.scope = strong.scope
                known.touched |= _touched(word, offset, width)
                if kind != "store":
                    known.read = step
                if kind != "load":
                    known.written = step

    def unknown(
        self,
        offset: int,
        width: int,
        own: int,
        known: Steps,
        *,
        is_write: bool,
        strong: Strong | None = None,
    ) -> tuple[int, int, bool] | None:
        """(actor, step, whether it wrote) of an access that one of `own` races with, if any.

        Args:
          known: steps by actor that `own` knows of.
          strong: of a strong access; those in whose scope it is are no races.
        """
        for word in _words(offset, width):
            touched = _touched(word, offset, width)
            for actor, other in self._words.get(word, {}).items():
                if not touched & other.touched:
                    continue
                step = max(other.written, other.read) if is_write else other.written
                if not step or actor == own or (actor < known.size and known[actor] >= step):
                    continue
                if strong is None or not (
                    strong.scope.includes(strong.place, other.place)
                    and other.scope.includes(other.place, strong.place)
                ):
                    return actor, step, other.written == step
        return None

    def forget(self, offset: int, width: int) -> None:
        """A weak write that all of them precede takes their place."""
        for word in _words(offset, width):
            touched = _touched(word, offset, width)
            here = self._words.get(word, {})
            for actor, other in list(here.items()):
                other.touched &= ~touched
                if not other.touched:
                    del here[actor]
