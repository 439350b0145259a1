"""FlashInfer's functions for one sequence, whose keys lie in one tensor."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.flashinfer.custom_masks import mask_mod_of
from attn_mlir.flashinfer.options import by_position, tensor
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.positions import rotated
from attn_mlir.flashinfer.table import (
    ROTATED,
    ROTATION,
    SINGLE_DECODE,
    SINGLE_PREFILL,
    scores_of,
    with_arguments,
)

torch: Any = importlib.import_module("torch")


@with_arguments(
    "q k v kv_layout pos_encoding_mode use_tensor_cores q_scale k_scale v_scale window_left "
    f"logits_soft_cap sm_scale {ROTATION} return_lse",
    options=SINGLE_DECODE,
)
def single_decode_with_kv_cache(
    q: Any, k: Any, v: Any, kv_layout: str = "NHD", **options: Any
) -> Any:
    """As `flashinfer.single_decode_with_kv_cache`: one query.

    Args:
      q: [num_qo_heads, head_dim].
      k, v: [kv_len, num_kv_heads, head_dim] (NHD) or [num_kv_heads, kv_len, head_dim] (HND).
      pos_encoding_mode: ROPE_LLAMA as well: copies of q and k are rotated, by positions over
        `rope_scale` and angles to the base `rope_theta`; the query is the last key's.
      others: see `BatchDecodeWithPagedKVCacheWrapper`.

    Returns:
      O [num_qo_heads, head_dim], with `return_lse` also LSE, [num_qo_heads] in base 2.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    results = _attend(tensor(q, "q", 2).unsqueeze(0), k, v, kv_layout, causal=True, **options)
    return tuple(x[0] for x in results) if options.get("return_lse") else results[0]


@with_arguments(
    "q k v scale_q scale_k scale_v o_dtype custom_mask packed_custom_mask causal kv_layout "
    f"pos_encoding_mode use_fp16_qk_reduction sm_scale window_left logits_soft_cap {ROTATION} "
    "backend return_lse kv_cache_sf k_scale v_scale",
    options=SINGLE_PREFILL,
)
def single_prefill_with_kv_cache(
    q: Any,
    k: Any,
    v: Any,
    o_dtype: object = None,
    custom_mask: Any = None,
    packed_custom_mask: Any = None,
    kv_layout: str = "NHD",
    **options: Any,
) -> Any:
    """As `flashinfer.single_prefill_with_kv_cache`: queries of one sequence.

    Args:
      q: [qo_len, num_qo_heads, head_dim_qk].
      k, v: [kv_len, num_kv_heads, head_dim] (NHD) or [num_kv_heads, kv_len, head_dim] (HND).
      scale_q, scale_k, scale_v: scales; k_scale and v_scale are other names of the last two.
      o_dtype: of O.
      custom_mask: [qo_len, kv_len] bool, in the place of `causal`; packed_custom_mask: [bytes] u8,
        the same in bits.
      pos_encoding_mode, rope_scale, rope_theta: see `single_decode_with_kv_cache`.
      others: see `BatchPrefillWithPagedKVCacheWrapper`.

    Returns:
      O [qo_len, num_qo_heads, head_dim_vo], with `return_lse` also LSE, [qo_len, num_qo_heads] in
      base 2.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    masks = (custom_mask, packed_custom_mask)
    if custom_mask is not None:
        masks = (tensor(custom_mask, "custom_mask", 2, "bool").flatten(), packed_custom_mask)
    operands = (tensor(q, "q", 3), k, v, kv_layout)
    return SINGLE_PREFILL.call(_attend, *operands, given=options, masks=masks, o_dtype=o_dtype)


def _attend(
    q: Any,
    k: Any,
    v: Any,
    kv_layout: str,
    *,
    masks: tuple[Any, Any] = (None, None),
    o_dtype: object = None,
    **options: Any,
) -> Any:
    """O [tokens, heads, head_dim], with `return_lse` also LSE; options as of `Problem`."""
    k, v = by_position(k, "k", kv_layout), by_position(v, "v", kv_layout)
    problem = Problem.of(
        (q.shape[1], k.shape[1], q.shape[2], v.shape[2]),
        (q.dtype, k.dtype, o_dtype),
        called=("q", "k", "o_dtype"),
        mask_mod=mask_mod_of(*masks, q.device, [q.shape[0]], [k.shape[0]]),
        rotates=True,
        **scores_of(options),
    )
    if problem.positions == ROTATED:
        rope = (options.get("rope_scale"), options.get("rope_theta"))
        keys = torch.arange(k.shape[0], device=k.device)
        q = rotated(q, torch.arange(-q.shape[0], 0, device=q.device) + k.shape[0], *rope)
        k = rotated(k, keys, *rope)
    scales = problem.scales(q, options)
    return problem.attend(q, k[None], v[None], scales, options, rows=q.shape[0])
