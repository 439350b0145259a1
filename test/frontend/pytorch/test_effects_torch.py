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
    Nothing,
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
F16, BF16 = torch.float16, torch.bfloat16
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


def unread(*names: str) -> dict[str, Change]:
    """Arguments that are not looked at: any object says nothing."""
    return nothing(**dict.fromkeys(names, Nothing()))


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


def steps_of(kind: Any) -> dict[str, Callable[..., Any]]:
    """A wrapper's constructor and its methods that plan and run, by the first part of names."""
    names = ("plan", "run") if hasattr(kind, "plan") else ("begin_forward", "forward")
    return {
        "init": kind.__init__,
        **dict(zip(("plan", "run"), (getattr(kind, x) for x in names), strict=True)),
    }


def wrapped(kind: Any) -> Callable[..., Any]:
    """A wrapper's constructor, `plan` and `run` as one function of `init.x`, `plan.x` and `run.x`."""
    steps = steps_of(kind)

    def call(**given: Any) -> Any:
        parts: dict[str, dict[str, Any]] = {"init": {}, "plan": {}, "run": {}}
        for name, value in given.items():
            part, _, argument = name.partition(".")
            parts[part][argument] = value
        wrapper = kind(**parts["init"])
        steps["plan"](wrapper, **parts["plan"])
        return steps["run"](wrapper, **parts["run"])

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
TABLE_ROWS = {"num_qo_heads": HEADS, "num_kv_heads": KV, "head_dim": D, "page_size": PAGE}
SHARED = {"k_shared": normal(21, KV, D), "v_shared": normal(21, KV, D, seed=1)}
OWN_POOL = {"unique_kv_cache": POOL}
SHARED_INIT = named("init", {
    "float_workspace_buffer": Change(None, refused=True),
    "kv_layout": Change("HND", {**named("plan", {"num_qo_heads": PAGE, "num_kv_heads": PAGE}), **named("run", {
        "q": normal(2, PAGE, D), "k_shared": normal(PAGE, PAGE, D), "v_shared": normal(PAGE, PAGE, D, seed=1),
        "unique_kv_cache": HND_POOL,
    })}),
})  # fmt: skip
SHARED_SIZES = refused(
    num_qo_heads=8, num_kv_heads=4, head_dim=128, page_size=32, data_type="bfloat16"
)
SHARED_RUN = named("run", changed({"q": Q2, **SHARED, **OWN_POOL}, "q", *SHARED, *OWN_POOL))
DECODE_SHARED_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named("plan", {**{f"unique_kv_{name}": x for name, x in PAGES.items()}, **TABLE_ROWS}),
    **named("run", {"q": Q2, **SHARED, **OWN_POOL}),
}
PAGE_CHANGES = {name: change for name, change in CACHE.items() if name != "plan.page_size"}
DECODE_SHARED = {
    **SHARED_INIT,
    **{name.replace("plan.", "plan.unique_kv_"): x for name, x in PAGE_CHANGES.items()},
    **named("plan", SHARED_SIZES),
    **SHARED_RUN,
}
PREFILL_SHARED_RIGHT = {
    **named("init", {"float_workspace_buffer": WORKSPACE}),
    **named("plan", {"qo_indptr": i32(0, 1, 2), **PREFILL_PAGES, **TABLE_ROWS}),
    **named("run", {"q": Q2, **SHARED, **OWN_POOL}),
}
PREFILL_SHARED = {
    **SHARED_INIT,
    "plan.qo_indptr": Change(i32(0, 2, 2)),
    **{name.replace("plan.", "plan.paged_kv_"): x for name, x in PAGE_CHANGES.items()},
    **named("plan", SHARED_SIZES),
    **SHARED_RUN,
    **named("run", {
        "causal": Change(True),
        "sm_scale": Change(0.5),
        **refused(use_fp16_qk_reduction=True, rope_scale=2.0, rope_theta=1e5),
    }),
}  # fmt: skip
BY_LENGTHS = {"kv_indptr": i32(0, 2, 3), "kv_indices": i32(3, 1, 0), "kv_len_arr": i32(21, 16)}
BY_LENGTHS_CHANGES = named("plan", {
    "kv_indptr": Change(i32(0, 1, 3), {"plan.kv_len_arr": i32(16, 16)}),
    "kv_indices": Change(i32(3, 1, 2)),
    "kv_len_arr": Change(i32(20, 16)),
})  # fmt: skip
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
LATENT, ROTATED = 512, 64
LATENT_Q = {"q_nope": normal(2, 8, LATENT, dtype=BF16), "q_pe": normal(2, 8, ROTATED, dtype=BF16)}
LATENT_POOLS = {
    "ckv_cache": normal(5, PAGE, LATENT, dtype=BF16),
    "kpe_cache": normal(5, PAGE, ROTATED, dtype=BF16),
}
WHOLE_Q = torch.cat([*LATENT_Q.values()], -1)
WHOLE_POOL = torch.cat([*LATENT_POOLS.values()], -1)
LATENT_RIGHT = {
    "init.float_workspace_buffer": WORKSPACE,
    **named("plan", {
        "qo_indptr": i32(0, 1, 2), **BY_LENGTHS, "num_heads": 8, "head_dim_ckv": LATENT, "head_dim_kpe": ROTATED,
        "page_size": PAGE, "causal": False, "sm_scale": 0.1, "q_data_type": BF16, "kv_data_type": BF16,
    }),
    **named("run", {**LATENT_Q, **LATENT_POOLS}),
}  # fmt: skip
LATENT_BUFFERS = dict(zip(("qo_indptr", *BY_LENGTHS), zeros(3, 3, 6, 2), strict=True))
LATENT_GRAPH = {"init.use_cuda_graph": True, **named("init", LATENT_BUFFERS)}
BY_TABLE = {
    **named("plan", dict.fromkeys(("qo_indptr", *BY_LENGTHS))),
    **named("plan", {
        "cum_seq_lens_q": i32(0, 1, 2), "block_tables": i32(3, 1, 0, 2).view(2, 2), "seq_lens": i32(21, 16),
    }),
}  # fmt: skip
LATENT_LSE = torch.zeros(2, 8)
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
        "query": Change(normal(2, 8, 576, seed=9, dtype=BF16), {"run.q_nope": None, "run.q_pe": None, "run.query": WHOLE_Q}),
        "kv_cache": Change(
            normal(5, PAGE, 576, seed=9, dtype=BF16),
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


def latent_rows() -> dict[str, Any]:
    rows = {"append_ckv": normal(3, LATENT), "append_kpe": normal(3, ROTATED)}
    places = {"batch_indices": i32(0, 1, 1), "positions": i32(4, 1, 2)}
    pools = {"ckv_cache": normal(5, PAGE, LATENT), "kpe_cache": normal(5, PAGE, ROTATED)}
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
HND_PAGES = normal(5, 2, KV, PAGE, D)
DECODED = {"query": Q2, "kv_cache": HND_PAGES, **TABLED, "max_seq_len": 21, "bmm1_scale": 0.125}
BY_OFFSETS = {"query": Q, "cum_seq_lens_q": i32(0, 2, 5), "max_q_len": 3}
CONTEXT = {
    **{name: x for name, x in DECODED.items() if name != "max_seq_len"},
    **BY_OFFSETS, "max_kv_len": 21, "bmm2_scale": 1.0, "batch_size": 2, "cum_seq_lens_kv": i32(0, 21, 37),
}  # fmt: skip


def in_one_call(q: Any, lse: Any) -> dict[str, Change]:
    """Changes of the arguments that both calls without a plan have."""
    return {
        "query": Change(normal(*q.shape, seed=9)),
        "kv_cache": Change(normal(*HND_PAGES.shape, seed=9)),
        **TABLE_CHANGES,
        "bmm1_scale": Change(0.5),
        "bmm2_scale": Change(2.0),
        "window_left": Change(5),
        "out": Change(torch.zeros_like(q)),
        "out_dtype": Change(torch.float32),
        "sinks": Change(torch.ones(HEADS)),
        "kv_layout": Change("NHD", {"query": normal(len(q), PAGE, D), "kv_cache": HND_POOL}),
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
            **PLACES,
            "kv_layout": Change("HND", {"paged_kv_cache": HND_POOL, **{n: normal(3, 16, D) for n in ("append_key", "append_value")}}),
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
    named = {
        name: change
        for name, change in subject.changes.items()
        if name != "run.args" and not isinstance(change.value, Nothing)
    }
    found = unnamed(replace(subject, changes=named))
    assert set(found) <= CALLED_OTHERWISE
    assert "it is taken" not in found.values()


IN_GRAPHS = {  # are for graphs of a GPU: test_flashinfer_engines has their arguments
    *("CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan"),
}


def test_every_function_has_its_rows() -> None:
    assert set(SUBJECTS["flashinfer"]) | IN_GRAPHS == set(flashinfer.__all__)
    for functions in (DOORS, FUNCTIONS):
        for name, subject in functions.items():
            assert sorted(parameters(subject.function)) == sorted(subject.changes), name


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_argument_of_a_wrapper_has_a_row(name: str) -> None:
    kind, subject = WRAPPERS[name]
    found = [f"{part}.{x}" for part, step in steps_of(kind).items() for x in parameters(step)]
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


def test_a_window_of_a_wrapper_with_sinks_is_told_twice() -> None:
    def call(window: int, **given: Any) -> Any:
        told = {"init.window_left": window, "plan.window_left": window}
        return wrapped(flashinfer.BatchAttentionWithAttentionSinkWrapper)(**given, **told)

    windowed = Subject(call, lambda: {**SINK_RIGHT, "window": -1}, {"window": Change(3)})
    assert not complaint(windowed, "window")
