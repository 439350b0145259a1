"""Barriers of warps, CTAs and clusters."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.order import Order, order_of_barrier
from ...core.state import (
    ALL_LANES,
    Cta,
    NamedBarrier,
    WarpContext,
    add_arrival,
)
from ...machine.faults import Fault
from ...ptx.ast import Instruction, Operand
from ...ptx.emit import BLOCKED, Emitter
from ...ptx.kinds import WARP_LANES, Lanes
from ..memory.accesses import order_name
from ..registry import instruction, runtime
from ..warp.collectives import emit_gather, emit_members
from ..warp.control import active_lanes, active_mask

BARRIER_COUNT = 16  # named barriers per CTA; spec-ptx 11


@dataclass(frozen=True, slots=True)
class ArrivedPhase:
    """The state of a context that waits at a barrier: the phase in which it arrived."""

    phase: int


def _key(cta: Cta, number: int) -> tuple[Any, ...]:
    return ("bar", cta.where_rank, number)


def _present(cta: Cta, barrier: NamedBarrier) -> int:
    """Threads that count as arrived: lanes that exited arrive with the rest of their warp."""
    everyone = barrier.expected == 0
    total = 0
    for index, warp in enumerate(cta.warps):
        times = barrier.arrived.get(index, ())
        exited = ~warp.alive & ALL_LANES
        total += sum((mask | exited).bit_count() for mask in times)
        if everyone and not times and exited == ALL_LANES:
            total += WARP_LANES
    return total


def _try_complete(s: WarpContext, number: int, barrier: NamedBarrier) -> bool:
    cta = s.cta
    needed = barrier.expected or WARP_LANES * len(cta.warps)
    present = _present(cta, barrier)
    if present < needed:
        return False
    if present > needed:
        raise Fault(
            "mbarrier", f"named barrier {number} expects {needed} threads, {present} arrived"
        )
    barrier.phase += 1
    barrier.arrived.clear()
    if s.launch.inspector is not None:
        s.launch.inspector.completed(cta, ("bar", cta.rank, number))
    votes = barrier.votes
    barrier.result = (sum(votes), int(all(votes)), int(any(votes)))
    barrier.votes = []
    s.launch.scheduler.wake(_key(cta, number))
    return True


def _number(s: WarpContext, k: Any, values: Lanes, what: str, limit: int) -> int:
    value = int(values[active_lanes(s, k)[0]])
    if not 0 <= value <= limit:
        raise Fault("mbarrier", f"{what} must be 0..{limit}, got {value}")
    return value


@runtime
def barrier_arrive(
    s: WarpContext, k: Any, number: Lanes, count: Lanes | None, predicate: Lanes | None, wait: bool
) -> bool:
    """bar/barrier .sync, .red (wait) and .arrive. False when the context was blocked.

    Args:
      count: threads that take part, all of the CTA when None.
      predicate: the operand of `.red`.
    """
    cta = s.cta
    index = _number(s, k, number, "barrier number", BARRIER_COUNT - 1)
    barrier = cta.named.setdefault(index, NamedBarrier())
    inspector, key = s.launch.inspector, ("bar", cta.rank, index)
    if isinstance(s.sync, ArrivedPhase):
        if barrier.phase == s.sync.phase:
            if not _try_complete(s, index, barrier):
                _wait(s, index, barrier)
                return False
        s.sync = None
        if inspector is not None:
            inspector.passed(s, active_mask(s, k), key)
        return True
    expected = 0
    if count is not None:
        expected = _number(s, k, count, "barrier thread count", WARP_LANES * 64)
        if expected % WARP_LANES or expected == 0:
            raise Fault("mbarrier", f"a barrier counts multiples of 32 threads, got {expected}")
    if not barrier.arrived:
        barrier.expected = expected
    needed = WARP_LANES * len(cta.warps)
    if (expected or needed) != (barrier.expected or needed):
        raise Fault(
            "mbarrier",
            f"named barrier {index} is used with {expected or needed} threads while "
            f"{barrier.expected or needed} were said before in this phase",
        )
    mask = active_mask(s, k)
    add_arrival(barrier.arrived.setdefault(s.warp.index, []), mask)
    if predicate is not None:
        barrier.votes += [bool(predicate[lane]) for lane in active_lanes(s, k)]
    s.observe("barrier", key)
    if inspector is not None:
        inspector.arriving(s, mask, key)
    s.launch.scheduler.progress += 1
    phase = barrier.phase
    if _try_complete(s, index, barrier) or not wait:
        if inspector is not None and wait:
            inspector.passed(s, mask, key)
        return True
    s.sync = ArrivedPhase(phase)
    _wait(s, index, barrier)
    return False


def _wait(s: WarpContext, number: int, barrier: NamedBarrier) -> None:
    cta = s.cta

    def describe() -> str:
        needed = barrier.expected or WARP_LANES * len(cta.warps)
        here = ", ".join(str(warp) for warp in sorted(barrier.arrived))
        return (
            f"waits at named barrier {number}: {_present(cta, barrier)} of {needed} threads "
            f"arrived (warps {here})"
        )

    s.launch.scheduler.block(s, _key(cta, number), describe)


@runtime
def barrier_result(s: WarpContext, k: Any, number: Lanes, which: int) -> int:
    """The result of a completed barrier reduction: 0 popc, 1 and, 2 or."""
    return s.cta.named[int(number[active_lanes(s, k)[0]])].result[which]


def _emit_bar(e: Emitter, i: Instruction, operands: tuple[Operand, ...], wait: bool) -> None:
    aligned = i.parts[0] == "bar" or i.has("aligned")
    if aligned:
        emit_gather(e, None, by_thread=True)
    number = e.src(operands[0], "u32")
    count = e.src(operands[1], "u32") if len(operands) > 1 else "None"
    with e.effect():
        text = f"barrier_arrive(s, {e.k}, {number}, {count}, None, {wait})"
        e.line(f"if not {text}: return {BLOCKED}" if wait else text)


_CTA_BARRIERS = ("bar", "bar.cta", "barrier", "barrier.cta")


@instruction(
    *(f"{name}.{verb}" for name in _CTA_BARRIERS for verb in ("sync", "arrive")),
    modifiers="cta aligned",
    boundary=True,
)
def emit_bar(e: Emitter, i: Instruction) -> None:
    """bar{.cta}.sync a{, b}, bar{.cta}.arrive a, b, and barrier{.cta} with {.aligned} of both."""
    _emit_bar(e, i, i.operands, i.has("sync"))


@instruction(
    *(f"{name}.red" for name in _CTA_BARRIERS),
    modifiers="cta aligned popc and or",
    boundary=True,
)
def emit_bar_red(e: Emitter, i: Instruction) -> None:
    """bar.red.{popc.u32,and.pred,or.pred} d, a{, b}, p."""
    if i.parts[0] == "bar" or i.has("aligned"):
        emit_gather(e, None, by_thread=True)
    d, number, *middle, predicate = i.operands
    which = 0 if i.has("popc") else (1 if i.has("and") else 2)
    number_text = e.src(number, "u32")
    count = e.src(middle[0], "u32") if middle else "None"
    with e.effect():
        value = e.src(predicate, "pred")
        e.line(
            f"if not barrier_arrive(s, {e.k}, {number_text}, {count}, {value}, True): "
            f"return {BLOCKED}"
        )
        result = f"barrier_result(s, {e.k}, {number_text}, {which})"
        if which == 0:
            e.dst(d, "u32", f"{e.const(1, 'u32')} * uint32({result})")
        else:
            e.dst(d, "pred", f"FULL & bool_({result})")


@instruction("bar.warp.sync", modifiers="", boundary=True)
def emit_bar_warp(e: Emitter, i: Instruction) -> None:
    """bar.warp.sync members."""
    emit_gather(e, i.operands[0])
    emit_members(e, i, i.operands[0])
    with e.effect():
        e.line(f"warp_synced(s, {e.k})")


@runtime
def warp_synced(s: WarpContext, k: Any) -> None:
    """bar.warp.sync: orders the memory accesses of the lanes, which are all here."""
    if s.launch.inspector is not None:
        s.launch.inspector.warp_synced(s, active_mask(s, k))


# ---- clusters


@runtime
def cluster_arrive(s: WarpContext, k: Any, order: Order) -> None:
    """barrier.cluster.arrive: the threads arrive on the cluster's barrier."""
    mask = active_mask(s, k)
    add_arrival(s.cta.cluster.barrier_arrived[s.cta.rank, s.warp.index], mask)
    s.warp.cluster_arrivals[active_lanes(s, k)] += 1
    s.observe("barrier", ("cluster",))
    if s.launch.inspector is not None:
        s.launch.inspector.arriving(s, mask, ("cluster",), order)
    s.launch.scheduler.progress += 1
    _try_complete_cluster(s)


def _missing(s: WarpContext) -> list[str]:
    cluster = s.cta.cluster
    return [
        f"{cta.rank}:{warp.index}"
        for cta in cluster.ctas
        for warp in cta.warps
        if warp.alive & ~(cluster.barrier_arrived[cta.rank, warp.index] or [0])[0]
    ]


def _try_complete_cluster(s: WarpContext) -> None:
    """Complete the phases in which all live threads arrived."""
    cluster = s.cta.cluster
    while any(cluster.barrier_arrived.values()) and not _missing(s):
        cluster.barrier_phase += 1
        for times in cluster.barrier_arrived.values():
            del times[:1]
        if s.launch.inspector is not None:
            s.launch.inspector.completed(s.cta, ("cluster",))
        s.launch.scheduler.wake(("cluster", id(cluster)))


@runtime
def cluster_wait(s: WarpContext, k: Any) -> bool:
    """barrier.cluster.wait. False when the context was blocked.

    A thread's n-th wait belongs to its n-th arrival, also when it arrived again in between; a wait
    to which no arrival belongs waits for nothing.
    """
    cluster, warp, lanes = s.cta.cluster, s.warp, active_lanes(s, k)
    _try_complete_cluster(s)
    waits = np.minimum(warp.cluster_waits[lanes] + 1, warp.cluster_arrivals[lanes])
    if cluster.barrier_phase >= waits.max():
        warp.cluster_waits[lanes] = waits
        if s.launch.inspector is not None:
            s.launch.inspector.passed(s, active_mask(s, k), ("cluster",))
        return True
    s.launch.scheduler.block(
        s,
        ("cluster", id(cluster)),
        lambda: (
            "waits for the cluster barrier; not there (CTA rank:warp): " + ", ".join(_missing(s))
        ),
    )
    return False


@instruction("barrier.cluster.arrive", modifiers="release relaxed aligned", boundary=True)
def emit_cluster_arrive(e: Emitter, i: Instruction) -> None:
    """barrier.cluster.arrive{.release,.relaxed}{.aligned}."""
    if i.has("aligned"):
        emit_gather(e, None, by_thread=True)
    with e.effect():
        order = order_name(e, order_of_barrier(i.parts, acquires=False))
        e.line(f"cluster_arrive(s, {e.k}, {order})")


@instruction("barrier.cluster.wait", modifiers="acquire aligned", boundary=True)
def emit_cluster_wait(e: Emitter, i: Instruction) -> None:
    """barrier.cluster.wait{.acquire}{.aligned}."""
    if i.has("aligned"):
        emit_gather(e, None, by_thread=True)
    with e.effect():
        e.line(f"if not cluster_wait(s, {e.k}): return {BLOCKED}")
