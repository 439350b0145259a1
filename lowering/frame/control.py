"""Loops, branches, and the integer operations in their bounds and conditions."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, scf
from attn_mlir.dialect.scalars import INT, is_plain_division

from ..access.inline_ptx import is_word, opaque
from ..access.tensor_memory import complete_accesses, wait_tensor_stores
from ..access.values import part_types
from ..rings.branched_turns import is_branched, lower_branched_turn
from ..rings.rounds import lower_rounds, turns_of_round
from ..state.accesses import Accesses
from ..state.handles import Fragment
from ..state.lowering import Lowering, lowers

Value = Any


def lower_iteration(low: Lowering, loop: Any, operations: Iterable[Any]) -> None:
    """Lowers a loop's body so that every iteration begins with the same state of tensor memory."""
    before, accesses = low.active.accesses.copy(), low.active.accesses
    waits = any(isinstance(inner, (ws.WaitOp, ws.AcquireOp)) for inner in ws.inside(loop))
    accesses.is_ordered &= not waits
    if is_branched(low, loop):
        lower_branched_turn(low, operations)
    else:
        low.lower_block(operations)
    accesses = low.active.accesses
    if waits and accesses.is_accessing and not before.is_accessing:
        complete_accesses(low)
    elif any(tile not in before.stored for tile in accesses.stored):
        wait_tensor_stores(low)
    accesses.stored = before.stored
    accesses.is_ordered &= not waits


def _flatten(lowered: Any) -> list[Value]:
    return list(lowered.parts) if isinstance(lowered, Fragment) else [lowered]


def _register_types(low: Lowering, value: Value) -> list[Any]:
    """The types of a value's lowered form."""
    if isinstance(value.type, ws.FragmentType):
        return part_types(ws.FragmentType(value.type), low.layouts[value])
    return [value.type]


def _assign(low: Lowering, value: Value, parts: Sequence[Value]) -> None:
    """Sets the lowered form of a value of the kernel."""
    if isinstance(value.type, ws.FragmentType):
        low[value] = Fragment(ws.FragmentType(value.type), low.layouts[value], tuple(parts))
    else:
        (low[value],) = parts


@lowers(scf.ForOp)
def _for(low: Lowering, op: Any) -> None:
    if rounds := turns_of_round(low, op):
        lower_rounds(low, op, rounds, partial(lower_iteration, low, op))
        return
    carried = [_flatten(low[value]) for value in op.initArgs]
    bounds = (low[value] for value in (op.lowerBound, op.upperBound, op.step))
    loop = scf.ForOp(*bounds, [part for parts in carried for part in parts])

    def regroup(values: Sequence[Value], flat: Sequence[Value]) -> None:
        position = 0
        for value, parts in zip(values, carried, strict=True):
            _assign(low, value, flat[position : position + len(parts)])
            position += len(parts)

    body = op.region.blocks[0]
    low[body.arguments[0]] = loop.induction_variable
    regroup(list(body.arguments)[1:], list(loop.inner_iter_args))
    with ir.InsertionPoint(loop.body):
        *operations, last = body.operations
        lower_iteration(low, op, operations)
        low.lower(last)
    regroup(list(op.operation.results), list(loop.results))


@lowers(scf.IfOp)
def _if(low: Lowering, op: Any) -> None:
    turn = low.active.iteration
    if turn is not None and turn.condition == op.condition:
        *body, _ = op.thenRegion.blocks[0].operations
        low.lower_block(body if turn.holds else [])
        return
    regions = [region for region in op.operation.regions if len(region.blocks)]
    results = list(op.operation.results)
    kinds = [_register_types(low, result) for result in results]
    flat = [kind for several in kinds for kind in several]
    branch = scf.IfOp(low[op.condition], flat, has_else=len(regions) > 1)
    before = low.active.accesses
    ends = [before] if len(regions) == 1 else []
    for region, block in zip(regions, (branch.then_block, branch.else_block), strict=False):
        low.active.accesses = before.copy()
        with ir.InsertionPoint(block):
            *body, last = region.blocks[0].operations
            low.lower_block(body)
            ends.append(low.active.accesses)
            if ends[0] is before and ends[-1].is_accessing and not before.is_accessing:
                complete_accesses(low)  # the other path has nothing to complete
            _yield_of_branch(low, last, is_last=region == regions[-1])
    low.active.accesses = Accesses.merged(ends)
    parts = iter(branch.operation.results)
    for result, several in zip(results, kinds, strict=True):
        _assign(low, result, list(islice(parts, len(several))))


def _yield_of_branch(low: Lowering, op: Any, *, is_last: bool) -> None:
    """Ends a branch.

    If both branches end alike, LLVM merges the ends and moves registers to make them agree (22 of
    520 instructions of a softmax loop, LLVM 23). So the values that one branch yields are opaque.
    """
    operands = [part for value in op.operation.operands for part in _flatten(low[value])]
    scf.YieldOp(operands if is_last else [opaque(x) if is_word(x) else x for x in operands])


@lowers(scf.YieldOp)
def _yield(low: Lowering, op: Any) -> None:
    operands = [part for value in op.operation.operands for part in _flatten(low[value])]
    scf.YieldOp(operands)


@lowers(arith.FloorDivSIOp)
def _floordiv(low: Lowering, op: Any) -> None:
    divide = arith.DivUIOp if is_plain_division(op) else arith.FloorDivSIOp
    low[op.result] = divide(low[op.lhs], low[op.rhs]).result


@lowers(arith.CeilDivSIOp)
def _ceildiv(low: Lowering, op: Any) -> None:
    """Unsigned where both operands are known to be at least 0: their sum stays below 2^32."""
    dividend, divisor = low[op.lhs], low[op.rhs]
    if is_plain_division(op):
        numerator = INT.add(dividend, INT.sub(divisor, 1))
        low[op.result] = arith.DivUIOp(numerator, divisor).result
    else:
        low[op.result] = arith.CeilDivSIOp(dividend, divisor).result
