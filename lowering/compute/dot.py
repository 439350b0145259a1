"""`ws.dot` as `mma.sync` instructions, each of 16 rows, 8 columns and 32 bytes of K.

Accumulators are f32. With 16-bit elements each instruction rounds once, toward zero. For 8-bit
elements ptxas emits two instructions of f16 each, and rounds their sum to nearest.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, llvm
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.element_types import NARROW_MLIR, OF_MLIR

from ..access.operands import (
    a_registers,
    accumulator_registers,
    b_registers,
    from_accumulator_registers,
)
from ..layouts.fragments import accumulator, in_fours, operand_a, operand_b, upcast_b
from ..layouts.inference import Constraints, constrains
from ..state.lowering import Lowering, lowers

Value = Any

D_REGISTERS = 4  # registers of D per thread
FORMS = {  # types in the intrinsic's name, by element type of a and b; LLVM, IntrinsicsNVVM.td
    "bf16": "m16n8k16.row.col.bf16",
    "f16": "m16n8k16.row.col.f32.f32",
    **{
        OF_MLIR[kind].mlir: f"m16n8k32.row.col.f32.{OF_MLIR[kind].ptx}.{OF_MLIR[kind].ptx}.f32"
        for kind in NARROW_MLIR
    },
}


@constrains(ws.DotOp)
def _constrain(c: Constraints, op: ws.DotOp) -> None:
    element = ws.FragmentType(op.a.type).element
    if str(element) not in FORMS:
        raise op_error(op, f"expects a and b of {' or '.join(FORMS)}, got {element}")
    if c.warps != 1:
        raise op_error(op, f"expects a role whose groups are one warp, got {c.warps}")
    bits = ws.element_bits(element)
    c.same(op, [op.accumulators, op.totals])
    is_kn, natural = op.b_layout.value == "kn", (accumulator(1), operand_a(1, bits))
    acc, a, b = *natural, operand_b(bits, is_kn=is_kn)
    if op.is_widened:
        acc, a = (in_fours(), natural[1]) if is_kn else (natural[0], in_fours())
        b = upcast_b(is_kn=is_kn)
    for value, scheme in ((op.accumulators, acc), (op.a, a), (op.b, b)):
        c.fixes(op, value, scheme)


@lowers(ws.DotOp)
def _dot(low: Lowering, op: ws.DotOp) -> None:
    kind, layout = ws.FragmentType(op.totals.type), low.layouts[op.totals]
    a, b = a_registers(low[op.a]), b_registers(low[op.b])
    element = ws.FragmentType(op.a.type).element
    blocks: list[list[Value]] = []
    for a_steps, registers in zip(a, accumulator_registers(low[op.accumulators]), strict=True):
        acc = [
            registers[first : first + D_REGISTERS]
            for first in range(0, len(registers), D_REGISTERS)
        ]
        for step, a_step in enumerate(a_steps):
            for number, b_steps in enumerate(b):
                acc[number] = _multiply(element, acc[number], a_step, b_steps[step])
        blocks.append([register for some in acc for register in some])
    low[op.totals] = from_accumulator_registers(kind, layout, blocks)


def _multiply(element: Any, acc: list[Value], a: list[Value], b: list[Value]) -> list[Value]:
    """One instruction: accumulators [16, 8] plus a [16, K] times b [8, K] transposed.

    It calls the LLVM intrinsic, as `nvvm.mma.sync` has no 8-bit elements.
    """
    if str(element) == "f16":  # the intrinsic takes them in pairs
        pair = ir.VectorType.get([2], element)
        a, b = ([llvm.BitcastOp(pair, register).result for register in some] for some in (a, b))
    form = FORMS[str(element)]
    several = ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * D_REGISTERS)})>")
    name = ir.StringAttr.get(f"llvm.nvvm.mma.{form}")
    products = llvm.CallIntrinsicOp(several, name, [*a, *b, *acc], [], []).results_
    f32 = ir.F32Type.get()
    return [
        llvm.ExtractValueOp(f32, products, ir.DenseI64ArrayAttr.get([i])).result
        for i in range(D_REGISTERS)
    ]
