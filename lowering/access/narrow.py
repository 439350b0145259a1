"""Packed elements narrower than a register: rounding f32 to them, and upcasts of 8-bit floats."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import i32
from attn_mlir.element_types import OF_MLIR

Value = Any

WORD_BITS = 32  # bits of a register


def round_and_pack(part: Value, element: Any) -> Value:
    """Rounds f32 to a narrow type and packs neighbours into i32: one `cvt.rn.*x2` per pair."""
    words: list[Value] = []
    word = ir.VectorType.get([1], i32())
    per_word = WORD_BITS // ws.element_bits(element)
    kind = ir.VectorType.get([per_word], part.type.element_type)
    for first in range(0, part.type.shape[0], per_word):
        columns = vector.ExtractStridedSliceOp(kind, part, [first], [per_word], [1]).result
        rounded = _pairs(columns, element) if per_word == 2 else _bytes(columns, element)
        words.append(vector.ExtractOp(vector.BitCastOp(word, rounded), [], [0]).result)
    return vector.FromElementsOp(ir.VectorType.get([len(words)], i32()), words).result


def _pairs(columns: Value, element: Any) -> Value:
    """Pairs of f32 rounded to 16-bit floats."""
    return arith.TruncFOp(ir.VectorType.get([2], element), columns).result


def _bytes(columns: Value, element: Any) -> Value:
    """f32 rounded to 8-bit floats, two in each i16, with saturation to the largest value."""
    half = ir.IntegerType.get_signless(16)
    rounding = ir.Attribute.parse("#nvvm.fp_rnd_mode<rn>")
    saturation = ir.Attribute.parse("#nvvm.sat_mode<satfinite>")
    a, b, c, d = (vector.ExtractOp(columns, [], [i]).result for i in range(4))
    pairs = [
        nvvm.ConvertF32x2ToF8x2Op(half, high, low, element, rnd=rounding, sat=saturation).dst
        for low, high in ((a, b), (c, d))
    ]
    return vector.FromElementsOp(ir.VectorType.get([2], half), pairs).result


def upcast_and_pack(part: Value, element: Any, target: Any) -> Value:
    """Converts packed 8-bit floats exactly to f16 in twice as many i32, by a `cvt` per pair."""
    half = ir.VectorType.get([2], ir.IntegerType.get_signless(16))
    pair, word = ir.VectorType.get([2], target), ir.VectorType.get([1], i32())
    name = ir.StringAttr.get(f"llvm.nvvm.{OF_MLIR[str(element)].ptx}x2.to.f16x2.rn")
    words: list[Value] = []
    for number in range(part.type.shape[0]):
        lanes = vector.ExtractStridedSliceOp(word, part, [number], [1], [1]).result
        halves = vector.BitCastOp(half, lanes).result
        for position in range(2):
            bytes_ = vector.ExtractOp(halves, [], [position]).result
            converted = llvm.CallIntrinsicOp(pair, name, [bytes_], [], []).results_
            words.append(vector.ExtractOp(vector.BitCastOp(word, converted), [], [0]).result)
    return vector.FromElementsOp(ir.VectorType.get([len(words)], i32()), words).result
