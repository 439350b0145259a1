"""The users of a ring's slots and of the buffers that it guards: threads, or engines by the async
proxy.

It decides over the fences that a handover needs (`rings`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attn_mlir.dialect import ws

from ..state.lowering import Lowering

Value = Any

ENGINE_OPS = (  # agents that access memory by the asynchronous proxy
    ws.MmaOp,
    ws.ProductOp,
    ws.CopyInOp,
    ws.GatherInOp,
    ws.CopyOutOp,
    ws.CopyAcrossOp,
    ws.ReduceOutOp,
    ws.ClaimOp,
)
HANDOVERS = (ws.CommitOp, ws.ReleaseOp)
MOST_COLUMNS = 1 << 18  # of a tile in shared memory, of which no generation has as many bytes
THREADS = {"threads", "warps", "thread_copies"}  # agents that access memory as threads do


def agents(op: ws.AllocRingOp) -> tuple[set[str], set[str]]:
    """The agents of the commits and of the releases of a ring's slots."""
    slots = [use.owner.operation.results[0] for use in op.ring.uses]
    filled, read = (
        {agent for slot in slots for agent in completed_by(slot, step)}
        for step in (ws.CommitOp, ws.ReleaseOp)
    )
    return filled, read


def filled_or_read_by_engine(op: ws.AllocRingOp) -> tuple[bool, bool]:
    """Whether engines fill, and whether they read, the slots of a ring."""
    filled, read = agents(op)
    return (
        bool(filled - THREADS) or engine_on(op, ws.AcquireOp),
        bool(read - THREADS) or engine_on(op, ws.WaitOp),
    )


def overlapping(op: ws.AllocRingOp) -> list[ws.AllocRingOp]:
    """The rings in shared memory whose slots overlap those of a ring."""
    tile = ws.RingType(op.ring.type).tile
    if tile is None or tile.space != "shared":
        return []
    return [other for other, _ in ws.overlaps(op)]


def completed_by(slot: Value, step: type[ws.CommitOp] | type[ws.ReleaseOp]) -> set[str]:
    """The agents of the commits or of the releases of a slot."""
    users = (use.owner for use in slot.uses)
    return {user.by.value for user in users if isinstance(user, step)}


def slot_of(tile: Any) -> Any:
    """The slot or buffer tile that a tile is a view or a part of."""
    while isinstance(tile.owner, ws.ViewOp | ws.PARTS):
        tile = tile.owner.source
    return tile


def is_read_by_engine(slot: Value) -> bool:
    """Whether an engine reads a slot from `ws.wait`, or parts of it."""
    is_used = any(isinstance(user, ENGINE_OPS) for user in ws.users(slot))
    return is_used or bool(completed_by(slot, ws.ReleaseOp) - THREADS)


def is_touched_by_threads(slot: Value) -> bool:
    """Whether threads read or write a slot, or parts of it."""
    return any(not isinstance(user, (*ENGINE_OPS, *HANDOVERS)) for user in ws.users(slot))


def engine_on(op: ws.AllocRingOp, opener: Any) -> bool:
    """Whether an engine accesses the slots that operations like `opener` (acquire or wait) take."""
    takers = (use.owner for use in op.ring.uses if isinstance(use.owner, opener))
    return any(isinstance(user, ENGINE_OPS) for taker in takers for user in ws.users(taker.slot))


def _users_of_buffers(low: Lowering) -> Iterator[list[Any]]:
    """For each buffer in shared memory, the operations of all roles that use its tiles."""
    for op in low.kernel.body.blocks[0].operations:
        if isinstance(op, ws.AllocBufferOp):
            if ws.BufferType(op.buffer.type).tile.space == "shared":
                yield [user for use in op.buffer.uses for user in ws.users(use.owner.tile)]


def _users_of_slots(low: Lowering) -> Iterator[list[Any]]:
    """For each slot in shared memory that this role takes, the operations that use it."""
    for op in low.kernel.body.blocks[0].operations:
        if isinstance(op, ws.AllocRingOp):
            tile = ws.RingType(op.ring.type).tile
            for use in op.ring.uses if tile is not None and tile.space == "shared" else ():
                if _is_in(use.owner, low.active.op):
                    yield list(ws.users(use.owner.slot))


def _meets_engine(low: Lowering, users: Sequence[Any]) -> bool:
    """Whether this role's threads write to shared memory that an engine accesses."""
    is_written = any(isinstance(x, ws.StoreOp) and _is_in(x, low.active.op) for x in users)
    return is_written and any(isinstance(user, ENGINE_OPS) for user in users)


def guards_a_buffer(low: Lowering) -> bool:
    """Whether this role's threads write a buffer that an engine accesses: any handover may guard
    it.
    """
    return any(_meets_engine(low, users) for users in _users_of_buffers(low))


def feeds_own_engine(low: Lowering) -> bool:
    """Whether this role's threads write to a slot what it issues engine work on itself,
    later on.
    """
    return any(_reads_behind(low, users) for users in _users_of_slots(low))


def _reads_behind(low: Lowering, users: Sequence[Any]) -> bool:
    """Whether engine work of this role may access columns of a slot that its threads have written
    before.
    """
    own = [user for user in users if _is_in(user, low.active.op)]
    writes = [user for user in own if isinstance(user, ws.StoreOp)]
    works = [user for user in own if isinstance(user, ENGINE_OPS)]
    return any(_meets(write, work) for write in writes for work in works)


def _meets(write: ws.StoreOp, work: Any) -> bool:
    """Whether engine work may meet what threads have written to the same slot."""
    slot, written = _columns(write.target)
    tiles = [x for x in work.operation.operands if isinstance(x.type, ws.TileType)]
    used = [columns for whole, columns in map(_columns, tiles) if whole == slot]
    if not any(written.start < other.stop and other.start < written.stop for other in used):
        return False
    block = write.operation.block
    if not slot.owner.operation.block == work.operation.block == block:
        return True
    order = [inner.operation for inner in block.operations]  # each turn takes the slot anew
    return order.index(write.operation) < order.index(work.operation)


def _columns(tile: Value) -> tuple[Value, range]:
    """The slot that a tile is or is part of, and which columns; any, where it is a view of another
    shape.
    """
    owner = tile.owner
    shape = ws.TileType(tile.type).shape
    if isinstance(owner, ws.ColumnsOp):
        whole, columns = _columns(owner.source)
        first = columns.start + owner.first.value
        return whole, range(first, min(first + shape[1], columns.stop))
    if isinstance(owner, ws.RowsOp):
        return _columns(owner.source)
    if isinstance(owner, ws.ViewOp):
        return _columns(owner.source)[0], range(MOST_COLUMNS)
    return tile, range(shape[-1])


def adds_to_filled_slots(low: Lowering) -> bool:
    """Whether this role's threads write to slots that others filled, and an engine reads: tokens
    say so.
    """
    for op in low.kernel.body.blocks[0].operations:
        if isinstance(op, ws.AllocRingOp) and engine_on(op, ws.WaitOp):
            waits = (use.owner for use in op.ring.uses if isinstance(use.owner, ws.WaitOp))
            own = (wait for wait in waits if _is_in(wait, low.active.op))
            if any(isinstance(user, ws.StoreOp) for wait in own for user in ws.users(wait.slot)):
                return True
    return False


def guards_tensor_memory(low: Lowering, ring: ws.AllocRingOp) -> bool:
    """Whether a handover guards tensor memory: slots there, or a buffer that the ring stands for.

    Tokens stand for the buffers of a role, slots in shared memory for those that roles on both
    sides of the ring use.
    """
    tile = ws.RingType(ring.ring.type).tile
    if tile is not None and tile.space == "tensor":
        return True
    buffers = (
        op for op in low.kernel.body.blocks[0].operations if isinstance(op, ws.AllocBufferOp)
    )
    users = _roles_of(
        low,
        (
            use.owner
            for op in buffers
            if ws.BufferType(op.buffer.type).tile.space == "tensor"
            for use in op.buffer.uses
        ),
    )
    if low.active.op.label not in users:
        return False
    takers = [use.owner for use in ring.ring.uses]
    fillers, readers = (
        _roles_of(low, (taker for taker in takers if isinstance(taker, kind)))
        for kind in (ws.AcquireOp, ws.WaitOp)
    )
    return tile is None or bool(users & fillers and users & readers)


def _roles_of(low: Lowering, operations: Iterable[Any]) -> set[str]:
    """The labels of the roles that operations stand in."""
    found = {_around(op) for op in operations}
    return {role.label for role in low.kernel.roles() if role.operation in found}


def _around(op: Any) -> Any:
    """The role that an operation stands in; None for one of the kernel."""
    parent = op.operation.parent
    while parent is not None and parent.name != ws.RoleOp.OPERATION_NAME:
        parent = parent.parent
    return parent


def _is_in(op: Any, role: ws.RoleOp) -> bool:
    parent = op.operation.parent
    while parent is not None and parent != role.operation:
        parent = parent.parent
    return parent is not None
