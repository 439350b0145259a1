"""The tcgen05 family: the tensor core and its commits (spec-ptx 2, 3 and 5).

mma, cp, shift and commit of one thread go through one ordered channel, as the architecture
pipelines them.
"""

import re
from typing import Any

from ...core.state import WarpContext
from ...machine.faults import Fault
from ...machine.tensorcore import Mma
from ...ptx.ast import Imm, Instruction, Mem, Operand, Vec
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes
from ..memory.accesses import shared_target
from ..registry import instruction, runtime
from ..warp.control import active_lanes
from .memory import group_of, pair_of

# ---- mma, cp, shift, commit


def _channel(s: WarpContext, lane: int, group: int) -> tuple[Any, ...]:
    return ("tensor", id(s.warp), lane, group)


@runtime
def tensor_mma(
    s: WarpContext,
    k: Any,
    fixed: dict[str, Any],
    d: Lanes,
    a: Lanes,
    b: Lanes,
    idesc: Lanes,
    enable: Lanes,
    mask: tuple[Lanes, ...],
    further: dict[str, Lanes],
) -> None:
    """tcgen05.mma by each active lane (normally one).

    Args:
      fixed: fields of `Mma` that the opcode and immediates decide.
      further: further fields that come from registers.
    """
    launch = s.launch
    group = fixed["cta_group"]
    ctas = pair_of(s, group)
    for lane in active_lanes(s, k):
        fields: dict[str, Any] = {**fixed, **{name: int(v[lane]) for name, v in further.items()}}
        op = Mma(
            idesc=int(idesc[lane]),
            d=int(d[lane]),
            a=int(a[lane]),
            b=int(b[lane]),
            enable_d=bool(enable[lane]),
            lane_mask=tuple(int(word[lane]) for word in mask),
            **fields,
        )
        launch.count("mma")
        line = s.segment.line

        def run(payloads: list[Any], line: int = line) -> None:
            if launch.observer is not None:
                who = f"{s.cta.where()} warp {s.warp.index} tensor core"
                for payload in payloads:
                    launch.observer.sync(who, line, "mma", (s.cta.rank, payload))
            launch.tensor_core.mma_sequence(payloads, ctas)

        if launch.inspector is not None:
            launch.inspector.multiplying(s, op)
        merge = ("mma", id(s.warp), lane, group)
        launch.scheduler.post(
            _channel(s, lane, group), run, op, s, merge, engine="tensor", lane=lane
        )


_KINDS = "f16 tf32 f8f6f4 i8 mxf8f6f4 mxf4 mxf4nvf4".split()
_MMA_MODIFIERS = frozenset(
    "cta_group::1 cta_group::2 ashift block_scale scale_vec::1X scale_vec::2X scale_vec::4X "
    "block16 block32 ws sp".split()
)


@instruction("tcgen05.mma", boundary=True)
def emit_mma(e: Emitter, i: Instruction) -> None:
    """tcgen05.mma{.ws}{.sp} in the forms of spec-ptx 2.1."""
    kind = ""
    for part in i.parts[2:]:
        if part.startswith("kind::"):
            kind = part.removeprefix("kind::")
        elif part not in _MMA_MODIFIERS and not re.fullmatch(
            r"collector::(a|b[0-3])::(fill|use|lastuse|discard)|(lastuse|fill|use|discard)", part
        ):
            raise e.error(f"unknown modifier '.{part}' of '{i.opcode}'")
    if kind not in _KINDS:
        raise e.error(f"'{i.opcode}' needs a .kind::")
    fixed: dict[str, Any] = {"kind": kind, "cta_group": group_of(e, i)}
    fixed.update(ws=i.has("ws"), sparse=i.has("sp"), ashift=i.has("ashift"))
    operands = list(i.operands)
    d, a, b = operands[:3]
    left = operands[3:]
    further: dict[str, str] = {}
    if fixed["sparse"]:
        further["metadata"] = e.address(left.pop(0), False)
    idesc = left.pop(0)
    mask: list[Operand] = []
    if i.has("block_scale"):
        further["sfa"], further["sfb"] = (e.address(left.pop(0), False) for _ in range(2))
        vector = next((p for p in i.parts if p.startswith("scale_vec::")), None)
        fixed["scale_vec"] = int(vector[-2]) if vector else 0
        if i.has("block16"):
            fixed["scale_vec"] = 4
    if left and isinstance(left[0], Vec):
        operand = left.pop(0)
        assert isinstance(operand, Vec)
        mask = list(operand.items)
    enable = left.pop(0)
    if left:
        if fixed["ws"]:
            further["zero_mask"] = e.src(left.pop(0), "u64")
        else:
            fixed["scale_d"] = e.immediate(left.pop(0), "scale-input-d")
    if left:
        raise e.error(f"'{i.opcode}' has {len(left)} operands too many")
    fixed["a_in_tmem"] = isinstance(a, Mem)
    name = e.bind("MMA", fixed)
    a_text = e.address(a, False) if isinstance(a, Mem) else e.src(a, "u64")
    enable_text = e.src(Imm(bool(enable.value)) if isinstance(enable, Imm) else enable, "pred")
    mask_text = "".join(f"{e.src(item, 'u32')}, " for item in mask)
    further_text = ", ".join(f"{key!r}: {value}" for key, value in further.items())
    with e.effect():
        e.line(
            f"tensor_mma(s, {e.k}, {name}, {e.address(d, False)}, {a_text}, {e.src(b, 'u64')}, "
            f"{e.src(idesc, 'u32')}, {enable_text}, ({mask_text}), {{{further_text}}})"
        )


@runtime
def tensor_copy(
    s: WarpContext,
    k: Any,
    group: int,
    form: tuple[str, str, str],
    address: Lanes,
    descriptor: Lanes,
) -> None:
    """tcgen05.cp; form is (shape, multicast, source format)."""
    ctas = pair_of(s, group)
    for lane in active_lanes(s, k):
        payload = (int(address[lane]), int(descriptor[lane]))

        def run(payloads: list[Any]) -> None:
            for taddr, desc in payloads:
                for cta in ctas:
                    cta.tmem.copy(cta.shared, taddr, desc, *form)

        channel = _channel(s, lane, group)
        s.launch.scheduler.post(channel, run, payload, s, engine="tensor", lane=lane)


@instruction(
    "tcgen05.cp",
    modifiers="cta_group::1 cta_group::2 128x256b 128x128b 4x256b 64x128b 32x128b "
    "warpx2::02_13 warpx2::01_23 warpx4 b8x16 b6x16_p32 b4x16_p64",
    boundary=True,
)
def emit_cp(e: Emitter, i: Instruction) -> None:
    """tcgen05.cp.cta_group::G.SHAPE{.MULTICAST}{.b8x16.FORMAT} [taddr], descriptor."""
    shape = next((part for part in i.parts if re.fullmatch(r"\d+x\d+b", part)), "")
    multicast = next((part for part in i.parts if part.startswith("warpx")), "")
    source = next((part for part in i.parts if part in ("b6x16_p32", "b4x16_p64")), "")
    address = e.address(i.operands[0], False)
    with e.effect():
        descriptor = e.src(i.operands[1], "u64")
        form = (shape, multicast, source)
        e.line(f"tensor_copy(s, {e.k}, {group_of(e, i)}, {form!r}, {address}, {descriptor})")


@runtime
def tensor_shift(s: WarpContext, k: Any, group: int, address: Lanes) -> None:
    """tcgen05.shift.down."""
    ctas = pair_of(s, group)
    for lane in active_lanes(s, k):

        def run(payloads: list[Any]) -> None:
            for taddr in payloads:
                for cta in ctas:
                    cta.tmem.shift(taddr)

        channel, payload = _channel(s, lane, group), int(address[lane])
        s.launch.scheduler.post(channel, run, payload, s, engine="tensor", lane=lane)


@instruction("tcgen05.shift", modifiers="cta_group::1 cta_group::2 down", boundary=True)
def emit_shift(e: Emitter, i: Instruction) -> None:
    """tcgen05.shift.cta_group::G.down [taddr]."""
    address = e.address(i.operands[0], False)
    with e.effect():
        e.line(f"tensor_shift(s, {e.k}, {group_of(e, i)}, {address})")


@runtime
def tensor_commit(
    s: WarpContext, k: Any, group: int, generic: bool, address: Lanes, ranks: Lanes | None
) -> None:
    """tcgen05.commit: one arrival when the thread's earlier tensor work has completed."""
    scheduler = s.launch.scheduler
    for lane in active_lanes(s, k):
        at = int(address[lane]) & 0xFFFF_FFFF
        mask = None if ranks is None else int(ranks[lane]) & 0xFFFF
        if mask is None:
            goals = [shared_target(s, at, True)]
        else:
            offset = at & 0xFF_FFFF
            ctas = s.cta.cluster.ctas
            if mask >> len(ctas):
                raise Fault("mbarrier", f"commit to ranks 0x{mask:x} of {len(ctas)} CTAs")
            goals = [(cta, offset) for cta in ctas if mask >> cta.rank & 1]
        for cta, offset in goals:
            cta.mbarriers.get(offset)
            s.observe("commit", ("mbarrier", cta.rank, offset))

        def run(payloads: list[Any]) -> None:
            for targets in payloads:
                for cta, offset in targets:
                    s.observe("arrive", ("mbarrier", cta.rank, offset))
                    cta.mbarriers.arrive(offset)

        scheduler.post(_channel(s, lane, group), run, goals, s, engine="tensor", lane=lane)


@instruction(
    "tcgen05.commit",
    modifiers="cta_group::1 cta_group::2 mbarrier::arrive::one shared::cluster multicast::cluster",
    boundary=True,
)
def emit_commit(e: Emitter, i: Instruction) -> None:
    """tcgen05.commit...b64 [mbar]{, ctaMask16}."""
    generic = not i.has("shared::cluster")
    address = e.address(i.operands[0], generic)
    ranks = "None"
    if i.has("multicast::cluster"):
        ranks = e.src(i.operands[1], "u16")
    with e.effect():
        e.line(f"tensor_commit(s, {e.k}, {group_of(e, i)}, {generic}, {address}, {ranks})")
