"""The arithmetic of one tensor-core instruction: a fused, truncating dot product (spec-ptx 2.6).

    e_max = largest exponent of all products and of c (zeros do not count)
    S     = sum of trunc(significand_i * 2^(e_i - e_max + F))      exact integers
    D     = S * 2^(e_max - F), rounded toward zero to float32 (to nearest even for float16)

A product's significand is not renormalised: it lies in [0, 4) and carries the sum of its operands'
exponents, where a subnormal operand has its format's smallest exponent.

Ambiguity resolved here: spec 2.6 leaves open where scale-input-d is applied; c is scaled (exactly)
before it is aligned.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .formats import FORMATS

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

ALIGN_BITS = 25  # F of 16-bit, tf32 and 8-bit instructions on sm_100; spec-ptx 2.6
ALIGN_BITS_MXF4 = 35  # F of mxf4 and mxf4nvf4; spec-ptx 2.6
ALIGN_BITS_WGMMA_FP8 = 13  # F of wgmma with 8-bit floats; spec-ptx 2.6
CANONICAL_NAN_F32 = 0x7FFFFFFF
CANONICAL_NAN_F16 = 0x7FFF
_ZERO_EXPONENT = -(1 << 20)  # below every real exponent
_CHUNK_PRODUCTS = 1 << 20  # products formed at once; bounds the temporaries to a few 8 MB arrays


@dataclass(frozen=True)
class Terms:
    """Signed integers with exponents: value = significand * 2^(exponent - fraction_bits).

    Attributes:
      significand: int64. exponent: int64, `_ZERO_EXPONENT` where the significand is 0.
    """

    significand: I64
    exponent: I64
    fraction_bits: int


def split(values: npt.NDArray[np.floating[Any]], format_name: str) -> Terms:
    """Take finite values of a format apart; NaN and infinity come out as zero."""
    f = FORMATS[format_name]
    x = np.where(np.isfinite(values), values, 0).astype(np.float64)
    _, exponent = np.frexp(x)
    exponent = np.maximum(exponent.astype(np.int64) - 1, f.min_exponent)
    significand = np.ldexp(x, f.fraction_bits - exponent).astype(np.int64)
    return Terms(significand, np.where(significand == 0, _ZERO_EXPONENT, exponent), f.fraction_bits)


def round_toward_zero(values: npt.NDArray[np.float64]) -> F32:
    """float64 to float32 toward zero; subnormals kept, magnitudes of 2^128 and more to infinity."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(values)
    result = np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest)
    infinite = np.where(values < 0, -np.inf, np.inf)
    return np.where(np.abs(values) >= 2.0**128, infinite, result).astype(np.float32)


def fused_sum(
    terms: Terms,
    c: Terms,
    align_bits: int,
) -> npt.NDArray[np.float64]:
    """Exact float64 of S * 2^(e_max - F), for terms [..., K] and c [...]."""
    e_max = np.maximum(terms.exponent.max(axis=-1), c.exponent)
    total = _aligned(terms, e_max[..., None], align_bits).sum(axis=-1)
    total += _aligned(c, e_max, align_bits)
    return np.ldexp(total.astype(np.float64), np.maximum(e_max, -4096) - align_bits)


def _aligned(terms: Terms, e_max: I64, align_bits: int) -> I64:
    shift = align_bits - terms.fraction_bits - (e_max - terms.exponent)
    magnitude = np.abs(terms.significand)
    left = np.where(shift > 0, magnitude << np.clip(shift, 0, 40), magnitude)
    moved = np.where(shift < 0, left >> np.clip(-shift, 0, 63), left)
    return np.where(terms.significand < 0, -moved, moved)


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
) -> npt.NDArray[np.float64]:
    """D [M, N] before its final rounding, with NaN and infinity where the inputs have them.

    Args:
      a: [M, K]. b: [N, K]. c: [M, N], zeros where D is not an input.
      a_scale, b_scale: [M, blocks] and [N, blocks] block scales, or None.
      group: products that are summed exactly before they are aligned (16 for mxf4 kinds).
    """
    ta, tb = split(a, a_format), split(b, b_format)
    tc = split(c, c_format)
    rows, inner = a.shape
    columns = b.shape[0]
    bits = ta.fraction_bits + tb.fraction_bits
    sa = None if a_scale is None else split(a_scale, scale_format)
    sb = None if b_scale is None else split(b_scale, scale_format)
    result = np.empty((rows, columns), np.float64)
    step = max(1, _CHUNK_PRODUCTS // (columns * inner))
    for r in range(0, rows, step):
        part = slice(r, r + step)
        significand = ta.significand[part, None, :] * tb.significand[None]
        exponent = ta.exponent[part, None, :] + tb.exponent[None]
        fraction_bits = bits
        if group > 1:
            fraction_bits, significand, exponent = _sum_groups(
                significand, exponent, ta, tb, group, fraction_bits
            )
        if sa is not None and sb is not None:
            repeat = significand.shape[-1] // sa.significand.shape[-1]

            def spread(x: I64, repeat: int = repeat) -> I64:
                return np.repeat(x, repeat, axis=-1)

            significand = (
                significand * spread(sa.significand)[part, None, :] * spread(sb.significand)[None]
            )
            exponent = exponent + spread(sa.exponent)[part, None, :] + spread(sb.exponent)[None]
            fraction_bits += sa.fraction_bits + sb.fraction_bits
        exponent = np.where(significand == 0, _ZERO_EXPONENT, exponent)
        terms = Terms(significand, exponent, fraction_bits)
        result[part] = fused_sum(
            terms, Terms(tc.significand[part], tc.exponent[part], tc.fraction_bits), align_bits
        )
    return _with_specials(result, a, b, c, a_scale, b_scale)


def _sum_groups(
    significand: I64, exponent: I64, ta: Terms, tb: Terms, group: int, fraction_bits: int
) -> tuple[int, I64, I64]:
    """Exact sums of `group` neighbouring products, as integers with exponent 0."""
    lowest = int(ta.exponent[ta.significand != 0].min(initial=0)) + int(
        tb.exponent[tb.significand != 0].min(initial=0)
    )
    scaled = significand << np.where(significand == 0, 0, exponent - lowest)
    sums = scaled.reshape(*scaled.shape[:-1], -1, group).sum(axis=-1)
    return fraction_bits - lowest, sums, np.zeros_like(sums)


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
