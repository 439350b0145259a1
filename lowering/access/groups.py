"""Barriers, votes and reductions over the warps of a group, by the group's named barrier.

The barrier itself reduces a condition; numbers go through shared memory, to which every warp writes
its partial result, and from which it reads those of all.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import INT, compare, constant, f32_constant, i1, when
from attn_mlir.dialect.targets.limits import WARP_THREADS, WARPGROUP_WARPS

from ..state.handles import Fragment
from ..state.lowering import FULL_WARP, Lowering, lowers
from .reductions import reduced

Value = Any

FLOAT_BYTES = 4
ARRAY_STEP = 4  # numbers that one access of 16 bytes moves


def _is_one_warp(low: Lowering) -> bool:
    return low.active.op.threads_per_group == WARP_THREADS


def _barrier(low: Lowering) -> dict[str, Value]:
    """Number and threads of the group's barrier; barrier 0 is the whole CTA's."""
    op = low.active.op
    number = INT.add(low.active.group, 1 + op.warp_range[0] // WARPGROUP_WARPS)
    return {"barrierId": number, "numberOfThreads": constant(op.threads_per_group)}


def meet(low: Lowering) -> None:
    """Emits a barrier of the threads of the group."""
    if _is_one_warp(low):
        nvvm.SyncWarpOp(constant(FULL_WARP))
    else:
        nvvm.BarrierOp(**_barrier(low))


def meet_with(low: Lowering, condition: Value) -> Value:
    """Emits a barrier of a group of several warps that reduces a condition.

    Returns:
      i1: whether the condition (i1) holds in any of them.
    """
    name = "llvm.nvvm.barrier.cta.red.or.aligned.count"  # `nvvm.barrier` reduces at barrier 0 alone
    operands = [*_barrier(low).values(), condition]
    return llvm.CallIntrinsicOp(i1(), ir.StringAttr.get(name), operands, [], []).results_


@lowers(ws.AnyOp)
def _any(low: Lowering, op: ws.AnyOp) -> None:
    kind = ir.Attribute.parse("#vector.kind<or>")
    condition, *others = (
        vector.ReductionOp(i1(), kind, part).result
        if isinstance(part.type, ir.VectorType)
        else part
        for part in low[op.conditions].parts
    )
    for other in others:
        condition = arith.OrIOp(condition, other).result
    if op.scope == "warp" or _is_one_warp(low):
        kind = ir.Attribute.parse("#nvvm<vote_sync_kind any>")
        vote = nvvm.VoteSyncOp(constant(FULL_WARP), condition, kind, results=[i1()])
        low[op.holds] = vote.result
        return
    low[op.holds] = meet_with(low, condition)


@lowers(ws.ReduceGroupOp)
def _reduce_group(low: Lowering, op: ws.ReduceGroupOp) -> None:
    init: Fragment = low[op.init]
    fragment, kind = low[op.fragment], op.kind.value
    if kind == "max":
        combine, start = arith.MaxNumFOp, init
    else:
        combine, start = arith.AddFOp, _zeros(init)
    partial = reduced(fragment, start, kind, op.axis)
    width = sum(part.type.shape[0] for part in partial)
    scratch = low.tile(op.scratch).address
    warp = arith.ShRUIOp(low.active.thread, constant(WARP_THREADS.bit_length() - 1)).result
    lane = arith.AndIOp(low.active.thread, constant(WARP_THREADS - 1)).result

    def addresses(warp: Value | int) -> list[Value]:
        start = INT.add(scratch, INT.mul(warp, width * FLOAT_BYTES))
        firsts = [sum(part.type.shape[0] for part in partial[:i]) for i in range(len(partial))]
        return [low.shared_pointer(INT.add(start, first * FLOAT_BYTES)) for first in firsts]

    with when(compare("eq", lane, 0)):
        for part, address in zip(partial, addresses(warp), strict=True):
            llvm.StoreOp(part, address, alignment=ARRAY_STEP * FLOAT_BYTES)
    meet(low)
    combined: list[Value] = list(init.parts)
    for number in range(low.active.op.threads_per_group // WARP_THREADS):
        loaded = [
            llvm.LoadOp(part.type, address, alignment=ARRAY_STEP * FLOAT_BYTES).result
            for part, address in zip(partial, addresses(constant(number)), strict=True)
        ]
        combined = [combine(a, b).result for a, b in zip(combined, loaded, strict=True)]
    meet(low)
    low[op.totals] = Fragment(init.kind, init.layout, tuple(combined))


def _zeros(fragment: Fragment) -> Fragment:
    zero = f32_constant(0.0)
    parts = (vector.BroadcastOp(part.type, zero).result for part in fragment.parts)
    return Fragment(fragment.kind, fragment.layout, tuple(parts))
