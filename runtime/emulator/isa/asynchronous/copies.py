"""Asynchronous copies: TMA tensors, bulk copies, cp.async, and their groups (spec-ptx 7)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.state import (
    SHARED_WINDOW,
    SHARED_WINDOW_END,
    AsyncGroup,
    Cta,
    WarpContext,
)
from ...machine import bulk, tensormap, tma
from ...machine.faults import Fault
from ...ptx.ast import Instruction, Mem, Operand
from ...ptx.emit import BLOCKED, Emitter
from ...ptx.kinds import Lanes
from ..memory.accesses import OFFSET_MASK, shared_target
from ..registry import instruction, runtime
from ..warp.control import active_lanes


def _read_map(s: WarpContext, address: int) -> tensormap.TensorMap:
    if address % 64:
        raise Fault("misaligned", "a tensor map is 64-byte aligned", address=address)
    return tensormap.decode(s.launch.memory.view(address, 128))


def _observe(
    s: WarpContext, line: int, cta: Cta, offset: int, byte_count: int, is_write: bool
) -> None:
    """Report an engine's access to shared memory for a context's copy."""
    observer = s.launch.observer
    if observer is not None:
        who = f"{s.cta.where()} warp {s.warp.index} copy engine"
        where = np.array([offset])
        observer.access(who, line, "async", "shared", cta.rank, where, byte_count, is_write)


def _complete_tx(s: WarpContext, line: int, cta: Cta, offset: int, byte_count: int) -> None:
    """Complete bytes on an mbarrier, and report it to the observer."""
    observer = s.launch.observer
    if observer is not None:
        who = f"{s.cta.where()} warp {s.warp.index} copy engine"
        observer.sync(who, line, "complete_tx", ("mbarrier", cta.rank, offset))
    cta.mbarriers.complete_tx(offset, byte_count)


def _destinations(
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


def _post_load(
    s: WarpContext,
    lane: int,
    goals: list[tuple[Cta, int, Cta, int]],
    move: Callable[[Cta, int], int],
) -> None:
    """Posts a copy into shared memory whose bytes complete on mbarriers.

    Args:
      goals: of `_destinations`.
      move: copies to a CTA's shared memory at an offset; returns the bytes.
    """
    line = s.segment.line
    for _, _, signal, where in goals:
        signal.mbarriers.get(where)

    def run(payloads: list[Any]) -> None:
        for cta, offset, signal, where in goals:
            byte_count = move(cta, offset)
            _observe(s, line, cta, offset, byte_count, True)
            _complete_tx(s, line, signal, where, byte_count)

    s.launch.scheduler.post(None, run, None, s, lane=lane)


@runtime
def tensor_load(
    s: WarpContext,
    k: Any,
    form: tuple[bool, int, str],
    address: Lanes,
    tensor_map: Lanes,
    coordinates: tuple[Lanes, ...],
    barrier: Lanes,
    ranks: Lanes | None,
) -> None:
    """cp.async.bulk.tensor, global to shared, by each active lane.

    Args:
      form: (destination is a shared::cluster address, cta_group, "tile" or "gather4").
    """
    cluster, group, mode = form
    launch = s.launch
    engine = tma.gather4 if mode == "gather4" else tma.load_tile
    for lane in active_lanes(s, k):
        tmap = _read_map(s, int(tensor_map[lane]))
        at = [int(c[lane]) for c in coordinates]
        mask = None if ranks is None else int(ranks[lane]) & 0xFFFF
        goals = _destinations(s, int(address[lane]), int(barrier[lane]), mask, cluster, group)
        launch.count("tensor_loads")

        def move(cta: Cta, offset: int, tmap: Any = tmap, at: list[int] = at) -> int:
            byte_count = engine(tmap, at, launch.memory, cta.shared, offset)
            launch.count("tensor_load_bytes", byte_count)
            return byte_count

        _post_load(s, lane, goals, move)


_LOAD_MODIFIERS = (
    "1d 2d 3d 4d 5d shared::cluster shared::cta global tile tile::gather4 "
    "mbarrier::complete_tx::bytes multicast::cluster cta_group::1 cta_group::2 L2::cache_hint"
).split()


def _tensor_operand(e: Emitter, operand: Operand) -> tuple[str, str]:
    """Expressions for the map address and the coordinate tuple of `[map, {c..}]`."""
    if not isinstance(operand, Mem) or operand.coordinates is None:
        raise e.error("expected a tensor map with coordinates, [map, {c0, ..}]")
    address = e.address(operand, True)
    items = "".join(f"{e.src(item, 's32')}, " for item in operand.coordinates.items)
    return address, f"({items})"


@instruction("cp.async.bulk.tensor", boundary=True)
def emit_tensor_copy(e: Emitter, i: Instruction) -> None:
    """cp.async.bulk.tensor.Nd: loads and stores of boxes."""
    if i.spaces[:1] == ("global",):
        _emit_tensor_store(e, i, "")
        return
    e.check_modifiers(i, i.parts[4:], _LOAD_MODIFIERS)
    if not i.has("mbarrier::complete_tx::bytes"):
        raise e.error(f"'{i.opcode}' needs .mbarrier::complete_tx::bytes")
    cluster = i.has("shared::cluster")
    mode = "gather4" if i.has("tile::gather4") else "tile"
    form = (cluster, 2 if i.has("cta_group::2") else 1, mode)
    address = e.address(i.operands[0], False)
    tensor_map, coordinates = _tensor_operand(e, i.operands[1])
    barrier = e.address(i.operands[2], False)
    ranks = e.src(i.operands[3], "u16") if i.has("multicast::cluster") else "None"
    with e.effect():
        e.line(
            f"tensor_load(s, {e.k}, {form!r}, {address}, {tensor_map}, {coordinates}, "
            f"{barrier}, {ranks})"
        )


# ---- groups


def _open(groups: dict[int, AsyncGroup], lane: int) -> AsyncGroup:
    return groups.setdefault(lane, AsyncGroup())


def _bulk_key(s: WarpContext) -> tuple[Any, ...]:
    return ("bulk", id(s.warp))


def _post_store(
    s: WarpContext, lane: int, source: int, byte_count: int, move: Callable[[Cta, int], None]
) -> None:
    """Posts a copy from shared to global memory, which belongs to the lane's open bulk group.

    Args:
      source: address in shared memory of `byte_count` bytes.
      move: copies from a CTA's shared memory at an offset.
    """
    scheduler, line = s.launch.scheduler, s.segment.line
    cta, offset = shared_target(s, source, False)
    group, key = _open(s.warp.bulk_open, lane), _bulk_key(s)
    group.reads += 1
    group.writes += 1

    def run(payloads: list[Any]) -> None:
        _observe(s, line, cta, offset, byte_count, False)
        move(cta, offset)
        group.reads -= 1
        group.writes -= 1
        scheduler.wake(key)

    scheduler.post(None, run, None, s, engine="store", lane=lane)


@runtime
def tensor_store(
    s: WarpContext,
    k: Any,
    form: tuple[str, str],
    tensor_map: Lanes,
    coordinates: tuple[Lanes, ...],
    source: Lanes,
) -> None:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor, shared to global.

    Args:
      form: ("tile" or "scatter4", reduction or "").
    """
    mode, reduction = form
    memory = s.launch.memory
    for lane in active_lanes(s, k):
        tmap = _read_map(s, int(tensor_map[lane]))
        at = [int(c[lane]) for c in coordinates]
        s.launch.count("tensor_stores")

        def move(cta: Cta, offset: int, tmap: Any = tmap, at: list[int] = at) -> None:
            if reduction:
                tma.reduce_tile(tmap, at, memory, cta.shared, offset, reduction)
            elif mode == "scatter4":
                tma.scatter4(tmap, at, memory, cta.shared, offset)
            else:
                tma.store_tile(tmap, at, memory, cta.shared, offset)

        _post_store(s, lane, int(source[lane]), tmap.box_bytes, move)


_STORE_MODIFIERS = (
    "tensor 1d 2d 3d 4d 5d global shared::cta tile tile::scatter4 bulk_group L2::cache_hint "
    "add min max inc dec and or xor"
).split()


def _emit_tensor_store(e: Emitter, i: Instruction, reduction: str) -> None:
    e.check_modifiers(i, i.parts[4:], _STORE_MODIFIERS)
    mode = "scatter4" if i.has("tile::scatter4") else "tile"
    tensor_map, coordinates = _tensor_operand(e, i.operands[0])
    source = e.address(i.operands[1], False)
    with e.effect():
        form = (mode, reduction)
        e.line(f"tensor_store(s, {e.k}, {form!r}, {tensor_map}, {coordinates}, {source})")


_REDUCTIONS = "add min max inc dec and or xor".split()


@instruction("cp.reduce.async.bulk.tensor", boundary=True)
def emit_tensor_reduce(e: Emitter, i: Instruction) -> None:
    """cp.reduce.async.bulk.tensor.Nd.global.shared::cta.OP."""
    _emit_tensor_store(e, i, next(part for part in i.parts if part in _REDUCTIONS))


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
                _bulk_key(s) if bulk else ("copy", id(warp)),
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
        goals = _destinations(s, int(address[lane]), int(barrier[lane]), mask, cluster, 1)
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

        _post_load(s, lane, goals, move)


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

        _post_store(s, lane, int(source[lane]), count, move)


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
        if part in _REDUCTIONS and i.parts[1] == "reduce":
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
    groups = [_open(warp.copy_open, int(lane)) for lane in lanes]
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
