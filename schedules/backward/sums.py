"""From `attn.sum_rows` to a kernel of threads: a warp sums up the numbers of a sequence's head.

Lanes have adjacent queries, and each lane several that are far apart, so that many loads are in
flight. Every sum is made in the same order, whatever runs beside it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.names import names_of
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.policy import SUM_ROWS
from attn_mlir.schedules.operands.sequences import QuerySequences
from attn_mlir.schedules.operands.sequences import Sequence as StoredSequence
from attn_mlir.schedules.operands.storage import OperandStorage
from attn_mlir.schedules.operands.storage_checks import check_queries, check_rows
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Value = Any

IN_FLIGHT = 8  # loads of a lane
ROW_DIMS = {4: ("batch", "sq", "", ""), 3: ("total_q", "", "")}


@register
class SumRows:
    """Sums of numbers of rows, by threads alone."""

    policy: ClassVar[Policy] = SUM_ROWS

    def build(self, function: Any, op: attn.SumRowsOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one `attn.sum_rows`.

        Raises:
          VerifyError: the function computes something else as well, or mixes up operands.
        """
        storage = OperandStorage.of(op.rows)
        check_rows(op, "rows", storage)
        check_queries(op, "rows", storage)
        given = list(function.arguments)
        *_, last = function.body.blocks[0].operations
        if given[:1] != [storage.root] or list(last.operation.operands) != [op.sums]:
            raise op_error(op, "expects the function's first argument as rows, and to be returned")
        names = ["rows", *names_of(function)[1:]]
        stored = [(str(name), x.type) for name, x in zip(names, given, strict=True)]
        first, *others = (_argument(*x) for x in stored)
        sums_dims = ("sequences" if storage.offsets is not None else "batch", "")
        sums = _argument("sums", op.sums.type, sums_dims)
        kernel = b.declare_kernel(function.sym_name.value, [first, sums, *others])
        with ir.InsertionPoint(kernel.body.blocks[0]):
            rows, made, *indices = kernel.body.blocks[0].arguments
            captured = dict(zip(given, [rows, *indices], strict=True))
            work = _Sums(rows, storage.queries(rows, captured), op, made)
            b.emit_roles([b.Role("sum", lambda _: work.every_tile(), warps=1)])
        return kernel


def _argument(name: str, kind: Any, dims: Sequence[str] = ()) -> b.Argument:
    """An argument of the kernel: the numbers, the sums, an index array or a scalar.

    Args:
      dims: names of run-time extents.
    """
    if not isinstance(kind, ir.RankedTensorType):
        return b.Argument(name, "scalar", kind, ())
    memref = ir.MemRefType.get([*kind.shape], kind.element_type)
    known = ROW_DIMS[kind.rank] if name == "rows" else dims
    names = known or [f"{name}_{axis}" for axis in range(kind.rank)]
    shown = [x if kind.is_dynamic_dim(axis) else "" for axis, x in enumerate(names)]
    return b.Argument(name, "out" if name == "sums" else "in", memref, shown)


class _Sums:
    """The work of the kernel: a work tile is an element of the result."""

    def __init__(self, rows: Value, sequences: QuerySequences, op: attn.SumRowsOp, sums: Value):
        self._rows, self._sequences, self._sums = rows, sequences, sums
        self._heads = attn.logical_type(op.rows).shape[2]

    def every_tile(self) -> None:
        """Emits the loop over the elements of the result."""
        space = [b.constant(self._heads), self._sequences.count()]
        with b.tiles(space, "single") as (head, sequence):
            empty = b.fill([WARP_THREADS, IN_FLIGHT], b.f32_constant(0.0))
            (total,) = self._of_head(self._sequences.of(sequence), head, empty)
            self._store(total, [sequence, head])

    def _of_head(self, sequence: StoredSequence, head: Value, total: Value) -> list[Value]:
        """Adds the numbers of a sequence's queries in a head to a total."""
        step = WARP_THREADS * IN_FLIGHT

        def chunk(index: Value, total: Value) -> list[Value]:
            def number(row: Value, column: Value) -> Value:
                inner = b.INT.add(b.INT.mul(column, WARP_THREADS), row)
                position = b.INT.add(b.INT.mul(index, step), inner)
                found = b.element(self._rows, [*sequence.lead, sequence.row(position), head, 0])
                exists = b.compare("slt", position, sequence.length)
                return b.select(exists, found, b.f32_constant(0.0))

            numbers = b.generate(number, [WARP_THREADS, IN_FLIGHT], ir.F32Type.get())
            return [b.map_elements(b.fadd, total, numbers)]

        return b.loop(0, b.INT.ceildiv(sequence.length, step), [total], chunk)

    def _store(self, total: Value, place: list[Value]) -> None:
        """Writes the sum of what all lanes have."""
        zero = b.f32_constant(0.0)
        lanes = b.broadcast(b.reduce_rows("add", total, b.fill([WARP_THREADS], zero)), 1)
        sums = b.reduce_columns("add", lanes, b.fill([1], zero))
        b.store_global(sums, self._sums, place, [1])
