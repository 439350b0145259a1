"""Attention on the emulator in the shapes beyond the sweep: head sizes, packed heads, tile orders."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am

Arrays = tuple[Any, Any, Any]


def operands(
    sq: int, sk: int, heads: int, kv_heads: int, d: int, dv: int, batch: int = 1
) -> Arrays:
    """Random q, k, v in bf16."""
    rng = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads, d), (sk, kv_heads, d), (sk, kv_heads, dv))
    q, k, v = (rng.standard_normal((batch, *shape)).astype(ml_dtypes.bfloat16) for shape in shapes)
    return q, k, v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "dv"),
    [(8, 8), (40, 40), (72, 72), (80, 80), (96, 96), (192, 128), (192, 192), (256, 256)],
)
def test_head_sizes(d: int, dv: int):
    q, k, v = operands(33, 150, 2, 1, d, dv)
    o, lse = am.attention(q, k, v, mask=am.causal(), return_lse=True, device="emulator")
    verdict = am.reference.check_attention(q, k, v, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sq", "heads", "kv_heads"), [(1, 8, 1), (16, 8, 2), (70, 6, 2), (40, 16, 1)]
)
def test_grouped_heads_of_few_queries(sq: int, heads: int, kv_heads: int):
    """Decode-like to prefill: groups of 8, 4, 3 (not packed) and 16."""
    q, k, v = operands(sq, 333, heads, kv_heads, 64, 64, batch=1)
    o, lse = am.attention(q, k, v, mask=am.causal(), return_lse=True, device="emulator")
    verdict = am.reference.check_attention(q, k, v, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [am.causal(), am.full()], ids=str)
def test_tile_orders_and_query_tiles_give_the_same_bits(mask: am.Mask):
    q, k, v = operands(600, 140, 2, 2, 64, 64, batch=1)
    results: list[tuple[bytes, bytes]] = []
    few = am.EmulatorDevice(multiprocessors=2)  # so that persistent CTAs take several tiles
    for order in ("single", "last_first", "persistent"):
        for tiles in (1, 2):
            spec = am.mha(heads=2, head_dim=64, mask=mask, tile_order=order, query_tiles=tiles)
            o = np.full(q.shape, 7, q.dtype)
            lse = np.full((1, 2, 600), 7, np.float32)
            am.load(am.compile(spec))(q, k, v, o, lse, device=few)
            results.append((o.tobytes(), lse.tobytes()))
    assert len(set(results)) == 1
    verdict = am.reference.check_attention(q, k, v, o, lse, mask=mask)
    assert verdict.ok, str(verdict)
