"""Order between the CTAs of a grid, and between a kernel and the one before it.

CTAs that share a piece of work each write their result to memory and then arrive at a counter. The
last one to arrive knows that all results are there, and combines them:

```
store_global(result)            each CTA
%last = arrive_last(counter, count)
if %last: load_global(results)  the CTA that is last
```

CTAs that change the same memory one after the other take turns, by a cell that says whose it is:

```
await_turn(cell, turn)          until the one before has set the cell
reduce_out(tile)
set_turn(cell, turn + 1)        when the tile has been added
```

A kernel with programmatic dependent launch may start while the one before it in the stream still
runs, as soon as all CTAs of that one have executed `ws.launch_dependents` or are done. What it does
before `ws.grid_dependency_wait` overlaps with that kernel.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I1, I32, ext

from .dialect import WS
from .memory import check_number


class ArriveLastOp(WS.Operation, name="arrive_last"):
    """Arrives at a counter in global memory; returns whether this is the last of all arrivals.

    The threads of a group arrive together, once. What they have written to global memory before is
    visible to the group that arrives last. That arrival resets the counter to 0, so a counter that
    is 0 before the first launch is 0 before each.

    Operands:
      counter: tensor argument of role `inout`, i32.
      coords: i32 coordinates, one per tensor dimension.
      count: i32, total number of arrivals, at least 1.

    Results:
      is_last: i1, the same in all threads of the group.

    Memory effects: reads and writes the counter, acquire and release among all CTAs. Hardware: any.

    Example:
      %last = "ws.arrive_last"(%counter, %tile, %parts) {operandSegmentSizes = array<i32: 1, 1, 1>}
        : (memref<?xi32>, i32, i32) -> i1
    """

    counter: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    count: ext.Operand[I32]
    is_last: ext.Result[I1] = ext.infer_result()

    @staticmethod
    def verify_invariants(op: "ArriveLastOp") -> bool:
        """Checks for a tensor of i32 with one dimension per coordinate."""
        return check_number(op, op.counter, op.coords, "a counter")


class AwaitTurnOp(WS.Operation, name="await_turn"):
    """One thread waits until a cell in global memory holds a number.

    What the thread that set it had copied to global memory before is complete, and ordered before
    the copies and accesses of this thread after the wait. The CTA that sets the cell has to run, or
    have run, whenever this one does: CTAs start in the order of their numbers, x first.

    Operands:
      cell: tensor argument of role `inout`, i32.
      coords: i32 coordinates, one per tensor dimension.
      turn: i32, the number.

    Memory effects: reads the cell, acquire among all CTAs. Hardware: sm_90 on.

    Example:
      "ws.await_turn"(%turns, %tile, %block) {operandSegmentSizes = array<i32: 1, 1, 1>}
        : (memref<?xi32>, i32, i32) -> ()
    """

    cell: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    turn: ext.Operand[I32]

    @staticmethod
    def verify_invariants(op: "AwaitTurnOp") -> bool:
        """Checks for a tensor of i32 with one dimension per coordinate."""
        return check_number(op, op.cell, op.coords, "a cell")


class SetTurnOp(WS.Operation, name="set_turn"):
    """One thread waits until its copies to global memory are complete, and sets a cell to a number.

    Operands:
      cell: tensor argument of role `inout`, i32.
      coords: i32 coordinates, one per tensor dimension.
      turn: i32, the number.

    Memory effects: writes the cell, release among all CTAs. Hardware: sm_90 on.

    Example:
      "ws.set_turn"(%turns, %tile, %next) {operandSegmentSizes = array<i32: 1, 1, 1>}
        : (memref<?xi32>, i32, i32) -> ()
    """

    cell: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    turn: ext.Operand[I32]

    @staticmethod
    def verify_invariants(op: "SetTurnOp") -> bool:
        """Checks for a tensor of i32 with one dimension per coordinate."""
        return check_number(op, op.cell, op.coords, "a cell")


class GridDependencyWaitOp(WS.Operation, name="grid_dependency_wait"):
    """Blocks until the kernels before this one have finished and their writes are visible.

    Gives the kernel a programmatic dependent launch. Each role that accesses tensors has to execute
    it first.

    Memory effects: makes writes of earlier kernels visible. Hardware: sm_90 on.

    Example:
      "ws.grid_dependency_wait"() : () -> ()
    """


class LaunchDependentsOp(WS.Operation, name="launch_dependents"):
    """Lets the next kernel start, as far as this CTA is concerned, if its launch is programmatic.

    It starts when all CTAs have executed this or are done, and resources are free. It sees what
    this kernel writes only after its `ws.grid_dependency_wait`.

    Memory effects: none. Hardware: sm_90 on.

    Example:
      "ws.launch_dependents"() : () -> ()
    """
