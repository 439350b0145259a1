"""Calls of FlashInfer's names that are right, and changes of their arguments, for tests of effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attn_mlir.validation.effects import Change, nothing, refused
from attn_mlir.validation.numerics.torch_operands import drawn, i32

HEADS, KV, D, PAGE, TOKENS = 4, 2, 64, 16, 5
F16, BF16 = torch.float16, torch.bfloat16
WORKSPACE = torch.empty(16)


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


PAGES = {
    "indptr": i32(0, 2, 3),
    "indices": i32(3, 1, 0),
    "last_page_len": i32(5, 16),
}
POOL = drawn(5, 2, PAGE, KV, D)
HND_POOL = drawn(5, 2, 16, 16, D)
Q, Q2 = drawn(TOKENS, HEADS, D), drawn(2, HEADS, D)
LSE = torch.zeros(TOKENS, HEADS)


def run_changes(q: Any, lse: Any) -> dict[str, Change]:
    """Changes of arguments that `run` of all wrappers has."""
    return named("run", {
        "q": Change(drawn(*q.shape, seed=9)),
        "q_scale": Change(2.0),
        "k_scale": Change(2.0),
        "v_scale": Change(2.0),
        "out": Change(torch.zeros_like(q)),
        "lse": Change(lse, {"run.return_lse": True}),
        "return_lse": Change(True),
        **nothing(enable_pdl=True),
        "kv_cache_sf": Change(1, refused=True),
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
SIZES = {"num_qo_heads": HEADS, "num_kv_heads": KV}
CACHE = named("plan", {
    "indptr": Change(i32(0, 1, 3)),
    "indices": Change(i32(3, 1, 2)),
    "last_page_len": Change(i32(6, 16)),
    "page_size": Change(32, refused=True),
})  # fmt: skip
PREFILL_PAGES = {f"paged_kv_{name}": value for name, value in PAGES.items()}


def square(tokens: int) -> dict[str, Any]:
    """A call of as many heads as positions of a page, which either layout fits."""
    return {
        "plan.num_qo_heads": PAGE,
        "plan.num_kv_heads": PAGE,
        "run.q": drawn(tokens, PAGE, D),
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


KEYS = 37
BY_LENGTHS = {"kv_indptr": i32(0, 2, 3), "kv_indices": i32(3, 1, 0), "kv_len_arr": i32(21, 16)}
BY_LENGTHS_CHANGES = named("plan", {
    "kv_indptr": Change(i32(0, 1, 3), {"plan.kv_len_arr": i32(16, 16)}),
    "kv_indices": Change(i32(3, 1, 2)),
    "kv_len_arr": Change(i32(20, 16)),
})  # fmt: skip
LATENT, ROTATED = 512, 64
LATENT_Q = {"q_nope": drawn(2, 8, LATENT, dtype=BF16), "q_pe": drawn(2, 8, ROTATED, dtype=BF16)}
LATENT_POOLS = {
    "ckv_cache": drawn(5, PAGE, LATENT, dtype=BF16),
    "kpe_cache": drawn(5, PAGE, ROTATED, dtype=BF16),
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
