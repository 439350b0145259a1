"""The arithmetic of one tensor-core instruction: a fused, truncating dot product (spec-ptx 2.6).

    e_max = largest exponent of all products and of c (zeros do not count)
    S     = sum of trunc(significand_i * 2^(e_i - e_max + F))      exact integers
    D     = S * 2^(e_max - F), rounded toward zero to float32 (to nearest even for float16)

A product's significand is not renormalised: it lies in [0, 4) and carries the sum of its operands'
exponents, where a subnormal operand has its format's smallest exponent.

Ambiguity resolved here: spec 2.6 leaves open where scale-input-d is applied; c is scaled (exactly)
before it is aligned.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .formats import FORMATS

F32 = npt.NDArray[np.float32]

ALIGN_BITS = 25  # F of 16-bit, tf32 and 8-bit instructions on sm_100; spec-ptx 2.6
ALIGN_BITS_MXF4 = 35  # F of mxf4 and mxf4nvf4; spec-ptx 2.6
ALIGN_BITS_WGMMA_FP8 = 13  # F of wgmma with 8-bit floats; spec-ptx 2.6
CANONICAL_NAN_F32 = 0x7FFFFFFF
CANONICAL_NAN_F16 = 0x7FFF
_ZERO_EXPONENT = -(1 << 20)  # below every real exponent
_LOWEST_EXPONENT = -800  # below every real exponent, and 2^800 is a float64

I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]


def finite_part(values: npt.NDArray[np.floating[Any]]) -> F64:
    """float64 copies; NaN and infinity become zero."""
    return np.where(np.isfinite(values), values, 0).astype(np.float64)


def exponents(values: F64, format_name: str) -> I32:
    """Exponents as the tensor core sees them; `_ZERO_EXPONENT` for zeros."""
    _, exponent = np.frexp(values)
    clipped = np.maximum(exponent - 1, FORMATS[format_name].min_exponent)
    return np.where(values == 0, _ZERO_EXPONENT, clipped).astype(np.int32)


def round_toward_zero(values: F64) -> F32:
    """float64 to float32 toward zero; subnormals kept, magnitudes of 2^128 and more to infinity."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(values)
    result = np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest)
    infinite = np.where(values < 0, -np.inf, np.inf)
    return np.where(np.abs(values) >= 2.0**128, infinite, result).astype(np.float32)


def _aligned_sum(terms: Iterable[F64], c: F64, e_max: I32, align_bits: int) -> F64:
    """S * 2^(e_max - F): float64 holds every term, and every partial sum, exactly."""
    shift = align_bits - np.maximum(e_max, _LOWEST_EXPONENT)
    scale = np.ldexp(1.0, shift)
    total = np.trunc(c * scale)
    for term in terms:
        term *= scale
        np.trunc(term, out=term)
        total += term
    return np.ldexp(total, -shift)


def fused_dot(
    a: F32,
    b: F32,
    c: F32,
    *,
    a_format: str,
    b_format: str,
    c_format: str = "f32",
    align_bits: int = ALIGN_BITS,
    a_scale: F32 | None = None,
    b_scale: F32 | None = None,
    scale_format: str = "",
    group: int = 1,
) -> F64:
    """D [M, N] before its final rounding, with NaN and infinity where the inputs have them.

    Args:
      a: [M, K]. b: [N, K]. c: [M, N], zeros where D is not an input.
      a_scale, b_scale: [M, blocks] and [N, blocks] block scales, or None.
      group: products that are summed exactly before they are aligned (16 for mxf4 kinds).
    """
    left, right, addend = finite_part(a), finite_part(b), finite_part(c)
    e_max = exponents(addend, c_format)
    if group > 1:
        assert a_scale is not None and b_scale is not None
        groups = [
            _group_term(left, right, a_scale, b_scale, scale_format, first, group)
            for first in range(0, left.shape[1], group)
        ]
        for value, exponent in groups:
            e_max = np.maximum(e_max, np.where(value == 0, _ZERO_EXPONENT, exponent))
        result = _aligned_sum((value for value, _ in groups), addend, e_max, align_bits)
        return _with_specials(result, a, b, c, a_scale, b_scale)
    # K first, so that one K index is one contiguous row
    ea, eb = exponents(left, a_format).T.copy(), exponents(right, b_format).T.copy()
    left, right = left.T.copy(), right.T.copy()
    for values, exponent, scale in ((left, ea, a_scale), (right, eb, b_scale)):
        if scale is not None:
            # a scale of format ue8m0 is a power of two: it moves the exponent alone
            power = np.repeat(finite_part(scale).T, values.shape[0] // scale.shape[1], axis=0)
            values *= power
            exponent += exponents(power, scale_format)
    for row, column in zip(ea, eb, strict=True):
        e_max = np.maximum(e_max, row[:, None] + column)
    products = (row[:, None] * column for row, column in zip(left, right, strict=True))
    result = _aligned_sum(products, addend, e_max, align_bits)
    return _with_specials(result, a, b, c, a_scale, b_scale)


def _group_term(
    a: F64, b: F64, a_scale: F32, b_scale: F32, scale_format: str, first: int, group: int
) -> tuple[F64, I32]:
    """The exact scaled sum of products `first` to `first + group`, and its exponent, [M, N]."""
    block = first * a_scale.shape[1] // a.shape[1]
    sa, sb = finite_part(a_scale[:, block]), finite_part(b_scale[:, block])
    span = slice(first, first + group)
    value = (a[:, span] @ b[:, span].T) * (sa[:, None] * sb)
    exponent = exponents(sa, scale_format)[:, None] + exponents(sb, scale_format)
    return value, exponent


def _with_specials(
    result: npt.NDArray[np.float64],
    a: F32,
    b: F32,
    c: F32,
    a_scale: F32 | None,
    b_scale: F32 | None,
) -> npt.NDArray[np.float64]:
    """Put NaN and infinity where IEEE arithmetic on the same inputs has them."""
    scales = [s for s in (a_scale, b_scale) if s is not None]
    if all(np.isfinite(x).all() for x in (a, b, c, *scales)):
        return result

    def sign_or_special(x: F32) -> npt.NDArray[np.float64]:
        return np.where(np.isfinite(x), np.sign(x), x).astype(np.float64)

    with np.errstate(invalid="ignore"):
        products = sign_or_special(a)[:, None, :] * sign_or_special(b)[None]
        ieee = products.sum(axis=-1) + np.where(np.isfinite(c), 0, c)
        if a_scale is not None and b_scale is not None:
            # a sum over an axis carries NaN, and nothing else, out of a row of scales
            nan_a = np.isnan(a_scale.sum(axis=-1, keepdims=True))
            nan_b = np.isnan(b_scale.sum(axis=-1, keepdims=True))
            ieee = np.where(nan_a | nan_b.T, np.nan, ieee)
    return np.where(np.isfinite(ieee), result, ieee)


def to_f32_bits(values: npt.NDArray[np.float64], fraction_bits: int = 23) -> npt.NDArray[np.uint32]:
    """Round toward zero to float32 (or to fewer fraction bits); NaN is canonical."""
    bits = round_toward_zero(values).view(np.uint32)
    if fraction_bits < 23:
        bits = bits & np.uint32(0xFFFFFFFF << (23 - fraction_bits) & 0xFFFFFFFF)
    return np.where(np.isnan(values), np.uint32(CANONICAL_NAN_F32), bits)


def to_f16_bits(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint32]:
    """Round to nearest even to float16, in the low half of a 32-bit word; NaN is canonical."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return np.where(np.isnan(values), np.uint32(CANONICAL_NAN_F16), bits)
