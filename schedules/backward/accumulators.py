"""From `attn.zero_rows` and `attn.round_rows` to kernels of threads: a work tile is some rows of a
head.

Adjacent threads have the 16-byte units of a row, and all of a tile is loaded before it is written.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.policy import ROUND_ROWS, ZERO_ROWS
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

WARPS = 4
LEAST_ROWS = 32  # of a work tile: at 128 columns eight units a thread
MOST_COLUMNS = 64  # of a fragment
UNIT = 4  # elements of f32 in a thread's access of 16 bytes
DIMS = ("batch", "sq", "", "")


@register
class ZeroRows:
    """Zeros in the place of rows, by threads alone."""

    policy: ClassVar[Policy] = ZERO_ROWS
    operation: ClassVar[type[Any]] = attn.ZeroRowsOp

    def build(self, function: Any, op: attn.ZeroRowsOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation, whose result it returns.

        Raises:
          VerifyError: the function computes something else as well, or mixes up operands.
        """

        def zeros(sums: Value) -> None:
            def of_tile(rows: Value, parts: list[list[Value | int]], width: int) -> None:
                (count,) = ws.FragmentType(rows.type).shape
                zero = b.fill([count, width], b.f32_constant(0.0))
                for at in parts:
                    b.store_rows(zero, rows, sums, at, [1, 3])

            _over_tiles(sums, of_tile)

        return _kernel(function, op, [_argument("sums", "out", op.sums)], zeros)


@register
class RoundRows:
    """Rows times a number, rounded, by threads alone."""

    policy: ClassVar[Policy] = ROUND_ROWS
    operation: ClassVar[type[Any]] = attn.RoundRowsOp

    def build(self, function: Any, op: attn.RoundRowsOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation, whose result it returns.

        Raises:
          VerifyError: the function computes something else as well, or mixes up operands.
        """
        element = op.rounded.type.element_type

        def rounded(sums: Value, results: Value, scale: Value) -> None:
            def scaled(x: Value) -> Value:
                return arith.TruncFOp(element, b.fmul(x, scale)).result

            def of_tile(rows: Value, parts: list[list[Value | int]], width: int) -> None:
                loads = [b.load_rows(sums, rows, width, at, [1, 3]) for at in parts]
                for found, at in zip(loads, parts, strict=True):
                    fragment = b.map_elements(scaled, found, element=element)
                    b.store_rows(fragment, rows, results, at, [1, 3])

            _over_tiles(sums, of_tile)

        arguments = [_argument("sums", "in", op.sums), _argument("rounded", "out", op.rounded)]
        scale = b.Argument("scale", "scalar", ir.F32Type.get(), ())
        return _kernel(function, op, [*arguments, scale], rounded)


def _argument(name: str, role: str, value: Value) -> b.Argument:
    memref = ir.MemRefType.get([*value.type.shape], value.type.element_type)
    return b.Argument(name, role, memref, DIMS)


def _kernel(
    function: Any, op: Any, arguments: list[b.Argument], body: Callable[..., None]
) -> ws.KernelOp:
    """The kernel of one role, whose body gets the arguments.

    Raises:
      VerifyError: as of `RoundRows.build`.
    """
    operations = list(function.body.blocks[0].operations)
    if len(operations) != 2 or list(operations[1].operation.operands) != list(op.operation.results):
        names = ", ".join(other.operation.name for other in operations)
        raise op_error(
            function, f"expects one {op.OPERATION_NAME} and its func.return, got {names}"
        )
    if list(op.operation.operands) != list(function.arguments):
        raise op_error(op, "expects the function's arguments as its operands, in order")
    kernel = b.declare_kernel(function.sym_name.value, arguments)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        values = list(kernel.body.blocks[0].arguments)
        b.emit_roles([b.Role("rows", lambda _: body(*values), warps=WARPS)])
    return kernel


def _over_tiles(tensor: Value, body: Callable[[Value, list[list[Value | int]], int], None]) -> None:
    """Emits the loop over work tiles.

    Args:
      tensor: whose rows they are of.
      body: gets the numbers of the rows, a fragment; the coordinates of the parts of a row; and the
        columns of a part.
    """
    *_, columns = ir.MemRefType(tensor.type).shape
    width = math.gcd(columns, MOST_COLUMNS)
    count = max(LEAST_ROWS, WARPS * WARP_THREADS * UNIT // width)  # whole rows of a fragment
    batch, sq, heads = (b.extent(tensor, dim) for dim in range(3))
    with b.tiles([b.INT.ceildiv(sq, count), heads, batch], "single") as (block, head, sequence):
        first = b.INT.mul(block, count)

        def numbers(row: Value) -> Value:
            return b.INT.add(first, row)

        rows = b.generate(numbers, [count], b.i32())
        parts = [[sequence, 0, head, column] for column in range(0, columns, width)]
        body(rows, parts, width)
