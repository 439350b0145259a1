"""Random operands, with the edge values of each type among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rng = np.random.Generator

_F32 = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001,
    0x7F800001, 0x7FFFFFFF, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000,
    0x7F7FFFFF, 0xFF7FFFFF, 0x3F000000, 0x3FC00000, 0x40200000, 0x4B000000, 0x4B800001, 0x4F000000,
    0xCF000000, 0x4EFFFFFF, 0x4F7FFFFF, 0x5F000000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x387FC000,
    0x33800000, 0x33000000, 0x33000001, 0x43E00000, 0x43E80000, 0x47600000, 0x47700000, 0x3B000000,
    0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x7F7F7FFF, 0x7F7F8000, 0x42FE0000, 0xC3000000,
    0x437F0000, 0x3EFFFFFF, 0xBF000000, 0xBF333333, 0x36FFFFFF, 0x3A800000, 0x00400000, 0x00008000,
]  # fmt: skip
_F64 = [
    0x0000000000000000, 0x8000000000000000, 0x3FF0000000000000, 0xBFF0000000000000,
    0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x7FF0000000000001,
    0xFFF8000000001234, 0x0000000000000001, 0x800FFFFFFFFFFFFF, 0x0010000000000000,
    0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x3FE0000000000000, 0x3FF8000000000000,
    0x47EFFFFFE0000000, 0x47EFFFFFEFFFFFFF, 0x47EFFFFFF0000000, 0x36A0000000000000,
    0x3690000000000000, 0x3690000000000001, 0x380FFFFFE0000000, 0x3810000000000000,
    0x41DFFFFFFFC00000, 0x41E0000000000000, 0x43E0000000000000, 0x43F0000000000000,
    0xC3E0000000000000, 0x40EFFC0000000000, 0x40EFFE0000000000, 0x3E60000000000000,
]  # fmt: skip
_F16 = [
    0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0x7FFF, 0x0001, 0x8001,
    0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x3800, 0x3E00, 0x4100, 0x5F00, 0x5F80, 0x5B80,
    0x6000, 0x3555, 0x0002, 0x1400, 0x1000, 0x0C00, 0x7B00, 0x7B80,
]  # fmt: skip
_BF16 = [
    0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x7FFF, 0x0001, 0x8001,
    0x007F, 0x807F, 0x0080, 0x8080, 0x7F7F, 0xFF7F, 0x3F00, 0x3FC0, 0x4020, 0x43E0, 0x43E8, 0x4760,
    0x3EAB, 0x0040, 0x477F, 0x4780, 0x3380, 0x3300, 0x3B00, 0x4200,
]  # fmt: skip


def _integers(rng: Rng, bits: int, n: int) -> Array:
    """Uniform bits, small numbers of either sign, single bits and the ends of the ranges."""
    top = 1 << bits
    raw = [int.from_bytes(rng.bytes(bits // 8), "little") for _ in range(n)]
    kind = rng.integers(0, 8, n)
    edges = [0, 1, 2, top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1, 0xFF, 0x80, 0x7F]
    for i in range(n):
        if kind[i] == 0:
            raw[i] = edges[int(rng.integers(0, len(edges)))]
        elif kind[i] == 1:
            raw[i] = int(rng.integers(-40, 41)) % top
        elif kind[i] == 2:
            raw[i] = 1 << int(rng.integers(0, bits))
        elif kind[i] == 3:
            raw[i] >>= int(rng.integers(0, bits))
    return np.array(raw, f"u{bits // 8}")


def _floats(rng: Rng, special: list[int], bits: int, mantissa: int, n: int) -> Array:
    """Specials, any bits, and numbers of similar size (whose sums and products round)."""
    dtype = f"u{bits // 8}"
    bias = (1 << (bits - mantissa - 2)) - 1
    values = np.array([int.from_bytes(rng.bytes(bits // 8), "little") for _ in range(n)], dtype)
    kind = rng.integers(0, 8, n)
    spread = min(24, bias - 1)
    for i in range(n):
        if kind[i] < 2:
            values[i] = special[int(rng.integers(0, len(special)))]
        elif kind[i] < 6:
            reach = 2 if kind[i] < 4 else spread
            exponent = bias + int(rng.integers(-reach, reach + 1))
            sign = int(rng.integers(0, 2)) << (bits - 1)
            fraction = int(values[i]) & ((1 << mantissa) - 1)
            values[i] = sign | exponent << mantissa | fraction
    return values


def draw(rng: Rng, tag: str, n: int) -> Array:
    """`n` operands of a type, as unsigned integers of its width.

    Args:
      tag: a register type (`i16`, `i32`, `i64`, `f16`, `bf16`, `f16x2`, `bf16x2`, `f32`, `f64`),
        `amount` (shift counts and bit positions), `byte` (such below 256), `e4m3x2` or `e5m2x2`
        (pairs of codes).
    """
    if tag in ("f16x2", "bf16x2"):
        low, high = draw(rng, tag[:-2], n), draw(rng, tag[:-2], n)
        return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)
    if tag == "amount":
        small = rng.integers(0, 72, n, dtype=np.uint32)
        return np.where(rng.random(n) < 0.9, small, rng.integers(0, 2**32, n, dtype=np.uint32))
    if tag == "byte":
        small = rng.integers(0, 72, n, dtype=np.uint32)
        return np.where(rng.random(n) < 0.9, small, rng.integers(0, 256, n, dtype=np.uint32))
    if tag in ("e4m3x2", "e5m2x2"):
        return rng.integers(0, 1 << 16, n, dtype=np.uint16)
    if tag == "f32":
        return _floats(rng, _F32, 32, 23, n)
    if tag == "f64":
        return _floats(rng, _F64, 64, 52, n)
    if tag == "f16":
        return _floats(rng, _F16, 16, 10, n)
    if tag == "bf16":
        return _floats(rng, _BF16, 16, 7, n)
    return _integers(rng, int(tag[1:]), n)
