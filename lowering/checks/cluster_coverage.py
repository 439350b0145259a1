"""Checks of what the lowering covers of clusters.

A copy reports its bytes to the barrier of each CTA that receives them. In a kernel whose products
are of pairs, it may report them to one CTA of the receiver's pair instead: the first of every pair,
or the second of every pair (PTX ISA, cp.async.bulk.tensor, `.multicast::cluster` and `.cta_group`).
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.passes.infrastructure.analyses import analysed

from ..access.tensor_memory import works_in_pairs
from ..rings.clusters import landing, receivers
from ..rings.rings import landing_bytes
from ..rings.slot_users import slot_of
from ..state.checks import Site, check_one_thread, covers

ORDERS = (
    "single",
    "last_first",
    "persistent",
)  # tile orders in which a cluster can share a work tile


@covers(ws.TilesOp)
def _check_tiles(_: Site, op: ws.TilesOp) -> None:
    order = op.order.value
    if ws.cta_count(op) > 1 and order not in ORDERS:
        raise op_error(op, f"expects order {', '.join(ORDERS)} in a cluster, got {order}")


@covers(ws.AcquireOp)
def _check_acquire(site: Site, op: ws.AcquireOp) -> None:
    """Checks that a CTA whose barrier gets bytes arrives there itself, once for all bytes of a
    turn.

    Where branches decide over copies, every CTA arrives for those that fill its own slot.
    """
    ring, ranks = op.ring.owner, site.role.ranks
    loads = ws.loads_into(op.slot)
    across = [load for load in loads if _is_across(ring, load)]
    is_at_once = ws.is_told_at_once(op)
    for load in across:
        if not is_at_once and any(receivers(load)[rank] != (rank,) for rank in ranks):
            raise op_error(load, "expects a copy for other CTAs beside its ws.acquire")
    if across and is_at_once:
        for rank in landing(ring, site.role, loads, landing_bytes):
            if rank not in ranks or rank not in ring.full_at[rank]:
                raise op_error(
                    op,
                    f"expects role {site.role.label} in CTA {rank} to commit to its own full "
                    f"barrier of ring {ring.label}, where bytes of others arrive",
                )


def _is_across(ring: ws.AllocRingOp, load: Any) -> bool:
    return any(ws.crossing(receivers(load))) or any(ws.crossing(ring.full_at))


@covers(ws.GatherInOp)
@covers(ws.CopyInOp)
def _check_copy_in(site: Site, op: ws.CopyInOp | ws.GatherInOp) -> None:
    slot = slot_of(op.target)
    if not isinstance(slot.owner, ws.AcquireOp):
        return  # refused by the checks of copies
    ring = slot.owner.ring.owner
    if not _is_across(ring, op):
        return
    in_pairs: list[bool] = []
    for rank in site.role.ranks:
        to, told = receivers(op)[rank], ring.full_at[rank]
        halves = [tuple(sorted({ws.pair_of(x)[half] for x in to})) for half in range(ws.PAIR)]
        if not to or (told != to and told not in halves):
            raise op_error(
                op,
                f"expects the commits of CTA {rank} at the full barriers of its receivers "
                f"{list(to)} or of one half of their pairs, got {list(told)}",
            )
        in_pairs.append(told != to)
    if any(in_pairs) and not analysed(works_in_pairs, site.role.operation.parent.opview):
        raise op_error(
            op, "expects a kernel with products of pairs, as the barrier of one CTA counts for two"
        )


@covers(ws.CopyAcrossOp)
def _check_copy_across(site: Site, op: ws.CopyAcrossOp) -> None:
    """Checks that a whole slot is copied to a whole slot whose full barrier the copy reports to."""
    check_one_thread(site, op)
    for value, opener in ((op.source, ws.WaitOp), (op.target, ws.AcquireOp)):
        if not isinstance(value.owner, opener):
            raise op_error(op, f"expects a whole slot from {opener.OPERATION_NAME}")
    ring = op.target.owner.ring.owner
    for commit in (use.owner for use in op.target.uses if isinstance(use.owner, ws.CommitOp)):
        if commit.by.value != "copy_engine":
            raise op_error(op, f"expects a slot committed by copy_engine, got {commit.by.value}")
    for rank in site.role.ranks:
        if not set(op.to[rank]) <= set(ring.full_at[rank]):
            raise op_error(
                op,
                f"expects the commits of CTA {rank} at the full barriers of its receivers "
                f"{list(op.to[rank])}, got {list(ring.full_at[rank])}",
            )


def _check_handover(site: Site, op: Any, lists: ws.Targets) -> None:
    if op.by.value == "thread_copies" and any(lists[r] != (r,) for r in site.role.ranks):
        raise op_error(op, "expects thread_copies to arrive at barriers of their own CTA")
    if op.by.value == "tensor_core" and any(not lists[r] for r in site.role.ranks):
        raise op_error(op, "expects tensor_core to arrive somewhere, from every CTA of the role")


@covers(ws.CommitOp)
def _check_commit(site: Site, op: ws.CommitOp) -> None:
    _check_handover(site, op, op.slot.owner.ring.owner.full_at)


@covers(ws.ReleaseOp)
def _check_release(site: Site, op: ws.ReleaseOp) -> None:
    _check_handover(site, op, op.slot.owner.ring.owner.empty_at)
