"""Where a refused call of another library's name goes instead: `fallback="sdpa"`."""

from __future__ import annotations

from attn_mlir import env
from attn_mlir.errors import SpecError, shown

SDPA = "sdpa"


def wants_sdpa(fallback: object) -> bool:
    """Whether refused calls go to PyTorch's own attention.

    Raises:
      SpecError: neither None nor "sdpa".
    """
    if fallback not in (None, SDPA):
        raise SpecError(f'fallback must be None or "{SDPA}", got {shown(fallback, 40)}')
    return fallback == SDPA


def say_fallback(caller: str, reason: str) -> None:
    """A warning in the log, once for the same caller and reason."""
    env.log_once("warning", f"{caller} falls back to PyTorch's own attention: {reason}")
