"""Number formats of the tensor core: codes to values and values to codes (spec-ptx 2.7, 11).

A code is the format's bit pattern in an unsigned integer; a value is a float32 (exact for every
format here; ue8m0's 2^-127 is a float32 subnormal).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
Codes = npt.NDArray[np.unsignedinteger[Any]]
Rounding = Literal["rn", "rz", "rp"]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
      name: as in PTX.
      bits: width of a code.
      exponent_bits, fraction_bits, bias: the usual fields; `signed` says if there is a sign bit.
      has_infinity: the top exponent holds infinity and NaN as in IEEE 754.
      nan_code: canonical NaN without its sign bit, or None where the format has no NaN.
      max_value: largest finite value.
    """

    name: str
    bits: int
    exponent_bits: int
    fraction_bits: int
    bias: int
    max_value: float
    signed: bool = True
    has_infinity: bool = False
    nan_code: int | None = None

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value and of subnormals (ue8m0 has none)."""
        return 1 - self.bias if self.fraction_bits else -self.bias


FORMATS = {
    f.name: f
    for f in (
        Format("f32", 32, 8, 23, 127, (2 - 2.0**-23) * 2.0**127, True, True, 0x7FFFFFFF),
        Format("tf32", 32, 8, 10, 127, (2 - 2.0**-10) * 2.0**127, True, True, 0x7FFFE000),
        Format("bf16", 16, 8, 7, 127, (2 - 2.0**-7) * 2.0**127, True, True, 0x7FFF),
        Format("f16", 16, 5, 10, 15, 65504.0, True, True, 0x7FFF),
        Format("e5m2", 8, 5, 2, 15, 57344.0, True, True, 0x7F),
        Format("e4m3", 8, 4, 3, 7, 448.0, True, False, 0x7F),
        Format("e3m2", 6, 3, 2, 3, 28.0),
        Format("e2m3", 6, 2, 3, 1, 7.5),
        Format("e2m1", 4, 2, 1, 1, 6.0),
        Format("ue4m3", 8, 4, 3, 7, 448.0, False, False, 0x7F),
        Format("ue8m0", 8, 8, 0, 127, 2.0**127, False, False, 0xFF),
    )
}


@lru_cache(maxsize=16)
def _table(name: str) -> Values:
    """Value of each 8-bit code; narrower formats ignore the high bits, ue4m3 its bit 7."""
    f = FORMATS[name]
    codes = np.arange(256)
    if name == "ue8m0":
        values = np.ldexp(1.0, codes - 127)
        values[0xFF] = np.nan
        return values.astype(np.float32)
    exponent = (codes >> f.fraction_bits) & ((1 << f.exponent_bits) - 1)
    fraction = codes & ((1 << f.fraction_bits) - 1)
    significand = fraction + np.where(exponent > 0, 1 << f.fraction_bits, 0)
    values = np.ldexp(
        significand.astype(np.float64), np.maximum(exponent, 1) - f.bias - f.fraction_bits
    )
    magnitude = codes & ((1 << (f.exponent_bits + f.fraction_bits)) - 1)
    if f.has_infinity:
        top = exponent == (1 << f.exponent_bits) - 1
        values = np.where(top, np.where(fraction == 0, np.inf, np.nan), values)
    elif f.nan_code is not None:
        values = np.where(magnitude == f.nan_code, np.nan, values)
    if f.signed:
        negative = (codes >> (f.bits - 1)) & 1 == 1
        values = np.where(negative, -values, values)
    return values.astype(np.float32)


def decode(name: str, codes: Codes) -> Values:
    """Values of `codes` (same shape). tf32 ignores the low 13 bits; f32 is a bit cast."""
    if name == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "f16":
        return codes.astype(np.uint16, copy=False).view(np.float16).astype(np.float32)
    if name == "tf32":
        return (codes.astype(np.uint32, copy=False) & np.uint32(0xFFFFE000)).view(np.float32)
    if name == "f32":
        return codes.astype(np.uint32, copy=False).view(np.float32)
    return _table(name).take(codes)


def encode(
    name: str,
    values: npt.NDArray[np.floating[Any]],
    rounding: Rounding = "rn",
    saturate: bool = True,
) -> npt.NDArray[np.uint32]:
    """Round values to a format and return its codes.

    Args:
      rounding: "rn" to nearest, ties to even; "rz" toward zero; "rp" toward +infinity.
      saturate: finite overflow and infinity give the largest finite value (.satfinite); otherwise
        infinity, or NaN where the format has none.

    NaN gives the format's NaN with sign 0, or its largest positive value where it has none
    (spec 11, e2m1x2: "NaN -> +max"). ue8m0 and ue4m3 have no sign: negative values give code 0.
    """
    f = FORMATS[name]
    x = values.astype(np.float64)
    if name == "ue8m0":
        return _encode_ue8m0(x, rounding)
    is_nan = np.isnan(x)
    magnitude = np.where(is_nan, 0.0, np.abs(x))
    negative = np.signbit(x) & ~is_nan
    finite = np.where(np.isinf(magnitude), 0.0, magnitude)
    _, exponent = np.frexp(finite)
    quantum = np.maximum(exponent - 1, f.min_exponent) - f.fraction_bits
    scaled = np.ldexp(finite, -quantum)
    if rounding == "rn":
        rounded = np.rint(scaled)
    elif rounding == "rz":
        rounded = np.trunc(scaled)
    else:
        rounded = np.where(negative, np.trunc(scaled), np.ceil(scaled))
    result = np.where(np.isinf(magnitude), np.inf, np.ldexp(rounded, quantum))
    over = result > f.max_value
    # the rounded value is exact, so its fields can be read off
    safe = np.where(over, f.max_value, result)
    _, exponent = np.frexp(safe)
    quantum = np.maximum(exponent - 1, f.min_exponent) - f.fraction_bits
    significand = np.ldexp(safe, -quantum).astype(np.int64)
    is_normal = significand >= 1 << f.fraction_bits
    field = np.where(is_normal, quantum + f.fraction_bits + f.bias, 0)
    code = (field << f.fraction_bits) | (significand & ((1 << f.fraction_bits) - 1))
    toward_zero = rounding == "rz" or rounding == "rp"
    if not saturate:
        infinity = ((1 << f.exponent_bits) - 1) << f.fraction_bits
        beyond = infinity if f.has_infinity else f.nan_code
        if beyond is not None:
            clips = np.isfinite(magnitude) & (
                np.full(x.shape, rounding == "rz") | (toward_zero & negative)
            )
            code = np.where(over & ~clips, beyond, code)
    if f.signed:
        code = code | (negative.astype(np.int64) << (f.exponent_bits + f.fraction_bits))
    else:
        code = np.where(negative, 0, code)
    top = _code_of_max(f) if f.nan_code is None else f.nan_code
    if name == "tf32":
        code = np.where(is_nan, f.nan_code or 0, code << 13)
        return code.astype(np.uint32)
    return np.where(is_nan, top, code).astype(np.uint32)


def _code_of_max(f: Format) -> int:
    return (1 << (f.exponent_bits + f.fraction_bits)) - 1


def _encode_ue8m0(x: npt.NDArray[np.float64], rounding: Rounding) -> npt.NDArray[np.uint32]:
    """Power-of-two scale codes; magnitudes below 2^-127 (and negatives) give 0, above 2^127 254."""
    positive = np.where(np.isnan(x) | (x <= 0), 2.0**-127, x)
    positive = np.where(np.isinf(positive), 2.0**127, positive)
    fraction, exponent = np.frexp(positive)
    power = exponent - 1
    if rounding == "rp":
        power = power + (fraction > 0.5)
    elif rounding == "rn":
        power = power + (fraction >= 0.75)
    code = np.clip(power + 127, 0, 254)
    return np.where(np.isnan(x), 0xFF, code).astype(np.uint32)


def unpack_6_bit(units: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """16 codes of 6 bits from the first 12 bytes of each 16-byte unit: uint8[..., 16]."""
    b = units[..., :12].reshape(*units.shape[:-1], 4, 3).astype(np.uint32)
    word = b[..., 0] | b[..., 1] << 8 | b[..., 2] << 16
    codes = (word[..., None] >> np.array([0, 6, 12, 18], np.uint32)) & 0x3F
    return codes.reshape(*units.shape[:-1], 16).astype(np.uint8)


def unpack_4_bit(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Two codes of 4 bits per byte, low nibble first: uint8[..., 2 * n]."""
    codes = np.stack([packed & np.uint8(0xF), packed >> np.uint8(4)], axis=-1)
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] * 2)
