"""The tcgen05 family: tensor memory, the tensor core and its commits (spec-ptx 1 to 5).

mma, cp, shift and commit of one thread go through one ordered channel, as the architecture
pipelines them; ld results and st effects are completed by the waits.
"""

import re
from typing import Any

import numpy as np

from ..core.state import Cta, Strand
from ..machine.faults import Fault
from ..machine.tensorcore import Mma
from ..machine.tmem import own_address, register_count
from ..ptx.ast import Imm, Instruction, Mem, Operand, Register, Vec
from ..ptx.emit import BLOCKED, Emitter
from ..ptx.kinds import Lanes
from .barriers import immediate
from .collectives import emit_gather
from .control import active_lanes
from .mbarriers import observe
from .memory import shared_target
from .registry import instruction, runtime


def pair_of(s: Strand, group: int) -> tuple[Cta, ...]:
    """The CTAs that an instruction of a cta_group acts on: the own one, or (even, odd)."""
    if group == 1:
        return (s.cta,)
    ctas, even = s.cta.cluster.ctas, s.cta.rank & ~1
    if even + 1 >= len(ctas):
        raise Fault("tmem", "cta_group::2 needs a cluster with a CTA pair")
    return (ctas[even], ctas[even + 1])


def group_of(e: Emitter, i: Instruction) -> int:
    """1 or 2, from `.cta_group::N`."""
    if i.has("cta_group::1"):
        return 1
    if i.has("cta_group::2"):
        return 2
    raise e.error(f"'{i.opcode}' needs .cta_group::1 or .cta_group::2")


def _key(cta: Cta) -> tuple[Any, ...]:
    return ("tmem", cta.where_rank)


# ---- allocation


@runtime
def tmem_alloc(s: Strand, group: int, address: Lanes, count: Lanes, generic: bool) -> bool:
    """tcgen05.alloc; the address goes to shared memory. False when the strand was blocked."""
    columns = uniform(s, count, "the number of columns")
    at = uniform(s, address, "the address of the result")
    if generic:
        at &= 0xFFFF_FFFF
    cta, offset = shared_target(s, at, False)
    base = _alloc_one(s, columns) if group == 1 else _alloc_pair(s, columns)
    if base is None:
        s.launch.scheduler.block(
            s,
            _key(s.cta),
            lambda: (
                f"waits for {columns} columns of tensor memory; allocated: "
                f"{s.cta.tmem.allocations}" + ("; or for its pair" if group == 2 else "")
            ),
        )
        return False
    if s.launch.inspector is not None:
        s.launch.inspector.allocated(s, offset, base, columns, group)
    cta.shared.store(np.array([offset]), np.array([base], np.uint32).view(np.uint8)[None, :])
    s.launch.scheduler.progress += 1
    return True


def _alloc_one(s: Strand, columns: int) -> int | None:
    return s.cta.tmem.alloc(columns)


def _alloc_pair(s: Strand, columns: int) -> int | None:
    """cta_group::2: the second CTA to come allocates for both; the first takes its result."""
    votes = s.cta.cluster.tmem_votes
    pair = pair_of(s, 2)
    key = (s.cta.rank & ~1, columns)
    done = ("done", s.cta.rank)
    if done in votes:
        return votes.pop(done).pop()
    here = votes.setdefault(key, set())
    here.add(s.cta.rank)
    if len(here) < 2:
        return None
    base = pair[0].tmem.alloc(columns, 2)
    if base is None:
        return None
    other = pair[1].tmem.alloc(columns, 2)
    if other != base:
        raise Fault("tmem", f"the pair's allocations differ: {base} and {other}")
    del votes[key]
    votes[("done", s.cta.rank ^ 1)] = {base}
    s.launch.scheduler.wake(_key(pair[1 - (s.cta.rank & 1)]))
    return base


@instruction(
    "tcgen05.alloc", modifiers="cta_group::1 cta_group::2 sync aligned shared::cta", boundary=True
)
def emit_alloc(e: Emitter, i: Instruction) -> None:
    """tcgen05.alloc.cta_group::G.sync.aligned{.shared::cta}.b32 [dst], count."""
    emit_gather(e, None)
    generic = not i.has("shared::cta")
    address = e.address(i.operands[0], generic)
    count = e.src(i.operands[1], "u32")
    with e.effect():
        text = f"tmem_alloc(s, {group_of(e, i)}, {address}, {count}, {generic})"
        e.line(f"if not {text}: return {BLOCKED}")


@runtime
def tmem_dealloc(s: Strand, group: int, address: Lanes, count: Lanes) -> bool:
    """tcgen05.dealloc of the own CTA's columns. False when the strand was blocked.

    Each CTA of a pair has to call it, and either call may wait for the other (spec-ptx 1): the first
    one does in an adversarial schedule, half of the time.
    """
    at = uniform(s, address, "the tensor-memory address")
    columns = uniform(s, count, "the number of columns")
    if group == 2 and _waits_for_pair(s, at, columns):
        return False
    if s.launch.inspector is not None:
        s.launch.inspector.deallocating(s, at, columns)
    s.cta.tmem.dealloc(at, columns, group)
    s.launch.scheduler.wake(_key(s.cta))
    return True


def _waits_for_pair(s: Strand, at: int, columns: int) -> bool:
    """cta_group::2: block the first of the two calls if the schedule wants it; wake it in the second."""
    scheduler = s.launch.scheduler
    votes = s.cta.cluster.tmem_votes
    peer = pair_of(s, 2)[1 - (s.cta.rank & 1)]
    first, freed = ("dealloc", s.cta.rank & ~1, at), ("freed", s.cta.rank, at)
    if votes.pop(freed, None) is not None:
        return False
    waiting = votes.setdefault(first, set())
    if peer.rank in waiting:
        del votes[first]
        votes["freed", peer.rank, at] = {s.cta.rank}
        scheduler.wake(_key(peer))
        return False
    if s.cta.rank not in waiting and not scheduler.late():
        votes["freed", peer.rank, at] = {s.cta.rank}  # nor does the other wait
        return False
    waiting.add(s.cta.rank)
    scheduler.block(
        s,
        _key(s.cta),
        lambda: f"waits for its pair to deallocate columns {at}+{columns} of tensor memory",
    )
    return True


@instruction("tcgen05.dealloc", modifiers="cta_group::1 cta_group::2 sync aligned", boundary=True)
def emit_dealloc(e: Emitter, i: Instruction) -> None:
    """tcgen05.dealloc.cta_group::G.sync.aligned.b32 taddr, count."""
    emit_gather(e, None)
    address, count = (e.src(operand, "u32") for operand in i.operands)
    with e.effect():
        e.line(f"if not tmem_dealloc(s, {group_of(e, i)}, {address}, {count}): return {BLOCKED}")


@runtime
def tmem_relinquish(s: Strand) -> None:
    """tcgen05.relinquish_alloc_permit."""
    s.cta.tmem.relinquish()


@instruction("tcgen05.relinquish_alloc_permit", modifiers="cta_group::1 cta_group::2 sync aligned")
def emit_relinquish(e: Emitter, i: Instruction) -> None:
    """tcgen05.relinquish_alloc_permit."""
    with e.effect():
        e.line("tmem_relinquish(s)")


# ---- ld, st and their waits

_SHAPES = "16x64b 16x128b 16x256b 32x32b 16x32bx2"
_COUNTS = " ".join(f"x{1 << n}" for n in range(8))


def _shape_and_count(e: Emitter, i: Instruction) -> tuple[str, int]:
    shape = next((part for part in i.parts if part in _SHAPES.split()), None)
    count = next((part for part in i.parts if part in _COUNTS.split()), None)
    if shape is None or count is None:
        raise e.error(f"'{i.opcode}' needs a shape and a count")
    return shape, int(count[1:])


def _half_offset(e: Emitter, operands: tuple[Operand, ...]) -> int:
    return immediate(e, operands[0], "the half offset") if operands else 0


def uniform(s: Strand, value: Lanes, what: str) -> int:
    """The value that all active lanes agree on.

    Raises:
      Fault: they do not.
    """
    chosen = value if s.mask == 0xFFFF_FFFF else value[s.lanes]
    first = int(chosen[0])
    if np.count_nonzero(chosen == first) != chosen.size:
        raise Fault("tmem", f"{what} differs between the lanes of the warp")
    return first


def _own_cells(s: Strand, address: Lanes, rank: int) -> int:
    """The address of a tcgen05.ld or .st in the warp's own quarter; tells the inspector of another's."""
    named = uniform(s, address, "the tensor-memory address")
    taddr = own_address(named, rank)
    if taddr != named and s.launch.inspector is not None:
        s.launch.inspector.named_foreign_lane(s, named, taddr)
    return taddr


@runtime
def tmem_load(
    s: Strand,
    form: tuple[str, int, bool, int],
    address: Lanes,
    targets: tuple[tuple[int, Any], ...],
) -> None:
    """tcgen05.ld: the registers hold nothing until tcgen05.wait::ld, if nothing reads them before.

    Args:
      form: (shape, count, .pack::16b, immediate half offset).
      targets: (register index, dtype it is kept in) per destination.
    """
    shape, count, packed, half = form
    warp = s.warp
    tmem, rank = s.cta.tmem, warp.index % 4
    taddr = _own_cells(s, address, rank)
    if s.launch.inspector is not None:
        boxes = tmem.footprint(shape, count, taddr, packed, half)
        s.launch.inspector.tensor_access(s, boxes, False)
    if s.launch.observer is not None:
        line = s.launch.program.segments[s.pc].line
        s.launch.observer.access(
            s.where(), line, "generic", "tmem", s.cta.rank, np.array([taddr]), count * 4, False
        )
    registers = warp.registers
    position = s.launch.program.segments[s.pc].first
    if position in s.launch.early_loads:
        for (index, dtype), row in zip(
            targets, tmem.load(shape, count, taddr, rank, packed, half), strict=True
        ):
            registers[index] = row if dtype is None else row.view(dtype)
        return
    for index, _ in targets:
        registers[index] = None
    if s.launch.scheduler.late():
        warp.loads.append((targets, lambda: tmem.load(shape, count, taddr, rank, packed, half)))
    else:
        warp.loads.append((targets, tmem.load(shape, count, taddr, rank, packed, half)))


@runtime
def tmem_wait_load(s: Strand) -> None:
    """tcgen05.wait::ld: deliver the results of all earlier loads."""
    warp = s.warp
    registers = warp.registers
    for targets, values in warp.loads:
        rows: Any = values() if callable(values) else values
        for (index, dtype), row in zip(targets, rows, strict=True):
            registers[index] = row if dtype is None else row.view(dtype)
    warp.loads.clear()
    if s.launch.inspector is not None:
        s.launch.inspector.tensor_waited(s, False)


@instruction("tcgen05.ld", modifiers=f"sync aligned {_SHAPES} {_COUNTS} pack::16b", boundary=True)
def emit_ld(e: Emitter, i: Instruction) -> None:
    """tcgen05.ld.sync.aligned.SHAPE.xN{.pack::16b}.b32 {r..}, [taddr]{, imm}."""
    emit_gather(e, None)
    shape, count = _shape_and_count(e, i)
    half = _half_offset(e, i.operands[2:])
    targets: list[tuple[int, Any]] = []
    for item in e.words(i.operands[0], register_count(shape, count)):
        if not isinstance(item, Register):
            raise e.error("tcgen05.ld writes registers")
        storage = e.storage[item.index]
        targets.append((item.index, None if storage == "u32" else np.float32))
    name = e.bind("TARGETS", tuple(targets))
    address = e.address(i.operands[1], False)
    with e.effect():
        form = (shape, count, i.has("pack::16b"), half)
        e.line(f"tmem_load(s, {form!r}, {address}, {name})")


@instruction("tcgen05.wait::ld", modifiers="sync aligned")
def emit_wait_ld(e: Emitter, i: Instruction) -> None:
    """tcgen05.wait::ld.sync.aligned."""
    e.line("tmem_wait_load(s)")


@runtime
def tmem_store(s: Strand, form: tuple[str, int, bool, int], address: Lanes, *values: Lanes) -> None:
    """tcgen05.st of uint32 lanes."""
    shape, count, unpacked, half = form
    warp = s.warp
    tmem, rank = s.cta.tmem, warp.index % 4
    taddr = _own_cells(s, address, rank)
    rows = np.array(values)
    if s.launch.inspector is not None:
        boxes = tmem.footprint(shape, count, taddr, unpacked, half)
        s.launch.inspector.tensor_access(s, boxes, True)
    if s.launch.observer is not None:
        line = s.launch.program.segments[s.pc].line
        s.launch.observer.access(
            s.where(), line, "generic", "tmem", s.cta.rank, np.array([taddr]), count * 4, True
        )
    scheduler = s.launch.scheduler
    if not scheduler.late():
        tmem.store(shape, count, taddr, rank, rows, unpacked, half)
        return
    warp.stores_pending += 1

    def run(payloads: list[Any]) -> None:
        for _ in payloads:
            tmem.store(shape, count, taddr, rank, rows, unpacked, half)
            warp.stores_pending -= 1
        scheduler.wake(("tmem-store", id(warp)))

    line = s.launch.program.segments[s.pc].line
    scheduler.post(("tmem-store", id(warp)), run, None, s, line, engine="store")


@runtime
def tmem_wait_store(s: Strand) -> bool:
    """tcgen05.wait::st. False when the strand was blocked."""
    if s.warp.stores_pending:
        s.launch.scheduler.block(
            s, ("tmem-store", id(s.warp)), lambda: "waits for tcgen05.st to complete"
        )
        return False
    if s.launch.inspector is not None:
        s.launch.inspector.tensor_waited(s, True)
    return True


@instruction("tcgen05.st", modifiers=f"sync aligned {_SHAPES} {_COUNTS} unpack::16b", boundary=True)
def emit_st(e: Emitter, i: Instruction) -> None:
    """tcgen05.st.sync.aligned.SHAPE.xN{.unpack::16b}.b32 [taddr]{, imm}, {r..}."""
    emit_gather(e, None)
    shape, count = _shape_and_count(e, i)
    half = _half_offset(e, i.operands[1:-1])
    items = e.words(i.operands[-1], register_count(shape, count))
    values = ", ".join(e.src(item, "u32") for item in items)
    address = e.address(i.operands[0], False)
    with e.effect():
        form = (shape, count, i.has("unpack::16b"), half)
        e.line(f"tmem_store(s, {form!r}, {address}, {values})")


@instruction("tcgen05.wait::st", modifiers="sync aligned", boundary=True)
def emit_wait_st(e: Emitter, i: Instruction) -> None:
    """tcgen05.wait::st.sync.aligned."""
    e.line(f"if not tmem_wait_store(s): return {BLOCKED}")


# ---- mma, cp, shift, commit


def _channel(s: Strand, lane: int, group: int) -> tuple[Any, ...]:
    return ("tensor", id(s.warp), lane, group)


@runtime
def tensor_mma(
    s: Strand,
    k: Any,
    fixed: dict[str, Any],
    d: Lanes,
    a: Lanes,
    b: Lanes,
    idesc: Lanes,
    enable: Lanes,
    mask: tuple[Lanes, ...],
    others: dict[str, Lanes],
) -> None:
    """tcgen05.mma by each active lane (normally one).

    Args:
      fixed: fields of `Mma` that the opcode and immediates decide.
      others: further fields that come from registers.
    """
    launch = s.launch
    group = fixed["cta_group"]
    ctas = pair_of(s, group)
    for lane in active_lanes(s, k):
        fields: dict[str, Any] = {**fixed, **{name: int(v[lane]) for name, v in others.items()}}
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
        line = launch.program.segments[s.pc].line

        def run(payloads: list[Any], line: int = line) -> None:
            if launch.observer is not None:
                who = f"{s.cta.where()} warp {s.warp.index} tensor core"
                for payload in payloads:
                    launch.observer.sync(who, line, "mma", (s.cta.rank, payload))
            launch.tensor_core.mma_sequence(payloads, ctas)

        merge = ("mma", id(s.warp), lane, group)
        launch.scheduler.post(
            _channel(s, lane, group), run, op, s, line, merge, engine="tensor", lane=lane
        )


_KINDS = "f16 tf32 f8f6f4 i8 mxf8f6f4 mxf4 mxf4nvf4".split()
_MMA_WORDS = frozenset(
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
        elif part not in _MMA_WORDS and not re.fullmatch(
            r"collector::(a|b[0-3])::(fill|use|lastuse|discard)|(lastuse|fill|use|discard)", part
        ):
            raise e.error(f"unknown modifier '.{part}' of '{i.opcode}'")
    if kind not in _KINDS:
        raise e.error(f"'{i.opcode}' needs a .kind::")
    fixed: dict[str, Any] = {"kind": kind, "cta_group": group_of(e, i)}
    fixed.update(ws=i.has("ws"), sparse=i.has("sp"), ashift=i.has("ashift"))
    operands = list(i.operands)
    d, a, b = operands[:3]
    rest = operands[3:]
    others: dict[str, str] = {}
    if fixed["sparse"]:
        others["metadata"] = e.address(rest.pop(0), False)
    idesc = rest.pop(0)
    mask: list[Operand] = []
    if i.has("block_scale"):
        others["sfa"], others["sfb"] = (e.address(rest.pop(0), False) for _ in range(2))
        vector = next((p for p in i.parts if p.startswith("scale_vec::")), None)
        fixed["scale_vec"] = int(vector[-2]) if vector else 0
        if i.has("block16"):
            fixed["scale_vec"] = 4
    if rest and isinstance(rest[0], Vec):
        operand = rest.pop(0)
        assert isinstance(operand, Vec)
        mask = list(operand.items)
    enable = rest.pop(0)
    if rest:
        if fixed["ws"]:
            others["zero_mask"] = e.src(rest.pop(0), "u64")
        else:
            fixed["scale_d"] = immediate(e, rest.pop(0), "scale-input-d")
    if rest:
        raise e.error(f"'{i.opcode}' has {len(rest)} operands too many")
    fixed["a_in_tmem"] = isinstance(a, Mem)
    name = e.bind("MMA", fixed)
    a_text = e.address(a, False) if isinstance(a, Mem) else e.src(a, "u64")
    enable_text = e.src(Imm(bool(enable.value)) if isinstance(enable, Imm) else enable, "pred")
    mask_text = "".join(f"{e.src(item, 'u32')}, " for item in mask)
    others_text = ", ".join(f"{key!r}: {value}" for key, value in others.items())
    with e.effect():
        e.line(
            f"tensor_mma(s, {e.k}, {name}, {e.address(d, False)}, {a_text}, {e.src(b, 'u64')}, "
            f"{e.src(idesc, 'u32')}, {enable_text}, ({mask_text}), {{{others_text}}})"
        )


@runtime
def tensor_copy(
    s: Strand, k: Any, group: int, form: tuple[str, str, str], address: Lanes, descriptor: Lanes
) -> None:
    """tcgen05.cp; form is (shape, multicast, source format)."""
    ctas = pair_of(s, group)
    for lane in active_lanes(s, k):
        payload = (int(address[lane]), int(descriptor[lane]))

        def run(payloads: list[Any]) -> None:
            for taddr, desc in payloads:
                for cta in ctas:
                    cta.tmem.copy(cta.shared, taddr, desc, *form)

        line = s.launch.program.segments[s.pc].line
        s.launch.scheduler.post(
            _channel(s, lane, group), run, payload, s, line, engine="tensor", lane=lane
        )


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
def tensor_shift(s: Strand, k: Any, group: int, address: Lanes) -> None:
    """tcgen05.shift.down."""
    ctas = pair_of(s, group)
    for lane in active_lanes(s, k):

        def run(payloads: list[Any]) -> None:
            for taddr in payloads:
                for cta in ctas:
                    cta.tmem.shift(taddr)

        line = s.launch.program.segments[s.pc].line
        s.launch.scheduler.post(
            _channel(s, lane, group), run, int(address[lane]), s, line, engine="tensor", lane=lane
        )


@instruction("tcgen05.shift", modifiers="cta_group::1 cta_group::2 down", boundary=True)
def emit_shift(e: Emitter, i: Instruction) -> None:
    """tcgen05.shift.cta_group::G.down [taddr]."""
    address = e.address(i.operands[0], False)
    with e.effect():
        e.line(f"tensor_shift(s, {e.k}, {group_of(e, i)}, {address})")


@runtime
def tensor_commit(
    s: Strand, k: Any, group: int, generic: bool, address: Lanes, ranks: Lanes | None
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
            observe(s, "commit", cta, offset)

        def run(payloads: list[Any]) -> None:
            for targets in payloads:
                for cta, offset in targets:
                    observe(s, "arrive", cta, offset)
                    cta.mbarriers.arrive(offset)

        line = s.launch.program.segments[s.pc].line
        scheduler.post(_channel(s, lane, group), run, goals, s, line, engine="tensor", lane=lane)


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
