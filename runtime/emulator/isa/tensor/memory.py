"""Tensor memory: its allocation, tcgen05.ld and st, and their waits (spec-ptx 1, 4).

The results of ld and the effects of st are completed by the waits.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.state import Cta, WarpContext
from ...machine.faults import Fault
from ...machine.tmem import own_address, register_count
from ...ptx.ast import Instruction, Operand, Register
from ...ptx.emit import BLOCKED, Emitter
from ...ptx.kinds import Lanes
from ..arithmetic.floating import minmax_f32
from ..memory.accesses import shared_target
from ..registry import instruction, runtime
from ..warp.collectives import emit_gather


def pair_of(s: WarpContext, group: int) -> tuple[Cta, ...]:
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
def tmem_alloc(s: WarpContext, group: int, address: Lanes, count: Lanes, generic: bool) -> bool:
    """tcgen05.alloc; the address goes to shared memory. False when the context was blocked."""
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


def _alloc_one(s: WarpContext, columns: int) -> int | None:
    return s.cta.tmem.alloc(columns)


def _alloc_pair(s: WarpContext, columns: int) -> int | None:
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
def tmem_dealloc(s: WarpContext, group: int, address: Lanes, count: Lanes) -> bool:
    """tcgen05.dealloc of the own CTA's columns. False when the context was blocked.

    Each CTA of a pair has to call it, and either call may wait for the other (spec-ptx 1): the
    first one does in an adversarial schedule, half of the time.
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


def _waits_for_pair(s: WarpContext, at: int, columns: int) -> bool:
    """cta_group::2: block the first of two calls if the schedule wants it, wake it then."""
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
def tmem_relinquish(s: WarpContext) -> None:
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
    return e.immediate(operands[0], "the half offset") if operands else 0


def uniform(s: WarpContext, value: Lanes, what: str) -> int:
    """The value that all active lanes agree on.

    Raises:
      Fault: they do not.
    """
    chosen = value if s.mask == 0xFFFF_FFFF else value[s.lanes]
    first = int(chosen[0])
    if np.count_nonzero(chosen == first) != chosen.size:
        raise Fault("tmem", f"{what} differs between the lanes of the warp")
    return first


def _own_lane_address(s: WarpContext, address: Lanes, rank: int) -> int:
    """An ld's or st's address in the warp's own quarter; reports another quarter's."""
    given = uniform(s, address, "the tensor-memory address")
    taddr = own_address(given, rank)
    if taddr != given and s.launch.inspector is not None:
        s.launch.inspector.named_foreign_lane(s, given, taddr)
    return taddr


def _report(s: WarpContext, form: tuple[str, int, bool, int], address: int, is_write: bool) -> None:
    """Reports a tcgen05.ld or .st to the inspector and the observer."""
    shape, count, packed, half = form
    inspector, observer = s.launch.inspector, s.launch.observer
    if inspector is not None:
        boxes = s.cta.tmem.footprint(shape, count, address, packed, half)
        inspector.tensor_access(s, boxes, is_write)
    if observer is not None:
        where, line, size = s.where(), s.segment.line, 4 * count
        at = np.array([address])
        observer.access(where, line, "generic", "tmem", s.cta.rank, at, size, is_write)


@runtime
def tmem_load(
    s: WarpContext,
    form: tuple[str, int, bool, int],
    address: Lanes,
    targets: tuple[tuple[int, Any], ...],
    reduction: tuple[str, str, bool, bool] | None = None,
) -> None:
    """tcgen05.ld: the registers hold nothing until tcgen05.wait::ld, if nothing reads them before.

    Args:
      form: (shape, count, .pack::16b, immediate half offset).
      targets: (register index, dtype it is kept in) per destination.
      reduction: of ld.red, whose last destination gets it: (min or max, type, .abs, .NaN).
    """
    shape, count, packed, half = form
    warp = s.warp
    tmem, rank = s.cta.tmem, warp.index % 4
    taddr = _own_lane_address(s, address, rank)
    _report(s, form, taddr, False)
    registers = warp.registers
    position = s.segment.first

    def rows() -> Any:
        loaded = tmem.load(shape, count, taddr, rank, packed, half)
        return loaded if reduction is None else [*loaded, _reduced(loaded, *reduction)]

    if position in s.launch.early_loads:
        _deliver(registers, targets, rows())
        return
    for index, _ in targets:
        registers[index] = None
    warp.loads.append((targets, rows if s.launch.scheduler.late() else rows()))


def _deliver(registers: list[Any], targets: Any, rows: Any) -> None:
    for (index, dtype), row in zip(targets, rows, strict=True):
        registers[index] = row if dtype is None else row.view(dtype)


def _reduced(loaded: Lanes, op: str, kind: str, absolute: bool, keep_nan: bool) -> Lanes:
    """The least or greatest register of each thread, as uint32 lanes."""
    if kind == "f32":
        values = loaded.view(np.float32)
        return minmax_f32(op, (keep_nan, absolute, False), *values).view(np.uint32)
    choose = np.minimum if op == "min" else np.maximum
    return choose.reduce(loaded.view(np.int32 if kind == "s32" else np.uint32)).view(np.uint32)


@runtime
def tmem_wait_load(s: WarpContext) -> None:
    """tcgen05.wait::ld: deliver the results of all earlier loads."""
    warp = s.warp
    registers = warp.registers
    for targets, values in warp.loads:
        _deliver(registers, targets, values() if callable(values) else values)
    warp.loads.clear()
    if s.launch.inspector is not None:
        s.launch.inspector.tensor_waited(s, False)


def _emit_load(e: Emitter, i: Instruction, results: Sequence[Operand], reduction: str) -> None:
    """A load into registers.

    Args:
      results: one for each row. reduction: the last argument of `tmem_load`.
    """
    shape, count = _shape_and_count(e, i)
    targets: list[tuple[int, Any]] = []
    for item in results:
        if not isinstance(item, Register):
            raise e.error("tcgen05.ld writes registers")
        storage = e.storage[item.index]
        targets.append((item.index, None if storage == "u32" else np.float32))
    position = 2 if i.has("red") else 1
    half = _half_offset(e, i.operands[position + 1 :])
    name = e.bind("TARGETS", tuple(targets))
    address = e.address(i.operands[position], False)
    with e.effect():
        form = (shape, count, i.has("pack::16b"), half)
        e.line(f"tmem_load(s, {form!r}, {address}, {name}, {reduction})")


@instruction("tcgen05.ld", modifiers=f"sync aligned {_SHAPES} {_COUNTS} pack::16b", boundary=True)
def emit_ld(e: Emitter, i: Instruction) -> None:
    """tcgen05.ld.sync.aligned.SHAPE.xN{.pack::16b}.b32 {r..}, [taddr]{, imm}."""
    emit_gather(e, None)
    _emit_load(e, i, e.words(i.operands[0], register_count(*_shape_and_count(e, i))), "None")


@instruction(
    "tcgen05.ld.red",
    modifiers=f"sync aligned 32x32b 16x32bx2 {_COUNTS} min max abs NaN",
    types="f32 u32 s32",
    boundary=True,
)
def emit_ld_red(e: Emitter, i: Instruction) -> None:
    """tcgen05.ld.red.sync.aligned.SHAPE.xN.{min,max}{.abs}{.NaN}.type {r..}, d, [taddr]{, imm}.

    Each thread's d gets the least or greatest of its registers.
    """
    emit_gather(e, None)
    shape, count = _shape_and_count(e, i)
    if count < 2:
        raise e.error("tcgen05.ld.red loads two registers at least")
    if i.type != "f32" and i.has("abs", "NaN"):
        raise e.error(f"'{i.opcode}' has .abs and .NaN for .f32 alone")
    reduction = (e.modifier(i, "min max"), i.type, i.has("abs"), i.has("NaN"))
    results = (
        *e.words(i.operands[0], register_count(shape, count)),
        *e.words(i.operands[1], 1),
    )
    _emit_load(e, i, results, repr(reduction))


@instruction("tcgen05.wait::ld", modifiers="sync aligned")
def emit_wait_ld(e: Emitter, i: Instruction) -> None:
    """tcgen05.wait::ld.sync.aligned."""
    e.line("tmem_wait_load(s)")


@runtime
def tmem_store(
    s: WarpContext, form: tuple[str, int, bool, int], address: Lanes, *values: Lanes
) -> None:
    """tcgen05.st of uint32 lanes."""
    shape, count, unpacked, half = form
    warp = s.warp
    tmem, rank = s.cta.tmem, warp.index % 4
    taddr = _own_lane_address(s, address, rank)
    rows = np.array(values)
    _report(s, form, taddr, True)
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

    scheduler.post(("tmem-store", id(warp)), run, None, s, engine="store")


@runtime
def tmem_wait_store(s: WarpContext) -> bool:
    """tcgen05.wait::st. False when the context was blocked."""
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
