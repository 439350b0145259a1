"""Clusters in the frame of a kernel: this CTA's rank, what depends on it, and meeting the others.

What a CTA does for others is listed by rank (`dialect.ws.cluster`). All CTAs run one text, so a list
becomes a value chosen by the rank, and a constant where it is the same for all who run the text.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm
from attn_mlir.dialect.scalars import compare, constant, i32, select, when

from .barriers import BarrierRun
from .context import Lowering, lowers

Value = Any
CLUSTER_SCOPE = "#nvvm.mem_scope<cluster>"


def this_rank() -> Value:
    """i32: the number of the CTA in its cluster."""
    return nvvm.ClusterId(results=[i32()]).result


def meet(low: Lowering) -> None:
    """All threads of the CTA, or of a cluster, wait for one another and see what was written before."""
    if low.cta_count == 1:
        nvvm.BarrierOp()
        return
    nvvm.ClusterArriveOp(aligned=True)
    nvvm.ClusterWaitOp(aligned=True)


def by_rank(low: Lowering, numbers: Mapping[int, int]) -> Value | int:
    """A number for each rank that runs this text; a constant where it is one for all."""
    found = list(numbers.values())
    if len(set(found)) == 1:
        return found[0]
    value: Value = constant(found[0])
    for rank, number in list(numbers.items())[1:]:
        value = select(compare("eq", low.rank, rank), constant(number), value)
    return value


def in_role(low: Lowering, lists: ws.Targets) -> dict[int, tuple[int, ...]]:
    """Of lists for all ranks, those of the CTAs that have the role."""
    return {rank: lists[rank] for rank in low.active.op.ranks}


@contextmanager
def only_in(low: Lowering, ranks: Collection[int], among: Sequence[int]) -> Generator[None]:
    """Emits what is written inside for some of the CTAs that get here."""
    if set(ranks) >= set(among):
        yield
        return
    mask = arith.ShRUIOp(constant(sum(1 << rank for rank in ranks)), low.rank).result
    with when(compare("ne", arith.AndIOp(mask, constant(1)).result, 0)):
        yield


def mask_of(low: Lowering, lists: Mapping[int, Sequence[int]]) -> Value:
    """i16: a bit for each CTA that a list names."""
    masks = {rank: sum(1 << to for to in listed) for rank, listed in lists.items()}
    value = by_rank(low, masks)
    i16 = ir.IntegerType.get_signless(16)
    return arith.TruncIOp(i16, constant(value) if isinstance(value, int) else value).result


def is_own(lists: Mapping[int, Sequence[int]]) -> bool:
    """Whether every list is the CTA itself."""
    return all(tuple(listed) == (rank,) for rank, listed in lists.items())


def in_cta(low: Lowering, pointer: Value, ranks: Mapping[int, int]) -> Value:
    """The place of a shared pointer in another CTA of the cluster, as a pointer of that space."""
    rank = by_rank(low, ranks)
    remote = ir.Type.parse("!llvm.ptr<7>")
    return nvvm.MapaOp(remote, pointer, constant(rank) if isinstance(rank, int) else rank).result


def as_shared(pointer: Value) -> Value:
    """A pointer into the cluster's shared memory as the operations of this level take it."""
    address = llvm.PtrToIntOp(ir.IntegerType.get_signless(64), pointer).result
    return llvm.IntToPtrOp(ir.Type.parse("!llvm.ptr<3>"), address).result


def arrive(low: Lowering, barriers: BarrierRun, number: Value, lists: ws.Targets) -> None:
    """One arrival of each executing thread at the barriers of the CTAs that its own list names."""
    mine = in_role(low, lists)
    if is_own(mine):
        barriers.arrive(number)
        return
    scope = ir.Attribute.parse(CLUSTER_SCOPE)
    for place in range(max(map(len, mine.values()))):
        told = {rank: listed[place] for rank, listed in mine.items() if place < len(listed)}
        with only_in(low, told, low.active.op.ranks):
            address = in_cta(low, barriers.address(number), told)
            nvvm.MBarrierArriveOp(address, scope=scope)


def barrier_of(told: Sequence[int], receiver: int) -> int | None:
    """The CTA whose barrier counts the bytes that land in one: its own or that of its pair."""
    if receiver in told:
        return receiver
    return next((rank for rank in ws.pair_of(receiver) if rank in told), None)


def receivers(load: Any) -> ws.Targets:
    """Per rank, who gets what is copied into a slot."""
    if isinstance(load, ws.CopyInOp):
        return load.receivers
    if isinstance(load, ws.CopyAcrossOp):
        return load.to
    return tuple((rank,) for rank in range(ws.cta_count(load)))


def landing(
    ring: ws.AllocRingOp, role: ws.RoleOp, loads: Sequence[Any], size: Callable[[Any], int]
) -> dict[int, int]:
    """Bytes that one turn of a slot brings to the full barrier of each CTA."""
    found: dict[int, int] = {}
    for rank in role.ranks:
        for load in loads:
            for receiver in receivers(load)[rank]:
                where = barrier_of(ring.full_at[rank], receiver)
                if where is not None:
                    found[where] = found.get(where, 0) + size(load)
    return found


def way_of(low: Lowering, ways: Sequence[int]) -> Value:
    """The way that the groups of the role name, here."""
    value: Value = constant(ways[0])
    for group, way in enumerate(ways):
        if way != ways[0]:
            value = select(compare("eq", low.active.group, group), constant(way), value)
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
