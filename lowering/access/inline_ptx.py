"""The few instructions that are emitted as inline PTX, with the reason for each."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import builtin, ir, llvm, nvvm, vector

Value = Any


_WORDS = {"i32": "r", "f32": "f"}  # types that fit one register, and their constraints


def is_word(value: Value) -> bool:
    """Whether `opaque` accepts a value: an i32 or f32."""
    return str(value.type) in _WORDS


def opaque(value: Value) -> Value:
    """A copy of an i32 or f32 that LLVM cannot see through or hoist out of a loop.

    Values computed from it stay inside the loop: the descriptors of all K steps, hoisted, would
    need more registers than the issuing thread has.
    """
    kind = _WORDS[str(value.type)]
    return llvm.InlineAsmOp(
        value.type, [value], "mov.b32 $0, $1;", f"={kind},{kind}", has_side_effects=True
    ).result


def opaque_pointer(pointer: Value) -> Value:
    """A copy of a pointer to shared memory that LLVM computes here, without rematerialisation."""
    return llvm.InlineAsmOp(
        pointer.type, [pointer], "mov.b64 $0, $1;", "=l,l", has_side_effects=True
    ).result


def unmerged_branch(name: str) -> None:
    """Ends a branch such that LLVM does not merge it with others; no instruction."""
    llvm.InlineAsmOp(None, [], f"// {name}", "", has_side_effects=True)


def sum_not_before(value: Value, number: int, words: Sequence[Value]) -> Value:
    """An i32 plus a number, with a false dependence on some i32 or f32.

    The text would combine them if the grid had no CTAs. So neither LLVM nor ptxas computes users of
    the sum sooner, or folds the number into another addend of theirs.
    """
    kinds = [_WORDS[str(word.type)] for word in words]
    uses = "".join(f"@never xor.b32 $0, $0, ${i}; " for i in range(2, len(words) + 2))
    text = (
        "{ .reg .pred never; .reg .b32 count; mov.u32 count, %nctaid.x; "
        f"setp.eq.u32 never, count, 0; add.s32 $0, $1, {number}; {uses}}}"
    )
    constraints = ",".join(["=&r", "r", *kinds])
    return llvm.InlineAsmOp(value.type, [value, *words], text, constraints).result


def not_before(value: Value, token: Value) -> Value:
    """An f32 with a false dependence on the token of an arrival, as in `sum_not_before`."""
    i64 = ir.IntegerType.get_signless(64)
    word = builtin.UnrealizedConversionCastOp([i64], [token]).results[0]
    text = (
        "{ .reg .pred never; .reg .b32 count, low, high; mov.u32 count, %nctaid.x; "
        "setp.eq.u32 never, count, 0; mov.b64 {low, high}, $2; mov.b32 $0, $1; "
        "@never mov.b32 $0, low; }"
    )
    return llvm.InlineAsmOp(value.type, [value, word], text, "=&f,f,l").result


def opaque_vector(values: Value) -> Value:
    """A vector of f32 that LLVM computes here, without rematerialisation; no instruction."""
    (count,), f32 = values.type.shape, ir.F32Type.get()
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * count)})>")
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)])
    elements = [vector.ExtractOp(values, [], [i]).result for i in range(count)]
    result = llvm.InlineAsmOp(struct, elements, "", constraints, has_side_effects=True).result
    fields = [
        llvm.ExtractValueOp(f32, result, ir.DenseI64ArrayAttr.get([i])).result for i in range(count)
    ]
    return vector.FromElementsOp(values.type, fields).result


def add_round_down(pair: Value, other: Value) -> Value:
    """`add.rm.ftz.f32x2` of two vector<2xf32>; no operation above PTX has this rounding."""
    i64 = ir.IntegerType.get_signless(64)
    one = ir.VectorType.get([1], i64)

    def pack(value: Value) -> Value:
        return vector.ExtractOp(vector.BitCastOp(one, value), [], [0]).result

    total = nvvm.InlinePtxOp(
        [i64], [pack(pair), pack(other)], [], "add.rm.ftz.f32x2 $0, $1, $2;"
    ).results[0]
    return vector.BitCastOp(pair.type, vector.BroadcastOp(one, total)).result
