"""Copies of contiguous bytes by the copy engine, and prefetches (spec-ptx 7)."""

from typing import Any

import numpy as np

from ...core.state import (
    Cta,
    WarpContext,
)
from ...machine import bulk
from ...ptx.ast import Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes
from ..memory.accesses import shared_target
from ..registry import instruction, runtime
from ..warp.control import active_lanes
from .posting import REDUCTIONS, destinations, post_load, post_store


@runtime
def bulk_load(
    s: WarpContext,
    k: Any,
    form: tuple[bool, bool, str, str],
    address: Lanes,
    source: Lanes,
    size: Lanes,
    barrier: Lanes,
    ranks: Lanes | None,
) -> None:
    """Bulk copies that complete on an mbarrier.

    Args:
      form: (destination is shared::cluster, source is shared, reduction or "", its type).
    """
    cluster, from_shared, reduction, kind = form
    launch = s.launch
    for lane in active_lanes(s, k):
        count = int(size[lane])
        mask = None if ranks is None else int(ranks[lane]) & 0xFFFF
        goals = destinations(s, int(address[lane]), int(barrier[lane]), mask, cluster, 1)
        space: Any = launch.memory
        start = int(source[lane])
        if from_shared:
            origin, start = shared_target(s, start, False)
            space = origin.shared

        def move(
            cta: Cta, offset: int, space: Any = space, start: int = start, count: int = count
        ) -> int:
            if reduction:
                bulk.bulk_reduce(cta.shared, offset, space, start, count, reduction, kind)
            else:
                bulk.bulk_copy(cta.shared, offset, space, start, count)
            return count

        post_load(s, lane, goals, move)


@runtime
def bulk_store(
    s: WarpContext,
    k: Any,
    form: tuple[str, str],
    address: Lanes,
    source: Lanes,
    size: Lanes,
    byte_mask: Lanes | None,
) -> None:
    """Bulk copies from shared to global memory; form is (reduction or "", its type)."""
    reduction, kind = form
    memory = s.launch.memory
    for lane in active_lanes(s, k):
        goal, count = int(address[lane]), int(size[lane])
        byte_bits = None if byte_mask is None else int(byte_mask[lane]) & 0xFFFF

        def move(
            cta: Cta,
            offset: int,
            goal: int = goal,
            count: int = count,
            byte_bits: int | None = byte_bits,
        ) -> None:
            if reduction:
                bulk.bulk_reduce(memory, goal, cta.shared, offset, count, reduction, kind)
            elif byte_bits is not None:
                chosen = (byte_bits >> np.arange(count) % 16 & 1) == 1
                target = memory.view(goal, count, writing=True)
                target[chosen] = cta.shared.view(offset, count)[chosen]
            else:
                bulk.bulk_copy(memory, goal, cta.shared, offset, count)

        post_store(s, lane, int(source[lane]), count, move)


_BULK_MODIFIERS = (
    "shared::cluster shared::cta global mbarrier::complete_tx::bytes multicast::cluster "
    "bulk_group L2::cache_hint cp_mask noftz"
).split()


@instruction("cp.async.bulk", "cp.reduce.async.bulk", boundary=True)
def emit_bulk(e: Emitter, i: Instruction) -> None:
    """cp{.reduce}.async.bulk between global, shared::cta and shared::cluster."""
    first = 4 if i.parts[1] == "reduce" else 3
    reduction = kind = ""
    for part in i.parts[first:]:
        if part in REDUCTIONS and i.parts[1] == "reduce":
            reduction = part
        elif part == i.parts[-1] and i.parts[1] == "reduce":
            kind = part
        elif part not in _BULK_MODIFIERS:
            raise e.error(f"unknown modifier '.{part}' of '{i.opcode}'")
    to, source_space = i.spaces
    operands = i.operands
    if to == "global":
        address = e.address(operands[0], True)
        source = e.address(operands[1], False)
        mask = e.src(operands[-1], "u16") if i.has("cp_mask") else "None"
        with e.effect():
            size = e.src(operands[2], "u32")
            form = (reduction, kind)
            e.line(f"bulk_store(s, {e.k}, {form!r}, {address}, {source}, {size}, {mask})")
        return
    from_shared = source_space == "shared::cta"
    address = e.address(operands[0], False)
    source = e.address(operands[1], not from_shared)
    barrier = e.address(operands[3], False)
    ranks = e.src(operands[4], "u16") if i.has("multicast::cluster") else "None"
    with e.effect():
        size = e.src(operands[2], "u32")
        form2 = (to == "shared::cluster", from_shared, reduction, kind)
        e.line(f"bulk_load(s, {e.k}, {form2!r}, {address}, {source}, {size}, {barrier}, {ranks})")


@runtime
def bulk_prefetch(s: WarpContext, k: Any, address: Lanes, size: Lanes) -> None:
    """cp.async.bulk.prefetch.L2: has no effect here, but on units of 16 bytes alone."""
    for lane in active_lanes(s, k):
        bulk.check_units(int(size[lane]), int(address[lane]))


@instruction("cp.async.bulk.prefetch")
def emit_bulk_prefetch(e: Emitter, i: Instruction) -> None:
    """Prefetches into L2 have no effect here; those of tensors are not looked at."""
    if i.has("tensor"):
        return
    address = e.address(i.operands[0], True)
    with e.effect():
        size = e.src(i.operands[1], "u32")
        e.line(f"bulk_prefetch(s, {e.k}, {address}, {size})")


# ---- cp.async
