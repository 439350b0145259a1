"""Attention of 8 bits with S, P and O in registers, for sm_90a, on the emulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.emulator.checkers import CheckError
from attn_mlir.runtime.emulator.emulator import Emulator

DTYPES: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
SCALES = {"q_descale": np.float32([0.5]), "k_descale": np.float32([1.5]), "v_descale": np.float32([3])}  # fmt: skip


def operands(
    dtype: str, sq: int, sk: int, d: int, dv: int, heads: int = 1, kv_heads: int = 1, batch: int = 1
) -> Any:
    """Random q, k and v."""
    rng = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads, d), (sk, kv_heads, d), (sk, kv_heads, dv))
    return [rng.standard_normal((batch, *s), np.float32).astype(DTYPES[dtype]) for s in shapes]


def wrong(q: Any, k: Any, v: Any, seed: int = 0, **options: Any) -> str:
    """What is wrong with O and LSE of a call, or nothing."""
    options = {**SCALES, **options}
    kind = "adversarial" if seed else "fair"
    device = EmulatorDevice(kind, seed, multiprocessors=2, target="sm_90a")
    asked = {"schedule": "mha-registers", **options}
    o, lse = am.attention(q, k, v, **asked, return_lse=True, device=device)
    for name in ("num_splits", "tile_order", "query_tiles", "out_dtype"):
        options.pop(name, None)
    verdict = check_attention(q, k, v, o, lse, **options)
    return "" if verdict.ok else str(verdict)


@pytest.mark.parametrize(
    ("dtype", "d", "dv", "mask", "seed"),
    [
        ("e4m3", 64, 64, am.causal(), 0),
        ("e5m2", 96, 96, am.full(), 1),
        ("e4m3", 128, 128, am.sliding_window(60, 40), 2),
        ("e4m3", 256, 256, am.causal(), 3),  # O is added to by four products
        ("e5m2", 80, 208, am.causal(), 0),  # of unequal widths; two products share columns
        pytest.param("e4m3", 240, 240, am.full(), 1, marks=pytest.mark.long),
        pytest.param("e4m3", 64, 176, am.causal(), 2, marks=pytest.mark.long),
    ],
)
@pytest.mark.long("e4m3-64-64-*", "e5m2-96-*")
def test_numbers(dtype: str, d: int, dv: int, mask: am.Mask, seed: int) -> None:
    """Every number of products, both dtypes; work tiles and keys end within a tile."""
    assert not wrong(*operands(dtype, 70, 230, d, dv), seed, mask=mask)


def test_three_groups() -> None:
    """O is added to by two products of each group, which go behind its scores."""
    q, k, v = operands("e4m3", 140, 230, 64, 64)
    spec = am.mha(heads=1, head_dim=64, dtype="e4m3", schedule="mha-registers")
    bundle = am.compile(spec, target="sm_90a")
    assert [role["warps"] for role in bundle.report["roles"] if role["role"] == "attend"] == [
        "0-11"
    ]
    o, lse = np.zeros(q.shape, ml_dtypes.bfloat16), np.zeros((1, 1, 140), np.float32)
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, check="all")
    scales = {name: number.reshape(1, 1) for name, number in SCALES.items()}
    am.Kernel(bundle)(q, k, v, o, lse, *scales.values(), device=device)
    verdict = check_attention(q, k, v, o, lse, **scales)
    assert verdict.ok, str(verdict)


def test_scales_of_heads_and_tiles_in_turns() -> None:
    """Two CTAs draw 6 tiles of packed heads; each sequence and head has scales of its own."""
    given = operands("e4m3", 60, 90, 64, 64, heads=2, kv_heads=2, batch=3)
    table = {"q_descale": 0.6, "k_descale": 1.7, "v_descale": 0.1}
    rows = np.linspace(0.5, 2, 6, dtype=np.float32).reshape(3, 2)
    scales = {name: rows * np.float32(number) for name, number in table.items()}
    spread = {"tile_order": "counter", "query_tiles": 1}
    assert not wrong(*given, 1, mask=am.causal(), **scales, **spread)


def test_modifiers_sinks_and_f32() -> None:
    options: dict[str, Any] = {"score_mod": mods.softcap(5.0), "sinks": np.float32([0.5, -1.0])}
    given = operands("e4m3", 70, 150, 64, 64, heads=2)
    assert not wrong(*given, **options, mask=am.causal(), out_dtype="f32")


def test_a_modifier_of_coordinates() -> None:
    """Its distances wait for the scores."""
    given = operands("e4m3", 9, 140, 64, 64)
    assert not wrong(*given, score_mod=mods.alibi(1), query_tiles=1)


def test_predicates_that_read() -> None:
    """What documents show waits for the scores of 8 keys before."""
    ids = [np.arange(n, dtype=np.int32) // 30 for n in (9, 140)]
    given = operands("e4m3", 9, 140, 64, 64)
    assert not wrong(*given, mask_mod=mods.document(*(x[None] for x in ids)), query_tiles=1)


def test_parts_of_the_keys() -> None:
    assert not wrong(*operands("e4m3", 70, 400, 64, 64), 1, num_splits=3)


def test_maxima_that_move() -> None:
    """Scores that grow along the keys: each step moves a maximum."""
    q, k, v = operands("e4m3", 70, 250, 64, 64)
    k = (k.astype(np.float32) * np.linspace(0, 30, 250)[None, :, None, None]).astype(k.dtype)
    assert not wrong(q, k, v)


def test_sequences_of_unequal_lengths() -> None:
    q, k, v = operands("e4m3", 100, 300, 64, 64)
    ends_q, ends_k = np.int32([0, 37, 100]), np.int32([0, 200, 300])
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, target="sm_90a")
    o, lse = am.attention(
        q[0], k[0], v[0], cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, mask=am.causal(),
        schedule="mha-registers", return_lse=True, device=device, **SCALES,
    )  # fmt: skip
    for b in range(2):
        rows, own = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
        verdict = check_attention(
            q[:, rows], k[:, own], v[:, own], o[None, rows], lse[None, :, rows],
            mask=am.causal(), **SCALES,
        )  # fmt: skip
        assert verdict.ok, str(verdict)


def test_long_sums_keep_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor core of 13 bits loses nothing that one of f32 keeps: the sum of each key tile is its own."""
    q, k, v = operands("e4m3", 16, 2000, 64, 64)
    v = (v.astype(np.float32) / 4 + 1).astype(v.dtype)
    settings = Emulator.__init__.__kwdefaults__
    assert settings is not None
    monkeypatch.setitem(settings, "numeric", "fused")
    assert not wrong(q, k, v, out_dtype="f32")


def test_a_fence_before_the_tensor_core_reads_what_threads_transposed() -> None:
    """Nothing to find in the kernel, fair and adversarial; without its first proxy fence the race."""
    q, k, v = operands("e4m3", 70, 200, 64, 64)
    spec = am.mha(heads=1, kv_heads=1, head_dim=64, dtype="e4m3", mask=am.causal(),
                  schedule="mha-registers", query_tiles=1)  # fmt: skip
    bundle = am.compile(spec, target="sm_90a")
    ones = [np.ones((1, 1), np.float32)] * 3

    def launch(ptx: str, kind: str, seed: int) -> None:
        o, lse = np.zeros(q.shape, ml_dtypes.bfloat16), np.zeros((1, 1, 70), np.float32)
        device = EmulatorDevice(kind, seed, multiprocessors=2, check="all")
        am.Kernel(dataclasses.replace(bundle, ptx=ptx))(q, k, v, o, lse, *ones, device=device)

    for seed in range(2):
        launch(bundle.ptx, "adversarial" if seed else "fair", seed)
    fence = "fence.proxy.async.shared::cta;"
    assert bundle.ptx.count(fence) == 2  # of V and its transpose, and of O before it is copied out
    with pytest.raises(CheckError, match="tensor core work: proxy: .*fence.proxy.async is missing"):
        launch(bundle.ptx.replace(fence, "", 1), "fair", 0)
