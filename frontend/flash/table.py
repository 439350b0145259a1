"""Arguments of FlashAttention 2, 3 and 4 that have no effect here."""

from __future__ import annotations

from attn_mlir.adapters import I32_ARRAY, Table, neutral

_CACHE = "flash_attn_with_kvcache takes it"
_PAGES = "flash_attn_varlen_func and flash_attn_with_kvcache take it"
_ROTARY = "rotate q and k before the call, or pass it to flash_attn_with_kvcache"
_BLOCKS = "pass block_mask= to attn_mlir.attention"
_ROWS = "rows are combined one by one, wherever sequences end"
_TUNING = "the kernel decides by itself"
_FORWARD = "the backward pass takes what attention took"
_SHARDS = "shards of sequences are q_offset and k_offset of attn_mlir.attention"

NEUTRAL: Table = {
    **neutral("dropout_p", 0, instead="there is no dropout"),
    **neutral("deterministic", False, True, instead="the same call gives the same bits"),
    **neutral("qv q_v", None, instead="a second part of q and k is not offered"),
    **neutral("only_qv", False, instead="a second part of q and k is not offered"),
    **neutral("pack_gqa", None, False, True, instead=_TUNING),
    **neutral("scheduler_metadata", None, I32_ARRAY, instead=_TUNING),
    **neutral("fa_version", 2, 3, 4, None, instead="the kernels are this package's"),
    **neutral("ver", 3, 2, 4, instead="the kernels are this package's"),
    **neutral("min_seqlen_k", None, instead=_TUNING),
    **neutral("disable_scheduler_metadata", False, True, instead=_TUNING),
    **neutral("seqlen_k_per_split", None, instead="pass split_size to attn_mlir.attention"),
    **neutral("block_table page_table", None, instead=_PAGES),
    **neutral("cache_batch_idx cache_leftpad", None, instead=_CACHE),
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
    **neutral("output_scale", None, instead="O is not quantised"),
    **neutral("aux_tensor_leading_dims", None, instead="modifiers capture tensors of any strides"),
    **neutral("dynamic_causal", None, instead="one mask serves all sequences of a call"),
    **neutral("cp_world_size", 1, instead=_SHARDS),
    **neutral("cp_rank", 0, instead=_SHARDS),
    **neutral("cp_tot_seqused_k", None, instead=_SHARDS),
    **neutral("cu_seqlens virtual_batch_idx", None, instead=_ROWS),
    **neutral("seqused", None, instead="rows are combined one by one, however many count"),
}  # fmt: skip

HINTS = (
    "deterministic fa_version ver score_mod mask_mod aux_tensors only_qv cp_world_size cp_rank "
    "cp_tot_seqused_k"
)
"""Arguments of `flash_attn_with_kvcache` that only forks have."""

OF_PARTS = ("cu_seqlens", "seqused", "virtual_batch_idx")
BY_POSITION = (
    "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs"
)
"""Arguments that follow the operands and their lengths in FlashAttention 2."""

BY_NAME = " ".join(name for name in NEUTRAL if name not in (*BY_POSITION.split(), *OF_PARTS))
"""Arguments of any version; what one of them has is taken by all functions of q, k and v."""
