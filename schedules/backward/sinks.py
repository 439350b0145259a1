"""The weight of a head's sink in each of its rows, and a row's part of the sink's gradient."""

import math
from collections.abc import Callable, Mapping

from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Value
from attn_mlir.schedules.softmax.row import LN2, LOG2E


def store_with_sinks(
    tensors: Mapping[str, Value], place: tuple[Value, Value, Value], sums: Value
) -> None:
    """Stores the results of `attn.sink_delta` for the rows of a work tile.

    Args:
      tensors: the arguments of the kernel, by name.
      place: sequence, first query and head.
      sums: [rows], of O x dO.
    """
    sequence, first, head = place
    one, zero = b.f32_constant(1.0), b.f32_constant(0.0)

    def number(name: str, row: Value) -> Value:
        return b.element(tensors[name], [sequence, head, b.INT.add(first, row)])

    sink = b.element(tensors["sinks"], [head])
    if sink.type != ir.F32Type.get():
        sink = arith.ExtFOp(ir.F32Type.get(), sink).result

    def of_rows(body: Callable[[Value, Value, Value], Value]) -> Value:
        """Maps the sum, the LSE and the number of a row."""
        return b.map_rows(lambda total, row: body(total, number("lse", row), row), sums)

    def taken(lse: Value) -> Value:
        """The part of the sink; 0 of an empty row."""
        part = b.fdiv(one, b.fadd(one, _exp(b.fsub(lse, sink))))
        return b.select(_is_empty(lse), zero, part)

    def delta(total: Value, lse: Value, row: Value) -> Value:
        if "dlse" not in tensors:
            return total
        kept = b.fmul(b.fsub(one, taken(lse)), total)
        return b.select(_is_empty(lse), zero, b.fsub(kept, number("dlse", row)))

    def weight(total: Value, lse: Value, row: Value) -> Value:
        del total, row
        if "dlse" in tensors:
            return b.fsub(one, taken(lse))
        least = b.fneg(b.fabs(b.fsub(lse, sink)))
        more = b.fmul(b.log2(b.fadd(one, _exp(least))), b.f32_constant(LN2))
        return b.select(_is_empty(lse), lse, b.fadd(b.fmax(lse, sink), more))

    def gradient(total: Value, lse: Value, row: Value) -> Value:
        del row
        return b.fneg(b.fmul(taken(lse), total))

    for name, body in (("delta", delta), ("weight", weight)):
        b.store_global(of_rows(body), tensors[name], [sequence, head, first], [2])
    b.store_global(of_rows(gradient), tensors["dsinks"], [sequence, first, head, 0], [1])


def _exp(x: Value) -> Value:
    return b.exp2(b.fmul(x, b.f32_constant(LOG2E)))


def _is_empty(lse: Value) -> Value:
    return b.fcompare("OEQ", lse, b.f32_constant(-math.inf))
