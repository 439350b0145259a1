"""Keys and values of 8 bits in products of 16: what a warp makes of its operands in registers.

Both types of 8 bits have all their values in f16, so keys and values are widened to it, one `cvt` for
two of them, and both products are of f16. So queries, which are read once per work tile, and weights
have to be f16 as well:

    queries of 8 bits   widened, exact
    of f16              as they are
    of bf16             times 2^e of their row, which brings its largest to [2^14, 2^15); scores are
                        multiplied by 2^-e. What is 2^-29 of that and less begins to lose bits
    weights             P lifted by 2^15, at most 32768 where S equals the maximum: they are exact to 11
                        bits down to 2^-29, and lost from 2^-40 on
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir

from . import builder as b

Value = Any

LIFT = 15  # log2 of the largest weight
LARGEST_EXPONENT = 14  # of the largest query of a row, below 2^15
EXPONENT_BITS = 0x7F800000  # of f32
MANTISSA_WIDTH, EXPONENT_BIAS = 23, 127  # of f32
LEAST_EXPONENT = 15  # biased, of a row's largest: what undoes its power is no subnormal number


def widened(fragment: Value) -> Value:
    """A fragment of 8-bit elements in f16."""
    f16 = ir.F16Type.get()
    return b.map_elements(lambda x: arith.ExtFOp(f16, x).result, fragment, element=f16)


class WideQueries:
    """Queries of 16 rows as operands of products with widened keys.

    Attributes:
      undo: [rows], what scores have to be multiplied by; None where that is 1.
    """

    def __init__(self, parts: Sequence[Value]):
        """Of all columns, as fragments."""
        kind = ws.FragmentType(parts[0].type)
        self._up: Value | None = None
        self.undo: Value | None = None
        if not isinstance(kind.element, ir.BF16Type):
            return
        largest = b.fill([kind.shape[0]], b.f32_constant(0.0))
        for part in parts:
            largest = b.reduce_rows("max", b.map_elements(b.fabs, _in_f32(part)), largest)
        self._up = b.map_elements(lambda x: power(x)[0], largest)
        self.undo = b.map_elements(lambda x: power(x)[1], largest)

    def operand(self, part: Value) -> Value:
        """Some columns in f16."""
        kind, f16 = ws.FragmentType(part.type), ir.F16Type.get()
        if kind.element == f16:
            return part
        if self._up is None:
            return widened(part)
        return b.rounded(b.times_rows(_in_f32(part), self._up), f16)


def _in_f32(part: Value) -> Value:
    f32 = ir.F32Type.get()
    return b.map_elements(lambda x: arith.ExtFOp(f32, x).result, part, element=f32)


def power(largest: Value) -> tuple[Value, Value]:
    """2^e and 2^-e with `largest` 2^e from 2^14 to 2^15, by the bits of its exponent."""
    f32 = ir.F32Type.get()
    exponent = b.INT.both(arith.BitcastOp(b.i32(), largest).result, b.constant(EXPONENT_BITS))
    exponent = b.INT.max(exponent, LEAST_EXPONENT << MANTISSA_WIDTH)
    power = (2 * EXPONENT_BIAS + LARGEST_EXPONENT) << MANTISSA_WIDTH
    bits = (
        b.INT.sub(power - (1 << 32), exponent),
        b.INT.sub(exponent, LARGEST_EXPONENT << MANTISSA_WIDTH),
    )
    up, down = (arith.BitcastOp(f32, some).result for some in bits)
    return up, down
