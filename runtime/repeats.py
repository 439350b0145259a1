"""What was made for calls that come again: bounded, and safe for threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 512  # calls that are remembered; a plan takes some kilobytes


class Repeats(Generic[T]):
    """Makes a value for a key at its second sight, so that what comes once costs little.

    Args:
      most: keys that are remembered of either kind, those with a value and those without; the least
        recently used are forgotten.
    """

    def __init__(self, most: int = MOST):
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, T] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: Hashable) -> T | None:
        """The value of a key, if one was made."""
        with self._lock:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
            return found

    def note(self, key: Hashable, make: Callable[[], T | None]) -> None:
        """Says that a key came for which there was no value.

        Args:
          make: makes one; None where there is to be none, which is asked again at the next sight
            of the key but one.
        """
        with self._lock:
            if key not in self._seen:
                self._seen[key] = None
                _trim(self._seen, self._most)
                return
            del self._seen[key]
        made = make()
        if made is not None:
            with self._lock:
                self._made[key] = made
                _trim(self._made, self._most)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._made.clear()
            self._seen.clear()


def _trim(entries: OrderedDict[Hashable, T], most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
