"""Floating-point arithmetic against exact rational arithmetic."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.emulator.ptx_bench import (
    SPECIAL_F32,
    bits_f32,
    f32,
    random_f32,
    round_exact,
    run_lanes,
    same_f32,
)

RNG = np.random.default_rng(7)


def _operands(count: int) -> list[Any]:
    special = SPECIAL_F32
    rows = []
    for place in range(count):
        pick = np.array([(i * (3 * place + 1) + 5 * place) % special.size for i in range(200)])
        near = f32(*(1.0 + k * 2.0**-23 for k in range(24))) * np.float32(1 + place)
        rows.append(np.concatenate([special[pick], near, random_f32(RNG, 400)]))
    return rows


def _exact(op: str, a: float, b: float, c: float, mode: str) -> float:
    """The rounded result; NaN when IEEE says so."""
    with np.errstate(all="ignore"):
        wide = {
            "add": lambda: np.float64(a) + np.float64(b),
            "sub": lambda: np.float64(a) - np.float64(b),
            "mul": lambda: np.float64(a) * np.float64(b),
            "div": lambda: np.float64(a) / np.float64(b),
            "fma": lambda: np.float64(a) * np.float64(b) + np.float64(c),
        }[op]()
    if not np.isfinite(wide) or np.isinf(b):  # x / inf is a zero
        return float(wide)
    p, q, r = Fraction(a), Fraction(b), Fraction(c if op == "fma" else 0)
    value = {
        "add": lambda: p + q,
        "sub": lambda: p - q,
        "mul": lambda: p * q,
        "div": lambda: p / q,
        "fma": lambda: p * q + r,
    }[op]()
    return round_exact(value, mode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "fma"])
def test_f32_rounds_once(op: str, mode: str) -> None:
    a, b, c = _operands(3)
    extra = ", c" if op == "fma" else ""
    (x,) = run_lanes(f"{op}.{mode}.f32 x, a, b{extra};", [a, b, c], [np.float32])
    want = [_exact(op, *v, mode) for v in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    same_f32(x, f32(*want))


def test_fma_ties_need_the_whole_product() -> None:
    # 1 + 2^-24 is a tie; the product's last bits decide.
    a = bits_f32(0x3F800001, 0x3F800001, 0x33800001, 0xB3800001)
    b = bits_f32(0x33800000, 0x33FFFFFF, 0x3F800000, 0x3F800000)
    c = f32(1.0, 1.0, 1.0, 1.0)
    (x,) = run_lanes("fma.rn.f32 x, a, b, c;", [a, b, c], [np.float32])
    exact = [Fraction(float(p)) * Fraction(float(q)) + 1 for p, q in zip(a, b, strict=True)]
    assert x.tolist() == [round_exact(v, "rn") for v in exact]
    assert x[0] != np.float32(1.0)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_packed_f32x2_equals_two_scalars(op: str) -> None:
    a, b, c = _operands(3)
    pairs = [
        np.stack([v, np.roll(v, 17)], axis=1).copy().view(np.uint64).reshape(-1) for v in (a, b, c)
    ]
    extra = ", c" if op == "fma" else ""
    (x,) = run_lanes(f"{op}.rn.f32x2 x, a, b{extra};", pairs, [np.uint64])
    halves = x.view(np.float32).reshape(-1, 2)
    for half, shift in ((0, 0), (1, 17)):
        values = [np.roll(v, shift).tolist() for v in (a, b, c)]
        want = [_exact(op, *v, "rn") for v in zip(*values, strict=True)]
        same_f32(np.ascontiguousarray(halves[:, half]), f32(*want))


def test_packed_values_travel_through_moves() -> None:
    a, b = f32(*range(32)), f32(*range(100, 132))
    body = """
    mov.b64 rd1, {a, b};
    add.rn.f32x2 rd2, rd1, rd1;
    mov.b64 {x, y}, rd2;
    mov.b64 z, rd2;
    """
    x, y, z = run_lanes(body, [a, b], [np.float32, np.float32, np.uint64])
    assert (x == 2 * a).all() and (y == 2 * b).all()
    assert (z.view(np.float32).reshape(-1, 2) == np.stack([2 * a, 2 * b], axis=1)).all()


def test_ftz_flushes_inputs_and_results() -> None:
    tiny = bits_f32(0x00000001, 0x80400000, 0x00800000, 0x007FFFFF)
    half = f32(1.0, 1.0, 0.5, 1.0)
    x, y, z = run_lanes(
        "mul.ftz.f32 x, a, b; mul.f32 y, a, b; add.ftz.f32 z, a, a;", [tiny, half], [np.float32] * 3
    )
    assert x.view(np.uint32).tolist() == [0, 0x80000000, 0, 0]
    assert y.view(np.uint32).tolist() == [1, 0x80400000, 0x00400000, 0x007FFFFF]
    assert z.view(np.uint32).tolist() == [0, 0x80000000, 0x01000000, 0]


def test_saturation() -> None:
    a = f32(-1.0, 0.25, 0.75, 2.0, np.nan, np.inf)
    x, y = run_lanes("add.sat.f32 x, a, a; fma.rn.sat.f32 y, a, a, a;", [a], [np.float32] * 2)
    assert x.tolist() == [0.0, 0.5, 1.0, 1.0, 0.0, 1.0]
    assert y.tolist() == [0.0, 0.3125, 1.0, 1.0, 0.0, 1.0]


def test_minimum_and_maximum() -> None:
    a = f32(1.0, np.nan, 2.0, np.nan, -0.0, 0.0, -3.0, np.inf)
    b = f32(2.0, 5.0, np.nan, np.nan, 0.0, -0.0, 3.0, -np.inf)
    body = "max.f32 x, a, b; min.f32 y, a, b; max.NaN.f32 z, a, b; min.xorsign.abs.f32 w, a, b;"
    x, y, z, w = run_lanes(body, [a, b], [np.float32] * 4)
    same_f32(x, f32(2.0, 5.0, 2.0, np.nan, 0.0, 0.0, 3.0, np.inf))
    same_f32(y, f32(1.0, 5.0, 2.0, np.nan, 0.0, 0.0, -3.0, -np.inf))
    same_f32(z, f32(2.0, np.nan, np.nan, np.nan, 0.0, 0.0, 3.0, np.inf))
    same_f32(w, f32(1.0, 5.0, 2.0, np.nan, 0.0, 0.0, -3.0, -np.inf))
    assert not np.signbit(x[4:6]).any() and np.signbit(y[4:6]).all()
    assert x.view(np.uint32)[3] == 0x7FFFFFFF


def test_three_input_maximum() -> None:
    a, b, c = f32(1, np.nan, 7, np.nan), f32(5, 2, -1, np.nan), f32(3, 4, np.nan, np.nan)
    body = "max.f32 x, a, b, c; min.f32 y, a, b, c; max.NaN.f32 z, a, b, c; max.abs.f32 w, a, b, c;"
    x, y, z, w = run_lanes(body, [a, b, c], [np.float32] * 4)
    same_f32(x, f32(5, 4, 7, np.nan))
    same_f32(y, f32(1, 2, -1, np.nan))
    same_f32(z, f32(5, np.nan, np.nan, np.nan))
    same_f32(w, f32(5, 4, 7, np.nan))


def test_signs() -> None:
    a = np.concatenate([SPECIAL_F32, random_f32(RNG, 30)])
    b = np.roll(a, 3)
    x, y, z = run_lanes(
        "neg.f32 x, a; abs.f32 y, a; copysign.f32 z, a, b;", [a, b], [np.float32] * 3
    )
    keep = ~np.isnan(a)
    assert (x.view(np.uint32)[keep] == (a.view(np.uint32) ^ 0x80000000)[keep]).all()
    assert (y.view(np.uint32)[keep] == (a.view(np.uint32) & 0x7FFFFFFF)[keep]).all()
    want = (b.view(np.uint32) & 0x7FFFFFFF) | (a.view(np.uint32) & 0x80000000)
    assert (z.view(np.uint32) == want)[~np.isnan(b)].all()


@pytest.mark.parametrize(
    ("opcode", "function", "inputs"),
    [
        ("ex2.approx.f32", np.exp2, np.linspace(-149, 127.5, 300)),
        ("ex2.approx.ftz.f32", np.exp2, np.linspace(-120, 120, 300)),
        ("lg2.approx.f32", np.log2, np.geomspace(1e-37, 1e37, 300)),
        ("rcp.approx.ftz.f32", lambda v: 1 / v, np.geomspace(1e-30, 1e30, 300)),
        ("rcp.rn.f32", lambda v: 1 / v, np.geomspace(1e-30, 1e30, 300)),
        ("sqrt.approx.f32", np.sqrt, np.geomspace(1e-30, 1e30, 300)),
        ("sqrt.rn.f32", np.sqrt, np.geomspace(1e-30, 1e30, 300)),
        ("rsqrt.approx.f32", lambda v: 1 / np.sqrt(v), np.geomspace(1e-30, 1e30, 300)),
        ("sin.approx.f32", np.sin, np.linspace(-3, 3, 300)),
        ("cos.approx.f32", np.cos, np.linspace(-3, 3, 300)),
        ("tanh.approx.f32", np.tanh, np.linspace(-5, 5, 300)),
    ],
)
def test_functions_are_within_one_unit(opcode: str, function: Any, inputs: Any) -> None:
    a = inputs.astype(np.float32)
    (x,) = run_lanes(f"{opcode} x, a;", [a], [np.float32])
    want = function(a.astype(np.float64))
    unit = np.maximum(np.spacing(np.abs(want).astype(np.float32)).astype(np.float64), 2.0**-149)
    assert (np.abs(x - want) <= unit).all()


def test_function_limits() -> None:
    a = f32(-np.inf, np.inf, np.nan, 0.0, -0.0)
    x, y, z = run_lanes(
        "ex2.approx.ftz.f32 x, a; rcp.approx.ftz.f32 y, a; lg2.approx.ftz.f32 z, a;",
        [a],
        [np.float32] * 3,
    )
    same_f32(x, f32(0.0, np.inf, np.nan, 1.0, 1.0))
    same_f32(y, f32(-0.0, 0.0, np.nan, np.inf, -np.inf))
    same_f32(z, f32(np.nan, np.inf, np.nan, -np.inf, -np.inf))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_square_root(mode: str) -> None:
    a = np.abs(random_f32(RNG, 500))
    (x,) = run_lanes(f"sqrt.{mode}.f32 x, a;", [a], [np.float32])
    for value, root in zip(a.tolist(), x.tolist(), strict=True):
        exact = Fraction(value)
        if mode == "rp":
            below = float(np.nextafter(np.float32(root), np.float32(0)))
            assert Fraction(root) ** 2 >= exact and (Fraction(below) ** 2 < exact or root == 0)
        else:
            above = float(np.nextafter(np.float32(root), np.float32(np.inf)))
            assert Fraction(root) ** 2 <= exact < Fraction(above) ** 2


FORMATS = {"f16": (11, -14, 15, np.float16), "bf16": (8, -126, 127, ml_dtypes.bfloat16)}


def _halves(kind: str, count: int) -> list[Any]:
    dtype = FORMATS[kind][3]
    rows = []
    for place in range(count):
        values = np.concatenate([np.roll(SPECIAL_F32, 5 * place), random_f32(RNG, 224, 12)])
        with np.errstate(over="ignore"):
            rows.append(values.astype(dtype).view(np.uint16))
    return rows


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma", "max", "min"])
def test_half_types_round_once(op: str, kind: str, packed: bool) -> None:
    precision, least, greatest, dtype = FORMATS[kind]
    ins = _halves(kind, 3)
    numbers = [v.view(dtype).astype(np.float64) for v in ins]
    rounding = "" if op in ("max", "min") else ".rn"
    extra = ", c" if op == "fma" else ""
    if packed:
        ins = [v.view(np.uint32) for v in ins]
    suffix = f"{kind}x2" if packed else kind
    (x,) = run_lanes(f"{op}{rounding}.{suffix} x, a, b{extra};", ins, [ins[0].dtype])
    got = x.view(np.uint16).view(dtype).astype(np.float64)
    for lane, (a, b, c) in enumerate(zip(*(n.tolist() for n in numbers), strict=True)):
        if op in ("max", "min"):
            choose = np.fmax if op == "max" else np.fmin
            want = float(choose(a, b))
        else:
            wide = _exact(op, a, b, c, "rn")
            want = wide
            if np.isfinite(a) and np.isfinite(b) and (op != "fma" or np.isfinite(c)):
                p, q = Fraction(a), Fraction(b)
                third = Fraction(c) if op == "fma" else 0
                exact = {"add": p + q, "sub": p - q, "mul": p * q, "fma": p * q + third}[op]
                want = round_exact(exact, "rn", precision, least, greatest)
        assert got[lane] == want or (np.isnan(want) and x.view(np.uint16)[lane] == 0x7FFF), (
            a,
            b,
            c,
        )


def test_mixed_precision_accumulation() -> None:
    a, b = _halves("bf16", 2)
    c = random_f32(RNG, a.size, 6)
    x, y = run_lanes(
        "add.rn.f32.bf16 x, a, c; fma.rn.f32.bf16 y, a, b, c;", [a, b, c], [np.float32] * 2
    )
    wide = [v.view(ml_dtypes.bfloat16).astype(np.float64).tolist() for v in (a, b)]
    same_f32(
        x, f32(*(_exact("add", p, r, 0, "rn") for p, r in zip(wide[0], c.tolist(), strict=True)))
    )
    rows = zip(wide[0], wide[1], c.tolist(), strict=True)
    same_f32(y, f32(*(_exact("fma", *row, "rn") for row in rows)))


def test_f64_arithmetic() -> None:
    a = RNG.standard_normal(64)
    b, c = RNG.standard_normal(64), RNG.standard_normal(64)
    body = "add.rn.f64 x, a, b; mul.rn.f64 y, a, b; fma.rn.f64 z, a, b, c; div.rn.f64 w, a, b;"
    x, y, z, w = run_lanes(body, [a, b, c], [np.float64] * 4)
    assert (x == a + b).all() and (y == a * b).all() and (w == a / b).all()
    exact = [
        float(Fraction(p) * Fraction(q) + Fraction(r))
        for p, q, r in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert z.tolist() == exact


def test_half_exponential() -> None:
    a = np.linspace(-10, 10, 64).astype(np.float16)
    (x,) = run_lanes("ex2.approx.f16 x, a;", [a.view(np.uint16)], [np.uint16])
    want = np.exp2(a.astype(np.float64))
    assert (np.abs(x.view(np.float16) - want) <= np.spacing(want.astype(np.float16))).all()


def test_properties() -> None:
    a = f32(1.0, np.inf, np.nan, 0.0, 1e-40)
    body = "\n".join(
        f"testp.{name}.f32 p1, a; selp.b32 r{n}, {1 << n}, 0, p1;"
        for n, name in enumerate(
            ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        )
    )
    body += "or.b32 r6, r0, r1; or.b32 r7, r2, r3; or.b32 r8, r4, r5; or.b32 r6, r6, r7; or.b32 x, r6, r8;"
    (x,) = run_lanes(body, [a], [np.uint32])
    assert x.tolist() == [0b010101, 0b000110, 0b001000, 0b010101, 0b100101]
