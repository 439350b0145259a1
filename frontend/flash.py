"""Attention with the names and conventions of FlashAttention, for code that calls it.

Layouts, offsets and the alignment of masks at the last key are ours as well: what differs is names, that a window
of -1 has no limit, and that a softcap of 0 is none. Arrays of numpy, torch or cupy. Forward only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask, sliding_window
from attn_mlir.mods import softcap as capped
from attn_mlir.operators import attention
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.trace import ScoreMod

Window = Sequence[int | None]
NO_WINDOW = (-1, -1)


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    *,
    learnable_sink: Any = None,
    num_splits: int = 1,
    return_lse: bool = False,
    device: DeviceChoice = None,
) -> Any:
    """As `flash_attn.flash_attn_func`.

    Args:
      q: [batch, sq, heads, head_dim]; k and v: [batch, sk, kv_heads, head_dim].
      dropout_p: 0.
      softmax_scale: 1 / sqrt(head_dim) when left out.
      causal: query i of sq sees keys up to i + sk - sq.
      window_size: how far to the left and to the right of that key a query sees; -1 or None: all.
      softcap: scores become cap * tanh(score / cap); 0: they stay as they are.
      learnable_sink: [heads], see `attention`.
      num_splits: parts of the keys; 0 chooses.
      return_lse: also return LSE, [batch, heads, sq].
      device: see `attention`.

    Returns:
      O like q, with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return flash_attn_varlen_func(
        q,
        k,
        v,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        learnable_sink=learnable_sink,
        num_splits=num_splits,
        return_lse=return_lse,
        device=device,
    )


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = 0.0,
    *,
    seqused_q: Any = None,
    seqused_k: Any = None,
    learnable_sink: Any = None,
    num_splits: int = 1,
    return_lse: bool = False,
    device: DeviceChoice = None,
) -> Any:
    """As `flash_attn.flash_attn_varlen_func`.

    Args:
      q: [total_q, heads, head_dim]; k and v: [total_k, kv_heads, head_dim]. A side without
        offsets is dense, as in `flash_attn_func`.
      cu_seqlens_q, cu_seqlens_k: [batch + 1] i32, where sequences begin and the last one ends.
      max_seqlen_q, max_seqlen_k: no sequence is longer; see `attention`.
      seqused_q, seqused_k: [batch] i32, of each sequence only so many positions exist.
      dropout_p, softmax_scale, causal, window_size, softcap, learnable_sink, num_splits, return_lse,
        device: see `flash_attn_func`; LSE is [heads, total_q].

    Returns:
      O like q, with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return attention(
        q,
        k,
        v,
        mask=_mask(causal, window_size),
        score_mod=_score_mod(dropout_p, softcap),
        sinks=learnable_sink,
        scale=softmax_scale,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        num_splits=num_splits,
        return_lse=return_lse,
        device=device,
    )


def _mask(is_causal: bool, window_size: Window) -> Mask:
    """A window, cut at the query's own key if causal.

    Raises:
      SpecError: `window_size` is no pair of limits.
    """
    try:
        left, right = (None if limit == -1 else limit for limit in window_size)
    except (TypeError, ValueError):
        raise SpecError(f"window_size must be (left, right), got {window_size!r:.60}") from None
    return sliding_window(left, 0 if is_causal else right)


def _score_mod(dropout_p: float, cap: float) -> ScoreMod | None:
    """The softcap, if there is one.

    Raises:
      SpecError: dropout, or a cap that is none.
    """
    if dropout_p != 0.0:
        raise SpecError(f"dropout_p must be 0, got {dropout_p}: there is no dropout")
    return None if cap == 0.0 else capped(cap)
