"""FlashInfer's functions for one sequence, whose keys lie in one tensor."""

from __future__ import annotations

from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.custom_masks import mask_mod_of
from attn_mlir.flashinfer.options import (
    NO_LIMIT,
    checked_layout,
    mask_of,
    number,
    operand_dtype,
    output_dtype,
    refuse_meaningful,
    tensor,
)
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.runtime.scalars import flag


def single_decode_with_kv_cache(
    q: Any,
    k: Any,
    v: Any,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False,
    q_scale: float | None = None,
    k_scale: Any = None,
    v_scale: Any = None,
    window_left: int = NO_LIMIT,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    return_lse: bool = False,
) -> Any:
    """As `flashinfer.single_decode_with_kv_cache`: one query.

    Args:
      q: [num_qo_heads, head_dim].
      k, v: [kv_len, num_kv_heads, head_dim] (NHD) or [num_kv_heads, kv_len, head_dim] (HND).
      others: see `BatchDecodeWithPagedKVCacheWrapper`.

    Returns:
      O [num_qo_heads, head_dim], with `return_lse` also LSE, [num_qo_heads] in base 2.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    refuse_meaningful(
        pos_encoding_mode=pos_encoding_mode,
        use_tensor_cores=use_tensor_cores,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
    )
    found = _attend(
        tensor(q, "q", 2).unsqueeze(0),
        k,
        v,
        kv_layout,
        (q_scale, k_scale, v_scale),
        (True, window_left, logits_soft_cap, sm_scale),
        return_lse,
    )
    return tuple(x[0] for x in found) if return_lse else found[0]


def single_prefill_with_kv_cache(
    q: Any,
    k: Any,
    v: Any,
    scale_q: Any = None,
    scale_k: Any = None,
    scale_v: Any = None,
    o_dtype: object = None,
    custom_mask: Any = None,
    packed_custom_mask: Any = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    sm_scale: float | None = None,
    window_left: int = NO_LIMIT,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    kv_cache_sf: None = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Any:
    """As `flashinfer.single_prefill_with_kv_cache`: queries of one sequence.

    Args:
      q: [qo_len, num_qo_heads, head_dim_qk].
      k, v: [kv_len, num_kv_heads, head_dim] (NHD) or [num_kv_heads, kv_len, head_dim] (HND).
      scale_q, scale_k, scale_v: factors; k_scale and v_scale are other names of the last two.
      o_dtype: of O.
      custom_mask: [qo_len, kv_len] bool, in the place of `causal`; packed_custom_mask: [bytes] u8, the
        same in bits.
      others: see `BatchPrefillWithPagedKVCacheWrapper`.

    Returns:
      O [qo_len, num_qo_heads, head_dim_vo], with `return_lse` also LSE, [qo_len, num_qo_heads] in base
      2.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    refuse_meaningful(
        pos_encoding_mode=pos_encoding_mode,
        use_fp16_qk_reduction=use_fp16_qk_reduction,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
        backend=backend,
        kv_cache_sf=kv_cache_sf,
    )
    for first, second in (("scale_k", "k_scale"), ("scale_v", "v_scale")):
        both = {"scale_k": scale_k, "k_scale": k_scale, "scale_v": scale_v, "v_scale": v_scale}
        if both[first] is not None and both[second] is not None:
            raise SpecError(f"{first} and {second} are two names of one factor: pass one")
    masks = (custom_mask, packed_custom_mask)
    if custom_mask is not None:
        masks = (tensor(custom_mask, "custom_mask", 2, "bool").flatten(), packed_custom_mask)
    return _attend(
        tensor(q, "q", 3),
        k,
        v,
        kv_layout,
        (scale_q, k_scale if scale_k is None else scale_k, v_scale if scale_v is None else scale_v),
        (causal, window_left, logits_soft_cap, sm_scale),
        return_lse,
        masks=masks,
        out_dtype=output_dtype(o_dtype),
    )


def _attend(
    q: Any,
    k: Any,
    v: Any,
    kv_layout: str,
    factors: tuple[Any, Any, Any],
    scores: tuple[Any, Any, Any, Any],
    return_lse: object,
    *,
    masks: tuple[Any, Any] = (None, None),
    out_dtype: str | None = None,
) -> Any:
    """O [tokens, heads, head_dim], with `return_lse` also LSE; `scores` are causal, window, cap and scale."""
    causal, window_left, cap, scale = scores
    k, v = tensor(k, "k", 3), tensor(v, "v", 3)
    if checked_layout(kv_layout) == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    mask_mod = mask_mod_of(*masks, q.device, [q.shape[0]], [k.shape[0]])
    problem = Problem(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        head_dim=q.shape[2],
        v_head_dim=v.shape[2],
        dtype=operand_dtype(q.dtype, "q"),
        kv_dtype=operand_dtype(k.dtype, "k"),
        out_dtype=out_dtype,
        mask=mask_of(causal and mask_mod is None, window_left),
        window_left=window_left,
        cap=number("logits_soft_cap", cap, 0.0),
        scale=scale,
        mask_mod=mask_mod,
    )
    return problem.attend(
        q,
        k[None],
        v[None],
        problem.factors(q, *factors),
        rows=q.shape[0],
        return_lse=flag("return_lse", return_lse),
    )
