"""Every argument of PyTorch's and FlashInfer's names does something, says nothing, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import flashinfer  # noqa: E402
from attn_mlir import torch as doors  # noqa: E402
from attn_mlir.validation.effects import (  # noqa: E402
    Change,
    Subject,
    arguments_of,
    by_name,
    complaint,
    only_planned,
    parameters,
    unnamed,
)
from attn_mlir.validation.numerics.torch_operands import i32  # noqa: E402

HEADS, KV, D, PAGE, TOKENS = 4, 2, 64, 16, 5
F16 = torch.float16
WORKSPACE = torch.empty(16)


def normal(*shape: int, seed: int = 0, dtype: Any = F16) -> Any:
    made = torch.Generator().manual_seed(seed * 1000 + sum(shape))
    return torch.randn(*shape, generator=made).to(dtype)


def changed(right: Mapping[str, Any], *names: str) -> dict[str, Change]:
    """Other elements for these operands."""
    return {
        name: Change(normal(*right[name].shape, seed=9, dtype=right[name].dtype)) for name in names
    }


def refused(**values: Any) -> dict[str, Change]:
    """Values of options that would have to do something."""
    return {name: Change(value, refused=True) for name, value in values.items()}


def nothing(**values: Any) -> dict[str, Change]:
    """Values of options that say nothing."""
    return {name: Change(value, nothing=True) for name, value in values.items()}


def half(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 0.5


def distinct(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q != k


BHSD: dict[str, Any] = {
    "query": normal(2, HEADS, 6, D),
    "key": normal(2, HEADS, 70, D),
    "value": normal(2, HEADS, 70, D, seed=1),
}
GROUPED = {"key": normal(2, KV, 70, D), "value": normal(2, KV, 70, D, seed=1), "enable_gqa": True}
DOORS = {
    "scaled_dot_product_attention": Subject(
        doors.scaled_dot_product_attention,
        lambda: BHSD,
        {
            **changed(BHSD, "query", "key", "value"),
            "attn_mask": Change(torch.ones(6, 70, dtype=torch.bool)),
            "is_causal": Change(True),
            "scale": Change(0.5),
            **refused(dropout_p=0.5),
            "enable_gqa": Change(False, GROUPED, refused=True),
        },
    ),
    "flex_attention": Subject(
        doors.flex_attention,
        lambda: BHSD,
        {
            **changed(BHSD, "query", "key", "value"),
            "score_mod": Change(half),
            "mask_mod": Change(distinct),
            "block_mask": Change(am.block_mask(distinct, 2, HEADS, 6, 70)),
            "scale": Change(0.5),
            "return_lse": Change(True),
            "return_aux": Change(doors.flex.AuxRequest(lse=True)),
            "enable_gqa": Change(False, GROUPED, refused=True),
            "kernel_options": Change({"no such option": 1}, refused=True),
        },
    ),
}
NOT_DOORS = {"AUXILIARY"}


def wrapped(kind: Any) -> Callable[..., Any]:
    """A wrapper's constructor, `plan` and `run` as one function of `init.x`, `plan.x` and `run.x`."""

    def call(**given: Any) -> Any:
        parts: dict[str, dict[str, Any]] = {"init": {}, "plan": {}, "run": {}}
        for name, value in given.items():
            part, _, argument = name.partition(".")
            parts[part][argument] = value
        wrapper = kind(**parts["init"])
        wrapper.plan(**parts["plan"])
        return wrapper.run(**parts["run"])

    return call


def named(part: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Names of arguments, with the part of the wrapper that they are of."""
    return {f"{part}.{name}": value for name, value in changes.items()}


NEUTRAL_SCORES = {
    **refused(pos_encoding_mode="ROPE_LLAMA", rope_scale=2.0, rope_theta=1e5),
}


def rotation(part: str = "") -> dict[str, Change]:
    """Changes of the arguments of Llama's rotation, by names that begin with a part's."""
    mode = f"{part}pos_encoding_mode"
    rotated = {mode: "ROPE_LLAMA"}
    return {
        mode: Change("ROPE_LLAMA"),
        f"{part}rope_scale": Change(2.0, rotated),
        f"{part}rope_theta": Change(1e5, rotated),
    }


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
PAGES = {
    "indptr": i32(0, 2, 3),
    "indices": i32(3, 1, 0),
    "last_page_len": i32(5, 16),
}
SIZES = {"num_qo_heads": HEADS, "num_kv_heads": KV}
POOL = normal(5, 2, PAGE, KV, D)
HND_POOL = normal(5, 2, 16, 16, D)
Q, Q2 = normal(TOKENS, HEADS, D), normal(2, HEADS, D)
E4M3 = torch.float8_e4m3fn
LSE = torch.zeros(TOKENS, HEADS)
MASK = torch.ones(2 * 21 + 3 * 16, dtype=torch.bool)  # of sequences of 2 and 3 queries
MASK[::3] = False
PACKED = torch.full((6 + 6,), 0x55, dtype=torch.uint8)
SPLIT = {
    "plan.fixed_split_size": Change(8),
    "plan.disable_split_kv": Change(True, {"plan.fixed_split_size": 8}),
}


def run_changes(q: Any, lse: Any) -> dict[str, Change]:
    """Changes of arguments that `run` of all wrappers has."""
    return named("run", {
        "q": Change(normal(*q.shape, seed=9)),
        "q_scale": Change(2.0),
        "k_scale": Change(2.0),
        "v_scale": Change(2.0),
        "out": Change(torch.zeros_like(q)),
        "lse": Change(lse, {"run.return_lse": True}),
        "return_lse": Change(True),
        **nothing(enable_pdl=True),
        "kv_cache_sf": Change(1, refused=True),
    })  # fmt: skip


SINKS = {"run.sinks": Change(torch.ones(HEADS)), "run.window_left": Change(3)}
SUMS_OF_PREFILL = named("run", {
    **refused(lse_base="e"),
    "lse_layout": Change("HN", {"run.return_lse": True}),
})  # fmt: skip
SCORES = named("plan", {
    "window_left": Change(5),
    "logits_soft_cap": Change(2.0),
    "sm_scale": Change(0.5),
    **NEUTRAL_SCORES,
    **nothing(non_blocking=False),
    "q_data_type": Change("bfloat16", refused=True),
    "kv_data_type": Change("bfloat16", refused=True),
    "o_data_type": Change("float32"),
    "num_qo_heads": Change(8, refused=True),
    "num_kv_heads": Change(4, refused=True),
})  # fmt: skip


def square(tokens: int) -> dict[str, Any]:
    """A call of as many heads as positions of a page, which either layout fits."""
    return {
        "plan.num_qo_heads": PAGE,
        "plan.num_kv_heads": PAGE,
        "run.q": normal(tokens, PAGE, D),
        "run.paged_kv_cache": HND_POOL,
    }


def init(buffers: Mapping[str, Any], either: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Changes of arguments of a constructor.

    Args:
      buffers: the caller's index tensors for graphs, by argument.
      either: arguments of a call that either layout fits.
    """
    graph = {"init.use_cuda_graph": True, **named("init", buffers)}
    return named("init", {
        "float_workspace_buffer": Change(None, refused=True),
        "kv_layout": Change("HND", either),
        "use_cuda_graph": Change(True, {name: x for name, x in graph.items() if "cuda" not in name}),
        **{name: Change(None, graph, refused=True) for name in buffers},
        **nothing(backend="fa3"),
        **refused(jit_args=1),
        **more,
    })  # fmt: skip


def zeros(*counts: int) -> list[Any]:
    return [i32(*[0] * count) for count in counts]


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
CACHE = named("plan", {
    "indptr": Change(i32(0, 1, 3)),
    "indices": Change(i32(3, 1, 2)),
    "last_page_len": Change(i32(6, 16)),
    "page_size": Change(32, refused=True),
})  # fmt: skip
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
        "window_right": Change(2, {"plan.q_len_per_req": 2, "run.q": normal(4, HEADS, D)}),
        "is_causal": Change(False, {"plan.q_len_per_req": 2, "run.q": normal(4, HEADS, D)}),
    }),
    **run_changes(Q2, LSE[:2]),
    **SINKS,
    "run.paged_kv_cache": Change(normal(5, 2, PAGE, KV, D, seed=9)),
    "run.q_len_per_req": Change(2, refused=True),
    "run.skip_softmax_threshold_scale_factor": Change(1.0, refused=True),
}  # fmt: skip
PREFILL_PAGES = {f"paged_kv_{name}": value for name, value in PAGES.items()}
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
    "run.paged_kv_cache": Change(normal(5, 2, PAGE, KV, D, seed=9)),
    **named("run", refused(skip_softmax_threshold_scale_factor=1.0, use_fp16_softmax=True, uses_spcompress=True)),
}  # fmt: skip
KEYS = 37
RAGGED_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named(
        "plan",
        {"qo_indptr": i32(0, 2, 5), "kv_indptr": i32(0, 21, KEYS), **SIZES, "head_dim_qk": D},
    ),
    **named("run", {"q": Q, "k": normal(KEYS, KV, D), "v": normal(KEYS, KV, D, seed=1)}),
}
RAGGED = {
    **init(
        dict(zip(("qo_indptr_buf", "kv_indptr_buf"), zeros(3, 3), strict=True)),
        {
            **{n: x for n, x in square(TOKENS).items() if n != "run.paged_kv_cache"},
            "run.k": normal(PAGE, PAGE, D),
            "run.v": normal(PAGE, PAGE, D),
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
    "run.k": Change(normal(KEYS, KV, D, seed=9)),
    "run.v": Change(normal(KEYS, KV, D, seed=9)),
    "run.o_scale": Change(2.0, refused=True),
}
LEVELS = {
    "qo_indptr_arr": [i32(0, 5), i32(0, 2, 5)],
    "paged_kv_indptr_arr": [i32(0, 1), i32(0, 2, 3)],
    "paged_kv_indices_arr": [i32(4), i32(3, 1, 0)],
    "paged_kv_last_page_len": [i32(16), i32(5, 16)],
}
CASCADE_BUFFERS = {
    "qo_indptr_buf_arr": [i32(0, 0), i32(0, 0, 0)],
    "paged_kv_indptr_buf_arr": [i32(0, 0), i32(0, 0, 0)],
    "paged_kv_indices_buf_arr": [i32(0), i32(0, 0, 0)],
    "paged_kv_last_page_len_buf_arr": [i32(0), i32(0, 0)],
}
CASCADE_RIGHT = {
    **named("init", {"num_levels": 2, "float_workspace_buffer": WORKSPACE}),
    **named("plan", {**LEVELS, **SIZES, "head_dim": D, "page_size": PAGE}),
    **named("run", {"q": Q, "paged_kv_cache": POOL}),
}
ONE_LEVEL = {
    "init.num_levels": 1,
    **named("plan", {name: levels[1:] for name, levels in LEVELS.items()}),
}
CASCADE = {
    **{name: x for name, x in init(CASCADE_BUFFERS, square(TOKENS)).items() if name not in ("init.backend", "init.jit_args")},
    "init.num_levels": Change(1, refused=True),
    **named("plan", {
        "qo_indptr_arr": Change([i32(0, 5), i32(0, 3, 5)]),
        "paged_kv_indptr_arr": Change([i32(0, 1), i32(0, 1, 3)]),
        "paged_kv_indices_arr": Change([i32(2), i32(3, 1, 0)]),
        "paged_kv_last_page_len": Change([i32(15), i32(5, 16)]),
        "head_dim": Change(128, refused=True),
        "page_size": Change(32, refused=True),
        "causal": Change(True),
        "use_fp16_qk_reduction": Change(True, refused=True),
    }),
    **{n: x for n, x in SCORES.items() if n not in ("plan.non_blocking", "plan.o_data_type")},
    "plan.window_left": Change(5, ONE_LEVEL),
    "run.q": Change(normal(TOKENS, HEADS, D, seed=9)),
    "run.paged_kv_cache": Change(normal(5, 2, PAGE, KV, D, seed=9)),
}  # fmt: skip
WRAPPERS: dict[str, tuple[Any, Subject]] = {
    kind.__name__: (kind, Subject(wrapped(kind), lambda right=right: right, changes))
    for kind, right, changes in (
        (flashinfer.BatchDecodeWithPagedKVCacheWrapper, DECODE_RIGHT, DECODE),
        (flashinfer.BatchPrefillWithPagedKVCacheWrapper, PREFILL_RIGHT, PREFILL),
        (flashinfer.BatchPrefillWithRaggedKVCacheWrapper, RAGGED_RIGHT, RAGGED),
        (flashinfer.MultiLevelCascadeAttentionWrapper, CASCADE_RIGHT, CASCADE),
    )
}
STATE, SUMS = normal(3, HEADS, D), normal(3, HEADS, dtype=torch.float32)
STATES = {
    "v": normal(3, 2, HEADS, D),
    "s": normal(3, 2, HEADS, dtype=torch.float32),
}
PAIR = {"v_a": STATE, "s_a": SUMS, "v_b": STATE + 1, "s_b": SUMS + 1}
ROWS = {f"kv_{name}": value for name, value in PAGES.items()}


def in_place() -> dict[str, Any]:
    return {"v": STATE.clone(), "s": SUMS.clone(), "v_other": STATE + 1, "s_other": SUMS + 1}


def appended() -> dict[str, Any]:
    new = normal(3, KV, D)
    places = {"batch_indices": i32(0, 1, 1), "positions": i32(4, 1, 2)}
    return {"append_key": new, "append_value": new + 1, **places, "paged_kv_cache": POOL, **ROWS}


TOKEN_COUNTS = {"append_indptr": i32(0, 2, 5), "seq_lens": i32(4, 3), "nnz": 6}
ONE = {"q": normal(HEADS, D), "k": normal(KEYS, KV, D), "v": normal(KEYS, KV, D, seed=1)}
MANY = {**ONE, "q": Q}
HND = {"k": normal(16, 16, D), "v": normal(16, 16, D), "q": normal(16, D), "kv_layout": "NHD"}
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
            "kv_layout": Change("HND", {**HND, "q": normal(TOKENS, 16, D)}),
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
            "batch_indices": Change(i32(0, 0, 1)),
            "positions": Change(i32(5, 1, 2)),
            "kv_indices": Change(i32(3, 1, 2)),
            "kv_indptr": Change(i32(0, 1, 3)),
            "kv_last_page_len": Change(i32(6, 16)),
            "kv_layout": Change("HND", {"paged_kv_cache": HND_POOL, **{n: normal(3, 16, D) for n in ("append_key", "append_value")}}),
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
SUBJECTS = {
    "torch": DOORS,
    "flashinfer": {**FUNCTIONS, **{name: subject for name, (_, subject) in WRAPPERS.items()}},
}
TABLE = arguments_of(by_name(SUBJECTS))


@pytest.mark.parametrize(("subject", "argument"), TABLE.values(), ids=TABLE)
def test_an_argument_does_something(subject: Subject, argument: str) -> None:
    assert complaint(subject, argument) == ""


CALLED_OTHERWISE = {  # refused by the name that the argument has further down
    *("scale_q", "scale_k", "scale_v", "plan.data_type", "plan.head_dim_qk", "plan.window_right"),
}


@pytest.mark.parametrize("subject", by_name(SUBJECTS).values(), ids=by_name(SUBJECTS))
def test_what_is_nothing_is_refused_by_its_name(subject: Subject) -> None:
    """Further positions of `run` are none that could be nothing."""
    named = {name: change for name, change in subject.changes.items() if name != "run.args"}
    found = unnamed(replace(subject, changes=named))
    assert set(found) <= CALLED_OTHERWISE
    assert "it is taken" not in found.values()


IN_GRAPHS = {  # are for graphs of a GPU: test_flashinfer_engines has their arguments
    *("CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan"),
}
OVER_OTHERS = {  # pass arguments on to those above: test_flashinfer_direct, _latent and test_hosts
    *("BatchAttention", "BatchAttentionWithAttentionSinkWrapper", "BatchMLAPagedAttentionWrapper"),
    *("BatchDecodeWithSharedPrefixPagedKVCacheWrapper", "append_paged_mla_kv_cache"),
    *("BatchPrefillWithSharedPrefixPagedKVCacheWrapper", "trtllm_batch_decode_with_kv_cache"),
    *("trtllm_batch_context_with_kv_cache", "trtllm_batch_decode_with_kv_cache_mla"),
}


def test_every_function_has_its_rows() -> None:
    assert set(SUBJECTS["flashinfer"]) | IN_GRAPHS | OVER_OTHERS == set(flashinfer.__all__)
    for functions in (DOORS, FUNCTIONS):
        for name, subject in functions.items():
            assert sorted(parameters(subject.function)) == sorted(subject.changes), name


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_argument_of_a_wrapper_has_a_row(name: str) -> None:
    kind, subject = WRAPPERS[name]
    parts = {"init": kind.__init__, "plan": kind.plan, "run": kind.run}
    found = [f"{part}.{x}" for part, function in parts.items() for x in parameters(function)]
    assert sorted(found) == sorted(subject.changes)


def test_run_return_lse_is_run_that_returns_it() -> None:
    for kind, subject in WRAPPERS.values():
        if not hasattr(kind, "run_return_lse"):
            continue
        wrapper = kind(WORKSPACE)
        given: dict[str, dict[str, Any]] = {"init": {}, "plan": {}, "run": {}}
        for name, value in subject.right().items():
            part, _, argument = name.partition(".")
            given[part][argument] = value
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


def test_groups_of_heads_need_no_batch() -> None:
    """Operands of rank 3 are heads of one sequence where these are grouped, else a batch of single heads."""
    q, k = normal(HEADS, 6, D), normal(KV, 70, D)
    with only_planned() as plans:
        doors.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        doors.scaled_dot_product_attention(q, normal(HEADS, 70, D), normal(HEADS, 70, D))
    found = [(plan.like.shape, plan.steps[0].request.group) for plan in plans]  # pyright: ignore
    assert found == [((1, 6, HEADS, D), HEADS // KV), ((HEADS, 6, 1, D), 1)]
