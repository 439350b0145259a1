"""Functions that emit matrix products."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.scalars import (
    i1,
)

from .memory import i64_attr

Value = Any


def mma(
    d: Value,
    a: Value,
    b: Value,
    *,
    accumulate: Value | bool,
    b_layout: str,
    a_layout: str = "mk",
    ctas: int = 1,
) -> None:
    """D = A B, plus D where `accumulate` holds, in tensor memory; by one CTA or a pair (`ctas`)."""
    if isinstance(accumulate, bool):
        accumulate = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), int(accumulate))).result
    op = ws.MmaOp(d, a, b, accumulate, ir.StringAttr.get(b_layout))
    if a_layout != "mk":
        op.operation.attributes["a_layout"] = ir.StringAttr.get(a_layout)
    if ctas > 1:
        op.operation.attributes["ctas"] = i64_attr(ctas)


def product(
    accumulators: Value,
    a: Value,
    b: Value,
    *,
    accumulate: Value | bool,
    b_layout: str,
    a_layout: str = "mk",
) -> Value:
    """A B, plus `accumulators` if `accumulate`, in registers; in flight until `wait_product`.

    The accumulators may be in flight too.
    """
    if isinstance(accumulate, bool):
        accumulate = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), int(accumulate))).result
    is_continued = isinstance(accumulators.type, ws.PendingType)
    kind = (
        accumulators.type if is_continued else ws.pending_type(ws.FragmentType(accumulators.type))
    )
    op = ws.ProductOp(accumulators, a, b, accumulate, ir.StringAttr.get(b_layout), kind)
    if a_layout != "mk":
        op.operation.attributes["a_layout"] = ir.StringAttr.get(a_layout)
    return op.pending


def wait_product(in_flight: Value, *, newest: int = 0) -> Value:
    """Waits for all but the `newest` products after this one; returns its accumulators."""
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), newest)
    return ws.SettleOp(in_flight, number, ws.PendingType(in_flight.type).fragment).accumulators


def dot(accumulators: Value, a: Value, b: Value, *, b_layout: str, upcasts: bool = False) -> Value:
    """`accumulators` + A B, of fragments of one warp; `upcasts` if B has 8 bits in memory."""
    op = ws.DotOp(accumulators, a, b, ir.StringAttr.get(b_layout), accumulators.type)
    if upcasts:
        op.operation.attributes[ws.WIDENED] = ir.UnitAttr.get()
    return op.totals
