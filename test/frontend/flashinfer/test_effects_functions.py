"""Every argument of FlashInfer's functions does something, says nothing, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.validation.effects import (  # noqa: E402
    Change,
    Subject,
    effect_tests,
    nothing,
    parameters,
    refused,
    unread,
)
from attn_mlir.validation.hosts.flashinfer_calls import (  # noqa: E402
    BF16,
    HEADS,
    HND_POOL,
    KEYS,
    KV,
    LATENT,
    LATENT_LSE,
    LSE,
    PAGE,
    PAGES,
    POOL,
    Q2,
    ROTATED,
    SCORES,
    TOKENS,
    WHOLE_POOL,
    WHOLE_Q,
    WORKSPACE,
    D,
    Q,
    rotation,
)
from attn_mlir.validation.numerics.torch_operands import changed, drawn, i32  # noqa: E402

STATE, SUMS = drawn(3, HEADS, D), drawn(3, HEADS, dtype=torch.float32)
STATES = {
    "v": drawn(3, 2, HEADS, D),
    "s": drawn(3, 2, HEADS, dtype=torch.float32),
}
PAIR = {"v_a": STATE, "s_a": SUMS, "v_b": STATE + 1, "s_b": SUMS + 1}
ROWS = {f"kv_{name}": value for name, value in PAGES.items()}


def in_place() -> dict[str, Any]:
    return {"v": STATE.clone(), "s": SUMS.clone(), "v_other": STATE + 1, "s_other": SUMS + 1}


def appended() -> dict[str, Any]:
    new = drawn(3, KV, D)
    places = {"batch_indices": i32(0, 1, 1), "positions": i32(4, 1, 2)}
    return {"append_key": new, "append_value": new + 1, **places, "paged_kv_cache": POOL, **ROWS}


def latent_rows() -> dict[str, Any]:
    rows = {"append_ckv": drawn(3, LATENT), "append_kpe": drawn(3, ROTATED)}
    places = {"batch_indices": i32(0, 1, 1), "positions": i32(4, 1, 2)}
    pools = {"ckv_cache": drawn(5, PAGE, LATENT), "kpe_cache": drawn(5, PAGE, ROTATED)}
    return {**rows, **places, **pools, **ROWS}


PLACES = {
    "batch_indices": Change(i32(0, 0, 1)),
    "positions": Change(i32(5, 1, 2)),
    "kv_indices": Change(i32(3, 1, 2)),
    "kv_indptr": Change(i32(0, 1, 3)),
    "kv_last_page_len": Change(i32(6, 16)),
}
TABLED = {
    "block_tables": i32(3, 1, 0, 2).view(2, 2),
    "seq_lens": i32(21, 16),
    "workspace_buffer": WORKSPACE,
}
TABLE_CHANGES = {
    "block_tables": Change(i32(3, 1, 4, 2).view(2, 2)),
    "seq_lens": Change(i32(21, 17)),
}
HND_PAGES = drawn(5, 2, KV, PAGE, D)
DECODED = {"query": Q2, "kv_cache": HND_PAGES, **TABLED, "max_seq_len": 21, "bmm1_scale": 0.125}
BY_OFFSETS = {"query": Q, "cum_seq_lens_q": i32(0, 2, 5), "max_q_len": 3}
CONTEXT = {
    **{name: x for name, x in DECODED.items() if name != "max_seq_len"},
    **BY_OFFSETS, "max_kv_len": 21, "bmm2_scale": 1.0, "batch_size": 2, "cum_seq_lens_kv": i32(0, 21, 37),
}  # fmt: skip


def in_one_call(q: Any, lse: Any) -> dict[str, Change]:
    """Changes of the arguments that both calls without a plan have."""
    return {
        "query": Change(drawn(*q.shape, seed=9)),
        "kv_cache": Change(drawn(*HND_PAGES.shape, seed=9)),
        **TABLE_CHANGES,
        "bmm1_scale": Change(0.5),
        "bmm2_scale": Change(2.0),
        "window_left": Change(5),
        "out": Change(torch.zeros_like(q)),
        "out_dtype": Change(torch.float32),
        "sinks": Change(torch.ones(HEADS)),
        "kv_layout": Change("NHD", {"query": drawn(len(q), PAGE, D), "kv_cache": HND_POOL}),
        "uses_shared_paged_kv_idx": Change(False, refused=True),
        "lse": Change(lse, {"return_lse": True}),
        "return_lse": Change(True),
        **unread("workspace_buffer", "multi_ctas_kv_counter_buffer"),
        **nothing(enable_pdl=True),
        **refused(
            o_sf_scale=1, o_sf_vec_size=1, kv_cache_sf=1, skip_softmax_threshold_scale_factor=1.0
        ),
    }


RANKS = refused(cp_world=2, cp_rank=1, causal_seqlens_kv_global=1)
LATENT_CALL = {
    "query": WHOLE_Q.unflatten(0, (2, 1)), "kv_cache": WHOLE_POOL, **TABLED, "qk_nope_head_dim": 128,
    "kv_lora_rank": LATENT, "qk_rope_head_dim": ROTATED, "max_seq_len": 21, "bmm1_scale": 0.1,
}  # fmt: skip
LISTS = {"block_tables": i32(48, 50, 0, 1).view(2, 1, 2), "sparse_mla_top_k": 2}
TOKEN_COUNTS = {"append_indptr": i32(0, 2, 5), "seq_lens": i32(4, 3), "nnz": 6}
ONE = {"q": drawn(HEADS, D), "k": drawn(KEYS, KV, D), "v": drawn(KEYS, KV, D, seed=1)}
MANY = {**ONE, "q": Q}
HND = {"k": drawn(16, 16, D), "v": drawn(16, 16, D), "q": drawn(16, D), "kv_layout": "NHD"}
ONE_SCORES = {
    **{
        name.removeprefix("plan."): SCORES[name]
        for name in ("plan.window_left", "plan.logits_soft_cap", "plan.sm_scale")
    },
    **rotation(),
    "return_lse": Change(True),
    "k_scale": Change(2.0),
    "v_scale": Change(2.0),
}
FUNCTIONS = {
    "single_decode_with_kv_cache": Subject(
        flashinfer.single_decode_with_kv_cache,
        lambda: ONE,
        {
            **changed(ONE, "q", "k", "v"),
            **ONE_SCORES,
            "kv_layout": Change("HND", HND),
            "q_scale": Change(2.0),
            **nothing(use_tensor_cores=True),
        },
    ),
    "single_prefill_with_kv_cache": Subject(
        flashinfer.single_prefill_with_kv_cache,
        lambda: MANY,
        {
            **changed(MANY, "q", "k", "v"),
            **ONE_SCORES,
            "kv_layout": Change("HND", {**HND, "q": drawn(TOKENS, 16, D)}),
            **{f"scale_{name}": Change(2.0) for name in "qkv"},
            "o_dtype": Change(torch.float32),
            "custom_mask": Change(torch.ones(TOKENS, KEYS, dtype=torch.bool)),
            "packed_custom_mask": Change(torch.full((-(-TOKENS * KEYS // 8),), 0x55, dtype=torch.uint8)),
            "causal": Change(True),
            **nothing(backend="fa3"),
            **refused(use_fp16_qk_reduction=True, kv_cache_sf=1),
        },
    ),
    "append_paged_kv_cache": Subject(
        flashinfer.append_paged_kv_cache,
        appended,
        {
            **changed(appended(), "append_key", "append_value", "paged_kv_cache"),
            **PLACES,
            "kv_layout": Change("HND", {"paged_kv_cache": HND_POOL, **{n: drawn(3, 16, D) for n in ("append_key", "append_value")}}),
        },
    ),
    "append_paged_mla_kv_cache": Subject(
        flashinfer.append_paged_mla_kv_cache,
        latent_rows,
        {**changed(latent_rows(), "append_ckv", "append_kpe", "ckv_cache", "kpe_cache"), **PLACES},
    ),
    "trtllm_batch_decode_with_kv_cache": Subject(
        flashinfer.trtllm_batch_decode_with_kv_cache,
        lambda: DECODED,
        {
            **in_one_call(Q2, LSE[:2]),
            "q_len_per_req": Change(2, refused=True),
            "max_q_len": Change(4, BY_OFFSETS),
            "cum_seq_lens_q": Change(i32(0, 3, 5), BY_OFFSETS),
            **nothing(backend="xqa"),
            **unread("max_seq_len", "bf16q_fp8kv_transform_mode", "request_order", "request_order_plan"),
            **RANKS,
            **refused(o_scale=2.0, mask=1, bmm1_scale_log2=1, enable_block_sparse_attention=True),
        },
    ),
    "trtllm_batch_context_with_kv_cache": Subject(
        flashinfer.trtllm_batch_context_with_kv_cache,
        lambda: CONTEXT,
        {
            **in_one_call(Q, LSE),
            "max_q_len": Change(4),
            "cum_seq_lens_q": Change(i32(0, 3, 5)),
            "batch_size": Change(3, refused=True),
            "causal": Change(False),
            **unread("max_kv_len", "cum_seq_lens_kv"),
            **nothing(backend="xqa"),
            **refused(use_fp16_softmax=True, uses_spcompress=True),
        },
    ),
    "trtllm_batch_decode_with_kv_cache_mla": Subject(
        flashinfer.trtllm_batch_decode_with_kv_cache_mla,
        lambda: LATENT_CALL,
        {
            **changed(LATENT_CALL, "query", "kv_cache"),
            **TABLE_CHANGES,
            **refused(kv_lora_rank=256, qk_rope_head_dim=0),
            "sparse_mla_top_k": Change(3, LISTS, refused=True),
            "sparse_mla_top_k_lens": Change(i32(1, 2), LISTS),
            "out": Change(torch.zeros(2, 1, 8, LATENT, dtype=BF16)),
            "bmm1_scale": Change(0.5),
            "bmm2_scale": Change(2.0),
            "sinks": Change(torch.ones(8)),
            "lse": Change(LATENT_LSE, {"return_lse": True}),
            "return_lse": Change(True),
            "return_lse_base": Change("basee", {"return_lse": True}),
            **unread("workspace_buffer", "qk_nope_head_dim", "max_seq_len", "multi_ctas_kv_counter_buffer"),
            **unread("cute_dsl_impl", "kv_scale_format"),
            **nothing(enable_pdl=True, backend="xqa", is_var_seq=False),
            **RANKS,
            **refused(
                skip_softmax_threshold_scale_factor=1.0, uses_shared_paged_kv_idx=False, cum_seq_lens_q=1,
                max_q_len=1, enable_dcp=True, use_fp16_softmax=True,
            ),
        },
    ),
    "get_batch_indices_positions": Subject(
        flashinfer.get_batch_indices_positions,
        lambda: TOKEN_COUNTS,
        {
            "append_indptr": Change(i32(0, 3, 5)),
            "seq_lens": Change(i32(5, 3)),
            "nnz": Change(7),
            "batch_indices": Change(i32(*[9] * 6)),
            "positions": Change(i32(*[9] * 6)),
        },
    ),
    "merge_state": Subject(flashinfer.merge_state, lambda: PAIR, changed(PAIR, *PAIR)),
    "merge_state_in_place": Subject(
        flashinfer.merge_state_in_place,
        in_place,
        {**changed(in_place(), "v", "s", "v_other", "s_other"), "mask": Change(torch.tensor([True, False, True]))},
    ),
    "merge_states": Subject(flashinfer.merge_states, lambda: STATES, changed(STATES, "v", "s")),
}  # fmt: skip
SUBJECTS = {"flashinfer": FUNCTIONS}
CALLED_OTHERWISE = {"scale_q", "scale_k", "scale_v"}  # further down
IN_GRAPHS = {"fast_decode_plan"}  # test_flashinfer_engines has its arguments

test_an_argument_does_something, test_what_is_nothing_is_refused_by_its_name = effect_tests(
    SUBJECTS, otherwise=CALLED_OTHERWISE
)


def test_every_function_has_its_rows() -> None:
    classes = {name for name in flashinfer.__all__ if isinstance(getattr(flashinfer, name), type)}
    assert set(FUNCTIONS) | IN_GRAPHS == set(flashinfer.__all__) - classes
    for name, subject in FUNCTIONS.items():
        assert sorted(parameters(subject.function)) == sorted(subject.changes), name
