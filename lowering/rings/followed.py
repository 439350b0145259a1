"""Roles of one thread that the whole warp follows: all lanes wait, count and branch, one of them
does the rest.

What one thread alone executes is behind a branch that differs between lanes, where the assembler
(ptxas 13.5) counts in registers of threads and moves a box of the copy engine into 7 uniform
registers for each copy. If all lanes run the role's loops it counts in uniform registers, and a
copy changes two of them in place. Roles that gather are followed, which issue four times as many
copies as any other.

Barriers hear of the elected thread alone, as they would of a role of one thread. Before it releases
a slot that all lanes have read, the warp meets, so that its arrival comes behind their reads.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import nvvm, scf
from attn_mlir.dialect.scalars import constant, i1, when

from ..state.lowering import FULL_WARP, Lowering
from .slot_users import ENGINE_OPS, HANDOVERS

FOLLOWED = (  # operations that are right if all lanes execute what `issuing` does not guard
    ws.AcquireOp,
    ws.ClockOp,
    ws.ColumnsOp,
    ws.CommitOp,
    ws.CopyInOp,
    ws.CopyOutOp,
    ws.ElementOp,
    ws.EntryOp,
    ws.ExtentOp,
    ws.GatherInOp,
    ws.GridDependencyWaitOp,
    ws.LaunchDependentsOp,
    ws.RankOp,
    ws.ReleaseOp,
    ws.RowsOp,
    ws.StoreEntryOp,
    ws.TilesOp,
    ws.WaitOp,
    ws.YieldOp,
    scf.ForOp,
    scf.IfOp,
    scf.YieldOp,
)


def is_followed(role: ws.RoleOp) -> bool:
    """Whether a role's warp follows its thread."""
    if role.lane_count != 1:
        return False
    inner = list(_within(role))
    return any(isinstance(op, ws.GatherInOp) for op in inner) and all(map(_may_follow, inner))


def follow(low: Lowering) -> None:
    """Elects the thread, at the beginning of a role whose warp follows it."""
    low.active.elected = nvvm.ElectSyncOp(results=[i1()]).result


@contextmanager
def issuing(low: Lowering) -> Generator[None]:
    """Emits the body for the elected thread, if the warp follows it; else as it is."""
    if low.active.elected is None:
        yield
        return
    with when(low.active.elected):
        yield


def meet_behind_reads(low: Lowering, slot: Any) -> None:
    """The warp that follows a thread meets, if all of its lanes have read a slot."""
    is_read = _is_read if low.active.iteration is None else _is_any_read
    if low.active.elected is not None and any(map(is_read, ws.users(slot))):
        nvvm.SyncWarpOp(constant(FULL_WARP))


def _is_read(user: Any) -> bool:
    """Whether all lanes read a slot by an operation; what a gather copy chooses rows by,
    one does.
    """
    around = user.operation.parent
    in_gather = around is not None and isinstance(around.opview, ws.GatherInOp)
    return not in_gather and _is_any_read(user)


def _is_any_read(user: Any) -> bool:
    """The same in turns that a branch decides about, in which all lanes know rows."""
    return not isinstance(user, (*ENGINE_OPS, *HANDOVERS))


def _may_follow(op: Any) -> bool:
    return isinstance(op, FOLLOWED) or op.operation.name.startswith("arith.")


def _within(op: Any) -> Iterator[Any]:
    """All operations of an operation's regions, at any depth."""
    for region in op.operation.regions:
        for block in region:
            for inner in block.operations:
                yield inner
                yield from _within(inner)
