"""Splits of the keys, both kernels on the emulator: every row judged against the whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir.compiling.splits import PARTIAL
from attn_mlir.reference import (
    attention_f64,
    attention_yardstick,
    check_attention,
    compare,
    sequences,
)
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.mha_check import poisoned

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
pytestmark = pytest.mark.slow


def operands(
    batch: int, sq: int, sk: int, heads: int, kv_heads: int, d: int, dv: int | None = None
) -> tuple[Array, Array, Array]:
    """Random q, k, v in bf16."""
    rng = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads, d), (sk, kv_heads, d), (sk, kv_heads, d if dv is None else dv))
    q, k, v = (rng.standard_normal((batch, *shape), np.float32).astype(BF16) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("splits", range(2, 10))
@pytest.mark.long("2", "3", "5", "6", "7", "8")
def test_packed_decode(splits: int) -> None:
    """4 key tiles: up to 9 parts, of which the last are empty; sinks count once."""
    q, k, v = operands(1, 1 + splits % 3, 450, 8, 2, 64)
    sinks = np.linspace(-3, 6, 8, dtype=np.float32)
    mask = am.causal() if splits % 2 else am.full()
    options: dict[str, Any] = {"mask": mask, "sinks": sinks}
    kind = "adversarial" if splits % 4 == 0 else "fair"
    device = EmulatorDevice(schedule=kind, seed=splits)
    o, lse = am.attention(q, k, v, num_splits=splits, return_lse=True, device=device, **options)
    verdict = check_attention(q, k, v, o, lse, **options)
    assert verdict.ok, str(verdict)


CASES: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "two query tiles": ((1, 260, 400, 1, 1, 64), 2, {"mask": am.causal()}),
    "window, odd sizes": ((1, 140, 400, 1, 1, 40, 72), 4, {"mask": am.sliding_window(130, 0)}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long("two query tiles")
def test_parts_make_the_whole(name: str) -> None:
    sizes, splits, options = CASES[name]
    q, k, v = operands(*sizes)
    o, lse = am.attention(q, k, v, num_splits=splits, return_lse=True, device="emulator", **options)
    verdict = check_attention(q, k, v, o, lse, **options)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize(
    ("told", "shapes"),
    [
        ({"cache_seqlens": [300, 3]}, ((2, 4), (2, 310))),
        ({"cu_seqlens_q": [0, 1, 8, 8], "cu_seqlens_k": [0, 280, 310, 400]}, ((8,), (400,))),
    ],
    ids=["cached prefix", "ragged"],
)
def test_unequal_lengths(told: dict[str, Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(len(told))
    heads = (4, 2, 2)
    rows = (shapes[0], shapes[1], shapes[1])
    q, k, v = (
        rng.standard_normal((*lead, h, 64), np.float32).astype(BF16)
        for lead, h in zip(rows, heads, strict=True)
    )
    arrays = {name: np.array(numbers, np.int32) for name, numbers in told.items()}
    options: dict[str, Any] = {"mask": am.causal(), "sinks": np.array([1, -1, 0, 2], np.float32)}
    o, lse = am.attention(
        q, k, v, num_splits=3, return_lse=True, device="emulator", **arrays, **options
    )
    formulas: list[Callable[..., Any]] = [attention_f64, attention_yardstick]
    for one in sequences(q, k, v, **arrays):
        truth, yardstick = (
            formula(one.q, one.k, one.v, first_batch=one.batch, **options) for formula in formulas
        )
        verdict = compare(o[one.o][None], lse[one.lse][None], truth, yardstick)
        assert verdict.ok, f"sequence {one.batch}: {verdict}"


def test_equal_bits() -> None:
    """The same number of parts gives the same bits, whoever is fast and whoever chose it."""
    q, k, v = operands(1, 1, 520, 8, 2, 64)

    def run(splits: int, seed: int = 0) -> Any:
        device = EmulatorDevice(schedule="adversarial" if seed else "fair", seed=seed)
        return am.attention(q, k, v, num_splits=splits, return_lse=True, device=device)

    first = run(3)
    assert [x.tobytes() for x in run(3, seed=1)] == [x.tobytes() for x in first]
    assert am.attention(q, k, v, num_splits=0, device="emulator").tobytes() == run(5)[0].tobytes()


def test_tile_orders_of_the_parts() -> None:
    """The order of the tiles does not show; one kernel serves any number of parts, one as well."""
    q, k, v = operands(1, 150, 260, 1, 1, 64)
    options: dict[str, Any] = {**PARTIAL}
    spec = am.mha(heads=1, head_dim=64, mask=am.causal(), **options)

    def run(order: str, splits: int) -> tuple[Array, Array]:
        o = poisoned((splits, 150, 1, 64), np.dtype(np.float32))
        lse = poisoned((2, splits, 1, 150), np.dtype(np.float32))  # two numbers each
        kernel = am.load(am.compile(dataclasses.replace(spec, tile_order=order)))
        kernel(q, k, v, o, lse, device=EmulatorDevice(multiprocessors=3))
        return o, lse

    expected = run("single", 4)
    first, rest = expected[1]
    assert (first[3] == -np.inf).all() and not rest[3].any()  # 3 key tiles, 4 parts
    assert [x.tobytes() for x in run("persistent", 4)] == [x.tobytes() for x in expected]
    o, lse = run("single", 1)
    verdict = check_attention(q, k, v, o.astype(BF16), lse.sum(0), mask=am.causal())
    assert verdict.ok, str(verdict)
