"""From `attn.delta` and `attn.sink_delta` to a kernel of threads.

All of a work tile is loaded before it is summed up, which keeps many loads in flight.
"""

import math
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.backward.delta import tensors_of
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.policy import DELTA, SINK_DELTA
from attn_mlir.schedules.backward.row_tiles import RowTile, each_row_tile, rows_kernel
from attn_mlir.schedules.backward.sinks import store_with_sinks
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

ROW_DIMS, NUMBER_DIMS = ("batch", "sq", "", ""), ("batch", "", "sq")


@register
class Delta:
    """Sums of products along rows, by threads alone."""

    policy: ClassVar[Policy] = DELTA

    def build(
        self, function: Any, op: attn.DeltaOp | attn.SinkDeltaOp, target: Target
    ) -> ws.KernelOp:
        """Builds the kernel of a function of one operation, whose results it returns in order.

        Raises:
          VerifyError: as of `rows_kernel`.
        """
        arguments = [_argument(name, value.type) for name, value in tensors_of(op).items()]
        return rows_kernel(function, op, arguments, "sum", _every_tile)


@register
class SinkDelta(Delta):
    """Sums of products along rows that a sink takes a part of."""

    policy: ClassVar[Policy] = SINK_DELTA


def _argument(name: str, kind: Any) -> b.Argument:
    """The tensor of an operand, or of a result."""
    memref = ir.MemRefType.get([*kind.shape], kind.element_type)
    role = "out" if name in ("delta", "weight", "dsinks") else "in"
    dims = {4: ROW_DIMS, 3: NUMBER_DIMS, 1: ("",)}[kind.rank]
    return b.Argument(name, role, memref, dims)


def _every_tile(tensors: dict[str, Value]) -> None:
    with each_row_tile(tensors["o"]) as tile:
        _of_tile(tensors, tile)


def _of_tile(tensors: dict[str, Value], tile: RowTile) -> None:
    sequence, head, first = tile.sequence, tile.head, tile.first
    f32 = ir.F32Type.get()

    def loaded(name: str, at: list[Value | int]) -> Value:
        return b.load_rows(tensors[name], tile.rows, tile.width, at, [1, 3])

    loads = [[loaded(name, x) for x in tile.parts] for name in ("o", "do")]
    (count,) = ws.FragmentType(tile.rows.type).shape
    sums = b.fill([count], b.f32_constant(0.0))
    for pair in zip(*loads, strict=True):
        sums = b.reduce_rows("add", b.map_elements(_product, *pair, element=f32), sums)

    if "sinks" in tensors:
        store_with_sinks(tensors, (sequence, first, head), sums)
        return

    def delta(total: Value, row: Value) -> Value:
        numbers = (tensors[name] for name in ("lse", "dlse") if name in tensors)
        lse, *dlse = (b.element(x, [sequence, head, b.INT.add(first, row)]) for x in numbers)
        for gradient in dlse:
            total = b.fsub(total, gradient)
        is_empty = b.fcompare("OEQ", lse, b.f32_constant(-math.inf))
        return b.select(is_empty, b.f32_constant(0.0), total)

    b.store_global(b.map_rows(delta, sums), tensors["delta"], [sequence, head, first], [2])


def _product(x: Value, y: Value) -> Value:
    """The product of two elements, in f32."""
    f32 = ir.F32Type.get()
    return b.fmul(arith.ExtFOp(f32, x).result, arith.ExtFOp(f32, y).result)
