"""How copies between shared and global memory are posted, and complete (spec-ptx 7)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.state import (
    AsyncGroup,
    Cta,
    WarpContext,
)
from ...machine.faults import Fault
from ..memory.accesses import shared_target

REDUCTIONS = "add min max inc dec and or xor".split()


def observe_copy(
    s: WarpContext, line: int, cta: Cta, offset: int, byte_count: int, is_write: bool
) -> None:
    """Report an engine's access to shared memory for a context's copy."""
    observer = s.launch.observer
    if observer is not None:
        who = f"{s.cta.where()} warp {s.warp.index} copy engine"
        where = np.array([offset])
        observer.access(who, line, "async", "shared", cta.rank, where, byte_count, is_write)


def complete_tx(s: WarpContext, line: int, cta: Cta, offset: int, byte_count: int) -> None:
    """Complete bytes on an mbarrier, and report it to the observer."""
    observer = s.launch.observer
    if observer is not None:
        who = f"{s.cta.where()} warp {s.warp.index} copy engine"
        observer.sync(who, line, "complete_tx", ("mbarrier", cta.rank, offset))
    cta.mbarriers.complete_tx(offset, byte_count)


def destinations(
    s: WarpContext, address: int, barrier: int, ranks: int | None, cluster: bool, group: int
) -> list[tuple[Cta, int, Cta, int]]:
    """(destination CTA, offset, CTA of the mbarrier, its offset) of a load; spec-ptx 7.2.

    With .cta_group::2 the mbarrier may be that of the destination's peer, also where the target
    is spelled .shared::cta.
    """
    cta, offset = shared_target(s, address, cluster)
    barrier_cta, barrier_offset = shared_target(s, barrier, cluster or group == 2)
    ctas = s.cta.cluster.ctas
    if ranks is None:
        if barrier_cta is not cta and (group != 2 or barrier_cta.rank ^ 1 != cta.rank):
            raise Fault(
                "mbarrier",
                f"the mbarrier is in CTA rank {barrier_cta.rank}, the data goes to {cta.rank}",
                address=barrier,
            )
        return [(cta, offset, barrier_cta, barrier_offset)]
    if ranks >> len(ctas):
        raise Fault("out-of-bounds", f"multicast to ranks 0x{ranks:x} of {len(ctas)} CTAs")
    result: list[tuple[Cta, int, Cta, int]] = []
    for goal in ctas:
        if ranks >> goal.rank & 1:
            signal = goal
            if group == 2:
                signal = ctas[goal.rank & ~1 | barrier_cta.rank & 1]
            result.append((goal, offset, signal, barrier_offset))
    return result


def post_load(
    s: WarpContext,
    lane: int,
    goals: list[tuple[Cta, int, Cta, int]],
    move: Callable[[Cta, int], int],
) -> None:
    """Posts a copy into shared memory whose bytes complete on mbarriers.

    Args:
      goals: of `destinations`.
      move: copies to a CTA's shared memory at an offset; returns the bytes.
    """
    line = s.segment.line
    for _, _, signal, where in goals:
        signal.mbarriers.get(where)

    def run(payloads: list[Any]) -> None:
        for cta, offset, signal, where in goals:
            byte_count = move(cta, offset)
            observe_copy(s, line, cta, offset, byte_count, True)
            complete_tx(s, line, signal, where, byte_count)

    s.launch.scheduler.post(None, run, None, s, lane=lane)


def open_group(groups: dict[int, AsyncGroup], lane: int) -> AsyncGroup:
    return groups.setdefault(lane, AsyncGroup())


def bulk_key(s: WarpContext) -> tuple[Any, ...]:
    return ("bulk", id(s.warp))


def post_store(
    s: WarpContext, lane: int, source: int, byte_count: int, move: Callable[[Cta, int], None]
) -> None:
    """Posts a copy from shared to global memory, which belongs to the lane's open bulk group.

    Args:
      source: address in shared memory of `byte_count` bytes.
      move: copies from a CTA's shared memory at an offset.
    """
    scheduler, line = s.launch.scheduler, s.segment.line
    cta, offset = shared_target(s, source, False)
    group, key = open_group(s.warp.bulk_open, lane), bulk_key(s)
    group.reads += 1
    group.writes += 1

    def run(payloads: list[Any]) -> None:
        observe_copy(s, line, cta, offset, byte_count, False)
        move(cta, offset)
        group.reads -= 1
        group.writes -= 1
        scheduler.wake(key)

    scheduler.post(None, run, None, s, engine="store", lane=lane)
