"""Warp collectives: elect, shfl, vote, match, redux, activemask."""

from typing import Any

import numpy as np

from ...core.launch_errors import lanes_text
from ...core.state import ALL_LANES, WarpContext, mask_of_lanes
from ...machine.faults import Fault
from ...ptx.ast import Imm, Instruction, Operand, Pair
from ...ptx.emit import BLOCKED, Emitter
from ...ptx.kinds import WARP_LANES, Lanes
from ..arithmetic.floating import minmax_values
from ..registry import instruction, runtime
from .control import active_lanes, active_mask, converged

_LANE = np.arange(WARP_LANES, dtype=np.int64)


@runtime
def gather(s: WarpContext, k: Any, members: Lanes) -> bool:
    """Wait until the lanes of a member mask have come to this instruction."""
    lanes = active_lanes(s, k)
    return not lanes or converged(s, int(members[lanes[0]]))


@runtime
def gather_all(s: WarpContext) -> bool:
    """Wait until all live lanes of the warp have come to this instruction (`.aligned`)."""
    return converged(s, ALL_LANES)


@runtime
def whole_warp(s: WarpContext, k: Lanes) -> None:
    """Lanes that execute an `.aligned` instruction are all of the warp or none."""
    executing = mask_of_lanes(k)
    if executing not in (0, s.mask):
        raise Fault(
            "divergent",
            f"an .aligned instruction is executed by lanes {lanes_text(executing)} of a warp with "
            f"lanes {lanes_text(s.mask)}: its guard must agree in all of them",
        )


def emit_gather(e: Emitter, members: Operand | None, *, by_thread: bool = False) -> None:
    """Block until the members are here; `members` None stands for the whole warp.

    A context of all 32 lanes never has to wait.

    Args:
      by_thread: the instruction has a meaning for each thread, so that a guard may differ.
    """
    if e.masked:
        if members is None:
            some = "any_lane(g) and " if e.k == "g" else ""
            e.line(f"if {some}not gather_all(s): return {BLOCKED}")
        else:
            e.line(f"if not gather(s, {e.k}, {e.src(members, 'u32')}): return {BLOCKED}")
        e.refresh_active()  # lanes may have joined
    if members is None and not by_thread and e.k == "g":
        e.line("whole_warp(s, g)")


@runtime
def check_members(s: WarpContext, k: Any, opcode: str, members: Lanes, source: Any) -> None:
    """Reports to the inspector lanes outside their mask, absent members, and reads from such lanes.

    Args:
      source: of shfl, the lane that each lane reads; else None.
    """
    if s.launch.inspector is None:
        return
    present = active_mask(s, k)
    for lane in active_lanes(s, k):
        mask = int(members[lane])
        message = ""
        if not mask >> lane & 1:
            message = f"lane {lane} executes it and is not in its member mask 0x{mask:x}"
        elif mask & s.warp.alive & ~present:
            away = lanes_text(mask & s.warp.alive & ~present)
            message = f"its member mask 0x{mask:x} names lanes {away}, which do not execute it"
        elif source is not None and not (mask & present) >> int(source[lane]) & 1:
            message = f"lane {lane} reads from lane {int(source[lane])}, which does not take part"
        if message:
            s.launch.inspector.misused_members(s, opcode, message)
            return


def emit_members(e: Emitter, i: Instruction, members: Operand, source: str = "None") -> None:
    """Check the member mask of an instruction, unless all lanes execute it with a mask of all."""
    is_full = isinstance(members, Imm) and int(members.value) & ALL_LANES == ALL_LANES
    if is_full and e.k == "None":
        return
    with e.effect():
        e.line(f"check_members(s, {e.k}, {i.opcode!r}, {e.src(members, 'u32')}, {source})")


@runtime
def elect(s: WarpContext, k: Any, members: Lanes) -> Any:
    """(elected lane in all lanes, bool[32]): the lowest live lane of the member mask."""
    lanes = active_lanes(s, k)
    mask = int(members[lanes[0]]) & active_mask(s, k)
    lane = (mask & -mask).bit_length() - 1
    return np.full(WARP_LANES, lane, np.uint32), _LANE == lane


@instruction("elect", modifiers="sync", boundary=True)
def emit_elect(e: Emitter, i: Instruction) -> None:
    """elect.sync d|p, members."""
    d, members = i.operands
    if not isinstance(d, Pair):
        raise e.error("elect.sync has the form 'elect.sync d|p, members'")
    emit_gather(e, members)
    emit_members(e, i, members)
    with e.effect():
        pair = e.hold(f"elect(s, {e.k}, {e.src(members, 'u32')})")
        e.dst(d.first, "u32", f"{pair}[0]")
        e.dst(d.second, "pred", f"{pair}[1]")


@runtime
def shuffle_source(mode: str, b: Any, c: Any) -> tuple[Any, Any]:
    """(source lane, in range) of shfl per lane; out of range reads the own lane."""
    segment = (c >> 8) & 0x1F
    limit = (_LANE & segment) | (c & 0x1F & ~segment)
    if mode == "up":
        source = _LANE - (b & 0x1F)
        inside = source >= limit
    elif mode == "down":
        source = _LANE + (b & 0x1F)
        inside = source <= limit
    elif mode == "bfly":
        source = _LANE ^ (b & 0x1F)
        inside = source <= limit
    else:
        source = (_LANE & segment) | (b & 0x1F & ~segment)
        inside = source <= limit
    return np.where(inside, source, _LANE), inside


@runtime
def shuffle(value: Lanes, mode: str, b: Lanes, c: Lanes) -> Any:
    """(shuffled value, in range)."""
    source, inside = shuffle_source(mode, b.astype(np.int64), c.astype(np.int64))
    return value[source], inside


@instruction("shfl", modifiers="up down bfly idx", needs="sync", boundary=True)
def emit_shfl(e: Emitter, i: Instruction) -> None:
    """shfl.sync.mode.b32 d{|p}, a, b, c, members."""
    d, a, b, c, members = i.operands
    mode = e.modifier(i, "up down bfly idx")
    emit_gather(e, members)
    kind = "u32"
    first = d.first if isinstance(d, Pair) else d
    value = e.src(a, kind)
    if isinstance(b, Imm) and isinstance(c, Imm):
        name = f"SHFL_{mode}_{int(b.value) & 0xFFFFFFFF}_{int(c.value) & 0xFFFFFFFF}"
        e.namespace[name] = shuffle_source(
            mode, np.full(WARP_LANES, int(b.value)), np.full(WARP_LANES, int(c.value))
        )
        shuffled, inside = f"{value}[{name}[0]]", f"{name}[1]"
        emit_members(e, i, members, f"{name}[0]")
    else:
        lanes, clamp = (f"{e.src(x, 'u32')}.astype(int64)" for x in (b, c))
        where = f"shuffle_source({mode!r}, {lanes}, {clamp})[0]"
        emit_members(e, i, members, where)
        pair = e.hold(f"shuffle({value}, {mode!r}, {e.src(b, 'u32')}, {e.src(c, 'u32')})")
        shuffled, inside = f"{pair}[0]", f"{pair}[1]"
    e.dst(first, kind, shuffled)
    if isinstance(d, Pair):
        e.dst(d.second, "pred", inside)


@runtime
def vote(s: WarpContext, k: Any, mode: str, predicate: Lanes, members: Lanes) -> Any:
    """vote.sync: bool[32], or uint32[32] for ballot."""
    lanes = active_lanes(s, k)
    mask = int(members[lanes[0]]) & active_mask(s, k)
    yes = mask_of_lanes(predicate) & mask
    if mode == "ballot":
        return np.full(WARP_LANES, yes, np.uint32)
    holds = {"any": yes != 0, "all": yes == mask, "uni": yes in (0, mask)}[mode]
    return np.full(WARP_LANES, holds)


@instruction("vote", modifiers="any all uni ballot", needs="sync", boundary=True)
def emit_vote(e: Emitter, i: Instruction) -> None:
    """vote.sync.{any,all,uni}.pred p, q, members; vote.sync.ballot.b32 d, q, members."""
    d, q, members = i.operands
    mode = e.modifier(i, "any all uni ballot")
    emit_gather(e, members)
    emit_members(e, i, members)
    with e.effect():
        text = f"vote(s, {e.k}, {mode!r}, {e.src(q, 'pred')}, {e.src(members, 'u32')})"
        e.dst(d, "u32" if mode == "ballot" else "pred", text)


@runtime
def match_values(s: WarpContext, k: Any, mode: str, value: Lanes, members: Lanes) -> Any:
    """match.sync: (lane masks, bool[32] of `.all`)."""
    lanes = active_lanes(s, k)
    lanes = [lane for lane in lanes if int(members[lanes[0]]) >> lane & 1]
    masks = np.zeros(WARP_LANES, np.uint32)
    groups: dict[int, int] = {}
    for lane in lanes:
        key = int(value[lane])
        groups[key] = groups.get(key, 0) | 1 << lane
    same = len(groups) == 1
    for lane in lanes:
        masks[lane] = groups[int(value[lane])] if mode == "any" or same else 0
    return masks, np.full(WARP_LANES, same)


@instruction("match", modifiers="any all", needs="sync", boundary=True)
def emit_match(e: Emitter, i: Instruction) -> None:
    """match.{any,all}.sync.type d{|p}, a, members."""
    d, a, members = i.operands
    mode = e.modifier(i, "any all")
    emit_gather(e, members)
    emit_members(e, i, members)
    kind = e.kind_of(i.type)
    with e.effect():
        text = f"match_values(s, {e.k}, {mode!r}, {e.src(a, kind)}, {e.src(members, 'u32')})"
        pair = e.hold(text)
        e.dst(d.first if isinstance(d, Pair) else d, "u32", f"{pair}[0]")
        if isinstance(d, Pair):
            e.dst(d.second, "pred", f"{pair}[1]")


@runtime
def reduce_lanes(
    s: WarpContext, k: Any, op: str, value: Lanes, members: Lanes, options: tuple[bool, bool]
) -> Any:
    """redux.sync over the member lanes; options are (.abs, .NaN) of the f32 forms."""
    lanes = active_lanes(s, k)
    lanes = [lane for lane in lanes if int(members[lanes[0]]) >> lane & 1]
    chosen = value[lanes]
    if value.dtype.kind == "f":
        parts = list(np.abs(chosen) if options[0] else chosen)
        result = minmax_values(op, [np.array([part]) for part in parts], options[1])[0]
    else:
        functions: dict[str, Any] = {
            "add": np.add,
            "min": np.minimum,
            "max": np.maximum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }
        result = functions[op].reduce(chosen, dtype=value.dtype)
    return np.full(WARP_LANES, result, value.dtype)


_REDUCTIONS = "add min max and or xor"


@instruction("redux", modifiers=f"{_REDUCTIONS} abs NaN", needs="sync", boundary=True)
def emit_redux(e: Emitter, i: Instruction) -> None:
    """redux.sync.op{.abs}{.NaN}.type d, a, members."""
    d, a, members = i.operands
    op = e.modifier(i, _REDUCTIONS)
    emit_gather(e, members)
    emit_members(e, i, members)
    kind = e.kind_of(i.type)
    options = (i.has("abs"), i.has("NaN"))
    with e.effect():
        value, mask = e.src(a, kind), e.src(members, "u32")
        e.dst(d, kind, f"reduce_lanes(s, {e.k}, {op!r}, {value}, {mask}, {options})")


@runtime
def context_mask(s: WarpContext, k: Any) -> Any:
    """activemask."""
    return np.full(WARP_LANES, active_mask(s, k), np.uint32)


@instruction("activemask", modifiers="")
def emit_activemask(e: Emitter, i: Instruction) -> None:
    """activemask.b32 d."""
    with e.effect():
        e.dst(i.operands[0], "u32", f"context_mask(s, {e.k})")
