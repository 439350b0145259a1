"""Strong accesses (atomic, volatile, relaxed, acquire, release) to one memory, word by word.

Two strong accesses are no race if each is in the other's scope; a strong and a weak one are, if
they are unordered. Words that a single thread has accessed are kept in arrays; each word that
several have accessed (flags, counters) has a table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.order import CtaId, Scope
from .shadow import Alias, Steps

WORD_BYTES = 4  # accesses are kept by words of this many bytes, each with the bytes that it covers
ALL_BYTES = np.uint8((1 << WORD_BYTES) - 1)
UNIT_BYTES = 16  # bytes of a unit of the marks that quickly show where there are none
SEVERAL = -1

Offsets = npt.NDArray[np.int64]
Words = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Strong:
    """The properties of a strong access: the CTA of its thread, and its scope."""

    cta_id: CtaId
    scope: Scope


@dataclass(slots=True)
class _ActorAccesses:
    """The strong accesses of one actor to a word.

    Attributes:
      written, read: steps of its last write and read; 0 for none.
      scope: the narrowest scope of the accesses.
      touched: a bit for each byte of the word that one of them accesses.
    """

    rank: int
    scope: int
    written: int
    read: int
    touched: int


@dataclass(frozen=True, slots=True)
class StrongConflict:
    """A strong access with which another access conflicts.

    Attributes:
      position: which of the checked accesses conflicts.
      actor, step, wrote: the strong access, and whether it is a write.
    """

    position: int
    actor: int
    step: int
    wrote: bool


def _words_of(offsets: Offsets, width: int) -> tuple[Words, Any]:
    """The words that have the `width` bytes at each offset, [n, words], and bits for these bytes.

    Args:
      offsets: multiples of `width`, which is a power of two.
    """
    if width >= WORD_BYTES:
        return offsets[:, None] // WORD_BYTES + np.arange(width // WORD_BYTES), ALL_BYTES
    bits = ((1 << width) - 1) << (offsets % WORD_BYTES)
    return offsets[:, None] // WORD_BYTES, bits[:, None].astype(np.uint8)


class StrongWords:
    """The strong accesses of one cluster to the bytes [0, byte_count) of one memory.

    Attributes:
      has_narrow_scope: whether some of them have a scope that does not include all threads.
    """

    def __init__(self, byte_count: int):
        count = -(-byte_count // UNIT_BYTES) * (UNIT_BYTES // WORD_BYTES)
        self.has_narrow_scope = False
        self._cluster = 0
        self._marked = np.zeros(-(-byte_count // UNIT_BYTES), np.bool_)
        self._actor = np.zeros(count, np.int32)
        self._written = np.zeros(count, np.int32)
        self._read = np.zeros(count, np.int32)
        self._rank = np.zeros(count, np.int16)
        self._scope = np.zeros(count, np.int8)
        self._touched = np.zeros(count, np.uint8)
        self._several: dict[int, dict[int, _ActorAccesses]] = {}

    def any(self, units: Any) -> npt.NDArray[np.bool_]:
        """Whether there may be strong accesses to these 16-byte units."""
        return self._marked[units]

    def record(
        self,
        offsets: Offsets,
        width: int,
        actors: npt.NDArray[np.int64],
        step: int,
        strong: Strong,
        kind: str,
    ) -> None:
        """Records a strong "load", "store" or "update" for each of some threads at `strong.cta_id`.

        Args:
          offsets: multiples of `width`, which is a power of two.
          actors: int64[n, 1].
        """
        self._cluster = strong.cta_id[0]
        self.has_narrow_scope |= strong.scope < Scope.GPU
        for start in range(0, width, UNIT_BYTES):
            self._marked[(offsets + start) // UNIT_BYTES] = True
        words, bits = _words_of(offsets, width)
        if words.size == 1:  # lanes that access the same word are recorded one by one
            word, actor = int(words[0, 0]), int(actors[0, 0])
            if self._actor[word] not in (0, actor):
                self._record_shared(word, actor, step, strong, kind, int(np.max(bits)))
                return
        before = self._actor[words]
        fresh = before == 0
        if np.count_nonzero(fresh):
            self._actor[words] = np.where(fresh, actors, before)
            added = words[fresh]
            self._written[added] = self._read[added] = self._touched[added] = 0
            self._rank[added], self._scope[added] = strong.cta_id[1], strong.scope
        alone = self._actor[words] == actors
        if np.count_nonzero(alone) == alone.size:
            mine, bits_of = words, bits
        else:
            mine, bits_of = words[alone], np.broadcast_to(bits, words.shape)[alone]
        if kind != "store":
            self._read[mine] = step
        if kind != "load":
            self._written[mine] = step
        self._touched[mine] |= bits_of
        self._scope[mine] = np.minimum(self._scope[mine], np.int8(strong.scope))
        if mine is not words:
            each = [np.broadcast_to(part, words.shape)[~alone] for part in (words, actors, bits)]
            for word, actor, touched in zip(*(part.tolist() for part in each), strict=True):
                self._record_shared(word, actor, step, strong, kind, touched)

    def _record_shared(
        self, word: int, actor: int, step: int, strong: Strong, kind: str, touched: int
    ) -> None:
        """Records an access to a word with several actors."""
        by_actor = self._several.get(word)
        if by_actor is None:
            by_actor = self._several[word] = {int(self._actor[word]): self._only(word)}
            self._actor[word] = SEVERAL
        known = by_actor.get(actor)
        if known is None:
            known = by_actor[actor] = _ActorAccesses(strong.cta_id[1], int(strong.scope), 0, 0, 0)
        known.scope = min(known.scope, int(strong.scope))
        known.touched |= touched
        if kind != "store":
            known.read = step
        if kind != "load":
            known.written = step

    def _only(self, word: int) -> _ActorAccesses:
        """The accesses of a word's single actor."""
        arrays = (self._rank, self._scope, self._written, self._read, self._touched)
        return _ActorAccesses(*(int(array[word]) for array in arrays))

    def first_conflict(
        self,
        offsets: Offsets,
        width: int,
        own: npt.NDArray[np.int64],
        known: Steps,
        alias: Alias,
        *,
        is_write: bool,
        strong: Strong | None = None,
    ) -> StrongConflict | None:
        """The first recorded access that conflicts with one of `own`, or None.

        Args:
          own: int64[n, 1], the accessors by offset.
          known: steps by actor that they know, as one array or a row for each.
          alias: as `spaces.Accessor.alias`, in arrays like `own`.
          strong: the properties of a strong access; it is no race with those that it is in scope
            with.
        """
        words, bits = _words_of(offsets, width)
        actors = self._actor[words]
        inside = np.maximum(actors, 0)
        steps = self._written[words]
        if is_write:
            steps = np.maximum(steps, self._read[words])
        reached = (
            known[inside] if known.ndim == 1 else known[np.arange(len(known))[:, None], inside]
        )
        late = (reached < steps) & (actors != own) & (actors > 0)
        late &= (self._touched[words] & bits) != 0
        if alias is not None:
            late &= (actors != alias[0]) | (steps > alias[1])
        for position, column in np.argwhere(late | (actors == SEVERAL)).tolist():
            word = int(words[position, column])
            steps_of = known if known.ndim == 1 else known[position]
            me = int(own[position, 0])
            second = None
            if alias is not None:
                second = (int(alias[0][position, 0]), int(alias[1][position, 0]))
            touched = int(np.broadcast_to(bits, words.shape)[position, column])
            access = self._conflict_in(
                word, touched, me, second, steps_of, strong, is_write=is_write
            )
            if access is not None:
                return StrongConflict(position, *access)
        return None

    def _conflict_in(
        self,
        word: int,
        touched: int,
        own: int,
        alias: tuple[int, int] | None,
        known: Steps,
        strong: Strong | None,
        *,
        is_write: bool,
    ) -> tuple[int, int, bool] | None:
        """(actor, step, whether it wrote) of the first access that conflicts with `own`."""
        several = self._several.get(word)
        if several is None:
            several = {int(self._actor[word]): self._only(word)}
        for actor, other in several.items():
            step = max(other.written, other.read) if is_write else other.written
            if not touched & other.touched or not step or actor == own:
                continue
            if actor < known.size and known[actor] >= step:
                continue
            if alias is not None and actor == alias[0] and step <= alias[1]:
                continue
            there = (self._cluster, other.rank)
            if strong is None or not (
                strong.scope.includes(strong.cta_id, there)
                and Scope(other.scope).includes(there, strong.cta_id)
            ):
                return actor, step, other.written == step
        return None

    def forget(self, offsets: Offsets, width: int) -> None:
        """Removes accesses that later weak writes replace."""
        words, bits = _words_of(offsets, width)
        bits = np.broadcast_to(bits, words.shape)
        actors = self._actor[words]
        alone = actors > 0
        mine = words[alone]
        self._touched[mine] &= ~bits[alone]
        self._actor[mine[self._touched[mine] == 0]] = 0
        shared = actors == SEVERAL
        for word, touched in zip(words[shared].tolist(), bits[shared].tolist(), strict=True):
            by_actor = self._several.get(word, {})
            for actor, other in list(by_actor.items()):
                other.touched &= ~touched
                if not other.touched:
                    del by_actor[actor]
            if not by_actor and self._actor[word] == SEVERAL:
                self._several.pop(word, None)
                self._actor[word] = 0
