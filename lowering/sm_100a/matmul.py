"""`ws.mma` as `tcgen05.mma` instructions, each of 32 bytes of K and up to 256 columns."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm
from attn_mlir.dialect.scalars import INT, constant, i1

from ..access.inline_ptx import opaque
from ..access.matrix_descriptors import advanced, matrix_descriptor
from ..layouts import SWIZZLE_BYTES, line_elements, mma_k, tensor_columns
from ..state.checks import MMA_MAX_COLUMNS
from ..state.handles import TileRef
from ..state.lowering import Lowering, lowers
from .descriptors import ELEMENT_CODES, instruction_descriptor, shared_operand

Value = Any


@lowers(ws.MmaOp)
def _mma(low: Lowering, op: ws.MmaOp) -> None:
    d, a, b = (low.tile(value) for value in (op.d, op.a, op.b))
    m, columns = d.kind.shape
    a_is_mn_major, b_is_mn_major = op.a_order == "km", op.b_layout.value == "kn"
    bits = ws.element_bits(a.kind.element)
    b_rows, b_columns = b.kind.shape
    b_operand = shared_operand(
        b.pitch,
        b_columns,
        bits,
        is_mn_major=b_is_mn_major,
        line_bytes=b.kind.line_bytes,
        k_rows=b_rows,
    )
    b_start = matrix_descriptor(low, b, b_operand)
    if a.kind.space == "shared":
        a_columns = a.kind.shape[1]
        a_operand = shared_operand(
            a.pitch,
            a_columns,
            bits,
            is_mn_major=a_is_mn_major,
            is_broadcast=a_is_mn_major and a_columns < m,
            line_bytes=a.kind.line_bytes,
        )
        a_start = matrix_descriptor(low, a, a_operand)
        a_steps = [partial(advanced, a_start, step) for step in a_operand.step_bytes]
    else:
        a_steps = _tensor_steps(a, a.kind.shape[1])
    name, _ = ELEMENT_CODES[str(a.kind.element)]
    kind = ir.Attribute.parse(f"#nvvm.tcgen05_mma_kind<{name}>")
    group = low.tensor_group
    always = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), 1)).result
    below = ws.PAIR if op.is_stacked else 1  # columns of the product in one of d
    for first in range(0, columns, MMA_MAX_COLUMNS // below):
        n = min(columns - first, MMA_MAX_COLUMNS // below)
        descriptor = instruction_descriptor(
            str(a.kind.element),
            m=m * op.cta_count // below,
            n=n * below,
            a_is_mn_major=a_is_mn_major,
            b_is_mn_major=b_is_mn_major,
        )
        target = _tensor_pointer(INT.add(d.address, d.tensor_offset(first)))
        code = constant(descriptor)
        lines = first // line_elements(bits) if b_is_mn_major else first
        left = lines * SWIZZLE_BYTES * (b.pitch if b_is_mn_major else 1)
        for number, (a_step, b_bytes) in enumerate(zip(a_steps, b_operand.step_bytes, strict=True)):
            enable = always if number else low[op.accumulate]
            # emitted here: all at once they exceed the uniform registers, and then ptxas uses none
            # in the whole kernel
            b_step = advanced(b_start, left + b_bytes)
            nvvm.Tcgen05MMAOp(kind, group, target, a_step(), b_step, code, enable)


def _tensor_pointer(address: Value) -> Value:
    return llvm.IntToPtrOp(ir.Type.parse("!llvm.ptr<6>"), address).result


def _tensor_steps(a: TileRef, k_elements: int) -> list[Callable[[], Value]]:
    """Functions that compute the address of each K step of an operand in tensor memory."""
    bits = ws.element_bits(a.kind.element)
    step = tensor_columns(mma_k(bits), bits)
    count = k_elements // mma_k(bits)
    base = opaque(a.start())
    return [lambda at=i * step: _tensor_pointer(INT.add(base, at)) for i in range(count)]
