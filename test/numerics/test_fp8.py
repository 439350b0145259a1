"""8-bit Q, K and V, with their factors, on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.errors import SpecError
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.mha_check import poisoned

NUMPY: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
BATCH, HEADS, KV_HEADS = 2, 4, 2
SQ, SK = 70, 150
FACTORS: dict[str, Any] = {
    "tensor": {name: np.float32([x]) for name, x in zip("qkv", (0.5, 1.5, 3.0), strict=True)},
    "head": {name: np.float32([x, 1.0]) for name, x in zip("qkv", (0.7, 1.3, 9.0), strict=True)},
    "sequence": {
        name: np.float32([[1.0, x], [2.0, 0.25]]) for name, x in zip("qkv", (0.6, 1.7, 0.1), strict=True)
    },
}  # fmt: skip


def operands(dtype: str, head_dim: int, v_head_dim: int | None = None) -> list[NDArray[Any]]:
    random = np.random.default_rng(head_dim)
    v_head_dim = head_dim if v_head_dim is None else v_head_dim
    shapes = ((BATCH, SQ, HEADS, head_dim), (BATCH, SK, KV_HEADS, head_dim))
    values = (BATCH, SK, KV_HEADS, v_head_dim)
    return [
        random.standard_normal(shape, np.float32).astype(NUMPY[dtype])
        for shape in (*shapes, values)
    ]


def descales(kind: str) -> dict[str, Any]:
    return {f"{name}_descale": value for name, value in FACTORS[kind].items()}


@pytest.mark.parametrize(
    ("dtype", "head_dim", "v_head_dim", "mask", "kind", "schedule"),
    [
        ("e4m3", 64, 64, am.causal(), "tensor", "fair"),
        ("e4m3", 128, 128, am.causal(), "head", "fair"),
        ("e5m2", 128, 128, am.sliding_window(60, 40), "sequence", "adversarial"),
        ("e4m3", 256, 256, am.causal(), "sequence", "fair"),  # O takes more room than Q
        ("e5m2", 80, 48, am.full(), "head", "fair"),  # K of a product, lines of a tile not full
    ],
)
@pytest.mark.long("e4m3-64-64-*", "e4m3-128-128-*")
def test_numbers(
    dtype: str, head_dim: int, v_head_dim: int, mask: am.Mask, kind: str, schedule: Any
) -> None:
    q, k, v = operands(dtype, head_dim, v_head_dim)
    device = EmulatorDevice(schedule=schedule)
    o, lse = am.attention(q, k, v, mask=mask, return_lse=True, device=device, **descales(kind))
    assert o.dtype == ml_dtypes.bfloat16
    verdict = check_attention(q, k, v, o, lse, mask=mask, **descales(kind))
    assert verdict.ok, str(verdict)


def test_modifiers_sinks_and_f32() -> None:
    """A modifier sees the scores with their factors; a sink has none."""
    q, k, v = operands("e4m3", 64)
    sinks = np.float32([0.5, -1.0, 2.0, 0.0])
    options: dict[str, Any] = {"score_mod": mods.softcap(5.0), "sinks": sinks, "mask": am.causal()}
    options |= descales("sequence")
    o = am.attention(q, k, v, out_dtype="f32", device="emulator", **options)
    verdict = check_attention(q, k, v, o, None, **options)
    assert verdict.ok, str(verdict)


def test_one_kernel_for_every_granularity() -> None:
    """An extent of 1 stands for all: the same factors, told in three ways, give the same bits."""
    q, *sides = operands("e4m3", 64)
    k, v = (np.ascontiguousarray(side[:, :100]) for side in sides)
    spec = am.mha(heads=HEADS, kv_heads=KV_HEADS, head_dim=64, dtype="e4m3", return_lse=False)
    bundle = am.compile(spec)
    results: list[NDArray[Any]] = []
    for shape in ((1, 1), (1, KV_HEADS), (BATCH, KV_HEADS)):
        factors = [np.full(shape, number, np.float32) for number in (0.5, 3.0, 0.3)]
        o = poisoned(q.shape, np.dtype(ml_dtypes.bfloat16))
        am.load(bundle)(q, k, v, o, *factors, device=EmulatorDevice())
        results.append(o)
    assert all(np.array_equal(o, results[0]) for o in results)


def test_sequences_of_unequal_lengths() -> None:
    """Factors go by the number of the sequence, wherever its rows lie."""
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in operands("e4m3", 64))
    ends_q, ends_k = np.int32([0, 37, 37 + 90]), np.int32([0, 150, 150 + 129])
    table = descales("sequence")
    o, lse = am.attention(
        q[: ends_q[-1]], k, v, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, mask=am.causal(),
        return_lse=True, device="emulator", **table,
    )  # fmt: skip
    for b in range(2):
        rows, keys = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
        own = {name: factors[b : b + 1] for name, factors in table.items()}
        verdict = check_attention(
            q[None, rows], k[None, keys], v[None, keys], o[None, rows], lse[None, :, rows],
            mask=am.causal(), **own,
        )  # fmt: skip
        assert verdict.ok, str(verdict)


def test_small_probabilities_are_not_lost() -> None:
    """Many keys of equal scores beside one that is 2^10 times as likely: each P is 2^-10."""
    q = np.ones((1, 1, 1, 64), NUMPY["e4m3"])
    k = np.zeros((1, SK + 1, 1, 64), NUMPY["e4m3"])
    k[:, 0] = 1.0
    v = np.ones((1, SK + 1, 1, 64), NUMPY["e4m3"])
    v[:, 0] = 0.0
    one = np.ones((), np.float32)
    o = am.attention(
        q, k, v, q_descale=one, k_descale=one, v_descale=one, device="emulator",
        scale=float(10 * np.log(2.0) / 64), out_dtype="f32",
    )  # fmt: skip
    assert np.allclose(o, SK / (SK + 2.0**10), rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_descale": None}, "q_descale is missing: e4m3 operands need their scales"),
        ({"v_descale": None}, "v_descale is missing"),
        ({"k_descale": np.ones(3, np.float32)}, r"k_descale must be f32 .* \[2\] or \[2, 2\], got \[3\]"),
        ({"k_descale": np.ones((2, 1), np.float32)}, r"k_descale must be .*, got \[2, 1\]"),
        ({"k_descale": np.ones(1)}, "k_descale must be f32 .*, got .* of f64"),
        ({"v_descale": np.float32([0.0])}, r"v_descale must be finite and greater than 0, .*, got 0\.0"),
        ({"q_descale": np.float32([1, np.inf])}, "q_descale must be finite .*, got inf"),
        ({"v_descale": np.float32([1e-39])}, "v_descale must be .*, at least 1.175e-38, got"),
        ({"k_descale": np.float32([1, 0, 0, -1])[::-3]}, "k_descale must be finite .*, got -1"),
        ({"q_descale": np.float32([1e-30]), "scale": 1e-9}, "q_descale makes scales of scores from 1e-39"),
        ({"k_descale": np.float32([2e-38])}, "k_descale makes scales .* must be from 1.175e-38 to 2e"),
        ({"k_descale": np.float32([3e38]), "scale": 100.0}, "k_descale makes scales"),
        ({"q_descale": 1.0}, "q_descale must be a numpy array"),
        ({"out_dtype": "e4m3"}, "out_dtype 'e4m3' has no kernel: supported are bf16, f16, f32"),
    ],
)  # fmt: skip
def test_refused(changes: dict[str, Any], message: str) -> None:
    q, k, v = operands("e4m3", 64)
    with pytest.raises(SpecError, match=message):
        am.attention(q, k, v, device="emulator", **descales("tensor") | changes)


def test_factors_are_for_8_bits() -> None:
    q, k, v = (x.astype(np.float16) for x in operands("e4m3", 64))
    with pytest.raises(SpecError, match="k_descale is for q, k and v of 8 bits, got f16"):
        am.attention(q, k, v, k_descale=np.ones(1, np.float32), device="emulator")


def test_operands_of_one_dtype() -> None:
    q, k, v = operands("e4m3", 64)
    with pytest.raises(SpecError, match="v is e5m2, q is e4m3: all must be the same"):
        am.attention(q, k, v.astype(NUMPY["e5m2"]), device="emulator", **descales("tensor"))
