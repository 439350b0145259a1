"""mbarrier instructions (spec-ptx 6)."""

from typing import Any

import numpy as np

from ...core.order import Order, order_of_barrier
from ...core.state import SHARED_WINDOW, Cta, LaunchInspector, WarpContext
from ...machine import mbarrier
from ...machine.faults import Fault
from ...ptx.ast import Imm, Instruction, Operand
from ...ptx.emit import BLOCKED, Emitter
from ...ptx.kinds import WARP_LANES, Lanes
from ..memory.accesses import order_name, polls, shared_target
from ..registry import instruction, runtime
from ..warp.control import active_lanes

_SCOPES = "relaxed acquire release cta cluster shared shared::cta shared::cluster"


def barrier_at(s: WarpContext, address: int, space: str) -> tuple[Cta, int]:
    """The CTA and offset of an mbarrier; space is "cta", "cluster" or "generic"."""
    if space == "generic":
        return shared_target(s, address - SHARED_WINDOW, True)
    return shared_target(s, address, space == "cluster")


def space_word(i: Instruction) -> str:
    """ "cta", "cluster" or "generic", from the opcode."""
    if i.has("shared::cluster"):
        return "cluster"
    return "cta" if i.has("shared", "shared::cta") else "generic"


def _address(e: Emitter, i: Instruction, operand: Operand) -> str:
    return e.address(operand, space_word(i) == "generic")


@runtime
def mbarrier_init(s: WarpContext, k: Any, space: str, address: Lanes, count: Lanes) -> None:
    """mbarrier.init by each active lane."""
    for lane in active_lanes(s, k):
        cta, offset = barrier_at(s, int(address[lane]), space)
        cta.shared.view(offset, 8, writing=True)
        cta.mbarriers.init(offset, int(count[lane]))
        if s.launch.inspector is not None:
            s.launch.inspector.initialised(s, lane, cta, offset)
        s.observe("init", ("mbarrier", cta.rank, offset))


@runtime
def mbarrier_inval(s: WarpContext, k: Any, space: str, address: Lanes) -> None:
    """mbarrier.inval by each active lane."""
    for lane in active_lanes(s, k):
        cta, offset = barrier_at(s, int(address[lane]), space)
        cta.mbarriers.inval(offset)
        if s.launch.inspector is not None:
            s.launch.inspector.invalidated(s, lane, cta, offset)


@runtime
def mbarrier_arrive(
    s: WarpContext,
    k: Any,
    space: str,
    form: str,
    address: Lanes,
    count: Lanes | None,
    byte_count: Lanes | None,
    order: Order,
) -> Any:
    """Arrivals of the active lanes; returns the tokens as uint64[32].

    Args:
      form: "arrive", "drop", "noComplete" or "dropNoComplete".
      byte_count: for the `.expect_tx` forms.
      order: whether they release, and how far.
    """
    tokens = np.zeros(WARP_LANES, np.uint64)
    groups: dict[int, list[int]] = {}
    for lane in active_lanes(s, k):
        groups.setdefault(int(address[lane]), []).append(lane)
    for where, lanes in groups.items():
        cta, offset = barrier_at(s, where, space)
        total = len(lanes) if count is None else sum(int(count[lane]) for lane in lanes)
        table = cta.mbarriers
        if byte_count is not None:
            table.expect_tx(offset, sum(int(byte_count[lane]) for lane in lanes))
        s.observe("arrive", ("mbarrier", cta.rank, offset))
        if s.launch.inspector is not None:
            s.launch.inspector.arriving(s, _mask(lanes), ("mbarrier", cta.rank, offset), order)
        s.launch.scheduler.progress += 1
        if form == "arrive":
            token = table.arrive(offset, total)
        elif form == "drop":
            token = table.arrive_drop(offset, total)
        elif form == "dropNoComplete":
            token = table.arrive_drop_no_complete(offset, total)
        else:
            token = table.arrive_no_complete(offset, total)
        tokens[lanes] = token
    return tokens


@runtime
def mbarrier_tx(
    s: WarpContext, k: Any, space: str, complete: bool, address: Lanes, byte_count: Lanes
) -> None:
    """mbarrier.expect_tx and complete_tx by each active lane."""
    inspector = s.launch.inspector
    for lane in active_lanes(s, k):
        cta, offset = barrier_at(s, int(address[lane]), space)
        if inspector is not None:
            inspector.expecting_tx(s, 1 << lane, ("mbarrier", cta.rank, offset))
        s.launch.scheduler.progress += 1
        if complete:
            cta.mbarriers.complete_tx(offset, int(byte_count[lane]))
        else:
            cta.mbarriers.expect_tx(offset, int(byte_count[lane]))


def _mask(lanes: list[int]) -> int:
    return sum(1 << lane for lane in lanes)


def _report_waiting(
    s: WarpContext,
    inspector: LaunchInspector,
    lanes: list[int],
    space: str,
    address: Lanes,
    state: Lanes,
) -> None:
    """Report which parity of which barrier the lanes test."""
    groups: dict[tuple[int, int], int] = {}
    for lane in lanes:
        key = (int(address[lane]), int(state[lane]))
        groups[key] = groups.get(key, 0) | 1 << lane
    for (where, parity), mask in groups.items():
        cta, offset = barrier_at(s, where, space)
        inspector.waiting(s, mask, ("mbarrier", cta.rank, offset), parity)


@runtime
def mbarrier_wait(
    s: WarpContext,
    k: Any,
    form: tuple[str, bool, bool],
    address: Lanes,
    state: Lanes,
    order: Order,
) -> Any:
    """test_wait (not blocking) and try_wait; bool[32], or None when the context was blocked.

    Args:
      form: (space, blocking, by parity). order: whether the wait acquires, and how far.
    """
    space, blocking, by_parity = form
    lanes = active_lanes(s, k)
    inspector = s.launch.inspector
    if inspector is not None and by_parity:
        _report_waiting(s, inspector, lanes, space, address, state)
    result = np.zeros(WARP_LANES, np.bool_)
    completed: dict[tuple[int, int], bool] = {}
    for lane in lanes:
        key = (int(address[lane]), int(state[lane]))
        done = completed.get(key)
        if done is None:
            cta, offset = barrier_at(s, key[0], space)
            if cta is not s.cta:
                raise Fault(
                    "mbarrier", "only a barrier of the own CTA can be waited on", address=key[0]
                )
            table = cta.mbarriers
            done = table.test_parity(offset, key[1]) if by_parity else table.test(offset, key[1])
            completed[key] = done
        result[lane] = done
    scheduler = s.launch.scheduler
    if any(completed.values()):
        if blocking and s.sync is None and scheduler.spurious():
            return np.zeros(WARP_LANES, np.bool_)
        s.sync = None
        for key in completed:
            cta, offset = barrier_at(s, key[0], space)
            s.observe("wait", ("mbarrier", cta.rank, offset))
            if inspector is not None and completed[key]:
                through = [x for x in lanes if (int(address[x]), int(state[x])) == key]
                inspector.passed(s, _mask(through), ("mbarrier", cta.rank, offset), order)
        return result
    if not blocking or len(completed) > 1:
        polls(s)
        return result
    if s.sync == "expired" or scheduler.spurious():
        s.sync = None
        return result
    ((where, phase),) = completed
    cta, offset = barrier_at(s, where, space)
    barrier = cta.mbarriers.get(offset)
    what = f"parity {phase}" if by_parity else f"token 0x{phase:x}"
    scheduler.block(
        s,
        ("mbarrier", cta.where_rank, offset),
        lambda: f"waits for {what} of mbarrier 0x{offset:x}: {barrier.describe()}",
        may_expire=True,
    )
    return None


@runtime
def token_pending(token: Lanes) -> Any:
    """mbarrier.pending_count."""
    return np.array([mbarrier.pending_count(int(t)) for t in token], np.uint32)


@instruction("mbarrier.init", modifiers="shared shared::cta", boundary=True)
def emit_init(e: Emitter, i: Instruction) -> None:
    """mbarrier.init{.shared::cta}.b64 [a], count."""
    address = _address(e, i, i.operands[0])
    with e.effect():
        count = e.src(i.operands[1], "u32")
        e.line(f"mbarrier_init(s, {e.k}, {space_word(i)!r}, {address}, {count})")


@instruction("mbarrier.inval", modifiers="shared shared::cta", boundary=True)
def emit_inval(e: Emitter, i: Instruction) -> None:
    """mbarrier.inval{.shared::cta}.b64 [a]."""
    address = _address(e, i, i.operands[0])
    with e.effect():
        e.line(f"mbarrier_inval(s, {e.k}, {space_word(i)!r}, {address})")


@instruction("mbarrier.arrive", modifiers=_SCOPES + " expect_tx noComplete", boundary=True)
def emit_arrive(e: Emitter, i: Instruction) -> None:
    """mbarrier.arrive{.expect_tx|.noComplete} {state,} [a]{, count or bytes}."""
    _emit_arrival(e, i, "noComplete" if i.has("noComplete") else "arrive")


@instruction("mbarrier.arrive_drop", modifiers=_SCOPES + " expect_tx noComplete", boundary=True)
def emit_arrive_drop(e: Emitter, i: Instruction) -> None:
    """mbarrier.arrive_drop{.expect_tx|.noComplete}."""
    _emit_arrival(e, i, "dropNoComplete" if i.has("noComplete") else "drop")


def _emit_arrival(e: Emitter, i: Instruction, form: str) -> None:
    d, a = i.operands[:2]
    extra = e.src(i.operands[2], "u32") if len(i.operands) > 2 else "None"
    count, byte_count = ("None", extra) if i.has("expect_tx") else (extra, "None")
    address = _address(e, i, a)
    order = order_name(e, order_of_barrier(i.parts, acquires=False))
    text = (
        f"mbarrier_arrive(s, {e.k}, {space_word(i)!r}, {form!r}, {address}, {count}, "
        f"{byte_count}, {order})"
    )
    with e.effect():
        if e.is_sink(d):
            e.line(text)
        else:
            e.dst(d, "u64", text)


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx", modifiers=_SCOPES, boundary=True)
def emit_tx(e: Emitter, i: Instruction) -> None:
    """mbarrier.{expect_tx,complete_tx} [a], bytes."""
    address = _address(e, i, i.operands[0])
    complete = i.parts[1] == "complete_tx"
    with e.effect():
        count = e.src(i.operands[1], "u32")
        e.line(f"mbarrier_tx(s, {e.k}, {space_word(i)!r}, {complete}, {address}, {count})")


@instruction(
    "mbarrier.test_wait", "mbarrier.try_wait", modifiers=_SCOPES + " parity", boundary=True
)
def emit_wait(e: Emitter, i: Instruction) -> None:
    """mbarrier.{test_wait,try_wait}{.parity} p, [a], state or parity{, ns}."""
    d, a, state = i.operands[:3]
    by_parity = i.has("parity")
    if by_parity and isinstance(state, Imm) and state.value not in (0, 1):
        raise e.error(f"a phase parity is 0 or 1, got {state.value}")
    address = _address(e, i, a)
    value = e.src(state, "u32" if by_parity else "u64")
    blocking = i.parts[1] == "try_wait"
    with e.effect():
        form = (space_word(i), blocking, by_parity)
        order = order_name(e, order_of_barrier(i.parts, acquires=True))
        result = e.hold(f"mbarrier_wait(s, {e.k}, {form!r}, {address}, {value}, {order})")
        e.line(f"if {result} is None: return {BLOCKED}")
        e.dst(d, "pred", result)


@instruction("mbarrier.pending_count", modifiers="")
def emit_pending_count(e: Emitter, i: Instruction) -> None:
    """mbarrier.pending_count.b64 r, state."""
    e.dst(i.operands[0], "u32", f"token_pending({e.src(i.operands[1], 'u64')})")
