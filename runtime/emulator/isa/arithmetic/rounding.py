"""Exactly rounded arithmetic on lane arrays.

A sum or product that must be rounded once to a narrow type is first formed in float64 rounded to
odd (the last bit says "inexact"), which a second rounding to 24 or fewer bits cannot disturb.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...ptx.kinds import select
from ..registry import runtime

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_TIE_BITS = np.int64(0x0FFF_FFFF)  # all zero in every float64 that is a tie between two float32
_SMALLEST_NORMAL = np.array(2.0**-126, np.float32)
_ZERO = np.array(0.0, np.float32)


@runtime
def flush(x: Any) -> Any:
    """Subnormal float32 to zero of the same sign (`.ftz`)."""
    small = np.abs(x) < _SMALLEST_NORMAL
    if np.count_nonzero(small) == 0:
        return x
    return select(small, np.copysign(_ZERO, x), x)


def odd_sum(p: F64, c: F64) -> F64:
    """p + c in float64, rounded to odd."""
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    fix = (error != 0) & ((bits & 1) == 0) & np.isfinite(s)
    if not fix.any():
        return s
    step = select((error > 0) == (s > 0), np.int64(1), np.int64(-1))
    return select(fix, bits + step, bits).view(np.float64)


def to_f32(x: F64, mode: str) -> Any:
    """float64 (exact, or rounded to odd) to float32; mode "rn", "rz", "rm" or "rp"."""
    y = x.astype(np.float32)
    if mode == "rn":
        return y
    wide = y.astype(np.float64)
    if mode == "rz":
        wrong = np.abs(wide) > np.abs(x)
        goal = np.zeros_like(y)
    elif mode == "rm":
        wrong, goal = wide > x, np.full_like(y, -np.inf)
    else:
        wrong, goal = wide < x, np.full_like(y, np.inf)
    return select(wrong, np.nextafter(y, goal), y)


@runtime
def fma_f32(a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding to nearest; float32 arrays of any shape."""
    p = np.multiply(a, b, dtype=np.float64)
    s = p + c
    if np.count_nonzero(s.view(np.int64) & _TIE_BITS) != s.size:
        s = odd_sum(p, c.astype(np.float64))
    return s.astype(np.float32)


@runtime
def fma_f32_mode(a: Any, b: Any, c: Any, mode: str) -> Any:
    """fma in a directed rounding mode."""
    p = np.multiply(a, b, dtype=np.float64)
    wide = c.astype(np.float64)
    return _rounded_sum(odd_sum(p, wide), p, wide, mode)


def _rounded_sum(s: F64, a: F64, b: F64, mode: str) -> Any:
    """The sum s = a + b to float32; rounding down, an exact zero is -0 unless both terms are +0."""
    result = to_f32(s, mode)
    if mode == "rm":
        zero = (s == 0) & ~((a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b))
        result = select(zero, np.float32(-0.0), result)
    return result


@runtime
def add_f32_mode(a: Any, b: Any, mode: str) -> Any:
    """a + b in a directed rounding mode."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return _rounded_sum(odd_sum(x, y), x, y, mode)


@runtime
def mul_f32_mode(a: Any, b: Any, mode: str) -> Any:
    """a * b in a directed rounding mode."""
    return to_f32(np.multiply(a, b, dtype=np.float64), mode)


@runtime
def div_f32_mode(a: Any, b: Any, mode: str) -> Any:
    """a / b, correctly rounded: the float64 quotient made odd by the sign of its remainder."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    q = x / y
    if mode == "rn":
        return q.astype(np.float32)  # 53 bits are more than 2 * 24 + 1: innocuous
    return to_f32(_odd_toward(q, _residual(x, q, y), np.signbit(y)), mode)


@runtime
def sqrt_f32_mode(a: Any, mode: str) -> Any:
    """The square root, correctly rounded."""
    x = a.astype(np.float64)
    q: F64 = np.sqrt(x)
    if mode == "rn":
        return q.astype(np.float32)
    return to_f32(_odd_toward(q, _residual(x, q, q), np.zeros(q.shape, np.bool_)), mode)


def _residual(x: F64, q: F64, y: F64) -> F64:
    """x - q * y in extended precision, good enough for its sign."""
    wide = x.astype(np.longdouble) - q.astype(np.longdouble) * y.astype(np.longdouble)
    return wide.astype(np.float64)


def _odd_toward(q: F64, residual: F64, flip: npt.NDArray[np.bool_]) -> F64:
    bits = q.view(np.int64)
    fix = (residual != 0) & ((bits & 1) == 0) & np.isfinite(q) & (q != 0)
    up = (residual > 0) != flip
    step = select(up == (q > 0), np.int64(1), np.int64(-1))
    return select(fix, bits + step, bits).view(np.float64)


# ---- 16-bit types: bits <-> float64


@runtime
def half_to_f64(bits: Any, is_bf16: bool) -> Any:
    """uint16 bits of f16 or bf16, exactly."""
    if is_bf16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.view(np.float16).astype(np.float64)


@runtime
def f64_to_half(x: Any, is_bf16: bool, mode: str = "rn") -> Any:
    """float64 (exact or odd) to uint16 bits of f16 or bf16; NaN becomes 0x7FFF."""
    if is_bf16:
        return f32_to_bf16(_f32_odd(x), mode)
    y = x.astype(np.float16)
    if mode != "rn":
        wide = y.astype(np.float64)
        if mode == "rz":
            wrong, goal = np.abs(wide) > np.abs(x), np.zeros_like(y)
        elif mode == "rm":
            wrong, goal = wide > x, np.full_like(y, -np.inf)
        else:
            wrong, goal = wide < x, np.full_like(y, np.inf)
        y = select(wrong, np.nextafter(y, goal), y)
    return select(np.isnan(x), np.uint16(0x7FFF), y.view(np.uint16))


def _f32_odd(x: F64) -> F32:
    """float64 to float32, rounded to odd."""
    y = x.astype(np.float32)
    wide = y.astype(np.float64)
    bits = y.view(np.int32)
    fix = (wide != x) & ((bits & 1) == 0) & np.isfinite(x)
    if not fix.any():
        return y
    step = select((x > wide) == (wide > 0), np.int32(1), np.int32(-1))
    from_zero = select(x > 0, np.int32(1), np.int32(-(2**31) + 1))
    stepped = select(wide == 0, from_zero, bits + step)
    return select(fix, stepped, bits).view(np.float32)


@runtime
def f32_to_bf16(x: Any, mode: str = "rn") -> Any:
    """float32 (any shape) to uint16 bits of bf16; NaN becomes 0x7FFF."""
    if mode == "rn":
        result = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    else:
        bits = x.view(np.uint32)
        high = (bits >> np.uint32(16)).astype(np.uint16)
        if mode == "rna":
            high = ((bits.astype(np.uint64) + np.uint64(0x8000)) >> np.uint64(16)).astype(np.uint16)
        elif mode in ("rm", "rp"):
            inexact = (bits & np.uint32(0xFFFF)) != 0
            away = inexact & (np.signbit(x) == (mode == "rm"))
            high = high + away.astype(np.uint16)
        result = high
    nan = x != x
    if nan.any():
        result = select(nan, np.uint16(0x7FFF), result)
    return result


@runtime
def f32_to_f16(x: Any, mode: str = "rn") -> Any:
    """float32 (any shape) to uint16 bits of f16; NaN becomes 0x7FFF."""
    if mode == "rn":
        result = x.astype(np.float16).view(np.uint16)
        nan = x != x
        return select(nan, np.uint16(0x7FFF), result) if nan.any() else result
    return f64_to_half(x.astype(np.float64), False, mode)
