"""Arguments of FlashAttention 2, 3 and 4 that have no effect here."""

from __future__ import annotations

from attn_mlir.adapters import Table, neutral

_CACHE = "flash_attn_with_kvcache takes it"
_ROTARY = "rotate q and k before the call, or pass it to flash_attn_with_kvcache"
_BLOCKS = "pass block_mask= to attn_mlir.attention"
_ROWS = "rows are combined one by one, wherever sequences end"
_TUNING = "the kernel decides by itself"
_FORWARD = "there is no backward pass"

NEUTRAL: Table = {
    **neutral("dropout_p", 0, instead="there is no dropout"),
    **neutral("alibi_slopes", None, instead="pass score_mod=mods.alibi(slopes) to am.attention"),
    **neutral("deterministic", False, True, instead="the same call gives the same bits"),
    **neutral(
        "return_attn_probs", False,
        instead="probabilities are never stored; pass return_lse=True for LSE",
    ),
    **neutral("qv", None, instead="a second part of q and k is not offered"),
    **neutral("pack_gqa scheduler_metadata min_seqlen_k", None, instead=_TUNING),
    **neutral("disable_scheduler_metadata", False, True, instead=_TUNING),
    **neutral("seqlen_k_per_split", None, instead="pass split_size to attn_mlir.attention"),
    **neutral("block_table page_table cache_batch_idx cache_leftpad", None, instead=_CACHE),
    **neutral("leftpad_k", None, instead="flash_attn_with_kvcache takes cache_leftpad"),
    **neutral("rotary_cos rotary_sin rotary_seqlens seqlens_rotary", None, instead=_ROTARY),
    **neutral("rotary_interleaved", True, False, instead=_ROTARY),
    **neutral("score_mod", None, instead="pass score_mod(score, b, h, q, k) to am.attention"),
    **neutral("mask_mod", None, instead="pass mask_mod(b, h, q, k) to attn_mlir.attention"),
    **neutral("aux_tensors", None, instead="modifiers of attn_mlir.attention capture tensors"),
    **neutral("aux_scalars", None, instead="modifiers of attn_mlir.attention capture numbers"),
    **neutral(
        "block_sparse_tensors full_block_cnt full_block_idx mask_block_cnt mask_block_idx "
        "block_size "
        "cu_total_m_blocks cu_total_n_blocks", None, instead=_BLOCKS,
    ),
    **neutral(
        "score_mod_bwd block_sparse_tensors_bwd gather_bwd_token_chunk", None, instead=_FORWARD
    ),
    **neutral("gather_bwd_recompute_p", False, instead=_FORWARD),
    **neutral("gather_kv_indices", None, instead="keys by index are not offered"),
    **neutral("cu_seqlens virtual_batch_idx", None, instead=_ROWS),
    **neutral("seqused", None, instead="rows are combined one by one, however many count"),
}  # fmt: skip

OF_PARTS = ("cu_seqlens", "seqused", "virtual_batch_idx")
BY_POSITION = (
    "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs"
)
"""What follows the operands and their lengths in FlashAttention 2."""

BY_NAME = " ".join(name for name in NEUTRAL if name not in (*BY_POSITION.split(), *OF_PARTS))
"""Of any version; what one of them has is taken by all functions of q, k and v."""
