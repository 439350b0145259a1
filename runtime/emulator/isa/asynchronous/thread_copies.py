"""Asynchronous copies by threads: cp.async, and mbarriers that await them."""

from typing import Any

import numpy as np

from ...core.state import (
    SHARED_WINDOW,
    SHARED_WINDOW_END,
    Cta,
    WarpContext,
)
from ...machine.faults import Fault
from ...ptx.ast import Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes
from ..memory.accesses import OFFSET_MASK, shared_target
from ..registry import instruction, runtime
from ..warp.control import active_lanes
from .posting import open_group


@runtime
def copy_async(
    s: WarpContext,
    k: Any,
    size: int,
    generic: bool,
    address: Lanes,
    source: Lanes,
    source_size: Lanes | None,
) -> None:
    """cp.async: `size` bytes per lane; bytes from `source_size` on are zero."""
    launch, warp = s.launch, s.warp
    lanes = np.array(active_lanes(s, k))
    goals = address[lanes]
    if generic:
        inside = (goals >= SHARED_WINDOW) & (goals < SHARED_WINDOW_END)
        if not inside.all():
            raise Fault("out-of-bounds", "the destination of cp.async is not shared memory")
    goals = goals & goals.dtype.type(OFFSET_MASK)
    sources = source[lanes]
    sizes = None if source_size is None else source_size[lanes]
    shared = s.cta.shared
    launch.count("thread_copy_bytes", size * lanes.size)
    groups = [open_group(warp.copy_open, int(lane)) for lane in lanes]
    for group in groups:
        group.writes += 1

    def run(payloads: list[Any]) -> None:
        data = np.zeros((lanes.size, size), np.uint8)
        if sizes is None:
            data[:] = launch.memory.load(sources, size)
        else:
            for row in range(lanes.size):
                count = min(int(sizes[row]), size)
                if count:
                    data[row, :count] = launch.memory.view(int(sources[row]), count)
        if shared.watch is not None:
            shared.watch.lanes(goals, size, data)
        shared.store(goals, data)
        for group in groups:
            group.writes -= 1
        launch.scheduler.wake(("copy", id(warp)))

    launch.scheduler.post(("copy", id(warp)), run, None, s, lane=lanes)


@instruction("cp.async", boundary=True)
def emit_cp_async(e: Emitter, i: Instruction) -> None:
    """cp.async.{ca,cg}.shared.global [dst], [src], size{, source size}{, policy}."""
    allowed = "ca cg shared shared::cta global L2::cache_hint L2::64B L2::128B L2::256B".split()
    level = e.modifier(i, "ca cg")
    e.check_modifiers(i, i.parts[2:], allowed)
    generic = not i.has("shared", "shared::cta")
    address = e.address(i.operands[0], generic)
    source = e.address(i.operands[1], True)
    size = e.immediate(i.operands[2], "the copy size")
    if size not in ((4, 8, 16) if level == "ca" else (16,)):
        raise e.error(f"cp.async cannot copy {size} bytes")
    optional = i.operands[3:-1] if i.has("L2::cache_hint") else i.operands[3:]
    with e.effect():
        source_size = e.src(optional[0], "u32") if optional else "None"
        e.line(f"copy_async(s, {e.k}, {size}, {generic}, {address}, {source}, {source_size})")


@runtime
def copy_arrive(s: WarpContext, k: Any, address: Lanes, is_counted: bool) -> None:
    """cp.async.mbarrier.arrive: arrive when the thread's earlier cp.async have completed.

    Args:
      is_counted: `.noinc`: the barrier's count already includes this arrival.
    """
    scheduler = s.launch.scheduler
    for lane in active_lanes(s, k):
        cta, offset = shared_target(s, int(address[lane]), False)
        if not is_counted:
            cta.mbarriers.add_pending(offset)

        def run(payloads: list[Any], cta: Cta = cta, offset: int = offset) -> None:
            cta.mbarriers.arrive(offset)

        scheduler.post(("copy", id(s.warp)), run, None, s, lane=lane)


@instruction("cp.async.mbarrier.arrive", modifiers="noinc shared shared::cta", boundary=True)
def emit_copy_arrive(e: Emitter, i: Instruction) -> None:
    """cp.async.mbarrier.arrive{.noinc}.shared.b64 [a]."""
    address = e.address(i.operands[0], False)
    with e.effect():
        e.line(f"copy_arrive(s, {e.k}, {address}, {i.has('noinc')})")
