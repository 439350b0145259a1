"""Attention on the emulator in the shapes beyond the sweep: head sizes, packed heads, tile orders."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir.runtime.emulator.core.scheduler import Scheduler

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
@pytest.mark.long("40-40", "80-80", "96-96", "192-192")
def test_head_sizes(d: int, dv: int):
    q, k, v = operands(33, 150, 2, 1, d, dv)
    o, lse = am.attention(q, k, v, mask=am.causal(), return_lse=True, device="emulator")
    verdict = am.reference.check_attention(q, k, v, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sq", "heads", "kv_heads", "tiles"),
    [(1, 8, 1, 1), (2, 16, 2, 2), (16, 8, 2, 2), (5, 128, 1, 6), (70, 6, 2, 6), (40, 16, 1, 6)],
)
@pytest.mark.long("5-128-1-6", "16-8-2-2", "70-6-2-6")
def test_grouped_heads_of_few_queries(
    sq: int, heads: int, kv_heads: int, tiles: int, product_counts: list[int]
):
    """Decode-like to prefill: groups of 8, 4, 128, 3 (not packed) and 16; query tiles that compute.

    Keys 0..332 are three tiles for each; a tile takes 4 + 8 products with K = 16, and the last work
    tile of (40, 16, 1) and of (5, 128, 1) has a second query tile, whose rows are past the end.
    """
    q, k, v = operands(sq, 333, heads, kv_heads, 64, 64, batch=1)
    o, lse = am.attention(q, k, v, mask=am.causal(), return_lse=True, device="emulator")
    verdict = am.reference.check_attention(q, k, v, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)
    assert product_counts == [tiles * 3 * (4 + 8)]


ORDERS = ("single", "last_first", "persistent", "clc")


def launched(
    arrays: Arrays, spec: am.MhaSpec, device: am.EmulatorDevice
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """O and LSE of one launch."""
    q, _, v = arrays
    batch, sq, heads, _ = q.shape
    o = np.full((batch, sq, heads, v.shape[-1]), 7, q.dtype)
    lse = np.full((batch, heads, sq), 7, np.float32)
    am.load(am.compile(spec))(*arrays, o, lse, device=device)
    return o, lse


@pytest.mark.slow
@pytest.mark.parametrize("mask", [am.causal(), am.full()], ids=str)
@pytest.mark.long("full")
def test_tile_orders_and_query_tiles_give_the_same_bits(mask: am.Mask):
    """With the full mask every order with both numbers of query tiles, with the causal one with either."""
    arrays = operands(300, 140, 2, 2, 64, 64, batch=1)
    few = am.EmulatorDevice(multiprocessors=2)  # so that persistent CTAs take several tiles
    late = am.EmulatorDevice(multiprocessors=2, schedule="adversarial", seed=4)
    runs = [(order, tiles, few) for order, tiles in product(ORDERS, (1, 2))]
    if mask == am.causal():
        runs = [("single", 1, few), ("last_first", 2, few)]
    runs += [("persistent", 1, late), ("clc", 2, late)]
    results: set[tuple[bytes, bytes]] = set()
    for order, tiles, device in runs:
        spec = am.mha(heads=2, head_dim=64, mask=mask, tile_order=order, query_tiles=tiles)
        o, lse = launched(arrays, spec, device)
        results.add((o.tobytes(), lse.tobytes()))
    assert len(results) == 1
    verdict = am.reference.check_attention(*arrays, o, lse, mask=mask)
    assert verdict.ok, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "ctas"), [("single", 12), ("last_first", 12), ("persistent", 3), ("clc", 1)]
)
@pytest.mark.long("last_first-12")
def test_how_many_ctas_start(order: str, ctas: int, monkeypatch: pytest.MonkeyPatch):
    """Of 3 x 2 x 2 tiles; one after the other, so that with `clc` the first CTA claims all others."""
    started: list[bool] = []
    original = Scheduler._start_cluster  # pyright: ignore[reportPrivateUsage]

    def start(self: Scheduler) -> bool:
        started.append(original(self))
        return started[-1]

    monkeypatch.setattr(Scheduler, "_start_cluster", start)
    arrays = operands(300, 20, 2, 2, 64, 64, batch=2)
    spec = am.mha(heads=2, head_dim=64, mask=am.causal(), tile_order=order, query_tiles=1)
    o, lse = launched(arrays, spec, am.EmulatorDevice(multiprocessors=3))
    assert sum(started) == ctas
    verdict = am.reference.check_attention(*arrays, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)


@pytest.mark.slow
def test_engines_may_be_late_when_a_cta_is_over():
    """Twelve CTAs one after the other; releases by the tensor core that nobody waits for."""
    arrays = operands(300, 20, 2, 2, 64, 64, batch=2)
    spec = am.mha(heads=2, head_dim=64, mask=am.causal(), query_tiles=1)
    for seed in (0, 4, 8):
        late = am.EmulatorDevice(schedule="adversarial", seed=seed, check="all")
        o, lse = launched(arrays, spec, late)
    verdict = am.reference.check_attention(*arrays, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["persistent", "clc"])
@pytest.mark.long("clc")
def test_widest_heads_take_narrow_key_tiles_where_ctas_loop(order: str):
    """Q, the staged O and two key tiles of 128 x 256 do not fit together."""
    arrays = operands(140, 200, 2, 1, 256, 256)
    spec = am.mha(heads=2, kv_heads=1, head_dim=256, mask=am.causal(), tile_order=order)
    o, lse = launched(arrays, spec, am.EmulatorDevice(multiprocessors=1))
    verdict = am.reference.check_attention(*arrays, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)
