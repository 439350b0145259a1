"""From `attn.zero_rows` and `attn.round_rows` to kernels of threads.

All of a work tile is loaded before it is written.
"""

from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.policy import ROUND_ROWS, ZERO_ROWS
from attn_mlir.schedules.backward.row_tiles import each_row_tile, rows_kernel
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

DIMS = ("batch", "sq", "", "")


@register
class ZeroRows:
    """Zeros in the place of rows."""

    policy: ClassVar[Policy] = ZERO_ROWS

    def build(self, function: Any, op: attn.ZeroRowsOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation.

        Raises:
          VerifyError: as of `rows_kernel`.
        """
        return rows_kernel(function, op, [_argument("accum", "out", op.accum)], "zero", _zeros)


@register
class RoundRows:
    """Rows times a number, rounded."""

    policy: ClassVar[Policy] = ROUND_ROWS

    def build(self, function: Any, op: attn.RoundRowsOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation.

        Raises:
          VerifyError: as of `rows_kernel`.
        """
        arguments = [_argument("accum", "in", op.accum), _argument("rounded", "out", op.rounded)]
        scale = b.Argument("scale", "scalar", ir.F32Type.get(), ())
        return rows_kernel(function, op, [*arguments, scale], "round", _rounded)


def _argument(name: str, role: str, value: Value) -> b.Argument:
    memref = ir.MemRefType.get([*value.type.shape], value.type.element_type)
    return b.Argument(name, role, memref, DIMS)


def _zeros(tensors: dict[str, Value]) -> None:
    with each_row_tile(tensors["accum"]) as tile:
        (count,) = ws.FragmentType(tile.rows.type).shape
        zero = b.fill([count, tile.width], b.f32_constant(0.0))
        for at in tile.parts:
            b.store_rows(zero, tile.rows, tensors["accum"], at, [1, 3])


def _rounded(tensors: dict[str, Value]) -> None:
    accumulators, results, scale = (tensors[x] for x in ("accum", "rounded", "scale"))
    element = ir.MemRefType(results.type).element_type

    def scaled(x: Value) -> Value:
        return arith.TruncFOp(element, b.fmul(x, scale)).result

    with each_row_tile(accumulators) as tile:
        loads = [b.load_rows(accumulators, tile.rows, tile.width, x, [1, 3]) for x in tile.parts]
        for found, at in zip(loads, tile.parts, strict=True):
            b.store_rows(
                b.map_elements(scaled, found, element=element), tile.rows, results, at, [1, 3]
            )
