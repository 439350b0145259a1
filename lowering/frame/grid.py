"""Order between CTAs and between kernels: counters in global memory, and dependent launches.

The counter wraps: `atom.inc` turns count - 1 into 0, so that the last arrival resets it. The
threads of a group synchronise before one of them arrives, so that it releases the writes of all,
and after it, so that all see the writes of other CTAs that it has acquired; both are cumulative
(PTX ISA, memory consistency model, causality order).
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, llvm, nvvm, scf
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import INT, compare, constant, i32
from attn_mlir.dialect.targets.limits import WARP_THREADS

from ..access.groups import meet, meet_with
from ..rings.followed import issuing
from ..state.checks import OpContext, check_one_thread, check_warpgroups, legality_check
from ..state.lowering import FULL_WARP, Lowering, element_pointer, lowers, uniform

Value = Any


@lowers(ws.ArriveLastOp)
def _arrive_last(low: Lowering, op: ws.ArriveLastOp) -> None:
    meet(low)
    last = INT.sub(low[op.count], 1)
    branch = scf.IfOp(compare("eq", low.active.thread, 0), [i32()], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        cell = element_pointer(low, op.counter, [low[coord] for coord in op.coords])
        before = llvm.AtomicRMWOp(
            llvm.AtomicBinOp.uinc_wrap, cell, last, llvm.AtomicOrdering.acq_rel, syncscope="device"
        ).res
        scf.YieldOp([before])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([constant(0)])
    previous = branch.results_[0]
    if low.active.op.threads_per_group > WARP_THREADS:
        low[op.is_last] = meet_with(low, compare("eq", previous, last))
        return
    previous = uniform(previous)
    nvvm.SyncWarpOp(constant(FULL_WARP))
    low[op.is_last] = compare("eq", previous, last)


@legality_check(ws.ArriveLastOp)
def _check_arrive_last(context: OpContext, op: ws.ArriveLastOp) -> None:
    if context.role.threads_per_group != WARP_THREADS:
        check_warpgroups(context, op, "an arrival of several warps")
    context.check_inout(op, op.counter)


@lowers(ws.AwaitTurnOp)
def _await_turn(low: Lowering, op: ws.AwaitTurnOp) -> None:
    cell = element_pointer(low, op.cell, [low[coord] for coord in op.coords])
    turn = low[op.turn]
    loop = scf.WhileOp([], [])
    with ir.InsertionPoint(loop.before.blocks.append()):
        found = llvm.LoadOp(
            i32(), cell, alignment=4, ordering=llvm.AtomicOrdering.acquire, syncscope="device"
        ).result
        scf.ConditionOp(compare("ne", found, turn), [])
    with ir.InsertionPoint(loop.after.blocks.append()):
        scf.YieldOp([])
    _order_copies()


@lowers(ws.SetTurnOp)
def _set_turn(low: Lowering, op: ws.SetTurnOp) -> None:
    nvvm.CpAsyncBulkCommitGroupOp()
    nvvm.CpAsyncBulkWaitGroupOp(0)
    _order_copies()
    cell = element_pointer(low, op.cell, [low[coord] for coord in op.coords])
    llvm.StoreOp(
        low[op.turn], cell, alignment=4, ordering=llvm.AtomicOrdering.release, syncscope="device"
    )


def _order_copies() -> None:
    """Orders copies of global memory, by the asynchronous proxy, and accesses of this thread."""
    nvvm.FenceProxyOp(ir.Attribute.parse("#nvvm.proxy_kind<async.global>"))


@legality_check(ws.AwaitTurnOp)
def _check_await_turn(context: OpContext, op: ws.AwaitTurnOp) -> None:
    check_one_thread(context, op)
    context.check_inout(op, op.cell)


@legality_check(ws.SetTurnOp)
def _check_set_turn(context: OpContext, op: ws.SetTurnOp) -> None:
    check_one_thread(context, op)
    context.check_inout(op, op.cell)


@lowers(ws.GridDependencyWaitOp)
def _grid_dependency_wait(low: Lowering, op: ws.GridDependencyWaitOp) -> None:
    nvvm.GriddepcontrolOp(nvvm.GridDepActionKind.wait)


@lowers(ws.LaunchDependentsOp)
def _launch_dependents(low: Lowering, op: ws.LaunchDependentsOp) -> None:
    with issuing(low):
        nvvm.GriddepcontrolOp(nvvm.GridDepActionKind.launch_dependents)


ACCESSING = (  # operations that access tensors
    ws.CopyInOp,
    ws.CopyOutOp,
    ws.ReduceOutOp,
    ws.CopyRowsOp,
    ws.GatherInOp,
    ws.LoadGlobalOp,
    ws.StoreGlobalOp,
    ws.LoadRowsOp,
    ws.StoreRowsOp,
    ws.ScatterOp,
    ws.StoreEntryOp,
    ws.ElementOp,
    ws.ArriveLastOp,
    ws.AwaitTurnOp,
    ws.SetTurnOp,
    ws.DrawOp,
)


def is_programmatic(kernel: ws.KernelOp) -> bool:
    """Whether a kernel may start before the previous one in the stream has finished."""
    return any(isinstance(op, ws.GridDependencyWaitOp) for op in ws.inside(kernel))


def check_waits(kernel: ws.KernelOp) -> None:
    """Checks that roles of a kernel that may start early wait before they access any tensor.

    Raises:
      VerifyError: on the operation that accesses one.
    """
    if not is_programmatic(kernel):
        return
    for role in kernel.roles():
        for op in role.body.blocks[0].operations:
            if isinstance(op, ws.GridDependencyWaitOp):
                break
            for inner in (op, *ws.inside(op)):
                if isinstance(inner, ACCESSING) or (isinstance(inner, ws.TilesOp) and inner.ends):
                    raise op_error(
                        inner,
                        f"touches a tensor in role {role.label} before ws.grid_dependency_wait at "
                        "the start of the role: an earlier kernel may still be running",
                    )
