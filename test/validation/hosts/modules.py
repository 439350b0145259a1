"""Modules that stand in for those of a package that is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def standing_in(contents: Mapping[str, Mapping[str, Any]], ours: Iterable[str]) -> Iterator[None]:
    """Modules of these contents by dotted names, and those in front of them, as long as the context lasts.

    Args:
      ours: modules that import them: they are imported anew inside of the context, and again after it.
    """
    names = with_parents(contents)
    before = {name: sys.modules.pop(name, None) for name in [*names, *ours]}
    for name in names:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents.get(name, {}))
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def with_parents(names: Iterable[str]) -> list[str]:
    """Dotted names and those in front of them."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        found |= dict.fromkeys(".".join(parts[: end + 1]) for end in range(len(parts)))
    return list(found)
