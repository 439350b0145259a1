"""Calls of functions for several ranks, by a group of this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attn_mlir import distributed as ad
from attn_mlir import ring_flash_attn as rfa
from attn_mlir.validation.arguments.operands import (
    DIM,
    F32,
    HEADS,
    Calls,
    dense,
    real,
    rows,
    whole,
)

GRID = SimpleNamespace(ndim=2, get_group=lambda _: None)
"""A mesh of one node of one rank."""

PACKED: dict[str, Any] = {"q": real(8, HEADS, DIM), "kv": real(8, 2, HEADS, DIM)}
SLICED: dict[str, Any] = {
    "max_seqlen_q": 8,
    "max_seqlen_k": 8,
    "heads_k_stride": 1,
    "local_k_slice": slice(0, 8),
}


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
    "ring_flash_attn_func": (rfa.ring_flash_attn_func, dense()),
    "zigzag_ring_flash_attn_kvpacked_func": (
        rfa.zigzag_ring_flash_attn_kvpacked_func,
        {"q": real(1, 8, HEADS, DIM), "kv": real(1, 8, 2, HEADS, DIM)},
    ),
    "stripe_flash_attn_qkvpacked_func": (
        rfa.stripe_flash_attn_qkvpacked_func,
        {"qkv": real(1, 8, 3, HEADS, DIM)},
    ),
    "ring_flash_attn_varlen_func": (
        lambda **x: rfa.ring_flash_attn_varlen_func(**x, max_seqlen=8),
        {**rows(), "cu_seqlens": whole(0, 8)},
    ),
    "zigzag_ring_flash_attn_varlen_qkvpacked_func": (
        lambda **x: rfa.zigzag_ring_flash_attn_varlen_qkvpacked_func(**x, max_seqlen=8),
        {"qkv": real(8, 3, HEADS, DIM), "cu_seqlens": whole(0, 8)},
    ),
    "llama3_flash_attn_varlen_kvpacked_func": (
        lambda **x: rfa.llama3_flash_attn_varlen_kvpacked_func(**x, **SLICED),
        {**PACKED, "cu_seqlens_q": whole(0, 8), "cu_seqlens_k": whole(0, 8)},
    ),
    "llama3_flash_attn_prepare_cu_seqlens": (
        lambda **x: rfa.llama3_flash_attn_prepare_cu_seqlens(**x, causal=True, rank=0, world_size=2),
        {"cu_seqlens": whole(0, 8)},
    ),
}  # fmt: skip
