"""Loops of roles whose warps follow a thread, in rounds: in each turn of a round the slots are
known.

A round has as many turns as it takes until rings come to the same slots again. So places of slots
and barriers are constants, no stage is counted, and a phase is a bit of the round's number, or
known as well. Slots of a ring that takes more turns for that, or a number that is no power of two,
are counted. The last round may end early:

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
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, scf
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.dialect.scalars import INT, compare, constant, when

from ..state.lowering import Lowering
from .rings import cursor_key, cursor_of, first_parity

Value = Any

MOST_TURNS = 4  # of a round: each has its code


class Known:
    """The side of a ring in one turn of a round, in the place of a `Cursor`.

    Args:
      stages: of the ring.
      first_parity: what the first slot of all is waited for with.
      count: slots that a turn takes.
      turns, turn: of the round, and which of them this is.
      first: i32, the round's first turn among all.
    """

    def __init__(
        self, stages: int, first_parity: int, count: int, turns: int, turn: int, first: Value
    ):
        self._stages, self._first_parity, self._next = stages, first_parity, turn * count
        self._wraps, self._turns, self._first = turns * count // stages, turns, first

    def take(self) -> tuple[Value, Value]:
        """Stage and phase parity of the next slot, both i32."""
        wraps, stage = divmod(self._next, self._stages)
        wraps += self._first_parity
        self._next += 1
        if self._wraps % 2 == 0:
            return constant(stage), constant(wraps & 1)
        number = arith.ShRUIOp(self._first, constant(self._turns.bit_length() - 1)).result
        parity = arith.AndIOp(INT.add(number, wraps) if wraps else number, constant(1)).result
        return constant(stage), parity


def turns_of_round(low: Lowering, op: Any) -> int:
    """The turns of a round of a loop; 0 for one that does not go in rounds.

    Its role takes the slots of some ring in this loop only, as many in each turn, and runs the loop
    once.
    """
    if low.active.elected is None or len(op.initArgs):
        return 0
    body = op.region.blocks[0]
    if any(taker.operation.block != body for taker in _takers(op)):
        return 0
    turns = math.lcm(*(_period(taker, count) for taker, count in _known(low, op)))
    is_known = turns > 1 and _counts_from_zero(op) and not _runs_again(op)
    return turns if is_known else 0


def lower_rounds(
    low: Lowering, op: Any, turns: int, lower_turn: Callable[[list[Any]], None]
) -> None:
    """Lowers a loop, the body's operations but the last by `lower_turn`."""
    end, body = low[op.upperBound], op.region.blocks[0]
    *turn, _ = body.operations
    known, cursors = _known(low, op), low.active.cursors
    counted = {cursor_key(low, taker): cursor_of(low, taker) for taker, _ in known}
    made = scf.ForOp(constant(0), end, constant(turns))
    first = made.induction_variable

    def from_turn(number: int) -> None:
        place = INT.add(first, number) if number else first
        low[body.arguments[0]] = place
        for taker, count in known:
            side = Known(_stages(taker), first_parity(taker), count, turns, number, first)
            cursors[cursor_key(low, taker)] = side
        lower_turn(turn)
        if number + 1 < turns:
            with when(compare("sgt", left, number + 1)):
                from_turn(number + 1)

    with ir.InsertionPoint(made.body):
        left = INT.sub(end, first)
        from_turn(0)
        scf.YieldOp([])
    cursors.update(counted)
    for taker, count in known:
        counted[cursor_key(low, taker)].go_on_behind(INT.mul(end, count), first_parity(taker))


def _known(low: Lowering, op: Any) -> list[tuple[Any, int]]:
    """For each ring side whose slots are known in a round, one that takes them, and how many a turn
    takes.
    """
    inside = [_side(taker) for taker in _takers(op)]
    everywhere = [_side(taker) for taker in _takers(low.active.op)]
    found: dict[Any, tuple[Any, int]] = {}
    for taker in _takers(op):
        side = _side(taker)
        count = inside.count(side)
        period = _period(taker, count)
        if everywhere.count(side) == count and period <= MOST_TURNS and period & period - 1 == 0:
            found.setdefault(side, (taker, count))
    return list(found.values())


def _period(taker: Any, count: int) -> int:
    """After how many turns slots are the same again, if a turn takes so many of them."""
    return _stages(taker) // math.gcd(_stages(taker), count)


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
