"""Arguments of FlashInfer that have no effect here."""

from __future__ import annotations

from attn_mlir.adapters import Table, neutral

_HERE = "the kernel decides by itself"
_ITEMS = "pass a custom_mask"
_JIT = "modifiers are Python functions: pass them to attn_mlir.attention"
_ROTARY = "rotate q and k before the call, and k when it is appended"

NEUTRAL: Table = {
    **neutral("pos_encoding_mode", "NONE", instead=_ROTARY),
    **neutral("rope_scale", None, 1.0, instead=_ROTARY),
    **neutral("rope_theta", None, 1e4, instead=_ROTARY),
    **neutral("backend", "auto", instead="kernels are this package's"),
    **neutral("jit_args jit_kwargs", None, instead=_JIT),
    **neutral("variant_owns_mask", False, instead=_JIT),
    **neutral("use_fp16_qk_reduction", False, instead="sums are f32"),
    **neutral("use_fp16_softmax", None, False, instead="sums are f32"),
    **neutral("skip_softmax_threshold_scale_factor", None, instead="no block is left out"),
    **neutral("kv_cache_sf", None, instead="there are no caches of 4 bits"),
    **neutral("uses_spcompress", None, False, instead="there are no compressed caches"),
    **neutral("enable_pdl", None, False, True, instead=_HERE),
    **neutral("use_tensor_cores", False, True, instead=_HERE),
    **neutral("non_blocking", True, False, instead=_HERE),
    **neutral(
        "block_tables seq_lens seq_lens_q max_token_per_sequence max_sequence_kv uniform_q_len",
        None,
        instead="pages and lengths are told by indptr, indices and last_page_len",
    ),
    **neutral("v_indptr o_indptr", None, instead="they are as those of k and q"),
    **neutral("prefix_len_ptr token_pos_in_items_ptr max_item_len_ptr", None, instead=_ITEMS),
    **neutral("token_pos_in_items_len", 0, instead=_ITEMS),
    **neutral(
        "custom_mask_buf mask_indptr_buf", None, instead="masks of the caller do not go into graphs"
    ),
    **neutral("o_scale", None, 1.0, instead="O is not quantised"),
    **neutral("lse_base", "log2", instead="multiply LSE by ln 2"),
    **neutral("lse_layout", "NH", instead="transpose LSE"),
}  # fmt: skip

OF_RUN = "enable_pdl kv_cache_sf"
OF_PAGED_RUN = f"{OF_RUN} skip_softmax_threshold_scale_factor"
OF_PREFILL_RUN = "lse_base lse_layout"
ROTATION = "rope_scale rope_theta"
"""Further arguments of `run`, which are passed by name, and two that follow one another everywhere.
"""
