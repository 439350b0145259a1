"""The kind of an array of jax. jax is never imported here."""

from __future__ import annotations

import sys
from typing import Any


def is_tracer(value: object) -> bool:
    """Whether jax traces or transforms an array, which then has no elements."""
    core: Any = getattr(sys.modules.get("jax"), "core", None)
    kind = getattr(core, "Tracer", None)
    return kind is not None and isinstance(value, kind)
