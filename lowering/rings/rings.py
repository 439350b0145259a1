"""The handover of ring slots: mbarrier waits and arrivals, and the fences that belong to them.

Which fences an arrival or a wait needs depends on who accesses the slot (PTX ISA, tcgen05 memory
consistency; async proxy):

* tensor memory, threads hand over: `wait::st`, `fence::before_thread_sync`, arrive; without both
  where they have not accessed tensor memory since the last time (`accesses`);
* tensor memory, threads or the issuing thread go on after a wait: `fence::after_thread_sync`; where
  the wait is for what only tells of tensor memory, before the first access behind it;
* shared memory that threads wrote and an engine accesses next: `fence.proxy.async` before the
  arrival, for the slot itself, in either direction, or for a buffer that the handover guards;
  before a `ws.barrier` if a role issues products on what its own threads wrote;
* shared memory that threads read and an engine fills next: the same before the arrival, which
  otherwise may overtake reads that are still on their way (wrong results on an H200,
  docs/lab/performance.md);
* shared memory that copies of threads write and an engine reads: the same after the wait, as the
  arrival happens when a copy completes, and no thread can execute a fence before it;
* none before an arrival directly behind another one that has it, which covers what was before both;
* the tensor core hands over by `tcgen05.commit`, the copy engine by the bytes it reports.

Tokens may guard buffers in tensor memory: roles that use such buffers hand tokens over as they
would hand over the buffers. So do slots in shared memory between two roles that both use such a
buffer. Tokens may also guard what a role writes into slots that others have filled. Where slots are
known to be empty, `ws.acquire` does not wait and `ws.release` does not arrive: a role that acquires
a slot has waited for another ring, and one that releases a slot commits another ring's, with the
fences of that for tensor memory. Those for shared memory, and the wait for copies out of the slot,
belong to the release. An engine that accesses a slot accesses those that overlap it.

In a cluster, arrivals go to the barriers of the CTAs that the ring lists, and waits are for them
all. At its end a role waits until the slots it acquired are empty again, so that no CTA exits while
another one still signals it.

If all copies into a slot stand in the same block as its `ws.acquire`, one arrival there tells the
full barrier how many bytes to wait for. If branches or loops decide over copies, each copy
announces its own bytes when it is issued, and `ws.commit` arrives, in a cluster at the barrier of
the CTA where they are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm
from attn_mlir.dialect.scalars import INT, compare, constant, i32, select, when
from attn_mlir.dialect.targets.limits import WARP_THREADS, shared_tile_bytes
from attn_mlir.dialect.ws.tiles import RESPONSE_BYTES

from ..access.groups import meet
from ..access.inline_ptx import not_before, opaque_pointer
from ..access.tensor_memory import complete_accesses, order_accesses
from ..state.barriers import BarrierRun
from ..state.handles import Fragment, Slot
from ..state.lowering import FULL_WARP, Lowering, lowers
from .awaited_copies import commits_together, wait_for_copies
from .clusters import (
    announce_at,
    arrive,
    arrive_expecting,
    by_rank,
    in_role,
    instance_of,
    is_own,
    landing,
    mask_of,
    only_in,
    release_to_cluster,
)
from .followed import issuing, meet_behind_reads
from .slot_users import (
    adds_to_filled_slots,
    agents,
    completed_by,
    feeds_own_engine,
    filled_or_read_by_engine,
    guards_a_buffer,
    guards_tensor_memory,
    is_read_by_engine,
    is_touched_by_threads,
    overlapping,
)

Value = Any

PRODUCER = "producer"  # the side of a ring that acquires
CONSUMER = "consumer"  # the side that waits


class RingState:
    """A ring at run time: where its slots and barriers are."""

    def __init__(self, low: Lowering, op: ws.AllocRingOp):
        plan = ir.DictAttr(op.operation.attributes["ws.plan"])
        numbers = {item.name: ir.IntegerAttr(item.attr).value for item in plan}
        self.op = op
        self.full_at, self.empty_at = op.full_at, op.empty_at
        self.is_crossing = any(ws.crossing(self.full_at)) or any(ws.crossing(self.empty_at))
        self.kind = ws.RingType(op.ring.type)
        self.offset = numbers["offset"]
        self.slot_step = numbers["slot_step"]
        self.full_count = numbers["full_count"]
        count = self.kind.stages * self.kind.instances
        self.full = BarrierRun(low.shared_pointer(numbers["full"]), count)
        self.empty: BarrierRun | None = None  # there are none where slots are known to be empty
        if "empty" in numbers:
            self.empty = BarrierRun(low.shared_pointer(numbers["empty"]), count)
            self.empty_count = numbers["empty_count"]
        self.space = "" if self.kind.tile is None else self.kind.tile.space  # tokens have no memory
        self.filled_by_thread_copies = "thread_copies" in agents(op)[0]
        by_engine = [filled_or_read_by_engine(ring) for ring in (op, *overlapping(op))]
        is_over = any(map(any, by_engine[1:]))  # another ring, whose slots an engine accesses
        self.filled_by_engine, self.read_by_engine = (x or is_over for x in by_engine[0])

    def index(self, instance: Value, stage: Value) -> Value:
        """i32: the number of a slot among the stages of all instances."""
        stages = self.kind.stages
        return INT.add(INT.mul(instance, stages), stage) if stages > 1 else instance

    def wait(self, barriers: BarrierRun, number: Value, parity: Value) -> None:
        """Blocks until the phase of this parity (0 or 1) of a full or empty barrier has
        completed.
        """
        if self.is_crossing:
            barriers.wait_for_cluster(number, parity)
        else:
            barriers.wait(number, parity)

    def init_barriers(self) -> None:
        """Sets all barriers to their first phase."""
        for number in range(self.full.count):
            self.full.init(number, self.full_count)
            if self.empty is not None:
                self.empty.init(number, self.empty_count)


class Cursor:
    """Stage and phase of one side of a ring, in stack cells that the optimiser makes registers."""

    def __init__(self, low: Lowering, stages: int, first_parity: int):
        self.stages = stages
        self._is_lean = low.tensor_base is not None
        with low.entry_point():
            self._phase = _cell(first_parity)
            self._stage = _cell(0) if stages > 1 else None

    def take(self) -> tuple[Value, Value]:
        """Returns stage and phase parity, both i32, and moves to the next stage.

        The phase of a single stage is the number of turns, so that rings whose turns are those of a
        loop share its counter. Where O is in registers it is a bit that is compared with 0 again:
        some kernels spill otherwise.
        """
        phase = _read(self._phase)
        parity = phase
        if self._is_lean and self._stage is None:
            _write(INT.add(phase, 1), self._phase)
            return constant(0), arith.AndIOp(phase, constant(1)).result
        if not self._is_lean:
            parity = arith.ExtUIOp(i32(), compare("ne", phase, 0)).result
        if self._stage is None:
            _write(arith.XOrIOp(phase, constant(1)).result, self._phase)
            return constant(0), parity
        stage = _read(self._stage)
        following = INT.add(stage, 1)
        wraps = compare("eq", following, self.stages)
        _write(select(wraps, constant(0), following), self._stage)
        flip = arith.ExtUIOp(i32(), wraps).result
        _write(arith.XOrIOp(phase, flip).result, self._phase)
        return stage, parity

    def go_on_behind(self, count: Value, first_parity: int) -> None:
        """Moves to the stage behind the first `count` ones, i32."""
        wraps = count if self._stage is None else arith.DivUIOp(count, constant(self.stages)).result
        phase = INT.add(wraps, first_parity)
        is_count = self._is_lean and self._stage is None
        _write(phase if is_count else arith.AndIOp(phase, constant(1)).result, self._phase)
        if self._stage is not None:
            _write(arith.RemUIOp(count, constant(self.stages)).result, self._stage)


def _cell(initial: int) -> Value:
    pointer = ir.Type.parse("!llvm.ptr")
    cell = llvm.AllocaOp(pointer, constant(1), i32()).result
    llvm.StoreOp(constant(initial), cell)
    return cell


def _read(cell: Value) -> Value:
    return llvm.LoadOp(i32(), cell).result


def _write(value: Value, cell: Value) -> None:
    llvm.StoreOp(value, cell)


def _fence_proxy() -> None:
    """`fence.proxy.async`: makes this thread's stores to shared memory visible to engines."""
    kind = ir.Attribute.parse("#nvvm.proxy_kind<async.shared>")
    nvvm.FenceProxyOp(kind, space=ir.Attribute.parse("#nvvm.shared_space<cta>"))


def _fence_once(low: Lowering) -> None:
    """`_fence_proxy`, unless nothing has been accessed since the last one."""
    if not low.active.is_fenced:
        _fence_proxy()
    low.active.is_fenced = True


def cursor_key(low: Lowering, op: ws.AcquireOp | ws.WaitOp) -> tuple[Any, ...]:
    """The key of the cursor with which an operation takes slots."""
    side = PRODUCER if isinstance(op, ws.AcquireOp) else CONSUMER
    return op.ring, low.instances[op.slot], side


def first_parity(op: ws.AcquireOp | ws.WaitOp) -> int:
    """The parity that the first slot is waited for with: of the phase before the first, or of the
    first.
    """
    return 1 if isinstance(op, ws.AcquireOp) else 0


def take(low: Lowering, op: ws.AcquireOp | ws.WaitOp) -> tuple[Value, Value]:
    """Advances the role's cursor; returns stage and parity."""
    return cursor_of(low, op).take()


def cursor_of(low: Lowering, op: ws.AcquireOp | ws.WaitOp) -> Any:
    """The role's cursor that an operation takes slots with."""
    ring: RingState = low[op.ring]
    key, cursors = cursor_key(low, op), low.active.cursors
    if key not in cursors:
        cursors[key] = Cursor(low, ring.kind.stages, first_parity(op))
    return cursors[key]


def _take_slot(low: Lowering, op: ws.AcquireOp | ws.WaitOp) -> tuple[RingState, Slot, Value]:
    """Makes the next slot, or the one that has been taken for this turn; returns the ring, the slot
    and the parity."""
    ring: RingState = low[op.ring]
    turn = low.active.iteration
    stage, parity = take(low, op) if turn is None else turn.taken[op.slot]
    index = ring.index(low[op.instance], stage)
    tile = ring.kind.tile
    memory = low.tile_at(tile, ring.offset, index, ring.slot_step) if tile is not None else None
    return ring, Slot(ring, memory, index), parity


def _ring_of(low: Lowering, slot: Slot) -> RingState:
    """The ring of a slot."""
    return low[slot.ring.op.ring]


@lowers(ws.AllocInsideOp)
@lowers(ws.AllocRingOp)
def _alloc_ring(low: Lowering, op: ws.AllocRingOp) -> None:
    low[op.ring] = RingState(low, op)


@lowers(ws.AcquireOp)
def _acquire(low: Lowering, op: ws.AcquireOp) -> None:
    ring, slot, parity = _take_slot(low, op)
    if any(isinstance(load, ws.GatherInOp) for load in ws.loads_into(op.slot)):
        slot = replace(slot, start=opaque_pointer(low.shared_pointer(slot.tile.address)))
    if ring.empty is not None:
        ring.wait(ring.empty, slot.index, parity)
        if guards_tensor_memory(low, ring.op):
            order_accesses(low, after_wait=True)
    if "copy_engine" in completed_by(op.slot, ws.CommitOp):
        if ws.announces_at_once(op):
            with issuing(low):
                _arm(low, ring, slot, ws.loads_into(op.slot))
        else:
            is_single = len(ws.loads_into(op.slot)) == 1
            arrives_with_copy = low.active.iteration is not None and is_single
            slot = replace(slot, is_armed=False, arrives_with_copy=arrives_with_copy)
    low[op.slot] = slot


def _arm(low: Lowering, ring: RingState, slot: Slot, loads: Sequence[Any]) -> None:
    """Tells the full barrier of this CTA the bytes of one turn, from copies of whatever CTA."""
    if not ring.is_crossing:
        ring.full.expect(slot.index, sum(landing_bytes(load) for load in loads))
        return
    ranks = low.active.op.ranks
    found = landing(ring.op, low.active.op, loads, landing_bytes)
    announced = {rank: found.get(rank, 0) for rank in ranks if rank in ring.full_at[rank]}
    if announced:
        with only_in(low, announced, ranks):
            ring.full.expect(slot.index, by_rank(low, announced))


def drain(low: Lowering) -> None:
    """Waits until the last slots that this CTA acquired are empty, if other CTAs signal that."""
    for (ring_value, instances, side), cursor in low.active.cursors.items():
        ring: RingState = low[ring_value]
        if side == PRODUCER and ring.empty is not None and any(ws.crossing(ring.empty_at)):
            instance = instance_of(low, instances)
            for _ in range(ring.kind.stages):
                stage, parity = cursor.take()
                ring.wait(ring.empty, ring.index(instance, stage), parity)


def landing_bytes(load: Any) -> int:
    """Bytes that the copy engine reports when a copy or an answer has arrived."""
    if isinstance(load, ws.ClaimOp):
        return RESPONSE_BYTES
    kind = ws.TileType(load.target.type)
    rows, columns = kind.shape
    return shared_tile_bytes(rows, columns, ws.element_bits(kind.element), kind.line_bytes)


def announce(low: Lowering, slot: Slot, load: Any) -> None:
    """Announces the bytes of a copy, unless `ws.acquire` has announced them; where the
    copy is known to be issued, and the only one into its slot, it arrives as well.

    Bytes may arrive before that, as the phase cannot complete before the commit's arrival.
    """
    if slot.is_armed:
        return
    announce_bytes = arrive_expecting if slot.arrives_with_copy else announce_at
    announce_bytes(low, slot.ring.full, slot.index, landing_bytes(load), slot.ring.full_at)


@lowers(ws.WaitOp)
def _wait(low: Lowering, op: ws.WaitOp) -> None:
    ring, slot, parity = _take_slot(low, op)
    ring.wait(ring.full, slot.index, parity)
    if guards_tensor_memory(low, ring.op):
        order_accesses(low, after_wait=True)
    if ring.filled_by_thread_copies and is_read_by_engine(op.slot):
        _fence_proxy()
    low[op.slot] = slot


@lowers(ws.CommitOp)
def _commit(low: Lowering, op: ws.CommitOp) -> None:
    slot: Slot = low[op.slot]
    ring = _ring_of(low, slot)
    if op.by.value == "copy_engine":
        turn = low.active.iteration
        has_arrived = slot.arrives_with_copy and turn is not None and turn.holds
        if not slot.is_armed and not has_arrived:
            with issuing(low):
                arrive(low, ring.full, slot.index, ring.full_at)
        return  # the bytes complete the phase
    wait_for_copies(low, op)
    engine_follows = ring.read_by_engine
    if not ring.space:
        engine_follows = adds_to_filled_slots(low)
    together = [other.operation for other in commits_together(op)]
    place = together.index(op.operation) if len(together) > 1 else None
    by = op.by.value
    arrival = _hand_over(
        low, slot, by, ring.full, ring.full_at, engine_follows=engine_follows, place=place
    )
    low[op.slot] = replace(slot, arrival=arrival)


@lowers(ws.BehindOp)
def _behind(low: Lowering, op: ws.BehindOp) -> None:
    rows, slot = low[op.fragment], low[op.slot]
    parts = tuple(not_before(row, slot.arrival) for row in rows.parts)
    low[op.behind] = Fragment(rows.kind, rows.layout, parts)


@lowers(ws.ReleaseOp)
def _release(low: Lowering, op: ws.ReleaseOp) -> None:
    slot: Slot = low[op.slot]
    ring, by = _ring_of(low, slot), op.by.value
    if by == "copy_engine":
        with issuing(low):
            nvvm.CpAsyncBulkCommitGroupOp()
            nvvm.CpAsyncBulkWaitGroupOp(0, read=True)
            if ring.empty is not None:
                arrive(low, ring.empty, slot.index, ring.empty_at)
        return
    engine_follows = ring.filled_by_engine and is_touched_by_threads(op.slot)
    if ring.empty is not None:
        meet_behind_reads(low, op.slot)
        _hand_over(low, slot, by, ring.empty, ring.empty_at, engine_follows=engine_follows)
    elif engine_follows and ring.space == "shared":
        _fence_once(low)
        meet_behind_reads(low, op.slot)


def _hand_over(
    low: Lowering,
    slot: Slot,
    by: str,
    barriers: BarrierRun,
    lists: ws.Targets,
    *,
    engine_follows: bool,
    place: int | None = None,
) -> Value:
    """Arrives at barriers, with the fences of that; returns what a thread's arrival at its CTA's
    barrier has.

    Args:
      place: of a commit among several that stand together, which warps release with one fence.
    """
    if by == "tensor_core":
        _commit_products(low, barriers.address(slot.index), in_role(low, lists))
        return None
    if by == "thread_copies":
        nvvm.CpAsyncMBarrierArriveOp(barriers.address(slot.index), noinc=True)
        return None
    ring = _ring_of(low, slot)
    if guards_tensor_memory(low, ring.op):
        complete_accesses(low)
    is_in_tensor_memory = ring.space == "tensor"
    if (engine_follows and not is_in_tensor_memory) or guards_a_buffer(low):
        _fence_once(low)
    if by == "threads":
        with issuing(low):
            return arrive(low, barriers, slot.index, lists)
    if not place:
        nvvm.SyncWarpOp(constant(FULL_WARP))
    lane = arith.AndIOp(low.active.thread, constant(WARP_THREADS - 1)).result
    with when(compare("eq", lane, 0)):
        if place == 0:
            release_to_cluster()
        arrive(low, barriers, slot.index, lists, is_relaxed=place is not None)
    return None


def _commit_products(low: Lowering, address: Value, announced: Mapping[int, Sequence[int]]) -> None:
    group = low.tensor_group
    if is_own(announced):
        nvvm.Tcgen05CommitOp(address, group=group)
    else:
        nvvm.Tcgen05CommitOp(address, multicastMask=mask_of(low, announced), group=group)


@lowers(ws.AllocBufferOp)
def _alloc_buffer(low: Lowering, op: ws.AllocBufferOp) -> None:
    plan = ir.DictAttr(op.operation.attributes["ws.plan"])
    numbers = (ir.IntegerAttr(plan[name]).value for name in ("offset", "slot_step"))
    low[op.buffer] = tuple(numbers)


@lowers(ws.AtOp)
def _at(low: Lowering, op: ws.AtOp) -> None:
    offset, step = low[op.buffer]
    low[op.tile] = low.tile_at(ws.TileType(op.tile.type), offset, low[op.instance], step)


@lowers(ws.BarrierOp)
def _barrier(low: Lowering, op: ws.BarrierOp) -> None:
    if feeds_own_engine(low) or guards_a_buffer(low):
        _fence_proxy()
    meet(low)
