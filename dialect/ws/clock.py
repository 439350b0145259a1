"""Time within a kernel: the cycle counter, and numbers that a kernel leaves in memory.

`ws-record-clocks` puts both into a kernel; no schedule emits them.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, ext

from .dialect import WS
from .memory import check_number


class ClockOp(WS.Operation, name="clock"):
    """Reads the cycle counter of the multiprocessor that the CTA runs on.

    It counts in cycles of the multiprocessor's clock and wraps at 2**32. The threads of a group
    read it one by one.

    Results:
      cycles: i32.

    Memory effects: keeps its place among operations that have some. Hardware: any.

    Example:
      %begin = "ws.clock"() : () -> i32
    """

    cycles: ext.Result[I32] = ext.infer_result()


class StoreEntryOp(WS.Operation, name="store_entry"):
    """The first thread of the group writes a number to an element of a tensor.

    Operands:
      value: i32.
      target: tensor argument of i32, written by nothing else.
      coords: i32 coordinates, one per tensor dimension, within the tensor.

    Memory effects: writes the tensor. Hardware: any.

    Example:
      "ws.store_entry"(%begin, %clocks, %tile, %group) {operandSegmentSizes = array<i32: 1, 1, 2>}
        : (i32, memref<?x3xi32>, i32, i32) -> ()
    """

    value: ext.Operand[I32]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]

    @staticmethod
    def verify_invariants(op: "StoreEntryOp") -> bool:
        """Checks for a tensor of i32 with one dimension per coordinate."""
        return check_number(op, op.target, op.coords, "elements")
