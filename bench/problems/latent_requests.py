"""Requests for latent attention by name, of which benchmarks compile each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def _mla() -> Any:
    import attn_mlir as am

    return am.MlaSpec(heads=16, nope_dim=128, rope_dim=64, mask=am.causal(), query_tiles=2)


def _sparse(heads: int, kv_format: str | None = None, schedule: str | None = None) -> Any:
    from attn_mlir.compiling.sparse_mla import SparseMlaSpec

    return SparseMlaSpec(heads=heads, kv_format=kv_format or "bf16", schedule=schedule)


def _decode(**options: Any) -> Any:
    import attn_mlir as am

    return am.MlaDecodeSpec(heads=128, **options)


def _causal() -> Any:
    import attn_mlir as am

    return _decode(mask=am.causal())


def _pages(kv_format: str) -> Any:
    import attn_mlir as am
    from attn_mlir.dialect.attn.cache import Cache

    cache = Cache(page_size=64, pages="table")
    head_dim = 512 if kv_format == "model1" else 576
    options: dict[str, Any] = {"kv_format": kv_format, "head_dim": head_dim, "partial": True}
    return _decode(mask=am.causal(), cache=cache, **options)


LATENT: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "dense, causal, 16 heads": _mla,
        "lists, 64 heads": lambda: _sparse(64),
        "lists, 128 heads": lambda: _sparse(128),
        "lists, 128 heads, by threads": lambda: _sparse(128, schedule="sparse-mla-pair-threads"),
        "lists, 128 heads, v32": lambda: _sparse(128, "v32"),
        "decoding, causal, 128 heads": _causal,
        "decoding, pages, 128 heads, v32": lambda: _pages("v32"),
        "decoding, pages, 128 heads, model1": lambda: _pages("model1"),
        "decoding, lists, 128 heads": lambda: _decode(indices=True),
        "decoding, lists, 128 heads, v32": lambda: _decode(indices=True, kv_format="v32"),
    }
)
