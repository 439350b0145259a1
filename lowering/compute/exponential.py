"""2^x for fragments: mostly on the special-function unit, partly on the multiply-add units.

The polynomial splits x = n + f with n an integer and f in [0, 1), n by an addition that rounds down
to 2^0, and scales a cubic of f by 2^n with an integer addition to the exponent bits. The cubic's
relative error is 8.8e-5, below half a unit of bf16 (coefficients from FlashAttention-4). Valid for
x up to 127; below -127 the result is about the least normal number.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, math, vector
from attn_mlir.dialect.scalars import i32
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target

from ..access.inline_ptx import add_round_down
from ..access.values import parts_of_strips
from ..layouts import COLUMN, Layout
from ..state.handles import Fragment
from ..state.lowering import Lowering, lowers

Value = Any

LEAST_EXPONENT = -127.0
ROUND_TO_INTEGER = (
    12582912.0  # 2^23 + 2^22: adding it rounds to an integer, as the last bit of the sum is 2^0
)
COEFFICIENTS = (  # coefficients of f, f^2, f^3; the constant is 1
    0.695146143436431884765625,
    0.227564394474029541015625,
    0.077119089663028717041015625,
)
EXPONENT_SHIFT = 23  # position of the exponent in an f32


def _runs(is_fma: Sequence[bool]) -> list[tuple[int, int, bool]]:
    """Splits a part into runs (offset, length, whether on the multiply-add units)."""
    runs: list[tuple[int, int, bool]] = []
    for offset, kind in enumerate(is_fma):
        if runs and runs[-1][2] == kind:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, kind)
        else:
            runs.append((offset, 1, kind))
    return runs


def _pattern(op: ws.Exp2Op, layout: Layout, target: Target) -> list[bool]:
    """For each element of a strip, whether the multiply-add units compute it.

    A thread that holds whole rows follows the operation's pattern. In other layouts a thread's
    elements form no pairs for packed arithmetic, so all use the special-function unit; as they do
    on a target without packed f32 arithmetic, where a polynomial costs more than it saves.
    """
    columns = layout.element_offsets
    period, count = op.fma_period.value, op.fma_count.value
    begin, end = op.fma_begin.value, op.fma_end.value
    if not period or layout.thread_digits(COLUMN) or Feature.PACKED_F32 not in target.features:
        return [False] * len(columns)
    return [begin <= c < end and c % period >= period - count for c in columns]


@lowers(ws.Exp2Op)
def _exp2(low: Lowering, op: ws.Exp2Op) -> None:
    source: Fragment = low[op.exponent]
    parts: list[Value] = []
    for strip in parts_of_strips(source):
        pattern = _pattern(op, source.layout, low.target)
        for part in strip:
            width = part.type.shape[0]
            parts.append(_mixed(part, _runs(pattern[:width])))
            del pattern[:width]
    low[op.fragment] = Fragment(source.kind, source.layout, tuple(parts))


def _mixed(part: Value, runs: Sequence[tuple[int, int, bool]]) -> Value:
    """2^x of a part, run by run."""
    if len(runs) == 1:
        return _evaluate(part, runs[0][2])
    result = part
    for offset, length, is_fma in runs:
        kind = ir.VectorType.get([length], part.type.element_type)
        some = vector.ExtractStridedSliceOp(kind, part, [offset], [length], [1]).result
        result = vector.InsertStridedSliceOp(_evaluate(some, is_fma), result, [offset], [1]).result
    return result


def _evaluate(part: Value, is_fma: bool) -> Value:
    if not is_fma:
        return math.Exp2Op(part, fastmath=arith.FastMathFlags.afn).result
    result = part
    pair = ir.VectorType.get([2], part.type.element_type)
    for offset in range(0, part.type.shape[0], 2):
        two = vector.ExtractStridedSliceOp(pair, part, [offset], [2], [1]).result
        result = vector.InsertStridedSliceOp(_polynomial(two), result, [offset], [1]).result
    return result


def _constant(kind: Any, value: float) -> Value:
    element = ir.FloatAttr.get(kind.element_type, value)
    return arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, element)).result


def _polynomial(pair: Value) -> Value:
    """2^x of a vector<2xf32>."""
    kind = pair.type
    x = arith.MaxNumFOp(pair, _constant(kind, LEAST_EXPONENT)).result
    magic = _constant(kind, ROUND_TO_INTEGER)
    rounded = add_round_down(x, magic)
    fraction = arith.SubFOp(x, arith.SubFOp(rounded, magic).result).result
    value = _constant(kind, COEFFICIENTS[-1])
    for coefficient in (*reversed(COEFFICIENTS[:-1]), 1.0):
        value = math.FmaOp(value, fraction, _constant(kind, coefficient)).result
    return _scale_by_power(value, rounded)


def _scale_by_power(value: Value, rounded: Value) -> Value:
    """Adds the integer in the low bits of `rounded` to the exponent of `value`."""
    bits = ir.VectorType.get([2], i32())
    shift = ir.DenseElementsAttr.get_splat(bits, ir.IntegerAttr.get(i32(), EXPONENT_SHIFT))
    power = arith.ShLIOp(
        vector.BitCastOp(bits, rounded).result, arith.ConstantOp(bits, shift).result
    ).result
    scaled = arith.AddIOp(vector.BitCastOp(bits, value).result, power).result
    return vector.BitCastOp(value.type, scaled).result
