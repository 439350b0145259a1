"""Legality checks of clusters.

A copy completes its bytes at the barrier of each receiving CTA. In a kernel whose products are of
pairs, it may complete them at one CTA of the receiver's pair instead: the first of every pair, or
the second of every pair (PTX ISA, cp.async.bulk.tensor, `.multicast::cluster` and `.cta_group`).
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.passes.infrastructure.analyses import analysed

from ..access.tensor_memory import works_in_pairs
from ..rings.clusters import landing, receivers
from ..rings.rings import landing_bytes
from ..rings.slot_users import slot_of
from ..state.checks import OpContext, check_one_thread, legality_check

ORDERS = ("single", "last_first", "persistent")  # in which a cluster can share a work tile


@legality_check(ws.TilesOp)
def _check_tiles(_: OpContext, op: ws.TilesOp) -> None:
    order = op.order.value
    if ws.cta_count(op) > 1 and order not in ORDERS:
        raise op_error(op, f"expects order {', '.join(ORDERS)} in a cluster, got {order}")


@legality_check(ws.AcquireOp)
def _check_acquire(context: OpContext, op: ws.AcquireOp) -> None:
    """Checks that a CTA whose barrier receives bytes arrives there, once for all bytes of a stage.

    If copies are in branches, every CTA arrives for the copies into its own slot.
    """
    ring, ranks = op.ring.owner, context.role.ranks
    loads = ws.loads_into(op.slot)
    across = [load for load in loads if _is_across(ring, load)]
    at_once = ws.announces_at_once(op)
    for load in across:
        if not at_once and any(receivers(load)[rank] != (rank,) for rank in ranks):
            raise op_error(load, "expects a copy for other CTAs beside its ws.acquire")
    if across and at_once:
        for rank in landing(ring, context.role, loads, landing_bytes):
            if rank not in ranks or rank not in ring.full_at[rank]:
                raise op_error(
                    op,
                    f"expects role {context.role.label} in CTA {rank} to commit to its own full "
                    f"barrier of ring {ring.label}, where bytes of others arrive",
                )


def _is_across(ring: ws.AllocRingOp, load: Any) -> bool:
    return any(ws.crossing(receivers(load))) or any(ws.crossing(ring.full_at))


@legality_check(ws.GatherInOp)
@legality_check(ws.CopyInOp)
def _check_copy_in(context: OpContext, op: ws.CopyInOp | ws.GatherInOp) -> None:
    slot = slot_of(op.target)
    if not isinstance(slot.owner, ws.AcquireOp):
        return  # refused by the checks of copies
    ring = slot.owner.ring.owner
    if not _is_across(ring, op):
        return
    in_pairs: list[bool] = []
    for rank in context.role.ranks:
        to, signalled = receivers(op)[rank], ring.full_at[rank]
        pair_members = [
            tuple(sorted({ws.pair_of(x)[member] for x in to})) for member in range(ws.PAIR)
        ]
        if not to or (signalled != to and signalled not in pair_members):
            raise op_error(
                op,
                f"expects the commits of CTA {rank} at the full barriers of its receivers "
                f"{list(to)} or of one half of their pairs, got {list(signalled)}",
            )
        in_pairs.append(signalled != to)
    if any(in_pairs) and not analysed(works_in_pairs, context.role.operation.parent.opview):
        raise op_error(
            op, "expects a kernel with products of pairs, as the barrier of one CTA counts for two"
        )


@legality_check(ws.CopyAcrossOp)
def _check_copy_across(context: OpContext, op: ws.CopyAcrossOp) -> None:
    """Checks that a whole slot is copied to a whole slot, and that its bytes complete there."""
    check_one_thread(context, op)
    for value, opener in ((op.source, ws.WaitOp), (op.target, ws.AcquireOp)):
        if not isinstance(value.owner, opener):
            raise op_error(op, f"expects a whole slot from {opener.OPERATION_NAME}")
    ring = op.target.owner.ring.owner
    for commit in (use.owner for use in op.target.uses if isinstance(use.owner, ws.CommitOp)):
        if commit.by.value != "copy_engine":
            raise op_error(op, f"expects a slot committed by copy_engine, got {commit.by.value}")
    for rank in context.role.ranks:
        if not set(op.to[rank]) <= set(ring.full_at[rank]):
            raise op_error(
                op,
                f"expects the commits of CTA {rank} at the full barriers of its receivers "
                f"{list(op.to[rank])}, got {list(ring.full_at[rank])}",
            )


def _check_arrivals(context: OpContext, op: Any, lists: ws.Targets) -> None:
    if op.by.value == "thread_copies" and any(lists[r] != (r,) for r in context.role.ranks):
        raise op_error(op, "expects thread_copies to arrive at barriers of their own CTA")
    if op.by.value == "tensor_core" and any(not lists[r] for r in context.role.ranks):
        raise op_error(op, "expects tensor_core to arrive somewhere, from every CTA of the role")


@legality_check(ws.CommitOp)
def _check_commit(context: OpContext, op: ws.CommitOp) -> None:
    _check_arrivals(context, op, op.slot.owner.ring.owner.full_at)


@legality_check(ws.ReleaseOp)
def _check_release(context: OpContext, op: ws.ReleaseOp) -> None:
    _check_arrivals(context, op, op.slot.owner.ring.owner.empty_at)
