"""The few instructions that are written as PTX text, and why."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import i32

Value = Any


def wait_tensor_loads(registers: Sequence[Value]) -> list[Value]:
    """`tcgen05.wait::ld` that redefines what the loads before it wrote.

    `nvvm.tcgen05.wait` names no registers, so the backend is free to use loaded values before
    it; tying them to the wait is what forbids that.

    Args:
      registers: i32 values that loads have defined; of another type, or regrouped, the backend
        would copy them before the wait.

    Returns:
      The same values, to be used from here on.
    """
    count = len(registers)
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")
    constraints = ",".join(["=r"] * count + [str(i) for i in range(count)])
    waited = llvm.InlineAsmOp(
        struct,
        list(registers),
        "tcgen05.wait::ld.sync.aligned;",
        constraints,
        has_side_effects=True,
    ).result
    return [
        llvm.ExtractValueOp(i32(), waited, ir.DenseI64ArrayAttr.get([i])).result
        for i in range(count)
    ]


_WORDS = {"i32": "r", "f32": "f"}  # types of one register, and their constraints


def is_word(value: Value) -> bool:
    """Whether `opaque` takes it: an i32 or f32."""
    return str(value.type) in _WORDS


def opaque(value: Value) -> Value:
    """A copy of an i32 or f32 that the optimiser cannot see through or move out of a loop.

    What is computed from it stays where it is written: the descriptors of all K steps, moved out
    of the tile loop, would cost the issuing thread more registers than it has.
    """
    kind = _WORDS[str(value.type)]
    return llvm.InlineAsmOp(
        value.type, [value], "mov.b32 $0, $1;", f"={kind},{kind}", has_side_effects=True
    ).result


def add_round_down(pair: Value, other: Value) -> Value:
    """`add.rm.ftz.f32x2` of two vector<2xf32>: no operation above PTX carries the rounding."""
    i64 = ir.IntegerType.get_signless(64)
    one = ir.VectorType.get([1], i64)

    def pack(value: Value) -> Value:
        return vector.ExtractOp(vector.BitCastOp(one, value), [], [0]).result

    total = nvvm.InlinePtxOp(
        [i64], [pack(pair), pack(other)], [], "add.rm.ftz.f32x2 $0, $1, $2;"
    ).results[0]
    return vector.BitCastOp(pair.type, vector.BroadcastOp(one, total)).result
