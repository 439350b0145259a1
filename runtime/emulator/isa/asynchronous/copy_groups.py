"""Groups of asynchronous copies: commits and waits."""

from typing import Any

from ...core.state import (
    AsyncGroup,
    WarpContext,
)
from ...ptx.ast import Instruction
from ...ptx.emit import BLOCKED, Emitter
from ..registry import instruction, runtime
from ..warp.control import active_lanes
from .posting import bulk_key


@runtime
def commit_group(s: WarpContext, k: Any, bulk: bool) -> None:
    """Close each active lane's open group of copies."""
    warp = s.warp
    opened = warp.bulk_open if bulk else warp.copy_open
    closed = warp.bulk_groups if bulk else warp.copy_groups
    lanes = active_lanes(s, k)
    if s.launch.inspector is not None:
        s.launch.inspector.group_closed(s, lanes, "bulk" if bulk else "copy")
    for lane in lanes:
        closed.setdefault(lane, []).append(opened.pop(lane, None) or AsyncGroup())


@runtime
def wait_group(s: WarpContext, k: Any, bulk: bool, newest: int, read_only: bool) -> bool:
    """Wait until at most `newest` groups of each active lane are under way.

    newest -1 stands for cp.async.wait_all. False when the context was blocked.
    """
    warp = s.warp
    closed = warp.bulk_groups if bulk else warp.copy_groups
    what = "bulk copies" if bulk else "cp.async"
    for lane in active_lanes(s, k):
        groups = closed.setdefault(lane, [])
        if newest < 0 and lane in warp.copy_open:
            groups.append(warp.copy_open.pop(lane))
        while groups and not groups[0].writes:
            groups.pop(0)
        older = groups[: len(groups) - max(newest, 0)]
        unfinished = sum(1 for group in older if (group.reads if read_only else group.writes))
        if unfinished:
            s.launch.scheduler.block(
                s,
                bulk_key(s) if bulk else ("copy", id(warp)),
                lambda unfinished=unfinished: f"waits for {unfinished} groups of {what}",
            )
            return False
    if s.launch.inspector is not None:
        kind = "bulk" if bulk else "copy"
        s.launch.inspector.group_waited(s, active_lanes(s, k), kind, newest, read_only)
    return True


@instruction("cp.async.bulk.commit_group", modifiers="", boundary=True)
def emit_bulk_commit(e: Emitter, i: Instruction) -> None:
    """cp.async.bulk.commit_group."""
    with e.effect():
        e.line(f"commit_group(s, {e.k}, True)")


@instruction("cp.async.commit_group", modifiers="", boundary=True)
def emit_copy_commit(e: Emitter, i: Instruction) -> None:
    """cp.async.commit_group."""
    with e.effect():
        e.line(f"commit_group(s, {e.k}, False)")


@instruction("cp.async.bulk.wait_group", modifiers="read", boundary=True)
def emit_bulk_wait(e: Emitter, i: Instruction) -> None:
    """cp.async.bulk.wait_group{.read} N."""
    newest = e.immediate(i.operands[0], "the group count")
    with e.effect():
        e.line(f"if not wait_group(s, {e.k}, True, {newest}, {i.has('read')}): return {BLOCKED}")


@instruction("cp.async.wait_group", "cp.async.wait_all", modifiers="", boundary=True)
def emit_copy_wait(e: Emitter, i: Instruction) -> None:
    """cp.async.wait_group N and cp.async.wait_all."""
    newest = e.immediate(i.operands[0], "the group count") if i.operands else -1
    with e.effect():
        e.line(f"if not wait_group(s, {e.k}, False, {newest}, False): return {BLOCKED}")


# ---- bulk copies without a tensor map
