"""Sums of few bits, by which results of 8-bit products on Hopper are judged."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.reference import attention_f64, attention_yardstick
from attn_mlir.reference.sums import STEP, SUM_BITS, cut_product
from attn_mlir.runtime.emulator.machine.numerics import fused_dot, to_f32_bits


@pytest.mark.parametrize(
    ("addends", "total"),
    [
        ([1, 2.0**-13], 1 + 2.0**-13),
        ([1, 2.0**-14], 1),  # cut, not rounded
        ([1, 2.0**-14, 2.0**-14], 1),  # each by itself
        ([-1, -(2.0**-14)], -1),  # towards 0
        ([1.5, 3 * 2.0**-14], 1.5 + 2.0**-13),
        ([2.0**-20, 2.0**-33], 2.0**-20 + 2.0**-33),  # below the largest, whatever that is
        ([1.75, 1.75, 2.0**-13], 3.5),  # the sum is cut as well
        ([0, 0], 0),
    ],
)
def test_addends_are_cut_below_the_largest(addends: list[float], total: float) -> None:
    a = np.zeros((1, STEP), np.float32)
    a[0, : len(addends)] = addends
    assert cut_product(a, np.ones((1, STEP), np.float32), 13) == total


def test_the_sum_so_far_is_an_addend_of_the_next_step() -> None:
    a = np.zeros((1, 2 * STEP), np.float32)
    a[0, 0], a[0, STEP] = 2.0**-14, 1
    b = np.ones((1, 2 * STEP), np.float32)
    assert cut_product(a, b, 13) == 1
    assert cut_product(a[:, ::-1], b, 13) == 1
    assert cut_product(a, b, 14) == 1 + 2.0**-14


def test_enough_bits_are_all_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (n, 96)).astype(np.float32) for n in (5, 7))
    assert (cut_product(a, b, 40) == a @ b.T).all()


def test_a_yardstick_of_few_bits_errs_more() -> None:
    """2^-13 of the largest of 32 addends and a sum, four times over."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 33, 1, 128)).astype(ml_dtypes.float8_e4m3fn) for _ in "qkv")
    truth = attention_f64(q, k, v, scale=0.3).lse
    wide, cut = (
        np.abs(attention_yardstick(q, k, v, scale=0.3, score_bits=bits).lse - truth).max()
        for bits in (None, SUM_BITS)
    )
    assert wide < 1e-5 < 1e-3 < cut < 1e-2


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_sums_are_those_of_the_emulated_tensor_core(dtype: type) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((n, 4 * STEP)).astype(dtype).astype(np.float32) for n in (40, 24))
    total, name = (
        np.zeros((40, 24), np.float32),
        "e4m3" if dtype is ml_dtypes.float8_e4m3fn else "e5m2",
    )
    for first in range(0, 4 * STEP, STEP):
        parts = (x[:, first : first + STEP] for x in (a, b))
        exact = fused_dot(*parts, total, a_format=name, b_format=name, align_bits=SUM_BITS)
        total = to_f32_bits(exact, SUM_BITS).view(np.float32)
    assert (cut_product(a, b, SUM_BITS) == total).all()
