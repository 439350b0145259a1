"""Turns of a role that a warp follows, in which one branch decides about the copies into several
slots.

The branch stands once, where it is asked first, and all behind it is there for either way of it. So
rows that copies into one slot have read are there for those into the next, in the same registers,
and one arrival tells a barrier that copies were issued and how many bytes they bring:

```
stages and phases of all slots of the turn
operations before the first branch
if what it asks: all others, with what branches on this hold
else: all others, without
```
"""

from collections.abc import Iterable
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import scf
from attn_mlir.dialect.scalars import either

from ..state.handles import BranchedIteration
from ..state.lowering import Lowering
from .rings import take

Value = Any


def is_branched(low: Lowering, loop: Any) -> bool:
    """Whether turns of a loop, which hand nothing on,
    fill several slots where one condition holds.
    """
    if low.active.elected is None or not isinstance(loop, scf.ForOp) or len(loop.initArgs):
        return False
    branches = [op for op in loop.region.blocks[0].operations if isinstance(op, scf.IfOp)]
    return (
        len(branches) > 1
        and all(branch.condition == branches[0].condition for branch in branches)
        and all(_only_gathers(branch) for branch in branches)
    )


def lower_branched_turn(low: Lowering, operations: Iterable[Any]) -> None:
    """Lowers the operations of a turn."""
    turn = list(operations)
    takers = [op for op in turn if isinstance(op, (ws.AcquireOp, ws.WaitOp))]
    taken = {taker.slot: take(low, taker) for taker in takers}
    first = next(place for place, op in enumerate(turn) if isinstance(op, scf.IfOp))
    condition = turn[first].condition
    low.active.iteration = BranchedIteration(taken)
    low.lower_block(turn[:first])
    with either(low[condition]) as branches:
        for branch, holds in zip(branches, (True, False), strict=True):
            low.active.iteration = BranchedIteration(taken, condition, holds)
            with branch:
                low.lower_block(turn[first:])
    low.active.iteration = None


def _only_gathers(branch: Any) -> bool:
    """Whether a branch has gather copies and what their operands are computed from, and no other
    way.
    """
    inner = list(branch.thenRegion.blocks[0].operations)
    kinds = (ws.GatherInOp, ws.RowsOp, scf.YieldOp)
    return len(branch.regions[1].blocks) == 0 and all(
        isinstance(op, kinds) or op.operation.name.startswith("arith.") for op in inner
    )
