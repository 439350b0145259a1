"""Clusters: this CTA's rank, values that depend on it, and barriers in other CTAs.

The work of a CTA for others is listed by rank (`dialect.ws.cluster`). All CTAs run the same code,
so a list becomes a value selected by the rank, or a constant where all ranks that run the code have
the same.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm
from attn_mlir.dialect.scalars import compare, constant, i32, select, when

from ..state.barriers import BarrierRun
from ..state.lowering import Lowering, lowers

Value = Any
CLUSTER_SCOPE = "#nvvm.mem_scope<cluster>"
_SHARED, _CLUSTER = (
    "!llvm.ptr<3>",
    "!llvm.ptr<7>",
)  # address spaces of shared memory, of a CTA and of its cluster


def this_rank() -> Value:
    """i32: the number of the CTA in its cluster."""
    return nvvm.ClusterId(results=[i32()]).result


def meet(low: Lowering) -> None:
    """A barrier of all threads of the CTA or cluster,
    after which all earlier writes are visible.
    """
    if low.cta_count == 1:
        nvvm.BarrierOp()
        return
    nvvm.ClusterArriveOp(aligned=True)
    nvvm.ClusterWaitOp(aligned=True)


def by_rank(low: Lowering, numbers: Mapping[int, int]) -> Value | int:
    """Selects the number of this CTA's rank; a Python integer if all ranks have the same."""
    found = list(numbers.values())
    if len(set(found)) == 1:
        return found[0]
    value: Value = constant(found[0])
    for rank, number in list(numbers.items())[1:]:
        value = select(compare("eq", low.rank, rank), constant(number), value)
    return value


def number_in(value: Value, rank: int) -> int | None:
    """The value of an integer in the CTA of a rank, if it is made of ranks and constants."""
    if isinstance(value.owner, ir.Block):
        return None
    made: Any = value.owner.opview
    if isinstance(made, ws.RankOp):
        return rank
    if isinstance(made, arith.ConstantOp):
        return made.literal_value
    if not isinstance(made, arith.AddIOp | arith.MulIOp):
        return None
    a, b = (number_in(operand, rank) for operand in (made.lhs, made.rhs))
    if a is None or b is None:
        return None
    return a + b if isinstance(made, arith.AddIOp) else a * b


def in_role(low: Lowering, lists: ws.Targets) -> dict[int, tuple[int, ...]]:
    """The lists of those ranks that run the current role."""
    return {rank: lists[rank] for rank in low.active.op.ranks}


@contextmanager
def only_in(low: Lowering, ranks: Collection[int], among: Sequence[int]) -> Generator[None]:
    """Emits the body for the CTAs `ranks` alone; `among` are those that reach this code."""
    if set(ranks) >= set(among):
        yield
        return
    mask = arith.ShRUIOp(constant(sum(1 << rank for rank in ranks)), low.rank).result
    with when(compare("ne", arith.AndIOp(mask, constant(1)).result, 0)):
        yield


def mask_of(low: Lowering, lists: Mapping[int, Sequence[int]]) -> Value:
    """i16: a bit for each CTA in the list of this CTA's rank."""
    masks = {rank: sum(1 << to for to in listed) for rank, listed in lists.items()}
    value = by_rank(low, masks)
    i16 = ir.IntegerType.get_signless(16)
    return arith.TruncIOp(i16, constant(value) if isinstance(value, int) else value).result


def is_own(lists: Mapping[int, Sequence[int]]) -> bool:
    """Whether every rank's list names this rank alone."""
    return all(tuple(listed) == (rank,) for rank, listed in lists.items())


def in_cta(low: Lowering, pointer: Value, ranks: Mapping[int, int]) -> Value:
    """A pointer to the same place in another CTA's shared memory (`mapa`), chosen by rank."""
    rank = by_rank(low, ranks)
    remote = ir.Type.parse(_CLUSTER)
    return nvvm.MapaOp(remote, pointer, constant(rank) if isinstance(rank, int) else rank).result


def as_shared(pointer: Value) -> Value:
    """A pointer into the cluster's shared memory with the type that NVVM operations take."""
    return _retyped(pointer, _SHARED)


def as_cluster(pointer: Value) -> Value:
    """A pointer into this CTA's shared memory as one into the cluster's, which contains it.

    A conversion of address spaces would go by generic addresses, of 64 bits, of which copies have
    moves for the upper half as well: 482 instead of 397 instructions of a turn that gathers.
    """
    return _retyped(pointer, _CLUSTER)


def _retyped(pointer: Value, kind: str) -> Value:
    """The same address as a pointer of another type."""
    address = llvm.PtrToIntOp(ir.IntegerType.get_signless(64), pointer).result
    return llvm.IntToPtrOp(ir.Type.parse(kind), address).result


def release_to_cluster() -> None:
    """A fence: relaxed arrivals behind it release what was done before it."""
    llvm.FenceOp(llvm.AtomicOrdering.acq_rel, syncscope="cluster")


def arrive(
    low: Lowering,
    barriers: BarrierRun,
    number: Value,
    lists: ws.Targets,
    *,
    is_relaxed: bool = False,
) -> Value:
    """One arrival of each executing thread at the barriers of all CTAs in its rank's list.

    Returns what the arrival says of its phase, where there is one alone and in the thread's own
    CTA; else None.

    Args:
      is_relaxed: whether arrivals in other CTAs release nothing, as behind `release_to_cluster`.
    """
    mine = in_role(low, lists)
    if is_own(mine):
        return barriers.arrive(number)
    scope = ir.Attribute.parse(CLUSTER_SCOPE)
    for place in range(max(map(len, mine.values()))):
        targets = {rank: listed[place] for rank, listed in mine.items() if place < len(listed)}
        with only_in(low, targets, low.active.op.ranks):
            address = in_cta(low, barriers.address(number), targets)
            nvvm.MBarrierArriveOp(address, scope=scope, relaxed=is_relaxed)
    return None


def arrive_expecting(
    low: Lowering, barriers: BarrierRun, number: Value, byte_count: int, lists: ws.Targets
) -> None:
    """One arrival at the barrier of the one CTA in its rank's list, whose phase then waits for more
    bytes.

    It passes nothing on but the bytes, which are the copy engine's.
    """
    mine = in_role(low, lists)
    if is_own(mine):
        barriers.expect(number, byte_count)
        return
    address = in_cta(low, barriers.address(number), {rank: to for rank, (to,) in mine.items()})
    scope = ir.Attribute.parse(CLUSTER_SCOPE)
    nvvm.MBarrierArriveExpectTxOp(address, constant(byte_count), scope=scope, relaxed=True)


def announce_at(
    low: Lowering, barriers: BarrierRun, number: Value, byte_count: int, lists: ws.Targets
) -> None:
    """Makes a phase wait for more bytes, at the barrier of the one CTA in its rank's list."""
    mine = in_role(low, lists)
    if is_own(mine):
        barriers.announce(number, byte_count)
        return
    address = in_cta(low, barriers.address(number), {rank: to for rank, (to,) in mine.items()})
    scope = ir.Attribute.parse(CLUSTER_SCOPE)
    nvvm.MBarrierExpectTxOp(address, constant(byte_count), scope=scope)


def counted_at(
    low: Lowering, barrier: Value, receivers: Mapping[int, Sequence[int]], lists: ws.Targets
) -> tuple[Value, dict[str, Any]]:
    """The barrier that counts the bytes of a copy, and the options by which the copy finds it.

    Args:
      barrier: pointer to that of this CTA.
      receivers, lists: the CTAs that the copy fills, and those whose barriers the copy signals.
    """
    targets = in_role(low, lists)
    if receivers == targets:
        return barrier, {}
    there = in_cta(low, barrier, {rank: to[0] for rank, to in targets.items()})
    return as_shared(there), {"group": ir.Attribute.parse(f"#nvvm.cta_group<cta_{ws.PAIR}>")}


def barrier_of(targets: Sequence[int], receiver: int) -> int | None:
    """The CTA whose barrier counts the bytes that arrive in `receiver`: itself,
    or one of its pair.
    """
    if receiver in targets:
        return receiver
    return next((rank for rank in ws.pair_of(receiver) if rank in targets), None)


def receivers(load: Any) -> ws.Targets:
    """For each rank that copies into a slot, the CTAs that receive the copy."""
    if isinstance(load, ws.CopyInOp):
        return load.receivers
    if isinstance(load, ws.CopyAcrossOp):
        return load.to
    return tuple((rank,) for rank in range(ws.cta_count(load)))


def landing(
    ring: ws.AllocRingOp, role: ws.RoleOp, loads: Sequence[Any], size: Callable[[Any], int]
) -> dict[int, int]:
    """Bytes that the full barrier of each CTA gets in one turn of a slot, by rank."""
    found: dict[int, int] = {}
    for rank in role.ranks:
        for load in loads:
            for receiver in receivers(load)[rank]:
                where = barrier_of(ring.full_at[rank], receiver)
                if where is not None:
                    found[where] = found.get(where, 0) + size(load)
    return found


def instance_of(low: Lowering, instances: Sequence[int]) -> Value:
    """The instance that this group uses, given those of all groups."""
    value: Value = constant(instances[0])
    for group, instance in enumerate(instances):
        if instance != instances[0]:
            value = select(compare("eq", low.active.group, group), constant(instance), value)
    return value


def cluster_number() -> Value:
    """i32: which cluster along x this CTA belongs to."""
    return nvvm.ClusterIdXOp(results=[i32()]).result


def cluster_total() -> Value:
    """i32: clusters along x."""
    return nvvm.ClusterDimXOp(results=[i32()]).result


@lowers(ws.RankOp)
def _rank(low: Lowering, op: ws.RankOp) -> None:
    low[op.rank] = low.rank if low.cta_count > 1 else constant(0)
