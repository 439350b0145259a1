"""Elements of a fragment to anywhere in a tensor: `ws.scatter`."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, vector
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import INT, compare, when

from ..layouts.fragments import Access
from ..layouts.inference import Constraints, constrains
from ..state.checks import OpContext, legality_check
from ..state.handles import Fragment
from ..state.lowering import Lowering, lowers
from ..state.parameters import Pointer
from .values import is_writer, stored_value

Value = Any


@constrains(ws.ScatterOp)
def _constrain(c: Constraints, op: ws.ScatterOp) -> None:
    c.same(op, [op.fragment, op.positions])


@legality_check(ws.ScatterOp)
def _check(context: OpContext, op: ws.ScatterOp) -> None:
    if isinstance(op.target.owner, ir.OpView):
        raise op_error(op, "expects an argument of the kernel, got a view")
    context.check_inout(op, op.target)


def _element(fragment: Fragment, access: Access) -> Value:
    """The value of an access to one element."""
    found = stored_value(fragment, access)
    is_vector = isinstance(found.type, ir.VectorType)
    return vector.ExtractOp(found, [], [0]).result if is_vector else found


@lowers(ws.ScatterOp)
def _scatter(low: Lowering, op: ws.ScatterOp) -> None:
    fragment: Fragment = low[op.fragment]
    positions: Fragment = low[op.positions]
    writer, i64 = is_writer(low, fragment.layout), ir.IntegerType.get_signless(64)
    begin = low.arguments[Pointer(low.view(op.target).argument)]
    dynamic = ir.DenseI32ArrayAttr.get([-(2**31)])
    for access in fragment.layout.accesses():
        position = _element(positions, access)
        exists = compare("sge", position, 0)
        with when(exists if writer is None else INT.both(exists, writer)):
            offset = arith.ExtSIOp(i64, position).result
            cell = llvm.GEPOp(begin.type, begin, [offset], dynamic, ir.F32Type.get(), 0).result
            element = _element(fragment, access)
            if op.adds:
                order = llvm.AtomicOrdering.monotonic
                llvm.AtomicRMWOp(llvm.AtomicBinOp.fadd, cell, element, order, syncscope="device")
            else:
                llvm.StoreOp(element, cell)
