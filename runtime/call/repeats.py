"""Bounded, thread-safe memories of values for keys that come again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 512  # most keys that are remembered; a plan takes some kilobytes


class Repeats(Generic[T]):
    """Makes a value for a key at its second use, so that keys used once cost little.

    Args:
      most: largest number of remembered keys with a value, and of those without; the least recently
        used are forgotten.
    """

    def __init__(self, most: int = MOST):
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, T] = OrderedDict()
        self._candidates: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: Hashable) -> T | None:
        """The value of a key; None if none was made."""
        with self._lock:
            plan = self._made.get(key)
            if plan is not None:
                self._made.move_to_end(key)
            return plan

    def note(self, key: Hashable, make: Callable[[], T | None]) -> None:
        """Notes the use of a key that has no value yet.

        Args:
          make: makes the value; if it returns None, it is called again at the second use after this
            one.
        """
        with self._lock:
            if key not in self._candidates:
                self._candidates[key] = None
                _trim(self._candidates, self._most)
                return
            del self._candidates[key]
        made = make()
        if made is not None:
            with self._lock:
                self._made[key] = made
                _trim(self._made, self._most)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._made.clear()
            self._candidates.clear()


class Known(Generic[T]):
    """A bounded memory of what was found out for a key; when it is full, all is forgotten.

    Args:
      most: largest number of keys.
    """

    def __init__(self, most: int = MOST):
        self._most = most
        self._found: dict[Hashable, T] = {}

    def get(self, key: Hashable) -> T | None:
        """The value that was found out; None where none was."""
        return self._found.get(key)

    def put(self, key: Hashable, found: T) -> None:
        """Remembers it."""
        if len(self._found) >= self._most:
            self._found.clear()
        self._found[key] = found


def _trim(entries: OrderedDict[Hashable, T], most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
