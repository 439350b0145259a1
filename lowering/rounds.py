"""Loops of roles whose warps follow a thread, in rounds: in each turn of a round the slots are known.

A round has as many turns as the rings that the loop takes slots of have stages. So places of slots and
barriers are constants, no stage is counted, and a phase is a bit of the round's number, or known as well. The
last round may end early:

```
for first in 0, 4, 8, ... below n
  turn 0                      slots 0 of rings of 4 stages and of 2
  if first + 1 < n: turn 1    slots 1
    if first + 2 < n: turn 2  slots 2 and 0
      if first + 3 < n: turn 3
```
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, scf
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.dialect.scalars import INT, compare, constant, when

from .context import Lowering
from .rings import cursor_key, first_parity

Value = Any

MOST_TURNS = 4  # of a round: each has its code


class Known(NamedTuple):
    """The side of a ring in one turn of a round, in the place of a `Cursor`."""

    stages: int
    first_parity: int
    turns: int
    turn: int
    first: Value  # of the round, among all turns

    def take(self) -> tuple[Value, Value]:
        """Stage and phase parity, both i32."""
        wraps = self.first_parity + self.turn // self.stages
        if self.turns // self.stages % 2 == 0:
            return constant(self.turn % self.stages), constant(wraps & 1)
        number = arith.ShRUIOp(self.first, constant(self.turns.bit_length() - 1)).result
        parity = arith.AndIOp(INT.add(number, wraps) if wraps else number, constant(1)).result
        return constant(self.turn % self.stages), parity


def turns_of_round(low: Lowering, op: Any) -> int:
    """The turns of a round of a loop; 0 for one that does not go in rounds.

    Its role takes a slot of each ring once in a turn, and nowhere else, and runs the loop once.
    """
    if low.active.elected is None or low.cta_count > 1 or len(op.initArgs):
        return 0
    takers, body = _takers(op), op.region.blocks[0]
    turns = math.lcm(*(_stages(taker) for taker in takers))
    sides = [_side(taker) for taker in _takers(low.active.op)]
    is_known = (
        1 < turns <= MOST_TURNS
        and turns & turns - 1 == 0
        and all(t.operation.block == body and sides.count(_side(t)) == 1 for t in takers)
        and _counts_from_zero(op)
        and not _runs_again(op)
    )
    return turns if is_known else 0


def lower_rounds(
    low: Lowering, op: Any, turns: int, lower_turn: Callable[[list[Any]], None]
) -> None:
    """Lowers a loop, the body's operations but the last by `lower_turn`."""
    end, body = low[op.upperBound], op.region.blocks[0]
    *turn, _ = body.operations
    made = scf.ForOp(constant(0), end, constant(turns))
    first = made.induction_variable
    takers = _takers(op)

    def from_turn(number: int) -> None:
        place = INT.add(first, number) if number else first
        low[body.arguments[0]] = place
        for taker in takers:
            known = Known(_stages(taker), first_parity(taker), turns, number, first)
            low.active.cursors[cursor_key(low, taker)] = known
        lower_turn(turn)
        if number + 1 < turns:
            with when(compare("sgt", left, number + 1)):
                from_turn(number + 1)

    with ir.InsertionPoint(made.body):
        left = INT.sub(end, first)
        from_turn(0)
        scf.YieldOp([])


def _takers(op: Any) -> list[Any]:
    """The operations inside that take slots."""
    return [x for x in ws.inside(op) if isinstance(x, (ws.AcquireOp, ws.WaitOp))]


def _stages(taker: Any) -> int:
    return ws.RingType(taker.ring.type).stages


def _side(taker: Any) -> tuple[Any, str]:
    """The side of a ring that an operation takes slots on."""
    return taker.ring, taker.OPERATION_NAME


def _counts_from_zero(op: Any) -> bool:
    return _is_constant(op.lowerBound, 0) and _is_constant(op.step, 1)


def _is_constant(value: Value, number: int) -> bool:
    owner = value.owner
    return isinstance(owner, arith.ConstantOp) and ir.IntegerAttr(owner.value).value == number


def _runs_again(op: Any) -> bool:
    """Whether the role may come to the loop more than once."""
    around = op.operation.parent
    while around is not None and around.name != ws.RoleOp.OPERATION_NAME:
        view = around.opview
        if isinstance(view, scf.ForOp) or (
            isinstance(view, ws.TilesOp) and view.order.value in LOOPING_ORDERS
        ):
            return True
        around = around.parent
    return False
