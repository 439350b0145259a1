"""FlashAttention's options of scores as `attention` has them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_mlir import env
from attn_mlir.adapters import REQUIRED, Options, passed, used
from attn_mlir.errors import SpecError, SplitError, shown
from attn_mlir.library import check_one_library
from attn_mlir.lse import with_sinks
from attn_mlir.masks import Mask, chunked, sliding_window
from attn_mlir.mods import softcap as capped
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import as_float, as_int, flag, integer
from attn_mlir.trace import ScoreMod

Window = Sequence[int | None]
NO_WINDOW = (-1, -1)
_WINDOW = renamed(
    sliding_window, **{"window left": "window_size[0]", "window right": "window_size[1]"}
)


def mask_of(
    is_causal: object, window_size: Window | None = NO_WINDOW, attention_chunk: object = 0
) -> Mask:
    """The mask of a window, causal as well if `is_causal`, within chunks of so many positions.

    Args:
      window_size: None: all keys.
      attention_chunk: 0 or None: there are no chunks.

    Raises:
      SpecError: `window_size` is no pair of limits, or `attention_chunk` no number of positions.
    """
    window = NO_WINDOW if window_size is None else window_size
    key = (is_causal, *window, attention_chunk) if isinstance(window, tuple) else ()
    if [type(x) for x in key] == [bool, int, int, int]:
        return _known_mask(*key)
    return _mask_of(is_causal, window, attention_chunk)


@functools.lru_cache(maxsize=256)
def _known_mask(is_causal: bool, left: int, right: int, chunk: int) -> Mask:
    return _mask_of(is_causal, (left, right), chunk)


def _mask_of(is_causal: object, window: Window, attention_chunk: object) -> Mask:
    """`mask_of` of any values."""
    try:
        left, right = (None if as_int(limit) == -1 else limit for limit in window)
    except (TypeError, ValueError):
        raise SpecError(f"window_size must be (left, right), got {shown(window)}") from None
    limits = [limit if as_int(limit) is None else as_int(limit) for limit in (left, right)]
    mask = _WINDOW(*limits)
    if flag("causal", is_causal):
        mask = _WINDOW(limits[0], 0)
    size = 0 if attention_chunk is None else integer("attention_chunk", attention_chunk)
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


def lse_wanted(return_lse: object, return_softmax_lse: object, return_attn_probs: object) -> bool:
    """Whether LSE is returned, by the names that the versions have for it."""
    wanted = [
        flag("return_lse", return_lse),
        flag("return_softmax_lse", return_softmax_lse),
        flag("return_attn_probs", return_attn_probs),
    ]
    return any(wanted)


def called_in_parts(
    options: Options, function: Callable[..., Any], *operands: Any,
    given: Mapping[str, Any], **others: Any,
) -> Any:  # fmt: skip
    """`options.call`, with one part of the keys where no kernel has the number that was asked for.

    FlashAttention takes `num_splits` as a hint. The log says once where it is not followed.
    """
    try:
        return options.call(function, *operands, given=given, **others)
    except SplitError as error:
        env.log_once("info", f"{error}; the keys are not split")
        return options.call(function, *operands, given={**given, "num_splits": 1}, **others)


def counted_sinks(return_lse: bool, given: Mapping[str, Any], q: Any) -> Any:
    """The sinks that the LSE of a call counts; None without sinks or without LSE.

    Args:
      return_lse: whether LSE is returned.
      given: the options of the call, by FlashAttention's names.
      q: the queries, with whose library they are added.

    Raises:
      SpecError: sinks of another library or device.
    """
    called = SINKS.named(given)
    sinks = given.get(called)
    if not return_lse or sinks is None:
        return None
    check_one_library({"q": q, called: sinks})
    return sinks


def with_sinks_of(results: tuple[Any, Any], sinks: Any, stream: object) -> tuple[Any, Any]:
    """O, and LSE that counts these sinks, of a call on that stream."""
    return results[0], with_sinks(results[1], sinks, stream)


# version 4's name, vLLM's and SGLang's
SINKS = used("sinks", learnable_sink=None, s_aux=None, sinks=None)
TABLE = used("page_table", page_table=None, block_table=None)
SCORES = (
    used("scale", softmax_scale=None),
    used("mask", mask_of, causal=False, window_size=NO_WINDOW, attention_chunk=0),
    used("score_mod", score_mod_of, softcap=0.0),
    SINKS,
)
OPTIONS = Options(
    [
        *SCORES,
        *passed("num_splits", 1),
        *passed("q_descale k_descale v_descale"),
        *passed("sm_margin", 0),
        *passed("deterministic", False),
        used(
            "return_lse", lse_wanted,
            return_lse=False, return_softmax_lse=False, return_attn_probs=False,
        ),
        *passed("out device stream"),
    ]
)  # fmt: skip
"""Options of the functions of q, k and v."""

OF_SEQUENCES = Options(
    [
        *passed("cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k"),
        *OPTIONS.rows,
    ]
)
OF_PACKED_KEYS = Options(
    [
        *passed("cu_seqlens_q cu_seqlens_k", REQUIRED),
        *passed("max_seqlen_q max_seqlen_k"),
        *OPTIONS.rows,
    ]
)
OF_PACKED = Options(
    [
        *(used(f"cu_seqlens_{side}", cu_seqlens=REQUIRED) for side in "qk"),
        *(used(f"max_seqlen_{side}", max_seqlen=None) for side in "qk"),
        *OPTIONS.rows,
    ]
)
"""The same with the lengths of sequences."""

OF_CACHES = Options(
    [
        *SCORES,
        *passed("q_descale"),
        *passed("num_splits sm_margin", 0),
        used("return_lse", return_softmax_lse=False),
        *passed("cu_seqlens_q max_seqlen_q out device stream"),
    ]
)
"""Options of the function for a cache."""
