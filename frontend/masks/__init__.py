"""Masks in closed form: which keys a query sees; as objects and as text.

Masks combine: `causal() & chunked(512)`, `causal() | prefix_lm(64)`, `~causal()`. Query i of sq is
at the key position i + sk - sq: masks are aligned so that the last query is at the last key's
position. The functions are those of the table of masks, `dialect.attn.masks.registry`.
"""

from collections.abc import Callable
from typing import Any

from attn_mlir.dialect.attn.masks import (
    PYTHON_NAMES,
    Mask,
    causal,
    chunked,
    full,
    prefix_lm,
    public,
    sliding_window,
)

__all__ = ["PYTHON_NAMES", "Mask", "causal", "chunked", "full", "prefix_lm", "sliding_window"]


def function_named(name: str) -> Callable[..., Mask] | None:
    """The public function of a mask, if there is one."""
    makers = (kind.make for kind in public())
    return next((make for make in makers if make is not None and make.__name__ == name), None)


def __getattr__(name: str) -> Any:
    """The functions of other masks, of which type checkers do not know."""
    if (make := function_named(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return make
