"""From `attn.delta` and `attn.sink_delta` to a kernel of threads: a work tile is rows of one head.

The 16-byte units of a row of O and of dO are in adjacent threads, so that accesses are whole lines
of memory. All of a tile is loaded before it is summed up, which keeps many loads in flight.
"""

import math
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.delta import tensors_of
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.policy import DELTA, SINK_DELTA
from attn_mlir.schedules.backward.sinks import store_with_sinks
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

WARPS = 4
LEAST_ROWS = 32  # of a work tile: at 64 columns two units a thread
MOST_COLUMNS = 64  # of a fragment: 128 bytes, a line
UNIT = 8  # elements of 16 bits in a thread's access of 16 bytes
ROW_DIMS, NUMBER_DIMS = ("batch", "sq", "", ""), ("batch", "", "sq")


@register
class Delta:
    """Sums of products along rows, by threads alone."""

    policy: ClassVar[Policy] = DELTA
    operation: ClassVar[type[Any]] = attn.DeltaOp

    def build(
        self, function: Any, op: attn.DeltaOp | attn.SinkDeltaOp, target: Target
    ) -> ws.KernelOp:
        """Builds the kernel of a function of one operation, whose results it returns in order.

        Raises:
          VerifyError: the function computes something else as well, or mixes up operands.
        """
        operations = list(function.body.blocks[0].operations)
        results = list(op.operation.results)
        if len(operations) != 2 or list(operations[1].operation.operands) != results:
            names = ", ".join(other.operation.name for other in operations)
            expected = f"one {op.OPERATION_NAME} and its func.return"
            raise op_error(function, f"expects {expected}, got {names}")
        if list(op.operation.operands) != list(function.arguments):
            raise op_error(op, "expects the function's arguments as its operands, in order")
        values = tensors_of(op)
        arguments = [_argument(name, value.type) for name, value in values.items()]
        kernel = b.declare_kernel(function.sym_name.value, arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            tensors = dict(zip(kernel.names, kernel.body.blocks[0].arguments, strict=True))
            b.emit_roles([b.Role("sum", lambda _: _every_tile(tensors), warps=WARPS)])
        return kernel


@register
class SinkDelta(Delta):
    """Sums of products along rows that a sink takes a part of."""

    policy: ClassVar[Policy] = SINK_DELTA
    operation: ClassVar[type[Any]] = attn.SinkDeltaOp


def _argument(name: str, kind: Any) -> b.Argument:
    """The tensor of an operand, or of a result."""
    memref = ir.MemRefType.get([*kind.shape], kind.element_type)
    role = "out" if name in ("delta", "weight", "dsinks") else "in"
    dims = {4: ROW_DIMS, 3: NUMBER_DIMS, 1: ("",)}[kind.rank]
    return b.Argument(name, role, memref, dims)


def _every_tile(tensors: dict[str, Value]) -> None:
    *_, columns = ir.MemRefType(tensors["o"].type).shape
    width = math.gcd(columns, MOST_COLUMNS)
    count = max(LEAST_ROWS, WARPS * WARP_THREADS * UNIT // width)  # whole rows of a fragment
    batch, sq, heads = (b.extent(tensors["o"], dim) for dim in range(3))
    with b.tiles([b.INT.ceildiv(sq, count), heads, batch], "single") as (block, head, sequence):
        _tile(tensors, (sequence, b.INT.mul(block, count), head), count, range(0, columns, width))


def _tile(
    tensors: dict[str, Value], place: tuple[Value, Value, Value], count: int, parts: range
) -> None:
    """Emits the code for a work tile.

    Args:
      tensors: the arguments of the kernel, by name.
      place: sequence, first query and head.
      count: number of rows.
      parts: first columns of the fragments that a row is loaded in.
    """
    sequence, first, head = place
    f32 = ir.F32Type.get()

    def position(row: Value) -> Value:
        return b.INT.add(first, row)

    rows = b.generate(position, [count], b.i32())

    def loaded(name: str, column: int) -> Value:
        return b.load_rows(tensors[name], rows, parts.step, [sequence, 0, head, column], [1, 3])

    loads = [[loaded(name, x) for x in parts] for name in ("o", "do")]
    sums = b.fill([count], b.f32_constant(0.0))
    for pair in zip(*loads, strict=True):
        sums = b.reduce_rows("add", b.map_elements(_product, *pair, element=f32), sums)

    if "sinks" in tensors:
        store_with_sinks(tensors, place, sums)
        return

    def delta(total: Value, row: Value) -> Value:
        numbers = (tensors[name] for name in ("lse", "dlse") if name in tensors)
        lse, *dlse = (b.element(x, [sequence, head, position(row)]) for x in numbers)
        for gradient in dlse:
            total = b.fsub(total, gradient)
        is_empty = b.fcompare("OEQ", lse, b.f32_constant(-math.inf))
        return b.select(is_empty, b.f32_constant(0.0), total)

    b.store_global(b.map_rows(delta, sums), tensors["delta"], [sequence, head, first], [2])


def _product(x: Value, y: Value) -> Value:
    """Of two elements, in f32."""
    f32 = ir.F32Type.get()
    return b.fmul(arith.ExtFOp(f32, x).result, arith.ExtFOp(f32, y).result)
