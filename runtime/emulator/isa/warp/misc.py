"""Instructions without an effect on results (fences, hints), and launch control."""

from typing import Any

import numpy as np

from ...core.state import WarpContext
from ...ptx.ast import Imm, Instruction, Vec
from ...ptx.emit import Emitter
from ..memory.accesses import shared_target
from ..registry import instruction, runtime
from .control import active_lanes, active_mask


@runtime
def fence(s: WarpContext, k: Any, kind: str) -> None:
    """A fence: execution is sequentially consistent, so it is only reported to observers."""
    if s.launch.inspector is not None:
        s.launch.inspector.fence(s, active_mask(s, k), kind)
    s.observe("fence", (kind,))


@runtime
def read_unwritten(s: WarpContext, names: str) -> None:
    """The next instruction reads registers that nothing wrote."""
    if s.launch.inspector is not None:
        s.launch.inspector.read_unwritten(s, names)


@instruction("fence", "membar", boundary=True)
def emit_fence(e: Emitter, i: Instruction) -> None:
    """All fences (spec-ptx 11)."""
    known = (
        "acq_rel sc acquire release cta cluster gpu sys gl proxy async global shared::cta "
        "shared::cluster mbarrier_init alias tensormap::generic async::generic "
        "sync_restrict::shared::cluster sync_restrict::shared::cta"
    ).split()
    e.check_modifiers(i, i.parts[1:], known)
    with e.effect():
        e.line(f"fence(s, {e.k}, {i.opcode!r})")


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", modifiers="")
def emit_tcgen05_fence(e: Emitter, i: Instruction) -> None:
    """tcgen05.fence::{before,after}_thread_sync."""
    with e.effect():
        e.line(f"fence(s, {e.k}, {i.opcode!r})")


@instruction("nanosleep", modifiers="", boundary=True)
def emit_nanosleep(e: Emitter, i: Instruction) -> None:
    """nanosleep: lets others run."""
    e.line("s.yielding = True")


@instruction("griddepcontrol", modifiers="wait launch_dependents", boundary=True)
def emit_griddepcontrol(e: Emitter, i: Instruction) -> None:
    """griddepcontrol: launches do not overlap here, so the dependency is always satisfied."""


@instruction("prefetch", "prefetchu", "discard", "applypriority", "pmevent")
def emit_hint(e: Emitter, i: Instruction) -> None:
    """Cache hints: nothing to do."""


@instruction("createpolicy", boundary=False)
def emit_createpolicy(e: Emitter, i: Instruction) -> None:
    """createpolicy: some 64-bit value; cache policies have no effect here."""
    e.dst(i.operands[0], "u64", e.src(Imm(0), "u64"))


@runtime
def cancel(s: WarpContext, k: Any, response: Any, barrier: Any, multicast: bool) -> None:
    """clusterlaunchcontrol.try_cancel: hands out the next cluster that has not started."""
    for lane in active_lanes(s, k):
        launch = s.launch
        answer = np.zeros(2, np.uint64)
        if launch.remaining.count:
            x, y, z = launch.remaining.take()
            answer[0] = np.uint64(x | y << 32 | z << 48)
            answer[1] = np.uint64(1)
        ctas = s.cta.cluster.ctas if multicast else [s.cta]
        _, offset = shared_target(s, int(response[lane]), False)
        _, where = shared_target(s, int(barrier[lane]), False)

        def run(payloads: list[Any], ctas: Any = ctas, offset: int = offset, where: int = where):
            for payload in payloads:
                for cta in ctas:
                    cta.shared.view(offset, 16, writing=True)[:] = payload.view(np.uint8)
                    cta.mbarriers.complete_tx(where, 16)

        launch.scheduler.post(None, run, answer, s, lane=lane)


@instruction(
    "clusterlaunchcontrol.try_cancel",
    modifiers="async shared::cta mbarrier::complete_tx::bytes multicast::cluster::all",
    boundary=True,
)
def emit_try_cancel(e: Emitter, i: Instruction) -> None:
    """clusterlaunchcontrol.try_cancel.async...b128 [response], [mbarrier]."""
    multicast = i.has("multicast::cluster::all")
    response, barrier = (e.address(operand, False) for operand in i.operands)
    with e.effect():
        e.line(f"cancel(s, {e.k}, {response}, {barrier}, {multicast})")


@instruction(
    "clusterlaunchcontrol.query_cancel",
    modifiers="is_canceled get_first_ctaid get_first_ctaid::x get_first_ctaid::y "
    "get_first_ctaid::z v4",
)
def emit_query_cancel(e: Emitter, i: Instruction) -> None:
    """clusterlaunchcontrol.query_cancel: fields of a response."""
    d, q = i.operands
    value = e.hold(e.src(q, "u128"))
    x = f"({value}[0] & uint64(0xFFFFFFFF)).astype(uint32)"
    y = f"(({value}[0] >> uint64(32)) & uint64(0xFFFF)).astype(uint32)"
    z = f"({value}[0] >> uint64(48)).astype(uint32)"
    if i.has("is_canceled"):
        e.dst(d, "pred", f"({value}[1] & uint64(1)) != 0")
    elif i.has("v4"):
        assert isinstance(d, Vec)
        for item, text in zip(d.items, (x, y, z, f"{x} & uint32(0)"), strict=True):
            e.dst(item, "u32", text)
    else:
        axis = next(part for part in i.parts if part.startswith("get_first_ctaid::"))[-1]
        e.dst(d, "u32", {"x": x, "y": y, "z": z}[axis])
