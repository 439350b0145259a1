"""Scalar instructions and accesses whose spelling or type other tests leave out."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.emulator.ptx_bench import (
    bits_f32,
    f32,
    module,
    random_f32,
    run_lanes,
    run_module,
    same_f32,
)

Array = np.ndarray[Any, np.dtype[Any]]
FP8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
HALF = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def _one(body: str, ins: list[Array], out: Any) -> Array:
    return run_lanes(body, ins, [out])[0]


def _halves(seed: int, name: str, count: int = 64) -> Array:
    """Random values of moderate size, [count, 2]."""
    return np.random.default_rng(seed).uniform(-4, 4, (count, 2)).astype(HALF[name])


def _close(got: Array, exact: Array, bits: int) -> None:
    """Within one unit of the last of `bits` significand bits."""
    error = np.abs(got.astype(np.float64) - exact)
    assert (error <= np.abs(exact) * 2.0 ** (1 - bits) + 1e-9).all()


# ---- functions


@pytest.mark.parametrize(
    ("opcode", "name", "function"),
    [
        ("ex2.approx.f16x2", "f16", np.exp2),
        ("ex2.approx.ftz.bf16x2", "bf16", np.exp2),
        ("tanh.approx.f16x2", "f16", np.tanh),
        ("tanh.approx.bf16x2", "bf16", np.tanh),
    ],
)
def test_functions_of_packed_halves(opcode: str, name: str, function: Any) -> None:
    values = _halves(1, name)
    got = _one(f"{opcode} x, a;", [values.view(np.uint32).reshape(-1)], np.uint32)
    _close(got.view(HALF[name]), function(values.astype(np.float64)).reshape(-1), 8)


@pytest.mark.parametrize(("opcode", "name"), [("ex2.approx.ftz", "bf16"), ("ex2.approx", "f16")])
def test_functions_of_halves(opcode: str, name: str) -> None:
    values = _halves(2, name)[:, 0].copy()
    got = _one(f"{opcode}.{name} x, a;", [values.view(np.uint16)], np.uint16)
    _close(got.view(HALF[name]), np.exp2(values.astype(np.float64)), 8)


def test_reciprocal_of_doubles() -> None:
    values = np.array([1.0, -3.0, 1e200, 1e-200, np.inf, 0.0])
    got = _one("rcp.approx.ftz.f64 x, a;", [values], np.float64)
    _close(got[:4], 1 / values[:4], 20)
    assert got[4] == 0 and got[5] == np.inf


# ---- arithmetic


def test_flushed_and_clamped_fma() -> None:
    tiny = bits_f32(0x00400000, 0x00800000, 0x80400000, 0x3F800000)
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    got = _one("fma.rn.ftz.f32 x, a, b, c;", [tiny, one, zero], np.float32)
    assert got.tolist() == [0, float(tiny[1]), 0, 1]
    a, b, c = (_halves(seed, "bf16") for seed in (3, 4, 5))
    words = [v.view(np.uint32).reshape(-1) for v in (a, b, c)]
    got = _one("fma.rn.relu.bf16x2 x, a, b, c;", words, np.uint32).view(HALF["bf16"])
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    want = np.maximum(exact, 0).astype(np.float32).astype(HALF["bf16"]).reshape(-1)
    assert (got == want).all() and (want == 0).any()


def test_packed_pairs_flush_and_round() -> None:
    rng = np.random.default_rng(6)
    a, b = random_f32(rng, 64), random_f32(rng, 64)
    words = [v.view(np.uint64) for v in (a, b)]
    got = _one("sub.rz.f32x2 x, a, b;", words, np.uint64).view(np.float32)
    for x, y, result in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        exact = Fraction(x) - Fraction(y)
        assert abs(Fraction(result)) <= abs(exact)
        beyond = np.nextafter(np.float32(result), np.float32(np.inf if exact > 0 else -np.inf))
        assert exact == Fraction(result) or abs(Fraction(float(beyond))) > abs(exact)
    tiny = bits_f32(0x00400000, 0x3F800000)
    zero = np.zeros(2, np.float32)
    got = _one("add.rn.ftz.f32x2 x, a, b;", [tiny.view(np.uint64), zero.view(np.uint64)], np.uint64)
    assert got.view(np.float32).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_mixed_precision(name: str) -> None:
    h, g = _halves(7, name)[:, 0].copy(), _halves(8, name)[:, 0].copy()
    x = random_f32(np.random.default_rng(9), h.size, 3)
    wide = h.astype(np.float64), g.astype(np.float64)
    for sign, op in ((1, "add"), (-1, "sub")):
        got = _one(f"{op}.rn.f32.{name} x, a, b;", [h.view(np.uint16), x], np.float32)
        same_f32(got, (wide[0] + sign * x.astype(np.float64)).astype(np.float32))
    got = _one(
        f"fma.rn.f32.{name} x, a, b, c;", [*(v.view(np.uint16) for v in (h, g)), x], np.float32
    )
    same_f32(got, (wide[0] * wide[1] + x.astype(np.float64)).astype(np.float32))


def test_three_operands() -> None:
    a, b, c = f32(1, -5, np.nan, 2), f32(-3, 4, 1, np.inf), f32(2, 0.5, 0, -8)
    got = _one("max.f32 x, a, b, c;", [a, b, c], np.float32)
    assert got.tolist() == [2, 4, 1, np.inf]
    got = _one("min.NaN.abs.f32 x, a, b, c;", [a, b, c], np.float32)
    assert got[[0, 1, 3]].tolist() == [1, 0.5, 2] and np.isnan(got[2])


def test_lop3_with_a_predicate() -> None:
    a, b = np.array([5, 1, 0, 0], np.uint32), np.array([1, 1, 0, 0], np.uint32)
    c = np.array([4, 0, 0, 0], np.uint32)
    odd = np.array([0, 0, 1, 0], np.uint32)
    body = """
    setp.ne.u32 p2, d, 0;
    lop3.or.b32 x|p1, a, b, c, 0x96, p2; selp.b32 y, 1, 0, p1;
    lop3.and.b32 z|p1, a, b, c, 0xFE, p2; selp.b32 w, 1, 0, p1;"""
    got = run_lanes(body, [a, b, c, odd], [np.uint32] * 4)
    assert (got[0] == a ^ b ^ c).all() and (got[2] == a | b | c).all()
    assert (got[1] == (((a ^ b ^ c) != 0) | (odd != 0))).all()
    assert (got[3] == (((a | b | c) != 0) & (odd != 0))).all()


# ---- conversions


def test_halves_with_relu_and_bytes_with_relu() -> None:
    a, b = f32(1.5, -2, 70000, 1e-9), f32(-1, 2.25, -70000, 3)
    got = _one("cvt.rz.relu.f16x2.f32 x, a, b;", [a, b], np.uint32).view(np.float16)
    assert got.reshape(-1, 2).tolist() == [[0, 1.5], [2.25, 0], [0, 65504], [3, 0]]
    got = _one("cvt.rn.satfinite.relu.e5m2x2.f32 x, a, b;", [a, b], np.uint16)
    values = got.view(FP8["e5m2"]).astype(np.float32).reshape(-1, 2)
    assert values.tolist() == [[0, 1.5], [2.0, 0], [0, 57344], [3, 0]]


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("tiny", ["e4m3", "e5m2"])
def test_halves_to_bytes_and_back(half: str, tiny: str) -> None:
    values = _halves(11, half)
    words = values.view(np.uint32).reshape(-1)
    got = _one(f"cvt.rn.satfinite.{tiny}x2.{half}x2 x, a;", [words], np.uint16)
    want = values.astype(np.float32).astype(FP8[tiny])
    assert (got.view(np.uint8).reshape(-1, 2) == want.view(np.uint8)).all()
    back = _one(f"cvt.rn.{half}x2.{tiny}x2 x, a;", [got], np.uint32)
    assert (back.view(HALF[half]).reshape(-1, 2) == want.astype(HALF[half])).all()


def test_six_and_four_bits_to_halves() -> None:
    codes = np.arange(64, dtype=np.uint16)
    pairs = codes | codes[::-1] << 8
    for name in ("e3m2", "e2m3"):
        got = _one(f"cvt.rn.f16x2.{name}x2 x, a;", [pairs], np.uint32).view(np.float16)
        table = codes.astype(np.uint8).view(getattr(ml_dtypes, f"float6_{name}fn"))
        want = np.stack([table, table[::-1]], axis=1).astype(np.float32)
        assert (got.reshape(-1, 2) == want).all()
    nibbles = np.arange(256).astype(np.uint16)
    body = "{ .reg .b8 t; cvt.u8.u16 t, a; cvt.rn.f16x2.e2m1x2 x, t; }"
    got = _one(body, [nibbles], np.uint32).view(np.float16).reshape(-1, 2)
    table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert (got == np.stack([table[nibbles & 15], table[nibbles >> 4]], axis=1)).all()


def test_scales() -> None:
    a, b = f32(1.5, 2.0**-130, np.inf, 3), f32(1, 0.75, np.nan, 5)
    for mode, want in (("rz", [[127, 127], [126, 0], [255, 254], [129, 128]]),):
        got = _one(f"cvt.{mode}.satfinite.ue8m0x2.f32 x, a, b;", [a, b], np.uint16)
        assert got.view(np.uint8).reshape(-1, 2).tolist() == want
    halves = np.array([[1.5, 1], [3, 4]], HALF["bf16"])
    got = _one(
        "cvt.rp.satfinite.ue8m0x2.bf16x2 x, a;", [halves.view(np.uint32).reshape(-1)], np.uint16
    )
    assert got.view(np.uint8).tolist() == [128, 127, 129, 129]
    back = _one("cvt.rn.bf16x2.ue8m0x2 x, a;", [got], np.uint32).view(HALF["bf16"])
    assert back.astype(np.float32).tolist() == [2, 1, 4, 4]


# ---- rounding by random bits


def _numbers(name: str, word: int) -> list[int]:
    """The random number of each element in operand order, 16 bits (f16: 13), as measured."""
    high, low = word >> 16, word & 0xFFFF

    def turned(value: int) -> int:
        return int(f"{value:016b}"[::-1], 2)

    if name == "bf16":
        return [high, low]
    if name == "f16":
        return [word >> 16 & 0x1FFF, word & 0x1FFF]
    if name == "e2m1":
        odd = (word >> 24) << 8 | word >> 8 & 0xFF
        even = (word >> 16 & 0xFF) << 8 | word & 0xFF
        return [turned(odd), odd, turned(even), even]
    return [turned(high), high, turned(low), low]


_GRIDS = {"f16": 10, "bf16": 7, "e4m3": 3, "e5m2": 2, "e2m3": 3, "e3m2": 2, "e2m1": 1}


def _codes(name: str, packed: Array, count: int) -> Array:
    """float32 values of packed codes, in operand order."""
    if count == 2:
        return packed.view(HALF[name]).astype(np.float32).reshape(-1, 2)[:, ::-1]
    if name == "e2m1":
        shifts = np.array([12, 8, 4, 0])
        raw = (packed[:, None] >> shifts & 15).astype(np.uint8)
        return raw.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    dtype = FP8.get(name) or getattr(ml_dtypes, f"float6_{name}fn")
    return packed.view(np.uint8).reshape(-1, 4)[:, ::-1].copy().view(dtype).astype(np.float32)


@pytest.mark.parametrize("name", sorted(_GRIDS))
@pytest.mark.parametrize("negative", [False, True])
def test_stochastic_rounding(name: str, negative: bool) -> None:
    """Each element goes up exactly when its cut-off bits and its random number carry."""
    count, places = (2 if name in HALF else 4), _GRIDS[name]
    kept = 13 if name == "f16" else 16
    rng = np.random.default_rng(places)
    words = rng.integers(0, 1 << 32, 128, np.uint64).astype(np.uint32)
    words[0], words[1] = 0, 0xFFFFFFFF
    cut = rng.integers(0, 1 << (23 - places), (128, count))
    cut[2] = 0
    values = (1.0 + cut * 2.0**-23).astype(np.float32) * (-1 if negative else 1)
    ins = [np.ascontiguousarray(values[:, k]) for k in range(count)]
    letters = ", ".join("abcdefgh"[:count])
    operands = letters if count == 2 else f"{{{letters}}}"
    sat = "" if count == 2 else ".satfinite"
    dtype = np.uint16 if name == "e2m1" else np.uint32
    body = f"cvt.rs{sat}.{name}x{count}.f32 x, {operands}, {'abcdefgh'[count]};"
    got = np.abs(_codes(name, _one(body, [*ins, words], dtype), count))
    for row, word in enumerate(words.tolist()):
        for k, number in enumerate(_numbers(name, word)):
            up = (int(cut[row, k]) >> max(0, 23 - places - kept)) + number >= 1 << kept
            assert got[row, k] == 1 + up * 2.0**-places, (row, k)


def test_stochastic_rounding_at_the_ends() -> None:
    a, b = f32(np.nan, np.inf, 1e9, -1), f32(-np.inf, -1e9, 0.0, 1.5)
    ones = np.full(4, 0xFFFFFFFF, np.uint32)
    body = "cvt.rs.relu.satfinite.e5m2x4.f32 x, {a, b, a, b}, c;"
    got = _codes("e5m2", _one(body, [a, b, ones], np.uint32), 4)
    assert np.isnan(got[0, 0]) and got[0, 1] == 0
    assert got[1:, :2].tolist() == [[57344, 0], [57344, 0], [0, 1.5]]
    got = _one("cvt.rs.satfinite.bf16x2.f32 x, a, b, c;", [a, b, ones], np.uint32)
    values = got.view(HALF["bf16"]).astype(np.float64).reshape(-1, 2)[:, ::-1]
    largest = float(ml_dtypes.finfo(HALF["bf16"]).max)
    assert np.isnan(values[0, 0]) and values[0, 1] == -largest and values[1, 0] == largest


# ---- memory


def test_loads_and_stores_with_hints() -> None:
    source, out = np.arange(1, 33, dtype=np.uint32), np.zeros(32, np.uint32)
    body = """
    ld.param.u64 rd1, [src]; ld.param.u64 rd2, [out]; mov.b64 rd9, 0;
    ld.global.nc.L1::no_allocate.v4.b32 {r1, r2, r3, r4}, [rd1];
    st.global.v4.b32 [rd2], {r1, r2, r3, r4};
    ld.global.L2::128B.b32 r5, [rd1+16]; ld.global.L2::cache_hint.b32 r6, [rd1+20], rd9;
    ld.acquire.gpu.global.b32 r7, [rd1+24]; ld.relaxed.sys.global.b32 r8, [rd1+28];
    st.release.sys.global.b32 [rd2+16], r5; st.global.L2::cache_hint.b32 [rd2+20], r6, rd9;
    st.global.v2.b32 [rd2+24], {r7, r8};
    ld.global.L1::no_allocate.v8.f32 {r10, r11, r12, r13, r14, r15, r16, r17}, [rd1+32];
    st.global.v8.b32 [rd2+32], {r10, r11, r12, r13, r14, r15, r16, r17};
    ld.global.nc.v4.b64 {rd3, rd4, rd5, rd6}, [rd1+64];
    st.global.L1::no_allocate.L2::evict_last.v4.b64 [rd2+64], {rd3, rd4, rd5, rd6};
    """
    run_module(module(body, ".param .u64 src, .param .u64 out"), [source, out], block=(1,))
    assert (out[:24] == source[:24]).all()


def test_wide_and_vector_atomics() -> None:
    wide = np.array([[1, 2], [0, 0], [0, 0], [0, 0]], np.uint64)
    floats = np.arange(8, dtype=np.float32)
    halves = np.array([1.5, 2.5], HALF["bf16"])
    double = np.array([0.25])
    old = np.zeros(6, np.uint32)
    body = """
    .reg .b128 q1, q2, q3;
    ld.param.u64 rd1, [wide]; ld.param.u64 rd2, [floats]; ld.param.u64 rd3, [halves]; ld.param.u64 rd4, [double];
    mov.b64 rd5, 1; mov.b64 rd6, 2; mov.b64 rd7, 77; mov.b64 rd8, 88; mov.b128 q1, {rd5, rd6}; mov.b128 q2, {rd7, rd8};
    atom.global.cas.b128 q3, [rd1], q1, q2; st.global.b128 [rd1+16], q3;
    atom.global.cas.b128 q3, [rd1], q1, q1; st.global.b128 [rd1+32], q3;
    atom.global.exch.b128 q3, [rd1], q1; st.global.b128 [rd1+48], q3;
    atom.acq_rel.gpu.global.cas.b64 rd9, [rd1+16], rd5, rd7;
    mov.b32 r1, 0f3F800000; mov.b32 r2, 0f40000000; mov.b32 r5, 0x3F803F80;
    atom.global.v4.f32.add {r10, r11, r12, r13}, [rd2], {r1, r2, r1, r2};
    red.global.add.v4.f32 [rd2+16], {r1, r1, r1, r2};
    atom.global.add.noftz.bf16x2 r14, [rd3], r5; red.global.v2.bf16x2.max.noftz [rd3], {r5, r5};
    mov.b64 rd10, 0d3FF0000000000000; red.global.add.f64 [rd4], rd10;
    mov.u32 r20, cell; st.shared.b32 [r20], r2; atom.shared.add.f32 r15, [r20], r1; ld.shared.b32 r16, [r20];
    ld.param.u64 rd11, [old]; st.global.v2.b32 [rd11], {r10, r13}; st.global.v2.b32 [rd11+8], {r14, r15}; st.global.b32 [rd11+16], r16;
    """
    params = ", ".join(f".param .u64 {n}" for n in ("wide", "floats", "halves", "double", "old"))
    padded = np.concatenate([halves, np.zeros(2, HALF["bf16"])])
    text = module(body, params, before=".shared .align 4 .b8 cell[4];")
    run_module(text, [wide, floats, padded, double, old], block=(1,))
    assert wide.tolist() == [[1, 2], [77, 2], [77, 88], [77, 88]]
    assert floats.tolist() == [1, 3, 3, 5, 5, 6, 7, 9]
    assert padded.astype(np.float32).tolist() == [2.5, 3.5, 1, 1] and double[0] == 1.25
    assert old[:2].view(np.float32).tolist() == [0, 3] and old[3:5].view(np.float32).tolist() == [
        2,
        3,
    ]
