"""Arguments of FlashInfer: those that have no effect here, and options of several functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.adapters import ANYTHING, REQUIRED, Options, Table, adapter, neutral, passed, used
from attn_mlir.api.outside_graphs import outside_graphs

_HERE = "the kernel decides by itself"
_ITEMS = "pass a custom_mask"
_JIT = "modifiers are Python functions: pass them to attn_mlir.attention"
_ROTARY = "rotate q and k before the call, and k when it is appended"

BACKENDS = (
    "fa2", "fa3", "cutlass", "cudnn", "trtllm-gen", "cute-dsl", "cute-dsl-prims", "cutile", "xqa",
    "cake",
)  # fmt: skip
_RANKS = "pass q_offset and k_offset to attn_mlir.attention"

NEUTRAL: Table = {
    **neutral("rope_scale", None, 1.0, instead=_ROTARY),
    **neutral("rope_theta", None, 1e4, instead=_ROTARY),
    **neutral("backend", "auto", *BACKENDS, instead="kernels are this package's", is_logged=True),
    **neutral("jit_args", None, instead=_JIT),
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
        "block_tables seq_lens seq_lens_q max_token_per_sequence max_sequence_kv",
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
    **neutral("o_sf_scale o_sf_vec_size", None, instead="O is not quantised"),
    **neutral("mask", None, instead="queries are the last positions of their sequence"),
    **neutral("bmm1_scale_log2", None, instead="pass bmm1_scale"),
    **neutral("multi_ctas_kv_counter_buffer", None, ANYTHING, instead=_HERE),
    **neutral("enable_block_sparse_attention", False, instead="pass block_mask to attention"),
    **neutral("cp_world", 1, instead=_RANKS),
    **neutral("cp_rank", 0, instead=_RANKS),
    **neutral("causal_seqlens_kv_global", None, instead=_RANKS),
    **neutral("bf16q_fp8kv_transform_mode", None, ANYTHING, instead=_HERE),
    **neutral("request_order request_order_plan", None, ANYTHING, instead=_HERE),
    **neutral("metadata", None, instead="pass qo_indptr, kv_indptr, kv_indices and kv_len_arr"),
    **neutral("query_layout kv_cache_layout", None, ANYTHING, instead="run sees the arrays"),
    **neutral("lse_mode", "none", "base2", instead="run takes return_lse_base_on_e"),
    **neutral(
        "scale_mode", "default", "bmm-scalar", instead="scales of rows are those of am.mla_decode"
    ),
    **neutral("skip_softmax", False, instead="no block is left out"),
    **neutral("output_scale", "none", instead="O is not quantised"),
    **neutral("use_sinks", False, True, instead="run takes them"),
    **neutral("kv_len page_table", None, ANYTHING, instead="plan was told it"),
    **neutral("ckv_scale kpe_scale", None, 1.0, instead="pass bmm1_scale and bmm2_scale"),
    **neutral("ckv_scale_arr", None, instead="scales of rows are those of am.mla_decode"),
    **neutral("is_var_seq", True, False, instead="seq_lens tells"),
    **neutral("uses_shared_paged_kv_idx", True, instead="latent rows are keys and values"),
    **neutral("cute_dsl_impl kv_scale_format", "auto", ANYTHING, instead=_HERE),
    **neutral("cum_seq_lens_q max_q_len", None, instead="BatchMLAPagedAttentionWrapper takes it"),
    **neutral("enable_dcp", False, instead=_RANKS),
    **neutral("use_profiler", False, instead="traces are those of attn_mlir"),
    **neutral("profiler_buffer", None, instead="traces are those of attn_mlir"),
    **neutral("pos_encoding_mode", "NONE", instead=_ROTARY),
    **neutral("global_override_indptr_cpu", None, ANYTHING, instead="plan reads indptr"),
}  # fmt: skip

OF_RUN = "enable_pdl kv_cache_sf"
OF_PAGED_RUN = f"{OF_RUN} skip_softmax_threshold_scale_factor"
ROTATION = "rope_scale rope_theta"
"""Further arguments of `run`, which are passed by name, and two that follow one another everywhere.
"""

NO_LIMIT = -1
NO_POSITIONS, ALIBI, ROTATED = "NONE", "ALIBI", "ROPE_LLAMA"
_SCALES = passed("q_scale k_scale v_scale")
_LSE = passed("return_lse", False)
_CAUSAL = passed("causal", False)
_SCORES = [
    *passed("window_left", NO_LIMIT),
    *passed("logits_soft_cap sm_scale"),
    *passed("pos_encoding_mode", NO_POSITIONS),
]
_ROPE = passed(ROTATION)
_RESULTS = [*_SCALES, *passed("out lse"), *_LSE]

SCORES = Options(_SCORES)
DECODE_RUN = Options([*_RESULTS, *passed("window_left sinks q_len_per_req")])
_PREFILL_RESULTS = [*_RESULTS, *passed("lse_base", "log2"), *passed("lse_layout", "NH")]
PAGED_RUN = Options([*_PREFILL_RESULTS, *passed("window_left sinks sm_scale")])
RAGGED_RUN = Options([*_PREFILL_RESULTS, *passed("sinks sm_scale")])
DECODE_FORWARD = Options([*_SCALES, *_SCORES, *_LSE])
SINGLE_DECODE = Options([*DECODE_FORWARD.rows, *_ROPE])
PAGED_FORWARD = Options([*_CAUSAL, *passed("k_scale v_scale"), *_SCORES, *_LSE])
RAGGED_FORWARD = Options([*_CAUSAL, *_SCORES, *_ROPE, *_LSE])
TRTLLM = Options(
    [
        *passed("window_left", NO_LIMIT),
        *passed("out out_dtype sinks lse"),
        *passed("kv_layout", "HND"),
        *passed("uses_shared_paged_kv_idx", True),
        *_LSE,
    ]
)
LATENT_PLAN = Options(passed("cum_seq_lens_q block_tables seq_lens max_q_len output_dtype"))
TRTLLM_LATENT = Options([*passed("out sinks lse"), *_LSE])
SINGLE_PREFILL = Options(
    [
        used("q_scale", scale_q=None),
        used("k_scale", scale_k=None, k_scale=None),
        used("v_scale", scale_v=None, v_scale=None),
        *_CAUSAL,
        *_SCORES,
        *_ROPE,
        *_LSE,
    ]
)
PREFILL_PLAN = Options(
    [
        *passed("num_qo_heads num_kv_heads head_dim_qk", REQUIRED),
        *passed("head_dim_vo custom_mask packed_custom_mask"),
        *_CAUSAL,
        *_SCORES,
        *passed("q_data_type", "float16"),
        *passed("kv_data_type o_data_type fixed_split_size uniform_q_len"),
        *passed("disable_split_kv", False),
    ]
)
RAGGED_PLAN = Options([*PREFILL_PLAN.rows, *_ROPE])

UNIQUE_PAGES = "unique_kv_indptr unique_kv_indices unique_kv_last_page_len"
SHARED_SIZES = "num_qo_heads num_kv_heads head_dim page_size data_type"
"""Arguments of `begin_forward` of the wrappers for a shared prefix."""
_SHARED = [
    *passed("num_qo_heads num_kv_heads page_size", REQUIRED),
    used("q_data_type", data_type="float16"),
]
DECODE_SHARED_PLAN = Options(
    [
        *(used(x.removeprefix("unique_kv_"), **{x: REQUIRED}) for x in UNIQUE_PAGES.split()),
        *passed("head_dim", REQUIRED),
        *_SHARED,
    ]
)
PREFILL_SHARED_PLAN = Options(
    [
        *passed("qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len", REQUIRED),
        used("head_dim_qk", head_dim=REQUIRED),
        *_SHARED,
    ]
)


def with_arguments(
    positions: str, by_name: str = "", *, options: Options | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a function FlashInfer's arguments, as `adapter`; graphs do not trace it."""
    adapted = adapter(NEUTRAL, positions, by_name, options=options)
    return lambda function: outside_graphs(adapted(function))


def scores_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options among these that change the scores of a call."""
    return {name: options[name] for name in ("causal", *SCORES.defaults) if name in options}
