"""st.async and red.async: stores to the shared memory of a CTA of the cluster that signal there."""

from typing import Any

import numpy as np

from ...core.state import Cta, WarpContext
from ...machine.faults import Fault
from ...ptx.ast import Instruction, Vec
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes
from ..memory.accesses import shared_target
from ..memory.atomics import combine
from ..registry import instruction, runtime
from ..warp.control import active_lanes

_MODIFIERS = "weak relaxed cluster shared::cluster mbarrier::complete_tx::bytes"


@runtime
def store_async(
    s: WarpContext,
    k: Any,
    form: tuple[str, str],
    address: Lanes,
    barrier: Lanes,
    *values: Lanes,
) -> None:
    """Each active lane's elements go to its address, and their bytes are credited to its mbarrier.

    Args:
      form: (operation of red.async or "", PTX type).

    Raises:
      Fault: the mbarrier is not in the CTA that the data goes to.
    """
    op, ptx_type = form
    scheduler = s.launch.scheduler
    for lane in active_lanes(s, k):
        cta, offset = shared_target(s, int(address[lane]), True)
        signal, where = shared_target(s, int(barrier[lane]), True)
        if signal is not cta:
            raise Fault(
                "mbarrier",
                f"the mbarrier is in CTA rank {signal.rank}, the data goes to {cta.rank}",
                address=where,
            )
        row = np.array([value[lane] for value in values], values[0].dtype)

        def run(payloads: list[Any], cta: Cta = cta, offset: int = offset, where: int = where):
            for new in payloads:
                if op:
                    old = cta.shared.view(offset, new.nbytes).view(new.dtype)
                    new = combine(op, ptx_type, old, new, None).astype(new.dtype)
                raw = new.view(np.uint8)
                if offset % raw.size:
                    raise Fault("misaligned", "st.async", address=offset, byte_count=raw.size)
                cta.shared.view(offset, raw.size, writing=True)[:] = raw
                cta.mbarriers.complete_tx(where, raw.size)

        # A channel of its own: nothing is in order with it. The name tells it from a bulk copy.
        scheduler.post(("remote", object()), run, row, s, lane=lane)


@instruction("st.async", modifiers=f"{_MODIFIERS} v2 v4", boundary=True)
def emit_st_async(e: Emitter, i: Instruction) -> None:
    """st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [a], b, [mbar]."""
    _emit(e, i, "")


_REDUCTIONS = "add min max inc dec and or xor"


@instruction("red.async", modifiers=f"{_MODIFIERS} {_REDUCTIONS}", boundary=True)
def emit_red_async(e: Emitter, i: Instruction) -> None:
    """red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type."""
    _emit(e, i, e.modifier(i, _REDUCTIONS))


def _emit(e: Emitter, i: Instruction, op: str) -> None:
    a, b, barrier = i.operands
    kind = e.kind_of(i.type)
    items = b.items if isinstance(b, Vec) else (b,)
    address, signal = e.address(a, False), e.address(barrier, False)
    with e.effect():
        values = ", ".join(e.src(item, kind) for item in items)
        form = (op, i.type)
        e.line(f"store_async(s, {e.k}, {form!r}, {address}, {signal}, {values})")
