"""The fused dot product against an oracle in exact fractions."""

from fractions import Fraction
from math import floor, log2

import numpy as np
import pytest

from attn_mlir.runtime.emulator.machine.formats import FORMATS, decode
from attn_mlir.runtime.emulator.machine.numerics import (
    ALIGN_BITS,
    ALIGN_BITS_MXF4,
    ALIGN_BITS_WGMMA_FP8,
    fused_dot,
    round_toward_zero,
    to_f16_bits,
    to_f32_bits,
)


def significand_exponent(value: float, name: str) -> tuple[Fraction, int]:
    """Significand and exponent as the tensor core sees an operand; subnormals are not scaled up."""
    exponent = max(floor(log2(abs(value))) if value else -10000, FORMATS[name].min_exponent)
    return Fraction(value) / Fraction(2) ** exponent, exponent


def truncate(x: Fraction) -> int:
    return -((-x).__floor__()) if x < 0 else x.__floor__()


def fused_scalar(terms: list[tuple[Fraction, int]], align_bits: int) -> Fraction:
    """The formula of the specification; terms are (significand, exponent), zeros left out."""
    terms = [t for t in terms if t[0]]
    if not terms:
        return Fraction(0)
    e_max = max(e for _, e in terms)
    total = sum(truncate(s * Fraction(2) ** (e - e_max + align_bits)) for s, e in terms)
    return total * Fraction(2) ** (e_max - align_bits)


def f32_bits_toward_zero(x: Fraction) -> int:
    """float32 bits of x, rounded toward zero, one bit at a time."""
    sign, x = (1 << 31, -x) if x < 0 else (0, x)
    if x >= Fraction(2) ** 128:
        return sign | 0x7F800000
    exponent = -126
    while x >= Fraction(2) ** (exponent + 1):
        exponent += 1
    significand = (x / Fraction(2) ** (exponent - 23)).__floor__()
    if significand < 1 << 23:
        return sign | significand
    return sign | (exponent + 127) << 23 | significand - (1 << 23)


def random_values(rng: np.random.Generator, name: str, shape: tuple[int, ...], spread: int):
    """Random finite values of a format with exponents over a range of 2 * spread."""
    bits = FORMATS[name].bits
    if name in ("f32", "tf32", "bf16", "f16"):
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
        x[rng.random(shape) < 0.1] = 0
        if name == "f16":
            return x.astype(np.float16).astype(np.float32)
        keep = {"f32": 0, "tf32": 13, "bf16": 16}[name]
        raw = x.astype(np.float32).view(np.uint32) >> keep << keep
        return raw.view(np.float32)
    values = decode(name, rng.integers(0, 1 << bits, shape).astype(np.uint8))
    return np.where(np.isfinite(values), values, np.float32(0)).astype(np.float32)


@pytest.mark.parametrize(
    ("a_format", "b_format", "spread", "align_bits"),
    [
        ("bf16", "bf16", 3, ALIGN_BITS),
        ("bf16", "bf16", 20, ALIGN_BITS),
        ("f16", "f16", 4, ALIGN_BITS),
        ("f16", "f16", 12, ALIGN_BITS),
        ("tf32", "tf32", 10, ALIGN_BITS),
        ("e4m3", "e5m2", 0, ALIGN_BITS),
        ("e5m2", "e5m2", 0, ALIGN_BITS),
        ("e2m1", "e3m2", 0, ALIGN_BITS),
        ("e4m3", "e4m3", 0, ALIGN_BITS_WGMMA_FP8),
    ],
)
def test_fused_dot_matches_fractions(a_format: str, b_format: str, spread: int, align_bits: int):
    rng = np.random.default_rng([spread, align_bits, *a_format.encode()])
    a = random_values(rng, a_format, (6, 16), spread)
    b = random_values(rng, b_format, (5, 16), spread)
    c = random_values(rng, "f32", (6, 5), spread + 4)
    got = to_f32_bits(
        fused_dot(a, b, c, a_format=a_format, b_format=b_format, align_bits=align_bits)
    )
    for m in range(6):
        for n in range(5):
            terms = [significand_exponent(float(c[m, n]), "f32")]
            for k in range(16):
                sa, ea = significand_exponent(float(a[m, k]), a_format)
                sb, eb = significand_exponent(float(b[n, k]), b_format)
                terms.append((sa * sb, ea + eb))
            assert int(got[m, n]) == f32_bits_toward_zero(fused_scalar(terms, align_bits))


@pytest.mark.parametrize(("scale_format", "per_row"), [("ue4m3", 4), ("ue8m0", 4), ("ue8m0", 2)])
def test_mxf4_groups_match_fractions(scale_format: str, per_row: int):
    rng = np.random.default_rng(per_row)
    a = random_values(rng, "e2m1", (4, 64), 0)
    b = random_values(rng, "e2m1", (3, 64), 0)
    c = random_values(rng, "f32", (4, 3), 4)
    low, high = (0x20, 0x50) if scale_format == "ue4m3" else (120, 134)
    sa, sb = (
        decode(scale_format, rng.integers(low, high, (rows, per_row)).astype(np.uint8))
        for rows in (4, 3)
    )
    got = to_f32_bits(
        fused_dot(
            a, b, c, a_format="e2m1", b_format="e2m1", align_bits=ALIGN_BITS_MXF4,
            a_scale=sa, b_scale=sb, scale_format=scale_format, group=16,
        )
    )  # fmt: skip
    for m in range(4):
        for n in range(3):
            terms = [significand_exponent(float(c[m, n]), "f32")]
            for g in range(4):
                products = a[m, 16 * g : 16 * g + 16].astype(float) * b[n, 16 * g : 16 * g + 16]
                block = g * per_row // 4
                s1, e1 = significand_exponent(float(sa[m, block]), scale_format)
                s2, e2 = significand_exponent(float(sb[n, block]), scale_format)
                terms.append((Fraction(float(products.sum())) * s1 * s2, e1 + e2))
            expected = f32_bits_toward_zero(fused_scalar(terms, ALIGN_BITS_MXF4))
            assert int(got[m, n]) == expected


def test_mxf8_scales_add_to_exponents():
    rng = np.random.default_rng(3)
    a = random_values(rng, "e4m3", (4, 32), 0)
    b = random_values(rng, "e5m2", (4, 32), 0)
    sa = decode("ue8m0", np.array([[0], [127], [130], [254]], np.uint8))
    sb = decode("ue8m0", np.array([[0], [127], [125], [1]], np.uint8))
    zero = np.zeros((4, 4), np.float32)
    plain = fused_dot(a, b, zero, a_format="e4m3", b_format="e5m2")
    scaled = fused_dot(
        a, b, zero, a_format="e4m3", b_format="e5m2",
        a_scale=sa, b_scale=sb, scale_format="ue8m0",
    )  # fmt: skip
    assert (scaled == plain * (sa.astype(np.float64) * sb.astype(np.float64).T)).all()


def test_a_group_that_sums_to_zero_does_not_set_the_largest_exponent():
    a = np.zeros((1, 64), np.float32)
    b = np.ones((1, 64), np.float32)
    a[0, 0], a[0, 1], a[0, 16] = 1, -1, 1.5
    scale = decode("ue8m0", np.array([[254, 20, 127, 127]], np.uint8))
    got = fused_dot(
        a, b, np.zeros((1, 1), np.float32), a_format="e2m1", b_format="e2m1",
        align_bits=ALIGN_BITS_MXF4, a_scale=scale, b_scale=np.ones_like(scale),
        scale_format="ue8m0", group=16,
    )  # fmt: skip
    assert got[0, 0] == 1.5 * 2.0**-107


def test_golden_truncation():
    one = np.ones((1, 1), np.float32)
    a = np.array([[3.0]], np.float32)
    b = np.array([[2.0**-24]], np.float32)
    assert to_f32_bits(fused_dot(a, b, one, a_format="bf16", b_format="bf16"))[0, 0] == 0x3F800001


def test_bits_below_the_alignment_window_vanish():
    """With F = 25, terms below 2^-25 of the largest exponent vanish one by one."""
    a = np.array([[1.0] + [2.0**-26] * 15], np.float32)
    b = np.ones((1, 16), np.float32)
    zero = np.zeros((1, 1), np.float32)
    assert fused_dot(a, b, zero, a_format="bf16", b_format="bf16")[0, 0] == 1.0
    a[0, 1:] = 2.0**-25
    assert fused_dot(a, b, zero, a_format="bf16", b_format="bf16")[0, 0] == 1 + 15 * 2.0**-25


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        ([np.inf, 1], [1, 1], 0, 0x7F800000),
        ([-np.inf, 1], [1, 1], 0, 0xFF800000),
        ([np.inf, 1], [0, 1], 0, 0x7FFFFFFF),
        ([np.inf, -np.inf], [1, 1], 0, 0x7FFFFFFF),
        ([np.inf, 1], [1, 1], -np.inf, 0x7FFFFFFF),
        ([np.nan, 1], [1, 1], 0, 0x7FFFFFFF),
        ([1, 1], [1, 1], np.nan, 0x7FFFFFFF),
        ([1, 1], [1, 1], -np.inf, 0xFF800000),
        ([0, 0], [1, 1], 0, 0),
        ([2.0**100, 0], [2.0**100, 0], 0, 0x7F800000),
    ],
)
def test_special_values(a: list[float], b: list[float], c: float, expected: int):
    got = fused_dot(
        np.array([a], np.float32), np.array([b], np.float32), np.array([[c]], np.float32),
        a_format="bf16", b_format="bf16",
    )  # fmt: skip
    assert to_f32_bits(got)[0, 0] == expected


def test_special_values_do_not_leak_to_other_elements():
    a = np.array([[np.nan, 1], [1, 2]], np.float32)
    b = np.array([[1, 1], [3, 4]], np.float32)
    got = fused_dot(a, b, np.zeros((2, 2), np.float32), a_format="bf16", b_format="bf16")
    assert np.isnan(got[0]).all() and got[1].tolist() == [3, 11]


def test_rounding_of_results():
    values = np.array([1 + 2.0**-24 + 2.0**-30, -(1 + 2.0**-23 * 1.9), 2.0**-150, 1e39, -1e39])
    assert [hex(int(x)) for x in round_toward_zero(values).view(np.uint32)] == [
        "0x3f800000",
        "0xbf800001",
        "0x0",
        "0x7f800000",
        "0xff800000",
    ]
    almost = np.array([2.0**128 - 2.0**100])
    assert round_toward_zero(almost).view(np.uint32)[0] == 0x7F7FFFFF
    assert to_f32_bits(np.array([1 + 2.0**-13 + 2.0**-14]), 13)[0] == 0x3F800400
    assert to_f16_bits(np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, np.nan])).tolist() == [
        0x3C00,
        0x3C02,
        0x7FFF,
    ]
