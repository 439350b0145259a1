"""Calls of functions for several ranks, by a group of this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from attn_mlir import distributed as ad
from attn_mlir import ring_flash_attn as rfa
from attn_mlir.validation.arguments.operands import (
    DIM,
    F32,
    HEADS,
    LENGTHS,
    Calls,
    dense,
    real,
    whole,
)

GRID = SimpleNamespace(ndim=2, get_group=lambda _: None)
"""A mesh of one node of one rank."""

SLICED = {"max_seqlen_q": 8, "max_seqlen_k": 8, "heads_k_stride": 1, "local_k_slice": slice(0, 8)}


def of_package(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The call of a function of ring-flash-attn."""
    function, is_packed = getattr(rfa, name), "varlen" in name
    lead = (8,) if is_packed else (1, 8)
    forms: dict[str, dict[str, Any]] = {
        "qkvpacked": {"qkv": real(*lead, 3, HEADS, DIM)},
        "kvpacked": {"q": real(*lead, HEADS, DIM), "kv": real(*lead, 2, HEADS, DIM)},
        "": {x: real(*lead, HEADS, DIM) for x in "qkv"},
    }
    arrays = next(found for form, found in forms.items() if form in name)
    if name.startswith("llama3"):
        return partial(function, **SLICED), {**arrays, **LENGTHS}
    if is_packed:
        return partial(function, max_seqlen=8), {**arrays, "cu_seqlens": whole(0, 8)}
    return function, arrays


def passed_queries(q: Any, k: Any, v: Any, o: Any, lse: Any, sinks: Any) -> Any:
    """New tokens beside cached ones."""
    return ad.pass_q_attention(q, k, v, new=(o, lse), sinks=sinks, device="emulator")


def in_context(buffer: Any) -> None:
    """A context with one buffer."""
    with ad.context_parallel(None, buffers=[buffer], seq_dims=[1]):
        pass


DISTRIBUTED: Calls = {
    "ring_attention": (
        lambda **x: ad.ring_attention(**x, device="emulator"),
        {**dense(), "sinks": real(HEADS, dtype=F32), "cu_seqlens": whole(0, 8)},
    ),
    "gather_attention": (lambda **x: ad.gather_attention(**x, device="emulator"), dense()),
    "ulysses_attention": (
        lambda **x: ad.ulysses_attention(**x, device="emulator"),
        {**dense(), "sinks": real(HEADS, dtype=F32)},
    ),
    "ulysses_ring_attention": (
        lambda **x: ad.ulysses_ring_attention(**x, mesh=GRID, device="emulator"),
        {**dense(), "sinks": real(HEADS, dtype=F32), "cu_seqlens": whole(0, 8)},
    ),
    "pass_q_attention": (
        passed_queries,
        {
            **dense(), "o": real(1, 8, HEADS, DIM), "lse": real(1, HEADS, 8, dtype=F32),
            "sinks": real(HEADS, dtype=F32),
        },
    ),
    "decode_combine": (
        ad.decode_combine,
        {"o": real(3, HEADS, DIM), "lse": real(HEADS, 3, dtype=F32)},
    ),
    "context_parallel": (in_context, {"buffer": real(1, 8, HEADS, DIM)}),
    "shard": (ad.shard, {"x": real(1, 8, HEADS, DIM)}),
    "unshard": (ad.unshard, {"x": real(1, 8, HEADS, DIM)}),
    "llama3_flash_attn_prepare_cu_seqlens": (
        lambda **x: rfa.llama3_flash_attn_prepare_cu_seqlens(**x, causal=True, rank=0, world_size=2),
        {"cu_seqlens": whole(0, 8)},
    ),
    **{x: of_package(x) for x in rfa.__all__ if x.endswith("_func")},
}  # fmt: skip
