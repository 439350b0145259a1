"""Recognises traced arrays of jax, without importing jax."""

from __future__ import annotations

import sys
from typing import Any


def is_tracer(value: object) -> bool:
    """Whether an array is one that jax traces or transforms; such an array has no elements."""
    core: Any = getattr(sys.modules.get("jax"), "core", None)
    kind = getattr(core, "Tracer", None)
    return kind is not None and isinstance(value, kind)
