"""ld, st and their relatives, in every state space."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.order import Order, order_of_access
from ...core.state import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    SHARED_WINDOW_END,
    Cta,
    WarpContext,
)
from ...machine.faults import Fault
from ...machine.memory import Parts, SharedMemory
from ...ptx.ast import Imm, Instruction, Mem, Operand, Register, Sym, Vec
from ...ptx.emit import Emitter
from ...ptx.kinds import KINDS, WARP_LANES, Lanes
from ..registry import instruction, runtime

Bytes = npt.NDArray[np.uint8]
MAX_LOCAL_BYTES = 512 << 10  # per thread; CUDA programming guide, compute capabilities
MAX_ACCESS_BYTES = 32  # of one thread in one load or store; PTX ISA, vectors
OFFSET_MASK = 0xFF_FFFF  # offset part of a shared::cluster address; spec-ptx 8
LOCAL_WINDOW_END = LOCAL_WINDOW + (1 << 32)
_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")
_TYPES = "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64"
_MODIFIERS = frozenset(
    "weak relaxed acquire release acq_rel volatile mmio cta cluster gpu sys nc ca cg cs lu cv wb "
    "wt L1::no_allocate L1::evict_first L1::evict_last L1::evict_normal L1::evict_unchanged "
    "L2::evict_first L2::evict_last L2::evict_normal L2::cache_hint L2::64B L2::128B L2::256B "
    "unified v2 v4 v8 param::entry".split()
).union(_SPACES)


# ---- where an address leads


def shared_target(s: WarpContext, address: int, cluster: bool) -> tuple[Cta, int]:
    """The CTA and the offset in its window that a 32-bit shared address names.

    Args:
      cluster: the address is a shared::cluster one, whose high byte is a rank.
    """
    if not cluster:
        return s.cta, address & OFFSET_MASK
    rank = address >> 24 & 0xFF
    ctas = s.cta.cluster.ctas
    if rank >= len(ctas):
        raise Fault(
            "out-of-bounds",
            f"CTA rank {rank} of a shared::cluster address; the cluster has {len(ctas)}",
            address=address,
        )
    return ctas[rank], address & OFFSET_MASK


Access = Callable[[SharedMemory | Any, Any, Any], None]


def split_access(
    s: WarpContext, space: str, address: Lanes, lanes: Any
) -> list[tuple[Any, Any, Any]]:
    """(memory, lane indices or None for all 32, addresses in that memory) of an access.

    Raises:
      Fault: an address of no space.
    """
    chosen = address if lanes is None else address[lanes]
    if space in ("shared", "shared::cta"):
        return [(s.cta.shared, lanes, chosen & chosen.dtype.type(OFFSET_MASK))]
    if space in ("global", "const", "param"):
        return [(s.launch.memory, lanes, chosen)]
    index = np.arange(WARP_LANES) if lanes is None else lanes
    result: list[tuple[Any, Any, Any]] = []
    if space == "shared::cluster":
        ranks = chosen >> chosen.dtype.type(24) & chosen.dtype.type(0xFF)
        for rank in np.unique(ranks).tolist():
            here = ranks == rank
            cta, _ = shared_target(s, rank << 24, True)
            offsets = chosen[here] & chosen.dtype.type(OFFSET_MASK)
            result.append((cta.shared, index[here], offsets))
        return result
    if space == "local":
        local = _LocalMemory(s, index)
        return [(local, index, chosen)]
    # Generic: by window.
    in_shared = (chosen >= SHARED_WINDOW) & (chosen < SHARED_WINDOW_END)
    in_local = (chosen >= LOCAL_WINDOW) & (chosen < LOCAL_WINDOW_END)
    other = ~(in_shared | in_local)
    if other.all():
        return [(s.launch.memory, lanes, chosen)]
    if other.any():
        result.append((s.launch.memory, index[other], chosen[other]))
    if in_shared.any():
        inner = np.zeros(WARP_LANES, np.uint64)
        inner[index[in_shared]] = chosen[in_shared] - np.uint64(SHARED_WINDOW)
        result += split_access(s, "shared::cluster", inner, index[in_shared])
    if in_local.any():
        inner = np.zeros(WARP_LANES, np.uint64)
        inner[index[in_local]] = chosen[in_local] - np.uint64(LOCAL_WINDOW)
        result += split_access(s, "local", inner, index[in_local])
    return result


def grow_local(s: WarpContext, byte_count: int) -> Any:
    """A warp's local memory, uint8[32, bytes], of so many bytes per thread at least.

    Raises:
      Fault: a thread cannot have so many.
    """
    warp = s.warp
    if byte_count > MAX_LOCAL_BYTES:
        raise Fault(
            "out-of-bounds",
            f"calls need {byte_count} B of local memory per thread, {MAX_LOCAL_BYTES} B are there",
        )
    present = 0 if warp.local is None else warp.local.shape[1]
    if warp.local is None or present < byte_count:
        more = max(1, byte_count, 2 * present) - present
        former = np.zeros((WARP_LANES, 0), np.uint8) if warp.local is None else warp.local
        warp.local = np.concatenate([former, np.zeros((WARP_LANES, more), np.uint8)], axis=1)
        if s.launch.track_initialised:
            written = warp.local_written
            former = np.zeros((WARP_LANES, 0), np.bool_) if written is None else written
            added = np.zeros((WARP_LANES, more), np.bool_)
            warp.local_written = np.concatenate([former, added], axis=1)
    return warp.local


class _LocalMemory:
    """Thread-private memory of some lanes of a warp: uint8[32, bytes of a thread]."""

    def __init__(self, s: WarpContext, index: Any):
        if s.warp.local is None:
            grow_local(s, s.launch.local.extent)
        self.data: Any = s.warp.local
        self.written = s.warp.local_written
        self.rooms = s.launch.local.rooms
        self.index = index

    def _positions(self, offsets: Any, width: int) -> Any:
        last = int(offsets.max()) + width
        if last > self.data.shape[1]:
            raise Fault(
                "out-of-bounds",
                f"local memory has {self.data.shape[1]} B",
                address=last - width,
                byte_count=width,
            )
        places = offsets.astype(np.int64)[:, None] + np.arange(width)
        if self.rooms is not None and not (inside := self.rooms[places].all(axis=1)).all():
            row = int(np.flatnonzero(~inside)[0])
            raise Fault(
                "out-of-bounds",
                "past the end of a local variable",
                address=int(offsets[row]),
                byte_count=width,
                lane=int(self.index[row]),
            )
        return self.index[:, None], places

    def load(self, offsets: Any, width: int, used: Parts | None = None) -> Any:
        at = self._positions(offsets, width)
        if self.written is not None:
            for start, size in used if used is not None else ((0, width),):
                self._check_written(offsets + start, size)
        return self.data[at]

    def _check_written(self, offsets: Any, width: int) -> None:
        assert self.written is not None
        written = self.written[self._positions(offsets, width)].all(axis=1)
        if not written.all():
            row = int(np.flatnonzero(~written)[0])
            raise Fault(
                "uninitialised",
                "local memory read before any write",
                address=int(offsets[row]),
                byte_count=width,
                lane=int(self.index[row]),
            )

    def store(self, offsets: Any, values: Any) -> None:
        at = self._positions(offsets, values.shape[1])
        self.data[at] = values
        if self.written is not None:
            self.written[at] = True


def observe_access(
    s: WarpContext,
    memory: Any,
    lanes: Any,
    addresses: Any,
    width: int,
    is_write: bool,
    values: Bytes | None = None,
    element_bytes: int = 0,
) -> None:
    """Reports an access of lanes through the generic proxy; arguments as in `Inspector.access`."""
    if isinstance(memory, _LocalMemory):
        return
    inspector = s.launch.inspector
    if inspector is not None and s.order is not None:
        kind = "store" if is_write else "load"
        inspector.strong_access(s, lanes, memory, addresses, width, kind, s.order)
    elif inspector is not None:
        inspector.access(s, lanes, memory, addresses, width, is_write, values, element_bytes)
    observer = s.launch.observer
    if observer is None:
        return
    line = s.segment.line
    owner = 0
    if isinstance(memory, SharedMemory):
        owner = next(cta.rank for cta in s.cta.cluster.ctas if cta.shared is memory)
    space = "shared" if isinstance(memory, SharedMemory) else "global"
    observer.access(s.where(), line, "generic", space, owner, addresses, width, is_write)


@runtime
def load_bytes(
    s: WarpContext, k: Any, space: str, address: Lanes, width: int, used: Parts | None = None
) -> Bytes:
    """uint8[32, width]; rows of inactive lanes are zero.

    Args:
      used: the parts of the bytes that the kernel uses, by its pragma; None: all.
    """
    lanes = None if k is None else np.flatnonzero(k)
    if space == "global":
        s.launch.count("thread_load_bytes", width * (WARP_LANES if lanes is None else len(lanes)))
    targets = split_access(s, space, address, lanes)
    if s.launch.is_watched:
        for memory, index, inner in targets:
            for start, size in used if used is not None else ((0, width),):
                observe_access(s, memory, index, inner + start, size, False)
    parts = () if used is None else (used,)
    if len(targets) == 1 and lanes is None:
        return targets[0][0].load(targets[0][2], width, *parts)
    result = np.zeros((WARP_LANES, width), np.uint8)
    for memory, index, inner in targets:
        try:
            result[index] = memory.load(inner, width, *parts)
        except Fault as fault:
            raise _of_warp(fault, memory, index) from None
    return result


@runtime
def store_bytes(
    s: WarpContext, k: Any, space: str, address: Lanes, values: Bytes, element_bytes: int
) -> None:
    """Store uint8[32, width] at each active lane's address."""
    lanes = None if k is None else np.flatnonzero(k)
    width = values.shape[1]
    s.launch.scheduler.progress += 1
    for memory, index, inner in split_access(s, space, address, lanes):
        chosen = values if index is None else values[index]
        if s.launch.is_watched:
            observe_access(s, memory, index, inner, width, True, chosen, element_bytes)
        try:
            memory.store(inner, chosen)
        except Fault as fault:
            raise _of_warp(fault, memory, index) from None


def _of_warp(fault: Fault, memory: Any, index: Any) -> Fault:
    """A memory's fault with the lane of the warp, where it names one of the addresses."""
    if fault.lane is None or index is None or isinstance(memory, _LocalMemory):
        return fault
    return fault.of_lane(int(index[fault.lane]))


@runtime
def load_one(
    s: WarpContext,
    k: Any,
    space: str,
    address: Lanes,
    dtype: Any,
    width: int,
    used: Parts | None = None,
) -> Any:
    """One element per lane."""
    return load_bytes(s, k, space, address, width, used).view(dtype).reshape(WARP_LANES)


@runtime
def load_many(
    s: WarpContext,
    k: Any,
    space: str,
    address: Lanes,
    dtype: Any,
    width: int,
    count: int,
    used: Parts | None = None,
) -> Any:
    """[count, 32] elements of consecutive addresses per lane."""
    raw = load_bytes(s, k, space, address, width * count, used)
    return np.ascontiguousarray(raw.view(dtype).T)


@runtime
def load_wide(s: WarpContext, k: Any, space: str, address: Lanes, used: Parts | None = None) -> Any:
    """b128 lanes: uint64[2, 32]."""
    raw = load_bytes(s, k, space, address, 16, used)
    return np.ascontiguousarray(raw.view(np.uint64).T)


@runtime
def store_one(s: WarpContext, k: Any, space: str, address: Lanes, value: Lanes) -> None:
    """Store one element per lane."""
    raw = np.ascontiguousarray(value).view(np.uint8).reshape(WARP_LANES, -1)
    store_bytes(s, k, space, address, raw, raw.shape[1])


@runtime
def store_many(s: WarpContext, k: Any, space: str, address: Lanes, *values: Lanes) -> None:
    """Store consecutive elements per lane."""
    raw = np.stack(values, axis=1).view(np.uint8)
    store_bytes(s, k, space, address, raw, values[0].itemsize)


@runtime
def store_wide(s: WarpContext, k: Any, space: str, address: Lanes, value: Any) -> None:
    """Store b128 lanes."""
    raw = np.ascontiguousarray(value.T).view(np.uint8)
    store_bytes(s, k, space, address, raw, raw.shape[1])


@runtime
def parameter(s: WarpContext, offset: int, dtype: Any, width: int) -> Any:
    """A kernel parameter's element in all lanes."""
    constants = s.launch.constants
    key = (offset, dtype)
    value = constants.get(key)
    if value is None:
        raw = s.launch.parameters
        if offset < 0 or offset + width > raw.size:
            raise Fault(
                "out-of-bounds",
                f"the kernel has {raw.size} B of parameters",
                address=offset,
                byte_count=width,
            )
        value = raw[offset : offset + width].view(dtype)[0]
        value = constants[key] = np.full(WARP_LANES, value, dtype)
    return value


# ---- ld and st


def space_of(e: Emitter, i: Instruction) -> str:
    """The state space in an opcode; "generic" when it names none."""
    space = next((part for part in i.parts if part in _SPACES), None)
    if space is None and any(part.startswith("param") for part in i.parts):
        return "param"
    return space or "generic"


def _elements(e: Emitter, i: Instruction, operand: Operand) -> tuple[Operand, int]:
    """The operands of a load or store, and its elements per lane: N of `.vN`, else 1."""
    count = next((int(part[1:]) for part in i.parts if part in ("v2", "v4", "v8")), 1)
    operand_count = len(operand.items) if isinstance(operand, Vec) else 1
    if operand_count != count:
        raise e.error(f"'{i.opcode}' moves {count} elements per thread, got {operand_count}")
    if count * KINDS[e.kind_of(i.type)][1] > MAX_ACCESS_BYTES:
        raise e.error(f"'{i.opcode}' moves more than {MAX_ACCESS_BYTES} bytes per thread")
    if isinstance(operand, Vec) and count == 1:
        return operand.items[0], 1
    return operand, count


def is_wide(space: str) -> bool:
    """Whether addresses of a space are 64-bit here."""
    return space in ("generic", "global", "const", "param")


_POLLING_MODIFIERS = ("volatile", "relaxed", "acquire", "mmio")


def order_name(e: Emitter, order: Order) -> str:
    """The name of an order in generated code."""
    name = f"ORDER_{order.scope.name}_{int(order.acquires)}{int(order.releases)}"
    e.namespace[name] = order
    return name


@contextmanager
def ordered(e: Emitter, i: Instruction) -> Generator[None]:
    """A context in which emitted accesses have the order of the instruction, if it is strong."""
    order = order_of_access(i.parts)
    if order is None:
        yield
        return
    e.line(f"s.order = {order_name(e, order)}")
    yield
    e.line("s.order = None")


def _used_parts(i: Instruction, byte_count: int) -> Parts | None:
    """The parts of a load that its pragma names, as aligned powers of two; None: all of it.

    A strong load is one access, whatever of it is used.
    """
    mask = i.used_bytes
    if mask is None or order_of_access(i.parts) is not None:
        return None
    parts: list[tuple[int, int]] = []
    at = 0
    while at < byte_count:
        size = 1
        while (
            at % (2 * size) == 0 and at + 2 * size <= byte_count and _all_set(mask >> at, 2 * size)
        ):
            size *= 2
        if _all_set(mask >> at, size):
            parts.append((at, size))
        at += size
    return None if parts == [(0, byte_count)] else tuple(parts)


def _all_set(mask: int, count: int) -> bool:
    """Whether the lowest bits are all ones."""
    return mask & (1 << count) - 1 == (1 << count) - 1


@instruction("ld", "ldu", types=_TYPES)
def emit_ld(e: Emitter, i: Instruction) -> None:
    """ld{.semantics}{.space}{.cache}{.vec}.type d, [a]."""
    e.check_modifiers(i, i.parts[1:-1], _MODIFIERS)
    d, a = i.operands[:2]
    space = space_of(e, i)
    kind = e.kind_of(i.type)
    dtype, width = KINDS[kind]
    d, count = _elements(e, i, d)
    if isinstance(a, Mem) and isinstance(a.base, Sym) and a.base.variable.space == "param":
        _emit_param(e, d, a, kind)
        return
    address = e.address(a, is_wide(space))
    used = _used_parts(i, width * count)
    used_text = "" if used is None else f", used={used}"
    with e.effect(), ordered(e, i):
        if i.has(*_POLLING_MODIFIERS):
            e.line("polls(s)")
        if kind == "u128":
            e.dst(d, kind, f"load_wide(s, {e.k}, {space!r}, {address}{used_text})")
        elif isinstance(d, Vec):
            arguments = f"{space!r}, {address}, {dtype.__name__}, {width}, {count}{used_text}"
            e.rows(d.items, kind, f"load_many(s, {e.k}, {arguments})")
        else:
            text = f"load_one(s, {e.k}, {space!r}, {address}, {dtype.__name__}, {width}{used_text})"
            e.dst(d, kind, text)


def _emit_param(e: Emitter, d: Operand, a: Mem, kind: str) -> None:
    assert isinstance(a.base, Sym)
    dtype, width = KINDS[kind]
    start = a.base.variable.address + a.base.offset + a.offset
    items = d.items if isinstance(d, Vec) else (d,)
    for position, item in enumerate(items):
        e.dst(item, kind, f"parameter(s, {start + position * width}, {dtype.__name__}, {width})")


@instruction("st", types=_TYPES)
def emit_st(e: Emitter, i: Instruction) -> None:
    """st{.semantics}{.space}{.cache}{.vec}.type [a], b."""
    e.check_modifiers(i, i.parts[1:-1], _MODIFIERS)
    a, b = i.operands[:2]
    space = space_of(e, i)
    if space in ("const", "param"):
        raise e.error(f"cannot store to .{space}")
    kind = e.kind_of(i.type)
    b, _ = _elements(e, i, b)
    address = e.address(a, is_wide(space))
    with e.effect(), ordered(e, i):
        if kind == "u128":
            e.line(f"store_wide(s, {e.k}, {space!r}, {address}, {e.src(b, kind)})")
        elif isinstance(b, Vec):
            values = ", ".join(e.src(item, kind) for item in b.items)
            e.line(f"store_many(s, {e.k}, {space!r}, {address}, {values})")
        else:
            e.line(f"store_one(s, {e.k}, {space!r}, {address}, {e.src(b, kind)})")


@instruction("st.bulk", modifiers="weak shared::cta")
def emit_st_bulk(e: Emitter, i: Instruction) -> None:
    """st.bulk{.weak}{.shared::cta} [a], size, 0."""
    shared = i.has("shared::cta")
    a, size = i.operands[:2]
    with e.effect():
        address = e.address(a, not shared)
        e.line(f"store_zeros(s, {e.k}, {address}, {e.src(size, 'u64')}, {shared})")


@runtime
def store_zeros(s: WarpContext, k: Any, address: Lanes, size: Lanes, shared: bool) -> None:
    """st.bulk: zero-fill shared memory."""
    for lane in np.flatnonzero(s.lanes if k is None else k).tolist():
        at, count = int(address[lane]), int(size[lane])
        if not shared:
            at -= SHARED_WINDOW
        if count % 8 or at % 8:
            raise Fault("misaligned", "st.bulk needs multiples of 8", address=at, byte_count=count)
        cta, offset = shared_target(s, at, not shared)
        if s.launch.is_watched and count:
            words = offset + np.arange(0, count, 8)
            observe_access(s, cta.shared, np.full(words.size, lane), words, 8, True)
        cta.shared.fill(offset, count)


@runtime
def polls(s: WarpContext) -> None:
    """Polling: lets others run after this segment."""
    s.yielding = True
    s.polled = s.launch.scheduler.progress


# ---- cluster addresses


@runtime
def map_address(s: WarpContext, address: Lanes, rank: Lanes, generic: bool) -> Any:
    """mapa: the same shared offset in the CTA of another rank."""
    if generic:
        offset = address & np.uint64(OFFSET_MASK)
        return np.uint64(SHARED_WINDOW) + (rank.astype(np.uint64) << np.uint64(24)) + offset
    return rank.astype(address.dtype) << address.dtype.type(24) | address & address.dtype.type(
        OFFSET_MASK
    )


@instruction("mapa", modifiers="shared::cluster")
def emit_mapa(e: Emitter, i: Instruction) -> None:
    """mapa{.shared::cluster}.{u32,u64} d, a, rank."""
    d, a, rank = i.operands
    kind = e.kind_of(i.type)
    generic = not i.has("shared::cluster")
    source: Operand = Mem(a) if isinstance(a, Sym | Register | Imm) else a
    value = e.address(source, kind == "u64")
    if generic and isinstance(a, Sym):
        value = f"{value} + {e.const(SHARED_WINDOW, 'u64')}"
    e.dst(d, kind, f"map_address(s, {value}, {e.src(rank, 'u32')}, {generic})")


@instruction("getctarank", modifiers="shared::cluster")
def emit_getctarank(e: Emitter, i: Instruction) -> None:
    """getctarank{.shared::cluster}.{u32,u64} d, a: always a 32-bit result."""
    d, a = i.operands
    value = e.src(a, e.kind_of(i.type))
    e.dst(d, "u32", f"({value} >> {e.const(24, e.kind_of(i.type))}).astype(uint32) & uint32(255)")
