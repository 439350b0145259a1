"""Keys and values of 8 bits under queries of 16, and of 8, where keys stream, on the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.errors import SpecError
from attn_mlir.validation.numerics.stored import Form

DTYPES: Mapping[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
LENGTHS = (200, 0, 77, 256, 1)
FACTORS = {
    "tensor": lambda batch, heads: np.float32([0.6]),
    "head": lambda batch, heads: np.linspace(0.2, 3.0, heads, dtype=np.float32),
    "sequence": lambda batch, heads: np.geomspace(1e-3, 1e3, batch * heads, dtype=np.float32).reshape(
        batch, heads
    ),
}  # fmt: skip


def operands(
    q: str, kv: str, sq: int, sk: int, heads: tuple[int, int], d: tuple[int, int], batch: int = 1
) -> tuple[Any, ...]:
    """Random q, k and v."""
    random = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads[0], d[0]), (sk, heads[1], d[0]), (sk, heads[1], d[1]))
    return tuple(
        random.standard_normal((batch, *shape)).astype(DTYPES[name])
        for shape, name in zip(shapes, (q, kv, kv), strict=True)
    )


def device(target: str, seed: int = 0) -> am.EmulatorDevice:
    """An emulator with two multiprocessors, so that persistent CTAs take several work tiles."""
    kind = "adversarial" if seed else "fair"
    return am.EmulatorDevice(kind, seed, multiprocessors=2, target=target)


def wrong(arrays: tuple[Any, ...], target: str, seed: int = 0, **options: Any) -> str:
    """What is wrong with O and LSE of a call, or nothing."""
    call = {"schedule": "mha-streaming", "return_lse": True, "device": device(target, seed)}
    o, lse = am.attention(*arrays, **call, **options)
    options.pop("num_splits", None)
    verdict = am.reference.check_attention(*arrays, o, lse, **options)
    return "" if verdict.ok else str(verdict)


def factors(q: str, kind: str, batch: int, heads: int) -> dict[str, Any]:
    """Factors of the operands that have 8 bits."""
    names = ("q", "k", "v") if q in ("e4m3", "e5m2") else ("k", "v")
    return {f"{name}_descale": FACTORS[kind](batch, heads) for name in names}


@pytest.mark.parametrize(
    ("q", "kv", "d", "kind", "target", "seed"),
    [
        ("bf16", "e4m3", (128, 128), "tensor", "sm_90a", 0),
        ("bf16", "e4m3", (128, 128), "head", "sm_100a", 1),
        ("bf16", "e5m2", (64, 64), "sequence", "sm_90a", 2),
        ("f16", "e4m3", (80, 48), "head", "sm_100a", 1),
        ("f16", "e5m2", (192, 128), "tensor", "sm_90a", 1),
        ("bf16", "e4m3", (256, 256), "sequence", "sm_90a", 0),  # Q is read again for every tile
        ("e4m3", "e4m3", (128, 128), "sequence", "sm_90a", 1),
        ("e5m2", "e5m2", (16, 144), "head", "sm_100a", 0),
    ],
)
@pytest.mark.long(but=("f16-e4m3-d3-*", "bf16-e5m2-d2-*", "e4m3-e4m3-d6-*"))
def test_numbers(q: str, kv: str, d: tuple[int, int], kind: str, target: str, seed: int) -> None:
    keys = 140 if d[0] == 256 else 300
    arrays = operands(q, kv, 3, keys, (4, 2), d, batch=2)
    assert not wrong(arrays, target, seed, mask=am.causal(), **factors(q, kind, 2, 2))


def test_modifiers_sinks_and_parts() -> None:
    """A modifier sees the scores with their factors; a sink has none."""
    arrays = operands("bf16", "e4m3", 1, 500, (8, 1), (128, 128), batch=2)
    sinks = np.linspace(-1, 3, 8, dtype=np.float32)
    given = {**factors("bf16", "sequence", 2, 1), "score_mod": mods.softcap(5.0), "sinks": sinks}
    assert not wrong(arrays, "sm_90a", num_splits=3, mask=am.causal(), **given)


@pytest.mark.parametrize("magnitude", [1e-24, 1.0, 1e30])
def test_queries_of_any_size(magnitude: float) -> None:
    """Those of bf16 are brought to f16 by a power of two for each row, here from 2^-40 to 1 apart."""
    q, k, v = operands("bf16", "e4m3", 1, 200, (8, 1), (64, 64))
    rows = np.float32(magnitude) * 2.0 ** -np.arange(0, 40, 5, dtype=np.float32)
    q = (q.astype(np.float32) * rows[:, None]).astype(q.dtype)
    scale = 1 / (8 * magnitude)
    assert not wrong((q, k, v), "sm_90a", scale=scale, **factors("bf16", "tensor", 1, 1))


def test_many_keys_of_little_weight() -> None:
    """Each has 2^-26 of the first one's, less than the smallest number of f16: all count."""
    count, d = 3000, 16
    q = np.ones((1, 1, 1, d), DTYPES["bf16"])
    k = np.zeros((1, count + 1, 1, d), DTYPES["e4m3"])
    k[:, 0] = 1.0
    v = np.ones((1, count + 1, 1, d), DTYPES["e4m3"])
    v[:, 0] = 0.0
    one = np.ones(1, np.float32)
    o = am.attention(
        q, k, v, k_descale=one, v_descale=one, device=device("sm_90a"), out_dtype="f32",
        scale=float(26 * np.log(2.0) / d),
    )  # fmt: skip
    assert np.allclose(o, count / (count + 2.0**26), rtol=1e-3)


@pytest.mark.parametrize(
    ("form", "kind", "target"),
    [
        (Form(64), "head", "sm_90a"),
        (Form(16, layout="HND"), "sequence", "sm_100a"),
        (Form(1), "tensor", "sm_90a"),
        (Form(32, in_one_pool=True), "tensor", "sm_90a"),
        (Form(128, compressed=True), "sequence", "sm_90a"),
        (Form(selected=True, padded=True), "sequence", "sm_90a"),
    ],
    ids=str,
)
@pytest.mark.long("Form(page_size=64, *", "Form(page_size=32, *", "Form(page_size=0, *")
def test_caches(form: Form, kind: str, target: str) -> None:
    """Unused pages, rows and positions are NaN, and tables hostile."""
    batch, heads, random = len(LENGTHS), 2, np.random.default_rng(7)
    q = random.standard_normal((batch, 3, 4, 64)).astype(DTYPES["bf16"])
    sides = [
        [random.standard_normal((n, heads, 64)).astype(DTYPES["e4m3"]) for n in LENGTHS]
        for _ in "kv"
    ]
    given = factors("bf16", kind, batch, heads)
    scales = {f"{name}_scale": given[f"{name}_descale"] for name in "kv"}
    cache = form.stored(*sides, [3] * batch, random, 256, **scales)
    o, lse = am.attention(
        q,
        cache,
        mask=am.causal(),
        return_lse=True,
        device=device(target, 3),
        schedule="mha-streaming",
    )
    for b, length in enumerate(LENGTHS):
        own = {name: x[b : b + 1] if x.ndim == 2 else x for name, x in given.items()}
        k, v = (side[b][None] for side in sides)
        verdict = am.reference.check_attention(
            q[b : b + 1], k, v, o[b : b + 1], lse[b : b + 1], mask=am.causal(), **own
        )
        assert verdict.ok, f"sequence {b} of {length}: {verdict}"


def test_queries_of_16_bits_stream_on_every_target() -> None:
    """Where there is a kernel for many queries as well, it has none for such keys."""
    spec = am.mha(heads=8, kv_heads=1, head_dim=64, kv_dtype="e4m3")
    assert spec.schedule == "mha-streaming" and spec.dtype == "bf16"
    assert "stream" in spec.kernel_name and am.compile(spec, target="sm_100a").target == "sm_100a"


@pytest.mark.parametrize(
    ("q", "k", "v", "changes", "message"),
    [
        ("bf16", "e4m3", "e4m3", {"k_descale": None}, "k_descale is missing: e4m3 operands need"),
        ("bf16", "e4m3", "e4m3", {"v_descale": None}, "v_descale is missing"),
        ("bf16", "e4m3", "e4m3", {"q_descale": np.ones(1, np.float32)}, "q_descale is for q, k and v"),
        ("bf16", "e4m3", "e5m2", {}, "v is e5m2, k is e4m3: both must be the same"),
        ("bf16", "e4m3", "bf16", {}, "v is bf16, k is e4m3: both must be the same"),
        ("bf16", "bf16", "e4m3", {}, "v is e4m3, q is bf16: all must be the same"),
        ("bf16", "f16", "f16", {}, "k is f16, q is bf16: all must be the same"),
        ("e4m3", "bf16", "bf16", {}, "k is bf16, q is e4m3: all must be the same"),
        ("bf16", "e4m3", "e4m3", {"schedule": "mha"}, "schedule mha has no kernel: k's element type must be bf16"),
    ],
)  # fmt: skip
def test_refused(q: str, k: str, v: str, changes: dict[str, Any], message: str) -> None:
    arrays = [operands(name, name, 2, 20, (1, 1), (64, 64))[i] for i, name in enumerate((q, k, v))]
    one = np.ones(1, np.float32)
    options = {"k_descale": one, "v_descale": one, **changes}
    with pytest.raises(SpecError, match=message):
        am.attention(*arrays, **options, device="emulator")


def test_head_sizes_of_8_bits() -> None:
    arrays = operands("bf16", "e4m3", 1, 20, (1, 1), (72, 72))
    with pytest.raises(SpecError, match="head_dim 72 has no kernel: .* multiples of 16 up to 256"):
        am.attention(*arrays, **factors("bf16", "tensor", 1, 1), device="emulator")
