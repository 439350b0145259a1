"""The public constructors of masks, which say which keys a query sees.

Masks combine: `causal() & chunked(512)`, `causal() | prefix_lm(64)`, `~causal()`. Query i of sq is
at the key position i + sk - sq: masks are aligned so that the last query is at the last key's
position.
"""

from __future__ import annotations

from attn_mlir.dialect.attn.masks import (
    PYTHON_NAMES,
    CausalMask,
    ChunkedMask,
    Mask,
    NullMask,
    PrefixMask,
    WindowMask,
)
from attn_mlir.errors import SpecError

__all__ = ["PYTHON_NAMES", "Mask", "causal", "chunked", "full", "prefix_lm", "sliding_window"]


def full() -> Mask:
    """Every query sees every key."""
    return NullMask()


def causal() -> Mask:
    """Query i of sq sees keys 0 ... i + sk - sq: the last query sees the last key.

    A query that sees no key gives 0 and an LSE of minus infinity.
    """
    return CausalMask()


def sliding_window(left: int | None, right: int | None = 0) -> Mask:
    """A query sees its own position, `left` keys before it and `right` keys after it.

    Args:
      left, right: at least 0; None for no limit.

    Raises:
      SpecError: a limit below 0, or above 2^30.
    """
    for name, limit in (("left", left), ("right", right)):
        if limit is not None and (type(limit) is not int or limit < 0):
            raise SpecError(
                f"{name} of a sliding window must be an integer of at least 0, or None for no "
                f"limit (-1 in #attn.window, inf on the command line), got {limit!r:.40}"
            )
    if left is None and right is None:
        return full()
    if left is None and right == 0:
        return causal()
    return WindowMask(-1 if left is None else left, -1 if right is None else right)


def chunked(size: int) -> Mask:
    """A query sees the keys of the chunk that contains its own position.

    Chunk c holds keys c x size ... (c + 1) x size - 1; `chunked(size) & causal()` for local causal
    attention.

    Raises:
      SpecError: a size that is not from 1 to 2^30.
    """
    return ChunkedMask(size)


def prefix_lm(length: int) -> Mask:
    """A query sees the first `length` keys, and the keys after them causally.

    Raises:
      SpecError: a length that is not from 0 to 2^30.
    """
    mask = PrefixMask(length)
    return mask if length else causal()
