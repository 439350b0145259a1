"""What CTAs owe one another, and a kernel the one before it.

The CTAs of a grid that share a piece of work each write their part to memory and then arrive at a
counter; who arrives last knows that all parts are there and does what is left:

```
store_global(part)              each CTA
%last = arrive_last(counter, count)
if %last: load_global(parts)    one of them, whichever it is
```

A kernel whose launch is programmatic (programmatic dependent launch) may begin while the one before
it in the stream still runs, as soon as all of that one's CTAs have said `ws.launch_dependents` or
are done. What comes before `ws.grid_dependency_wait` overlaps with it.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I1, I32, ext, ir

from .dialect import WS, fail


class ArriveLastOp(WS.Operation, name="arrive_last"):
    """Arrives at a counter in global memory: whether this is the last of all arrivals.

    The threads of a group arrive together, as one. What they have written to global memory before
    is there for who arrives last. The counter is 0 again then: as it has to be before the first
    launch, it is before each.

    Operands:
      counter: tensor argument of role `inout`, i32.
      coords: i32 coordinates, one per tensor dimension.
      count: i32, arrivals in all, at least 1.

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
        """A tensor of i32 with as many dimensions as coordinates."""
        kind = op.counter.type
        if not isinstance(kind, ir.MemRefType):
            return fail(op, f"expects a memref, got {kind}")
        if str(kind.element_type) != "i32":
            return fail(op, f"expects a counter of i32, got {kind.element_type}")
        if len(op.coords) != kind.rank:
            return fail(op, f"expects {kind.rank} coordinates, got {len(op.coords)}")
        return True


class GridDependencyWaitOp(WS.Operation, name="grid_dependency_wait"):
    """Blocks until the kernels before this one are over and what they wrote is there.

    Makes the launch programmatic. Each role that reads or writes tensors says it before that.

    Memory effects: what earlier kernels wrote is visible. Hardware: sm_90 on.

    Example:
      "ws.grid_dependency_wait"() : () -> ()
    """


class LaunchDependentsOp(WS.Operation, name="launch_dependents"):
    """From here on this CTA does not hold up the next kernel, if its launch is programmatic.

    It begins when all CTAs have said so or are done, and there is room for it. What this kernel
    writes is there for it only after its `ws.grid_dependency_wait`.

    Memory effects: none. Hardware: sm_90 on.

    Example:
      "ws.launch_dependents"() : () -> ()
    """
