"""Attention of many queries with S, P and O in registers, for sm_90a, on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import mods


def operands(sq: int, sk: int, heads: int, kv_heads: int, d: int, dv: int, batch: int = 1) -> Any:
    """Random q, k, v in bf16."""
    rng = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads, d), (sk, kv_heads, d), (sk, kv_heads, dv))
    return [rng.standard_normal((batch, *shape)).astype(ml_dtypes.bfloat16) for shape in shapes]


def device(seed: int = 0, multiprocessors: int = 2) -> am.EmulatorDevice:
    """An emulator of a Hopper GPU."""
    kind = "adversarial" if seed else "fair"
    return am.EmulatorDevice(kind, seed, multiprocessors=multiprocessors, target="sm_90a")


def wrong(q: Any, k: Any, v: Any, seed: int = 0, **options: Any) -> str:
    """What is wrong with O and LSE of a call, or nothing."""
    asked = {"schedule": "mha-registers", **options}
    o, lse = am.attention(q, k, v, **asked, return_lse=True, device=device(seed))
    for name in ("num_splits", "tile_order", "query_tiles", "schedule"):
        options.pop(name, None)
    verdict = am.reference.check_attention(q, k, v, o, lse, **options)
    return "" if verdict.ok else str(verdict)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("d", "dv"), [(8, 8), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]
)
@pytest.mark.long(
    "8-8-True", "64-64-*", "96-96-*", "128-128-False", "192-128-True", "256-256-False"
)
def test_head_sizes(d: int, dv: int, causal: bool) -> None:
    """Every tile that head sizes choose, full and causal; work tiles and keys end within a tile."""
    q, k, v = operands(200, 180, 1, 1, d, dv)
    assert not wrong(q, k, v, seed=1, mask=am.causal() if causal else am.full())


@pytest.mark.parametrize(
    ("sq", "sk"),
    [(1, 1), (16, 79), (63, 80), (64, 81), (65, 160), (128, 15), (193, 161), (100, 0), (0, 9)],
)
def test_lengths(sq: int, sk: int) -> None:
    """About the ends of tiles of 64 rows and 80 keys; no key leaves zeros."""
    q, k, v = operands(sq, sk, 1, 1, 128, 128)
    assert not wrong(q, k, v, mask=am.full())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("order", ["single", "last_first", "persistent", "counter"])
@pytest.mark.long("*-0", "*-2", "single-1", "last_first-1")
def test_orders_and_schedules(order: str, seed: int) -> None:
    """Of 4 work tiles on 2 multiprocessors; O is staged where Q was, but for those in turns."""
    q, k, v = operands(130, 200, 2, 2, 64, 64)
    assert not wrong(q, k, v, seed, mask=am.causal(), tile_order=order, query_tiles=2)


@pytest.mark.parametrize("tiles", [1, 2, None])
@pytest.mark.long("2")
def test_query_tiles(tiles: int | None) -> None:
    """One, two and three groups; some rows see nothing of the tiles that others need."""
    q, k, v = operands(190, 400, 4, 2, 128, 128)
    assert not wrong(q, k, v, seed=3, mask=am.sliding_window(70, 0), query_tiles=tiles)


def test_a_bias_by_distance_beside_documents() -> None:
    """Elements at addresses of their own, 8 scores at a time, and ids of documents."""
    q, k, v = operands(70, 100, 2, 1, 32, 32)
    table = np.random.default_rng(0).standard_normal((2, 41), np.float32)
    ids = [np.arange(n, dtype=np.int32)[None] // 40 for n in (70, 100)]
    mod, hides = mods.relative_bias(table), mods.document(*ids)
    assert not wrong(q, k, v, mask=am.causal(), score_mod=mod, mask_mod=hides, query_tiles=1)


def test_orders_give_the_same_bits() -> None:
    """By the kernels of `test_orders_and_schedules`, on its operands, under the fair schedule."""
    q, k, v = operands(130, 200, 2, 2, 64, 64)
    options: dict[str, Any] = {"mask": am.causal(), "query_tiles": 2, "return_lse": True}
    found = [
        am.attention(q, k, v, **options, tile_order=order, device=device())
        for order in ("single", "last_first", "persistent", "counter")
    ]
    assert len({(o.tobytes(), lse.tobytes()) for o, lse in found}) == 1
    verdict = am.reference.check_attention(q, k, v, *found[0], mask=am.causal())
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("multiprocessors", [1, 4, 100])
def test_tiles_from_a_counter(multiprocessors: int) -> None:
    """6 tiles: each is worked on, and the counter is 0 again, whatever number of CTAs draws them."""
    q, k, v = operands(100, 60, 3, 1, 64, 64)
    spec = am.mha(heads=3, kv_heads=1, head_dim=64, mask=am.causal(), schedule="mha-registers",
                  query_tiles=1, tile_order="counter")  # fmt: skip
    kernel = am.load(am.compile(spec, target="sm_90a"))
    counter = np.zeros(1, np.int32)
    for _ in range(2):
        o, lse = np.full_like(q, np.nan), np.full((1, 3, 100), np.nan, np.float32)
        kernel(q, k, v, o, lse, counter, device=device(multiprocessors=multiprocessors))
        verdict = am.reference.check_attention(q, k, v, o, lse, mask=am.causal())
        assert verdict.ok, str(verdict)
        assert counter[0] == 0


def test_parts_of_keys_from_a_counter() -> None:
    q, k, v = operands(100, 400, 1, 1, 64, 64)
    assert not wrong(q, k, v, seed=1, tile_order="counter", num_splits=3)


@pytest.mark.parametrize("size", [1e-4, 30.0, 1e4])
def test_maxima_that_move(size: float) -> None:
    """Scores that grow along the keys, to exponents far from 0: each step moves a maximum."""
    q, k, v = operands(70, 250, 1, 1, 64, 64)
    k = (k.astype(np.float32) * np.linspace(0, size, 250)[None, :, None, None]).astype(k.dtype)
    assert not wrong(q, k, v)


def test_the_default_on_hopper() -> None:
    """Many rows take this kernel by themselves, a few those of the other one."""
    q, k, v = operands(65, 100, 1, 1, 64, 64)
    plan = am.plan(q, k, v, device=device())
    assert "held" in str(plan)
    assert "stream" in str(am.plan(q[:, :1], k, v, device=device()))


def test_a_mask_that_shows_nothing() -> None:
    """The last key tile, where it is not full, is visited all the same, but no loop ever turns: the ring proof still
    has runs with it, without which O has no place in that of Q, and there is no room for both."""
    q, k, v = (x[0] for x in operands(70, 100, 1, 1, 256, 256))
    ends = {"cu_seqlens_q": np.int32([0, 70]), "cu_seqlens_k": np.int32([0, 100])}
    o, lse = am.attention(
        q, k, v, **ends, mask=~am.full(), query_tiles=2, return_lse=True,
        schedule="mha-registers", device=device(),
    )  # fmt: skip
    assert not o.any() and bool((lse == -np.inf).all())
