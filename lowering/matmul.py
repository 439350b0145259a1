"""`ws.mma` as `tcgen05.mma` instructions, each of 32 bytes of K."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm
from attn_mlir.dialect.scalars import INT, constant, i1, i32

from .context import Lowering, TileRef, lowers
from .inline_ptx import opaque
from .layouts import (
    ELEMENT_CODES,
    Operand,
    instruction_descriptor,
    k_major,
    mma_k,
    mn_major,
    tensor_columns,
)

Value = Any

ADDRESS_UNIT_BITS = 4  # descriptors hold addresses in units of 16 bytes
ADDRESS_MASK = 0x3FFFF  # 18-bit shared addresses


@lowers(ws.MmaOp)
def _mma(low: Lowering, op: ws.MmaOp) -> None:
    d, a, b = (low.tile(value) for value in (op.d, op.a, op.b))
    m, k_elements = a.kind.shape
    n = d.kind.shape[1]
    is_mn_major = op.b_layout.value == "kn"
    bits = ws.element_bits(a.kind.element)
    b_operand = mn_major(k_elements, bits) if is_mn_major else k_major(n, k_elements, bits)
    b_start = matrix_descriptor(low, b, b_operand)
    descriptor = instruction_descriptor(str(a.kind.element), m=m, n=n, b_is_mn_major=is_mn_major)
    if a.kind.space == "shared":
        a_operand = k_major(m, k_elements, bits)
        a_start = matrix_descriptor(low, a, a_operand)
        a_steps = [advanced(a_start, step) for step in a_operand.step_bytes]
    else:
        a_steps = _tensor_steps(a, k_elements)
    name, _ = ELEMENT_CODES[str(a.kind.element)]
    kind = ir.Attribute.parse(f"#nvvm.tcgen05_mma_kind<{name}>")
    group = ir.Attribute.parse("#nvvm.cta_group<cta_1>")
    target = _tensor_pointer(d.start())
    code = constant(descriptor)
    always = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), 1)).result
    for number, (a_step, b_bytes) in enumerate(zip(a_steps, b_operand.step_bytes, strict=True)):
        enable = always if number else low[op.accumulate]
        b_step = advanced(b_start, b_bytes)
        nvvm.Tcgen05MMAOp(kind, group, target, a_step, b_step, code, enable)


def _tensor_pointer(address: Value) -> Value:
    return llvm.IntToPtrOp(ir.Type.parse("!llvm.ptr<6>"), address).result


def _tensor_steps(a: TileRef, k_elements: int) -> list[Value]:
    """Address of each K step of an operand in tensor memory."""
    bits = ws.element_bits(a.kind.element)
    step = tensor_columns(mma_k(bits), bits)
    count = k_elements // mma_k(bits)
    base = opaque(a.start())
    return [_tensor_pointer(INT.add(base, i * step)) for i in range(count)]


def matrix_descriptor(low: Lowering, tile: TileRef, operand: Operand) -> Value:
    """The matrix descriptor of a shared tile, K step 0."""
    address = llvm.PtrToIntOp(i32(), low.shared_pointer(tile.address)).result
    masked = arith.AndIOp(opaque(address), constant(ADDRESS_MASK)).result
    units = arith.ShRUIOp(masked, constant(ADDRESS_UNIT_BITS)).result
    wide = arith.ExtUIOp(ir.IntegerType.get_signless(64), units).result
    return arith.OrIOp(wide, _i64(operand.descriptor)).result


def advanced(descriptor: Value, step_bytes: int) -> Value:
    """The same matrix `step_bytes` further on; the address field does not overflow."""
    if not step_bytes:
        return descriptor
    return arith.AddIOp(descriptor, _i64(step_bytes >> ADDRESS_UNIT_BITS)).result


def _i64(value: int) -> Value:
    kind = ir.IntegerType.get_signless(64)
    return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, value)).result
