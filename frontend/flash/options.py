"""FlashAttention's options of scores as `attention` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.library import check_one_library
from attn_mlir.masks import Mask, chunked, sliding_window
from attn_mlir.mods import softcap as capped
from attn_mlir.runtime.call.scalars import as_float, as_int, flag, integer
from attn_mlir.trace import ScoreMod

Window = Sequence[int | None]
NO_WINDOW = (-1, -1)
SINKS = "learnable_sink"


def mask_of(is_causal: object, window_size: Window) -> Mask:
    """The mask of a window, causal as well if `is_causal`.

    Raises:
      SpecError: `window_size` is no pair of limits.
    """
    try:
        left, right = (None if as_int(limit) == -1 else limit for limit in window_size)
    except (TypeError, ValueError):
        raise SpecError(f"window_size must be (left, right), got {shown(window_size)}") from None
    limits = [limit if as_int(limit) is None else as_int(limit) for limit in (left, right)]
    window = sliding_window(*limits)
    return sliding_window(limits[0], 0) if flag("causal", is_causal) else window


def chunked_mask(mask: Mask, attention_chunk: object) -> Mask:
    """The mask, with keys of other chunks of `attention_chunk` positions hidden; for 0 the mask
    itself.

    Raises:
      SpecError: `attention_chunk` is no number of positions.
    """
    size = integer("attention_chunk", attention_chunk)
    return mask & chunked(size) if size else mask


def score_mod_of(cap: object) -> ScoreMod | None:
    """The modifier for a softcap; None without one.

    Raises:
      SpecError: a cap that is no number, or out of range.
    """
    number = as_float(cap)
    if number is None:
        raise SpecError(f"softcap must be a number, got {shown(cap)}")
    return None if number == 0.0 else capped(number)


def sinks_of(learnable_sink: Any, s_aux: Any) -> tuple[str, Any]:
    """The sinks, and the name under which they were passed: version 4's or that of version 3's
    forks.

    Raises:
      SpecError: both are given.
    """
    if s_aux is None:
        return SINKS, learnable_sink
    if learnable_sink is not None:
        raise SpecError(f"{SINKS} and s_aux are two names of one argument: pass one")
    return "s_aux", s_aux


def check_counted(name: str, sinks: Any, q: Any) -> None:
    """Refuses sinks that LSE of q's library cannot count.

    Args:
      name: the caller's of `sinks`.

    Raises:
      SpecError: another library, or another device.
    """
    check_one_library({"q": q, name: sinks})
