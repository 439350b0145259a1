"""cvt.rs: rounding by random bits that the program supplies.

A value is rounded away from zero when the 16 (f16: 13) leading bits of what is cut off, plus the
element's random number, carry. Which bits of the 32-bit operand an element gets was measured on
sm_100 parts and published for bf16x2, e4m3x4, e5m2x4 and e2m1x4. Ambiguities resolved here:
  - e2m3x4 and e3m2x4 take the bits as the other types with one byte per element do.
  - f16x2 takes bits 0..12 for its lower and 16..28 for its upper element.
"""

from typing import Any

import numpy as np

from ...machine import formats
from ...ptx.ast import Instruction, Vec
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes, select
from ..registry import runtime

# Bits of the random operand, most significant first, for the elements in operand order
_BYTE_ORDERS = (range(16, 32), range(31, 15, -1), range(16), range(15, -1, -1))
_NIBBLE_ORDERS = (
    (*range(8, 16), *range(24, 32)),
    (*range(31, 23, -1), *range(15, 7, -1)),
    (*range(8), *range(16, 24)),
    (*range(23, 15, -1), *range(7, -1, -1)),
)
_PAIR_ORDERS = {
    "f16": (range(28, 15, -1), range(12, -1, -1)),
    "bf16": (range(31, 15, -1), range(15, -1, -1)),
}


def random_numbers(name: str, bits: Lanes) -> list[Any]:
    """The random number of each element, as a fraction of 1 in float64, in operand order."""
    orders = _PAIR_ORDERS.get(name) or (_NIBBLE_ORDERS if name == "e2m1" else _BYTE_ORDERS)
    numbers: list[Any] = []
    for order in orders:
        positions = np.array(list(order), np.uint32)
        chosen = (bits[:, None] >> positions & 1).astype(np.float64)
        numbers.append(chosen @ np.ldexp(1.0, -1 - np.arange(positions.size)))
    return numbers


def round_by(name: str, values: Any, numbers: Any, saturate: bool) -> Any:
    """Codes of float32 values rounded by random numbers in [0, 1)."""
    f = formats.FORMATS[name]
    bit_count = 13 if name == "f16" else 16  # leading bits that decide
    x = values.astype(np.float64)
    finite = np.where(np.isfinite(x), np.abs(x), 0.0)
    _, exponent = np.frexp(finite)
    quantum = np.maximum(exponent - 1, f.min_exponent) - f.fraction_bits
    scaled = np.ldexp(finite, -quantum)
    whole = np.floor(scaled)
    fraction = np.floor(np.ldexp(scaled - whole, bit_count)) * 2.0**-bit_count
    rounded = np.ldexp(whole + (fraction + numbers >= 1.0), quantum)
    exact = np.where(np.isfinite(x), np.copysign(rounded, x), x)
    return formats.encode(name, exact, "rn", saturate)


@runtime
def stochastic_pack(name: str, options: tuple[bool, bool], bits: Lanes, *values: Any) -> Any:
    """The packed codes of 2 or 4 float32 lanes, the first in the highest place; uint32 lanes.

    Args:
      options: (.relu, .satfinite).
    """
    with_relu, saturate = options
    width = 32 // len(values) if name != "e2m1" else 4
    result = np.zeros(bits.size, np.uint32)
    for value, number in zip(values, random_numbers(name, bits), strict=True):
        if with_relu:
            value = select(value <= 0, np.float32(0), value)
        result = result << np.uint32(width) | round_by(name, value, number, saturate)
    return result


def emit_stochastic(e: Emitter, i: Instruction) -> None:
    """cvt.rs{.relu}{.satfinite}.{f16x2,bf16x2,TYPEx4}.f32 d, values, bits."""
    *first, bits = i.operands[1:]
    items = first[0].items if len(first) == 1 and isinstance(first[0], Vec) else tuple(first)
    to, source = i.parts[-2:]
    e.check_modifiers(i, i.parts[1:-2], ("rs", "relu", "satfinite"))
    name, count = to.rpartition("x")[0], to[-1]
    if source != "f32" or count != str(len(items)) or name not in formats.FORMATS:
        raise e.error(f"unknown form '{i.opcode}'")
    if count == "4" and not i.has("satfinite"):
        raise e.error(f"'{i.opcode}' needs .satfinite")
    values = ", ".join(e.src(item, "f32") for item in items)
    options = (i.has("relu"), i.has("satfinite"))
    text = f"stochastic_pack({name!r}, {options}, {e.src(bits, 'u32')}, {values})"
    if name == "e2m1":
        e.dst(i.operands[0], "u16", f"{text}.astype(uint16)")
    else:
        e.dst(i.operands[0], "u32", text)
