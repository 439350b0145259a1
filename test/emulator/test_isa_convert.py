"""cvt against exact rational arithmetic and the ml_dtypes tables."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.emulator.ptx_bench import (
    SPECIAL_F32,
    as_int,
    f32,
    random_f32,
    round_exact,
    run_lanes,
    same_f32,
)

RNG = np.random.default_rng(3)
VALUES = np.concatenate(
    [SPECIAL_F32, random_f32(RNG, 300, 12), f32(*(k / 4 for k in range(-40, 40)))]
)
HALVES = {"bf16": (8, -126, 127, ml_dtypes.bfloat16), "f16": (11, -14, 15, np.float16)}


def _half(value: float, kind: str, mode: str) -> float:
    precision, least, greatest, _ = HALVES[kind]
    if not np.isfinite(value):
        return value
    return round_exact(Fraction(value), mode, precision, least, greatest)


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_packs_two_floats(kind: str, mode: str) -> None:
    low = np.roll(VALUES, 5)
    (x,) = run_lanes(f"cvt.{mode}.{kind}x2.f32 x, a, b;", [VALUES, low], [np.uint32])
    halves = x.view(np.uint16).reshape(-1, 2)
    for column, source in ((0, low), (1, VALUES)):
        got = halves[:, column].copy().view(HALVES[kind][3]).astype(np.float64)
        for lane, value in enumerate(source.tolist()):
            want = _half(value, kind, mode)
            if np.isnan(want):
                assert halves[lane, column] == 0x7FFF
            else:
                assert got[lane] == want and np.signbit(got[lane]) == np.signbit(value), value


def test_pack_options() -> None:
    a, b = f32(-1.0, 1e6, np.nan, 3.0), f32(2.0, -1e6, -2.0, -0.5)
    x, y = run_lanes(
        "cvt.rn.relu.f16x2.f32 x, a, b; cvt.rn.satfinite.f16x2.f32 y, a, b;",
        [a, b],
        [np.uint32] * 2,
    )
    assert x.tolist() == [0x00004000, 0x7C000000, 0x7FFF0000, 0x42000000]
    assert y.tolist()[1] == 0x7BFFFBFF


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_scalar_halves_round_trip(kind: str, mode: str) -> None:
    x, y = run_lanes(
        f"cvt.{mode}.{kind}.f32 x, a; cvt.f32.{kind} y, x;", [VALUES], [np.uint16, np.float32]
    )
    same_f32(y, f32(*(_half(v, kind, mode) for v in VALUES.tolist())))
    assert x.dtype == np.uint16


INTEGERS = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_to_integers_clamp(kind: str, mode: str) -> None:
    bits, signed = int(kind[1:]), kind[0] == "s"
    dtype = np.dtype(f"u{max(2, bits // 8)}")
    (x,) = run_lanes(f"cvt.{mode}.{kind}.f32 x, a;", [VALUES], [dtype])
    least, greatest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    for lane, value in enumerate(VALUES.tolist()):
        if np.isnan(value):
            want = as_int(1 << 63, 64, signed) if bits == 64 else 0
        elif np.isinf(value):
            want = greatest if value > 0 else least
        else:
            whole = {
                "rni": lambda v: round(v),
                "rzi": lambda v: int(v),
                "rmi": lambda v: v.__floor__(),
                "rpi": lambda v: v.__ceil__(),
            }[mode](Fraction(value))
            want = min(max(whole, least), greatest)
        assert as_int(x[lane], bits, signed) == want, value


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "u16", "s16"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integers_to_floats(kind: str, mode: str) -> None:
    bits, signed = int(kind[1:]), kind[0] == "s"
    raw = RNG.integers(0, 1 << 63, 200, dtype=np.uint64) >> RNG.integers(0, 63, 200).astype(
        np.uint64
    )
    a = np.concatenate(
        [raw, ~raw, np.array([0, 1, 0x1000001, 0x1000003, 0x20000000000001], np.uint64)]
    )
    a = a.astype(np.dtype(f"u{bits // 8}"))
    (x,) = run_lanes(f"cvt.{mode}.f32.{kind} x, a;", [a], [np.float32])
    want = [round_exact(Fraction(as_int(v, bits, signed)), mode) for v in a]
    same_f32(x, f32(*want))


def test_integer_widths() -> None:
    a = RNG.integers(0, 1 << 32, 64, dtype=np.uint64).astype(np.uint32)
    x, y, z, w = run_lanes(
        "cvt.s64.s32 x, a; cvt.u64.u32 y, a; cvt.u16.u32 z, a; cvt.s32.s8 w, a;",
        [a],
        [np.uint64, np.uint64, np.uint16, np.uint32],
    )
    assert (x.view(np.int64) == a.view(np.int32)).all()
    assert (y == a).all() and (z == (a & 0xFFFF)).all()
    assert (w.view(np.int32) == a.astype(np.uint8).view(np.int8)).all()


def test_integer_saturation() -> None:
    a = np.array([-(2**31), -129, -1, 0, 127, 128, 255, 256, 2**31 - 1], np.int32)
    x, y = run_lanes("cvt.sat.s8.s32 x, a; cvt.sat.u8.s32 y, a;", [a], [np.uint32] * 2)
    assert x.view(np.int32).tolist() == np.clip(a, -128, 127).tolist()
    assert y.tolist() == np.clip(a, 0, 255).tolist()


def test_rounds_to_integral_floats() -> None:
    a = f32(0.5, 1.5, 2.5, -0.5, -1.5, 3.7, np.inf, np.nan)
    x, y, z, w = run_lanes(
        "cvt.rni.f32.f32 x, a; cvt.rzi.f32.f32 y, a; cvt.rmi.f32.f32 z, a; cvt.rpi.f32.f32 w, a;",
        [a],
        [np.float32] * 4,
    )
    same_f32(x, np.rint(a))
    same_f32(y, np.trunc(a))
    same_f32(z, np.floor(a))
    same_f32(w, np.ceil(a))


def test_float_to_float_saturates_and_flushes() -> None:
    a = f32(-2.0, 0.25, 7.0, np.nan, 1e-40)
    x, y = run_lanes("cvt.sat.f32.f32 x, a; cvt.ftz.f32.f32 y, a;", [a], [np.float32] * 2)
    assert x[:4].tolist() == [0.0, 0.25, 1.0, 0.0]
    assert y[4] == 0.0


def test_doubles() -> None:
    a = np.concatenate(
        [RNG.standard_normal(60), [1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 1e300, 1e-300]]
    )
    x, y = run_lanes("cvt.rn.f32.f64 x, a; cvt.rz.f32.f64 y, a;", [a], [np.float32] * 2)
    same_f32(x, f32(*(round_exact(Fraction(v), "rn") for v in a.tolist())))
    same_f32(y, f32(*(round_exact(Fraction(v), "rz") for v in a.tolist())))


TINY = {
    "e4m3x2": (ml_dtypes.float8_e4m3fn, 448.0, 4, -6),
    "e5m2x2": (ml_dtypes.float8_e5m2, 57344.0, 3, -14),
}


@pytest.mark.parametrize("name", list(TINY))
def test_eight_bit_floats(name: str) -> None:
    dtype, largest, precision, least = TINY[name]
    low = np.roll(VALUES, 9)
    x, y = run_lanes(
        f"cvt.rn.satfinite.{name}.f32 x, a, b; cvt.rn.f16x2.{name} y, x;",
        [VALUES, low],
        [np.uint16, np.uint32],
    )
    codes = x.view(np.uint8).reshape(-1, 2)
    for column, source in ((0, low), (1, VALUES)):
        got = codes[:, column].copy().view(dtype).astype(np.float64)
        back = y.view(np.float16).reshape(-1, 2)[:, column].astype(np.float64)
        for lane, value in enumerate(source.tolist()):
            if np.isnan(value):
                assert np.isnan(got[lane]) and np.isnan(back[lane])
                continue
            exact = np.copysign(largest, value)
            if np.isfinite(value):
                rounded = round_exact(Fraction(value), "rn", precision, least)
                exact = min(max(rounded, -largest), largest)
            assert got[lane] == exact == back[lane], value


def _table(bits: int, exponent_bits: int, bias: int) -> list[float]:
    fraction_bits = bits - 1 - exponent_bits
    values = []
    for code in range(1 << (bits - 1)):
        exponent, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
        lead = exponent > 0
        power = (exponent if lead else 1) - bias - fraction_bits
        values.append(((lead << fraction_bits) + fraction) * 2.0**power)
    return values


@pytest.mark.parametrize(
    ("name", "table"),
    [("e2m3x2", _table(6, 2, 1)), ("e3m2x2", _table(6, 3, 3)), ("e2m1x2", _table(4, 2, 1))],
)
def test_tiny_floats_take_the_nearest(name: str, table: list[float]) -> None:
    a = f32(*np.linspace(-9, 9, 200), np.nan, 100.0, -100.0)
    four_bits = name == "e2m1x2"
    body = (
        ".reg .b8 q; cvt.rn.satfinite.e2m1x2.f32 q, a, b; cvt.u32.u8 x, q;"
        if four_bits
        else f"cvt.rn.satfinite.{name}.f32 h1, a, b; cvt.u32.u16 x, h1;"
    )
    (x,) = run_lanes(body, [a, f32(*([1.0] * a.size))], [np.uint32])
    shift, sign = (4, 8) if four_bits else (8, 32)
    for lane, value in enumerate(a.tolist()):
        code = int(x[lane]) >> shift
        got = table[code & (sign - 1)] * (-1 if code & sign else 1)
        if np.isnan(value):
            assert got == max(table)
            continue
        distance = min(abs(abs(value) - t) for t in table)
        assert abs(got - value) == pytest.approx(distance, abs=1e-6), value
        assert table[int(x[lane]) & (sign - 1)] == 1.0


def test_a_small_nan_is_rounded_to_an_infinity_of_tf32() -> None:
    """As 0x7F800001 is on an H200: half a unit is added to the bits, whatever they stand for."""
    a = np.array([0x7F800001, 0xFF800FFF, 0x7F801000, 0x7FC00000], np.uint32).view(np.float32)
    (x,) = run_lanes("cvt.rna.tf32.f32 x, a;", [a], [np.uint32])
    assert x[:2].tolist() == [0x7F800000, 0xFF800000]
    assert np.isnan(x[2:].view(np.float32)).all()


def test_tf32() -> None:
    a = np.concatenate([random_f32(RNG, 200), f32(1 + 2.0**-11, 1 + 3 * 2.0**-11)])
    x, y = run_lanes("cvt.rna.tf32.f32 x, a; cvt.rn.tf32.f32 y, a;", [a], [np.uint32] * 2)
    for got, mode in ((x, "rna"), (y, "rn")):
        want = [round_exact(Fraction(v), mode, 11) for v in a.tolist()]
        assert got.view(np.float32).tolist() == want


def test_scales() -> None:
    a = f32(1.0, 1.5, 2.0, 3.0, 0.3, 2.0**-127, 1e38, 0.0)
    (x,) = run_lanes("cvt.rp.satfinite.ue8m0x2.f32 x, a, a;", [a], [np.uint16])
    got = (x & 0xFF).astype(int).tolist()
    want: list[Any] = [127, 128, 128, 129, 126, 0, 254, 0]
    assert got == want
