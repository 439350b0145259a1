"""From `attn.sum_parts` to a kernel of threads, each of which adds up the parts of an element.

A thread has several parts at once, so that many loads are in flight. Parts are added in the order
of their numbers, eight apart, whatever runs beside it.
"""

from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.policy import SUM_PARTS
from attn_mlir.schedules.backward.row_tiles import WARPS, rows_kernel
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

IN_FLIGHT = 8  # parts of a thread
ELEMENTS = WARPS * WARP_THREADS  # of a work tile


@register
class SumParts:
    """Sums along the first dimension, by threads alone."""

    policy: ClassVar[Policy] = SUM_PARTS

    def build(self, function: Any, op: attn.SumPartsOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation.

        Raises:
          VerifyError: as of `rows_kernel`.
        """
        parts, sums = (
            ir.MemRefType.get([*x.type.shape], x.type.element_type) for x in (op.parts, op.sums)
        )
        arguments = [
            b.Argument("parts", "in", parts, ("parts", "elements")),
            b.Argument("sums", "out", sums, ("elements",)),
        ]
        return rows_kernel(function, op, arguments, "sum", _sum)


def _sum(tensors: dict[str, Value]) -> None:
    """Emits the loop over work tiles."""
    parts, sums = tensors["parts"], tensors["sums"]
    count, elements = (b.extent(parts, dim) for dim in range(2))
    with b.tiles([b.INT.ceildiv(elements, ELEMENTS)], "single") as (block,):
        first = b.INT.mul(block, ELEMENTS)

        def step(index: Value, total: Value) -> list[Value]:
            def part(row: Value, column: Value) -> Value:
                number = b.INT.add(b.INT.mul(index, IN_FLIGHT), column)
                found = b.element(parts, [number, b.INT.add(first, row)])
                exists = b.compare("slt", number, count)
                return b.select(exists, found, b.f32_constant(0.0))

            some = b.generate(part, [ELEMENTS, IN_FLIGHT], ir.F32Type.get())
            return [b.map_elements(b.fadd, total, some)]

        zero = b.f32_constant(0.0)
        begin = b.fill([ELEMENTS, IN_FLIGHT], zero)
        (total,) = b.loop(0, b.INT.ceildiv(count, IN_FLIGHT), [begin], step)
        made = b.reduce_rows("add", total, b.fill([ELEMENTS], zero))
        element = ir.MemRefType(sums.type).element_type
        b.store_global(b.rounded(made, element), sums, [first], [0])
