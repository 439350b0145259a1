"""Kernels of threads whose work tiles are some rows of a head, without queries and keys that meet.

Adjacent threads have the 16-byte units of a row, so that accesses are whole lines of memory.
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import WARP_THREADS
from attn_mlir.schedules import emit as b

Value = Any

WARPS = 4
LEAST_ROWS = 32  # of a work tile: of 64 columns of 16 bits a thread has two units
MOST_COLUMNS = 64  # of a fragment
UNIT_BYTES = 16  # of a thread's access


class RowTile(NamedTuple):
    """A work tile.

    Attributes:
      sequence, head, first: its coordinates, `first` that of the first row.
      rows: the numbers of its rows, a fragment.
      width: columns of the parts that a row is accessed in.
      parts: coordinates of these, [batch, row, head, column]; the row is that of `rows`.
    """

    sequence: Value
    head: Value
    first: Value
    rows: Value
    width: int
    parts: list[list[Value | int]]


@contextmanager
def each_row_tile(tensor: Value) -> Generator[RowTile]:
    """Emits the loop over work tiles, of which the body of the `with` is one.

    Args:
      tensor: memref [batch, rows, heads, columns].
    """
    kind = ir.MemRefType(tensor.type)
    columns, unit = kind.shape[-1], UNIT_BYTES * 8 // ws.element_bits(kind.element_type)
    width = math.gcd(columns, MOST_COLUMNS)
    count = max(LEAST_ROWS, WARPS * WARP_THREADS * unit // width)  # whole rows of a fragment
    batch, length, heads = (b.extent(tensor, dim) for dim in range(3))
    space = [b.INT.ceildiv(length, count), heads, batch]
    with b.tiles(space, "single") as (block, head, sequence):
        first = b.INT.mul(block, count)

        def position(row: Value) -> Value:
            return b.INT.add(first, row)

        rows = b.generate(position, [count], b.i32())
        parts = [[sequence, 0, head, column] for column in range(0, columns, width)]
        yield RowTile(sequence, head, first, rows, width, parts)


def rows_kernel(
    function: Any,
    op: Any,
    arguments: Sequence[b.Argument],
    label: str,
    body: Callable[[dict[str, Value]], None],
) -> ws.KernelOp:
    """The kernel of one role for a function of one operation, whose results it returns in order.

    Args:
      arguments: of the kernel.
      label: of the role.
      body: emits it, given the arguments by name.

    Raises:
      VerifyError: the function computes something else as well, or mixes up operands.
    """
    operations = list(function.body.blocks[0].operations)
    if len(operations) != 2 or list(operations[1].operation.operands) != list(op.operation.results):
        names = ", ".join(other.operation.name for other in operations)
        expected = f"one {op.OPERATION_NAME} and its func.return"
        raise op_error(function, f"expects {expected}, got {names}")
    if list(op.operation.operands) != list(function.arguments):
        raise op_error(op, "expects the function's arguments as its operands, in order")
    kernel = b.declare_kernel(function.sym_name.value, arguments)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        values = dict(zip(kernel.names, kernel.body.blocks[0].arguments, strict=True))
        b.emit_roles([b.Role(label, lambda _: body(values), warps=WARPS)])
    return kernel
