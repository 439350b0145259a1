"""How values are stored in lane arrays.

A register holds one numpy array for the 32 lanes of a warp; its *storage* is one of the kinds
below. An instruction asks for its operands in a kind of its own; equal widths differ by a view.

Arrays in registers are never written in place: an instruction makes a new array, so that copies
may share one.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

WARP_LANES = 32
Lanes = npt.NDArray[Any]
select: Any = np.where  # without a type: numpy's stubs lose the elements'

# kind -> (numpy dtype, bytes). "pair" is a packed f32x2 as float32[2, 32], low halves first;
# "u128" is uint64[2, 32].
KINDS: dict[str, tuple[type[np.generic], int]] = {
    "pred": (np.bool_, 0),
    "u8": (np.uint8, 1),
    "s8": (np.int8, 1),
    "u16": (np.uint16, 2),
    "s16": (np.int16, 2),
    "f16": (np.float16, 2),
    "u32": (np.uint32, 4),
    "s32": (np.int32, 4),
    "f32": (np.float32, 4),
    "u64": (np.uint64, 8),
    "s64": (np.int64, 8),
    "f64": (np.float64, 8),
    "pair": (np.float32, 8),
    "u128": (np.uint64, 16),
}

TYPE_KINDS: dict[str, str] = {
    "pred": "pred",
    **{f"b{bits}": f"u{bits}" for bits in (8, 16, 32, 64, 128)},
    **{f"u{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"s{bits}" for bits in (8, 16, 32, 64)},
    "f16": "f16",
    "bf16": "u16",
    "f16x2": "u32",
    "bf16x2": "u32",
    "u16x2": "u32",
    "s16x2": "u32",
    "f32": "f32",
    "f64": "f64",
    "f32x2": "pair",
    "tf32": "u32",
}


def constant(value: int | float, kind: str, float_bits: int = 0, float_width: int = 0) -> Lanes:
    """An immediate in all lanes, read-only.

    Args:
      float_bits, float_width: the IEEE pattern when the literal was written in hex form.
    """
    dtype, byte_count = KINDS[kind]
    if kind in ("f32", "f64", "f16"):
        if float_width and float_width == 8 * byte_count:
            raw = np.array([float_bits], np.uint32 if float_width == 32 else np.uint64)
            result = np.full(WARP_LANES, raw.view(dtype)[0], dtype)
        else:
            result = np.full(WARP_LANES, value, dtype)
    elif kind == "pred":
        result = np.full(WARP_LANES, bool(value))
    else:
        number = float_bits if float_width else int(value)
        if kind in ("pair", "u128"):
            half = 32 if kind == "pair" else 64
            parts = [(number >> shift) & ((1 << half) - 1) for shift in (0, half)]
            words = np.array(parts, np.uint32 if kind == "pair" else np.uint64)
            result = np.repeat(words[:, None], WARP_LANES, axis=1).view(dtype)
        else:
            unsigned = np.dtype(f"u{byte_count}")
            wrapped = number & ((1 << 8 * byte_count) - 1)
            result = np.full(WARP_LANES, wrapped, unsigned).view(dtype)
    result.setflags(write=False)
    return result


@cache
def zeros(storage: str) -> Lanes:
    """The value of a register that was never written, read-only."""
    return constant(0, storage)


def pack_pair(low: Lanes, high: Lanes) -> Lanes:
    """float32[2, 32] of two float32[32]."""
    result = np.empty((2, WARP_LANES), np.float32)
    result[0] = low
    result[1] = high
    return result


def pair_to_bits(pair: Lanes) -> Lanes:
    """uint64[32] of a packed pair."""
    return np.ascontiguousarray(pair.T).view(np.uint64).reshape(WARP_LANES)


def bits_to_pair(bits: Lanes) -> Lanes:
    """The packed pair of uint64[32]."""
    words = np.ascontiguousarray(bits).view(np.float32).reshape(WARP_LANES, 2)
    return np.ascontiguousarray(words.T)


def pack_words(low: Lanes, high: Lanes) -> Lanes:
    """uint64[32] of two uint32[32]."""
    result = np.empty((WARP_LANES, 2), np.uint32)
    result[:, 0] = low
    result[:, 1] = high
    return result.view(np.uint64).reshape(WARP_LANES)
