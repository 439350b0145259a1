"""Keys and values of 8 bits in products of 16 bits: conversions of operands in registers.

f16 represents every value of both 8-bit types, so keys and values are upcast to it, one `cvt` for
two of them, and both products are of f16. Queries, which are converted once per work tile, and
weights have to be f16 as well:

    queries of 8 bits   widened, exact
    of f16              as they are
    of bf16             times 2^e, which brings the largest of a row into [2^14, 2^15); scores are
                        multiplied by 2^-e. Elements below 2^-29 of the largest begin to lose bits
    weights             P times 2^15 in relation to the row's maximum: 11 exact bits down to weights
                        of 2^-29, 0 below 2^-40
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir

from .. import emit as b

Value = Any

P_EXPONENT = 15  # log2 of the largest weight
LARGEST_EXPONENT = 14  # of a row's largest query element after scaling, below 2^15
EXPONENT_BITS = 0x7F800000  # of f32
MANTISSA_WIDTH, EXPONENT_BIAS = 23, 127  # of f32
LEAST_EXPONENT = 15  # biased exponent of a row's largest, at least: 2^-e must not be subnormal


def upcast(fragment: Value) -> Value:
    """A fragment of 8-bit elements converted to f16."""
    f16 = ir.F16Type.get()
    return b.map_elements(lambda x: arith.ExtFOp(f16, x).result, fragment, element=f16)


class UpcastQueries:
    """A query tile of 16 rows, converted for products with upcast keys.

    Attributes:
      undo: [rows], 2^-e, by which scores have to be multiplied; None where that is 1.
    """

    def __init__(self, fragments: Sequence[Value]):
        """`fragments` are fragments [16, columns] that have all columns of the tile together."""
        kind = ws.FragmentType(fragments[0].type)
        self._up: Value | None = None
        self.undo: Value | None = None
        if not isinstance(kind.element, ir.BF16Type):
            return
        largest = b.fill([kind.shape[0]], b.f32_constant(0.0))
        for fragment in fragments:
            largest = b.reduce_rows("max", b.map_elements(b.fabs, _in_f32(fragment)), largest)
        self._up = b.map_elements(lambda x: power(x)[0], largest)
        self.undo = b.map_elements(lambda x: power(x)[1], largest)

    def operand(self, fragment: Value) -> Value:
        """One of the fragments, converted to f16."""
        kind, f16 = ws.FragmentType(fragment.type), ir.F16Type.get()
        if kind.element == f16:
            return fragment
        if self._up is None:
            return upcast(fragment)
        return b.rounded(b.times_rows(_in_f32(fragment), self._up), f16)


def _in_f32(fragment: Value) -> Value:
    f32 = ir.F32Type.get()
    return b.map_elements(lambda x: arith.ExtFOp(f32, x).result, fragment, element=f32)


def power(largest: Value) -> tuple[Value, Value]:
    """2^e and 2^-e such that `largest` x 2^e lies in [2^14, 2^15), computed from exponent bits."""
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
