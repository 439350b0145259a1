"""Every argument of FlashInfer's wrappers does something, says nothing, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.validation.effects import (  # noqa: E402
    Change,
    Subject,
    complaint,
    effect_tests,
    nothing,
    only_planned,
    parameters,
    refused,
    unread,
)
from attn_mlir.validation.hosts.flashinfer_calls import (  # noqa: E402
    BF16,
    BY_LENGTHS,
    BY_LENGTHS_CHANGES,
    BY_TABLE,
    CACHE,
    F16,
    HEADS,
    KEYS,
    KV,
    LATENT,
    LATENT_BUFFERS,
    LATENT_GRAPH,
    LATENT_LSE,
    LATENT_POOLS,
    LATENT_Q,
    LATENT_RIGHT,
    LSE,
    PAGE,
    PAGES,
    POOL,
    PREFILL_PAGES,
    Q2,
    SCORES,
    SIZES,
    TOKENS,
    WHOLE_POOL,
    WHOLE_Q,
    WORKSPACE,
    D,
    Q,
    init,
    named,
    rotation,
    run_changes,
    square,
    steps_of,
    wrapped,
    zeros,
)
from attn_mlir.validation.hosts.flashinfer_prefixes import (  # noqa: E402
    CASCADE,
    CASCADE_RIGHT,
    DECODE_SHARED,
    DECODE_SHARED_RIGHT,
    PREFILL_SHARED,
    PREFILL_SHARED_RIGHT,
)
from attn_mlir.validation.numerics.torch_operands import changed, drawn, i32  # noqa: E402

NEUTRAL_PREFILL = refused(
    use_fp16_qk_reduction=True,
    prefix_len_ptr=1,
    token_pos_in_items_ptr=1,
    token_pos_in_items_len=1,
    max_item_len_ptr=1,
    seq_lens=1,
    seq_lens_q=1,
    max_token_per_sequence=1,
    max_sequence_kv=1,
) | nothing(uniform_q_len=1)
MASK = torch.ones(2 * 21 + 3 * 16, dtype=torch.bool)  # of sequences of 2 and 3 queries
MASK[::3] = False
PACKED = torch.full((6 + 6,), 0x55, dtype=torch.uint8)
SPLIT = {
    "plan.fixed_split_size": Change(8),
    "plan.disable_split_kv": Change(True, {"plan.fixed_split_size": 8}),
}


SINKS = {"run.sinks": Change(torch.ones(HEADS)), "run.window_left": Change(3)}
SUMS_OF_PREFILL = named("run", {
    **refused(lse_base="e"),
    "lse_layout": Change("HN", {"run.return_lse": True}),
})  # fmt: skip


DECODE_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named("plan", {**PAGES, **SIZES, "head_dim": D, "page_size": PAGE}),
    **named("run", {"q": Q2, "paged_kv_cache": POOL}),
}
DECODE_BUFFERS: dict[str, Any] = dict(
    zip(
        ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer"),
        zeros(3, 6, 2),
        strict=True,
    )
)
DECODE = {
    **init(DECODE_BUFFERS, square(2), **nothing(use_tensor_cores=True)),
    **CACHE,
    **SCORES,
    **SPLIT,
    **named("plan", {
        "head_dim": Change(128, refused=True),
        "data_type": Change("bfloat16", refused=True),
        "block_tables": Change(1, refused=True),
        "seq_lens": Change(1, refused=True),
        "q_len_per_req": Change(2, refused=True),
        "window_right": Change(2, {"plan.q_len_per_req": 2, "run.q": drawn(4, HEADS, D)}),
        "is_causal": Change(False, {"plan.q_len_per_req": 2, "run.q": drawn(4, HEADS, D)}),
    }),
    **run_changes(Q2, LSE[:2]),
    **SINKS,
    "run.paged_kv_cache": Change(drawn(5, 2, PAGE, KV, D, seed=9)),
    "run.q_len_per_req": Change(2, refused=True),
    "run.skip_softmax_threshold_scale_factor": Change(1.0, refused=True),
}  # fmt: skip
PREFILL_BUFFERS: dict[str, Any] = dict(
    zip(
        (
            "qo_indptr_buf",
            "paged_kv_indptr_buf",
            "paged_kv_indices_buf",
            "paged_kv_last_page_len_buf",
        ),
        zeros(3, 3, 6, 2),
        strict=True,
    )
)
PREFILL_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named(
        "plan",
        {"qo_indptr": i32(0, 2, 5), **PREFILL_PAGES, **SIZES, "head_dim_qk": D, "page_size": PAGE},
    ),
    **named("run", {"q": Q, "paged_kv_cache": POOL}),
}
QUERIES = named("plan", {
    "qo_indptr": Change(i32(0, 3, 5)),
    "head_dim_qk": Change(128, refused=True),
    "head_dim_vo": Change(0, refused=True),
    "custom_mask": Change(~MASK, {"plan.custom_mask": MASK}),
    "packed_custom_mask": Change(PACKED + 1, {"plan.packed_custom_mask": PACKED}),
    "causal": Change(True),
    **NEUTRAL_PREFILL,
})  # fmt: skip
PREFILL = {
    **init(PREFILL_BUFFERS, square(TOKENS), **refused(custom_mask_buf=1, mask_indptr_buf=1, jit_kwargs=1, variant_owns_mask=True)),
    **{name.replace("plan.", "plan.paged_kv_") if "page_size" not in name else name: x for name, x in CACHE.items()},
    **SCORES,
    **SPLIT,
    **QUERIES,
    "plan.block_tables": Change(1, refused=True),
    **run_changes(Q, LSE),
    **SUMS_OF_PREFILL,
    **SINKS,
    "run.sm_scale": Change(0.5, refused=True),  # of a kernel with jit_args
    "run.paged_kv_cache": Change(drawn(5, 2, PAGE, KV, D, seed=9)),
    **named("run", refused(skip_softmax_threshold_scale_factor=1.0, use_fp16_softmax=True, uses_spcompress=True)),
}  # fmt: skip
RAGGED_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named(
        "plan",
        {"qo_indptr": i32(0, 2, 5), "kv_indptr": i32(0, 21, KEYS), **SIZES, "head_dim_qk": D},
    ),
    **named("run", {"q": Q, "k": drawn(KEYS, KV, D), "v": drawn(KEYS, KV, D, seed=1)}),
}
RAGGED = {
    **init(
        dict(zip(("qo_indptr_buf", "kv_indptr_buf"), zeros(3, 3), strict=True)),
        {
            **{n: x for n, x in square(TOKENS).items() if n != "run.paged_kv_cache"},
            "run.k": drawn(PAGE, PAGE, D),
            "run.v": drawn(PAGE, PAGE, D),
            "plan.kv_indptr": i32(0, 7, PAGE),
        },
        **refused(custom_mask_buf=1, mask_indptr_buf=1, jit_kwargs=1, variant_owns_mask=True),
    ),
    **SCORES,
    **rotation("plan."),
    **SPLIT,
    **QUERIES,
    "plan.fixed_split_size": Change(128),
    "plan.disable_split_kv": Change(True, {"plan.fixed_split_size": 128}),
    "plan.kv_indptr": Change(i32(0, 22, KEYS)),
    "plan.v_indptr": Change(1, refused=True),
    "plan.o_indptr": Change(1, refused=True),
    **run_changes(Q, LSE),
    **SUMS_OF_PREFILL,
    "run.sinks": Change(torch.ones(HEADS)),
    "run.sm_scale": Change(0.5, refused=True),  # of a kernel with jit_args
    "run.k": Change(drawn(KEYS, KV, D, seed=9)),
    "run.v": Change(drawn(KEYS, KV, D, seed=9)),
    "run.o_scale": Change(2.0, refused=True),
}
MIXED_RIGHT = {
    "init.device": "cpu",
    **named("plan", {
        "qo_indptr": i32(0, 2, 5), **BY_LENGTHS, **SIZES, "head_dim_qk": D, "head_dim_vo": D, "page_size": PAGE,
        "q_data_type": F16, "kv_data_type": F16,
    }),
    **named("run", {"q": Q, "kv_cache": POOL}),
}  # fmt: skip
MIXED_SQUARE = {name.replace("paged_kv_cache", "kv_cache"): x for name, x in square(TOKENS).items()}
MIXED = {
    "init.kv_layout": Change("HND", MIXED_SQUARE),
    "init.device": Change("no device", refused=True),
    "plan.qo_indptr": Change(i32(0, 3, 5)),
    **BY_LENGTHS_CHANGES,
    **named("plan", {
        **refused(
            num_qo_heads=8, num_kv_heads=4, head_dim_qk=128, head_dim_vo=0, page_size=32,
            q_data_type="bfloat16", kv_data_type="bfloat16", use_profiler=True,
        ),
        "causal": Change(True),
        "sm_scale": Change(0.5),
        "logits_soft_cap": Change(2.0),
    }),
    **named("run", {
        **changed({"q": Q, "kv_cache": POOL}, "q", "kv_cache"),
        "out": Change(torch.zeros_like(Q)),
        "lse": Change(LSE),
        "k_scale": Change(2.0),
        "v_scale": Change(2.0),
        **refused(logits_soft_cap=2.0, profiler_buffer=1, kv_cache_sf=1),
    }),
}  # fmt: skip
DECLARED = named(
    "init", {"q_data_type": F16, "kv_data_type": F16, "head_dim_qk": D, "head_dim_vo": D}
)
SINK_RIGHT = {**PREFILL_RIGHT, **DECLARED, "run.sinks": torch.zeros(HEADS), "run.sm_scale": 0.25}
OF_JIT = ("init.jit_args", "init.jit_kwargs", "init.variant_owns_mask")
SINK = {
    **{name: x for name, x in PREFILL.items() if name not in OF_JIT},
    **named("init", {
        **refused(pos_encoding_mode="ALIBI", use_fp16_qk_reduction=True),
        **refused(q_data_type=BF16, kv_data_type=BF16, head_dim_qk=128, head_dim_vo=128, window_left=3),
    }),
    "plan.window_left": Change(3, refused=True),  # that of the constructor is -1
    "init.kv_layout": Change("HND", {**square(TOKENS), "run.sinks": torch.zeros(PAGE)}),
    **named("plan", nothing(sm_scale=0.5)),  # `run` takes it
    "run.sm_scale": Change(0.5),
}  # fmt: skip
LATENT_WRAPPER = {
    **named("init", {
        "float_workspace_buffer": Change(None, refused=True),
        "use_cuda_graph": Change(True, named("init", LATENT_BUFFERS)),
        **{name: Change(None, LATENT_GRAPH, refused=True) for name in LATENT_BUFFERS},
        **nothing(backend="fa3"),
    }),
    "plan.qo_indptr": Change(i32(0, 2, 2)),
    **BY_LENGTHS_CHANGES,
    **named("plan", {
        **refused(
            num_heads=16, head_dim_ckv=256, head_dim_kpe=0, page_size=8, q_data_type=F16, kv_data_type=F16,
            use_profiler=True, metadata=1, scale_mode="rows", skip_softmax=True, output_scale="tensor",
            output_dtype=torch.float32, lse_mode="basee",
        ),
        "causal": Change(True),
        "sm_scale": Change(0.5),
        "cum_seq_lens_q": Change(i32(0, 2, 2), BY_TABLE),
        "block_tables": Change(i32(3, 1, 4, 2).view(2, 2), BY_TABLE),
        "seq_lens": Change(i32(21, 17), BY_TABLE),
        "max_q_len": Change(0, refused=True),
        **nothing(enable_pdl=True, use_sinks=True),
        **unread("query_layout", "kv_cache_layout"),
    }),
    **named("run", {
        **changed({**LATENT_Q, **LATENT_POOLS}, *LATENT_Q, *LATENT_POOLS),
        "query": Change(drawn(2, 8, 576, seed=9, dtype=BF16), {"run.q_nope": None, "run.q_pe": None, "run.query": WHOLE_Q}),
        "kv_cache": Change(
            drawn(5, PAGE, 576, seed=9, dtype=BF16),
            {"run.ckv_cache": None, "run.kpe_cache": None, "run.kv_cache": WHOLE_POOL},
        ),
        "out": Change(torch.zeros(2, 8, LATENT, dtype=BF16)),
        "lse": Change(LATENT_LSE, {"run.return_lse": True}),
        "return_lse": Change(True),
        "return_lse_base_on_e": Change(True, {"run.return_lse": True}),
        "sinks": Change(torch.ones(8)),
        "bmm1_scale": Change(0.5),
        "bmm2_scale": Change(2.0),
        **refused(
            profiler_buffer=1, o_scale=2.0, ckv_scale=2.0, kpe_scale=2.0, ckv_scale_arr=1,
            skip_softmax_threshold_scale_factor=1.0,
        ),
        **unread("kv_len", "page_table"),
    }),
}  # fmt: skip
WRAPPERS: dict[str, tuple[Any, Subject]] = {
    kind.__name__: (kind, Subject(wrapped(kind), lambda right=right: right, changes))
    for kind, right, changes in (
        (flashinfer.BatchDecodeWithPagedKVCacheWrapper, DECODE_RIGHT, DECODE),
        (flashinfer.BatchPrefillWithPagedKVCacheWrapper, PREFILL_RIGHT, PREFILL),
        (flashinfer.BatchPrefillWithRaggedKVCacheWrapper, RAGGED_RIGHT, RAGGED),
        (flashinfer.MultiLevelCascadeAttentionWrapper, CASCADE_RIGHT, CASCADE),
        (flashinfer.BatchAttention, MIXED_RIGHT, MIXED),
        (flashinfer.BatchAttentionWithAttentionSinkWrapper, SINK_RIGHT, SINK),
        (
            flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
            DECODE_SHARED_RIGHT,
            DECODE_SHARED,
        ),
        (
            flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
            PREFILL_SHARED_RIGHT,
            PREFILL_SHARED,
        ),
        (flashinfer.BatchMLAPagedAttentionWrapper, LATENT_RIGHT, LATENT_WRAPPER),
    )
}
SUBJECTS = {"flashinfer": {name: subject for name, (_, subject) in WRAPPERS.items()}}
CALLED_OTHERWISE = {"plan.data_type", "plan.head_dim_qk", "plan.window_right"}  # further down
IN_GRAPHS = {
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper"
}  # test_flashinfer_engines has its arguments

test_an_argument_does_something, test_what_is_nothing_is_refused_by_its_name = effect_tests(
    SUBJECTS, otherwise=CALLED_OTHERWISE
)


def test_every_wrapper_has_its_rows() -> None:
    public = {name for name in flashinfer.__all__ if isinstance(getattr(flashinfer, name), type)}
    assert set(WRAPPERS) | IN_GRAPHS == public


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_argument_of_a_wrapper_has_a_row(name: str) -> None:
    kind, subject = WRAPPERS[name]
    found = [f"{part}.{x}" for part, step in steps_of(kind).items() for x in parameters(step)]
    assert sorted(found) == sorted(subject.changes)


def test_run_return_lse_is_run_that_returns_it() -> None:
    for kind, subject in WRAPPERS.values():
        if not hasattr(kind, "run_return_lse"):
            continue
        given: dict[str, dict[str, Any]] = {"init": {}, "plan": {}, "run": {}}
        for name, value in subject.right().items():
            part, _, argument = name.partition(".")
            given[part][argument] = value
        wrapper = kind(**given["init"])
        wrapper.plan(**given["plan"])
        with only_planned() as plans:
            found, (o, lse) = wrapper.run(**given["run"]), wrapper.run_return_lse(**given["run"])
        assert found.shape == o.shape and lse.shape == o.shape[:2]
        assert [x.request.return_lse for x in (plan.steps[0] for plan in plans)][-1] is True  # pyright: ignore


def test_levels_are_merged_from_results_of_32_bits() -> None:
    kind, subject = WRAPPERS["MultiLevelCascadeAttentionWrapper"]
    with only_planned() as plans:
        o = wrapped(kind)(**subject.right())
    *levels, _ = plans
    assert [plan.results[0].dtype for plan in levels] == ["f32", "f32"] and o.dtype == F16


def test_a_window_of_a_wrapper_with_sinks_is_told_twice() -> None:
    def call(window: int, **given: Any) -> Any:
        told = {"init.window_left": window, "plan.window_left": window}
        return wrapped(flashinfer.BatchAttentionWithAttentionSinkWrapper)(**given, **told)

    windowed = Subject(call, lambda: {**SINK_RIGHT, "window": -1}, {"window": Change(3)})
    assert not complaint(windowed, "window")
