"""Prefetches to the L2 cache, by the copy engine."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm
from attn_mlir.dialect.scalars import INT, i32

from ..state.checks import OpContext, check_one_thread, legality_check
from ..state.lowering import Lowering, element_pointer, lowers
from .copies import box_start

Value = Any

UNIT_BYTES = 16  # alignment of address and size; PTX ISA, cp.async.bulk.prefetch


@lowers(ws.CtaOp)
def _cta(low: Lowering, op: ws.CtaOp) -> None:
    low[op.number] = nvvm.BlockIdXOp(results=[i32()]).result


@lowers(ws.PrefetchLineOp)
def _prefetch_line(low: Lowering, op: ws.PrefetchLineOp) -> None:
    """Prefetches all 16-byte units that contain an element of the line, which are mapped memory."""
    i64 = ir.IntegerType.get_signless(64)
    pointer = element_pointer(low, op.source, [low[coord] for coord in op.coords])
    bits = ws.element_bits(ir.MemRefType(op.source.type).element_type)
    low_bits = arith.ConstantOp(i64, ir.IntegerAttr.get(i64, UNIT_BYTES - 1)).result
    in_front = arith.TruncIOp(
        i32(), arith.AndIOp(llvm.PtrToIntOp(i64, pointer).result, low_bits).result
    ).result
    begin = llvm.GEPOp(
        pointer.type,
        pointer,
        [INT.sub(0, in_front)],
        ir.DenseI32ArrayAttr.get([-2147483648]),
        ir.IntegerType.get_signless(8),
        0,
    ).result
    used = INT.add(in_front, INT.mul(low[op.count], bits // 8))
    units = INT.ceildiv(used, UNIT_BYTES)
    nvvm.CpAsyncBulkPrefetchOp(begin, INT.mul(units, UNIT_BYTES))


@lowers(ws.PrefetchBoxOp)
def _prefetch_box(low: Lowering, op: ws.PrefetchBoxOp) -> None:
    parameter = low.signature.prefetch_map(op)
    for number in range(parameter.box_count):
        coords = box_start(low, op.source, op.coords, parameter, number)
        nvvm.CpAsyncBulkTensorPrefetchOp(low.arguments[parameter], coords, [])


@legality_check(ws.PrefetchLineOp)
def _check_line(context: OpContext, op: ws.PrefetchLineOp) -> None:
    check_one_thread(context, op)


@legality_check(ws.PrefetchBoxOp)
def _check_box(context: OpContext, op: ws.PrefetchBoxOp) -> None:
    check_one_thread(context, op)
