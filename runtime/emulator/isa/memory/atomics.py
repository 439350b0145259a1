"""atom and red: read-modify-write by several lanes, one lane after the other."""

from typing import Any

import numpy as np

from ...core.state import WarpContext
from ...machine.memory import SharedMemory
from ...ptx.ast import Instruction, Operand, Vec
from ...ptx.emit import Emitter
from ...ptx.kinds import WARP_LANES, Lanes, select
from ..arithmetic.floating import minmax_values
from ..arithmetic.rounding import f64_to_half, flush, half_to_f64
from ..registry import COMMON_TYPES, instruction, runtime
from .accesses import is_wide, ordered, polls, space_of, split_access


def _sum(ptx_type: str, old: Any, new: Any, in_global: bool) -> Any:
    if ptx_type == "f32":
        total = flush(flush(old) + flush(new)) if in_global else old + new
        return select(np.isnan(total), np.uint32(0x7FFF_FFFF).view(np.float32), total)
    if ptx_type == "f64" and in_global:
        return select(np.isnan(new), new, select(np.isnan(old), old, old + new))
    return old + new


def combine(op: str, ptx_type: str, old: Any, new: Any, third: Any, in_global: bool = False) -> Any:
    """The values that atomics of lanes leave behind.

    Args:
      in_global: the memory is global: f32 sums there flush subnormals (PTX ISA, atom), and f64 sums
        leave a signalling NaN as it is (measured on an H200).
    """
    if op == "cas":
        return select(old == new, third, old)
    if ptx_type.startswith(("f16", "bf16")):
        is_bf16 = ptx_type.startswith("bf16")
        x, y = (half_to_f64(v.view(np.uint16), is_bf16) for v in (old, new))
        result = x + y if op == "add" else minmax_values(op, [x, y], False)
        return f64_to_half(result, is_bf16).view(old.dtype)
    if op == "add":
        return _sum(ptx_type, old, new, in_global)
    if op == "exch":
        return new
    if op in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op](old, new)
    if op == "inc":
        return select(old >= new, old.dtype.type(0), old + old.dtype.type(1))
    if op == "dec":
        return select((old == 0) | (old > new), new, old - old.dtype.type(1))
    return np.minimum(old, new) if op == "min" else np.maximum(old, new)


def _disjoint_lanes(address: Lanes, lanes: Any, byte_count: int) -> list[Any]:
    """Lanes in groups with disjoint bytes; lanes with the same bytes are in ascending order."""
    addresses = address[lanes].tolist()
    if len(set(addresses)) == len(addresses) and not any(start % byte_count for start in addresses):
        return [lanes]
    groups: list[list[int]] = []
    counts: dict[int, int] = {}
    for lane, start in zip(lanes.tolist(), addresses, strict=True):
        number = len(groups) if start % byte_count else counts.get(start, 0)
        counts[start] = number + 1
        while len(groups) <= number:
            groups.append([])
        groups[number].append(lane)
    return [np.array(number, np.intp) for number in groups if number]


@runtime
def atomic(
    s: WarpContext,
    k: Any,
    space: str,
    op: str,
    ptx_type: str,
    address: Lanes,
    values: tuple[Lanes, ...],
    third: Lanes | None,
) -> Any:
    """Read-modify-write, lanes of one address after each other; returns the old values, [count,
    32].

    Args:
      values: one array per element of a vector atomic.
      third: the new value of cas (`values` is then what it compares with).
    """
    width = values[0].itemsize
    dtype = values[0].dtype
    old_values = np.zeros((len(values), WARP_LANES), dtype)
    changed = False
    for lanes in _disjoint_lanes(
        address, np.flatnonzero(s.lanes if k is None else k), width * len(values)
    ):
        for element, value in enumerate(values):
            at = address + address.dtype.type(element * width)
            for memory, index, inner in split_access(s, space, at, lanes):
                if s.launch.inspector is not None and s.order is not None:
                    s.launch.inspector.strong_access(
                        s, index, memory, inner, width, "update", s.order
                    )
                old = memory.load(inner, width).view(dtype).reshape(-1)
                last = None if third is None else third[index]
                in_global = not isinstance(memory, SharedMemory)
                new = combine(op, ptx_type, old, value[index], last, in_global)
                raw = np.ascontiguousarray(new.astype(dtype)).view(np.uint8)
                changed |= raw.tobytes() != old.tobytes()
                memory.store(inner, raw.reshape(-1, width))
                old_values[element, index] = old
    if changed:
        s.launch.scheduler.progress += 1
    else:
        polls(s)
    return old_values


@runtime
def atomic_wide(
    s: WarpContext, k: Any, space: str, op: str, address: Lanes, value: Lanes, third: Lanes | None
) -> Any:
    """exch and cas of 16 bytes, lane after lane; returns the old values, uint64[2, 32]."""
    old_values = np.zeros((2, WARP_LANES), np.uint64)
    changed = False
    for lane in np.flatnonzero(s.lanes if k is None else k).tolist():
        one = np.array([lane])
        ((memory, _, inner),) = split_access(s, space, address, one)
        if s.launch.inspector is not None and s.order is not None:
            s.launch.inspector.strong_access(s, one, memory, inner, 16, "update", s.order)
        old = memory.load(inner, 16).view(np.uint64).reshape(2)
        new = value[:, lane]
        if third is not None:
            new = third[:, lane] if (old == new).all() else old
        changed |= bool((old != new).any())
        memory.store(inner, np.ascontiguousarray(new).view(np.uint8)[None, :])
        old_values[:, lane] = old
    if changed:
        s.launch.scheduler.progress += 1
    else:
        polls(s)
    return old_values


_MODIFIERS = (
    "global shared shared::cta shared::cluster relaxed acquire release acq_rel cta cluster gpu sys "
    "add min max and or xor exch cas inc dec noftz ftz v2 v4 v8 L2::cache_hint"
)


def _emit_atomic(e: Emitter, i: Instruction, d: Operand | None, operands: list[Operand]) -> None:
    op = next(
        (p for p in i.parts[1:] if p in "add min max and or xor exch cas inc dec".split()), None
    )
    if op is None:
        raise e.error(f"'{i.opcode}' names no operation")
    space = space_of(e, i)
    ptx_type = next((p for p in reversed(i.parts) if p in COMMON_TYPES), "")
    kind = e.kind_of(ptx_type)
    if kind == "f16":
        kind = "u16"
    address = e.address(operands[0], is_wide(space))
    b = operands[1]
    if kind == "u128":
        if op not in ("exch", "cas") or d is None:
            raise e.error(f"'{i.opcode}' is no 128-bit atomic: exch and cas are")
        with e.effect(), ordered(e, i):
            third = e.src(operands[2], kind) if op == "cas" else "None"
            start = f"{space!r}, {op!r}, {address}, {e.src(b, kind)}, {third}"
            e.dst(d, kind, f"atomic_wide(s, {e.k}, {start})")
        return
    items = b.items if isinstance(b, Vec) else (b,)
    values = ", ".join(e.src(item, kind) for item in items)
    third = e.src(operands[2], kind) if op == "cas" else "None"
    text = f"atomic(s, {e.k}, {space!r}, {op!r}, {ptx_type!r}, {address}, ({values},), {third})"
    with e.effect(), ordered(e, i):
        if d is None:
            e.line(text)
            return
        e.rows(d.items if isinstance(d, Vec) else (d,), kind, text)


@instruction("atom", modifiers=_MODIFIERS, boundary=True)
def emit_atom(e: Emitter, i: Instruction) -> None:
    """atom d, [a], b{, c}."""
    _emit_atomic(e, i, i.operands[0], list(i.operands[1:]))


@instruction("red", modifiers=_MODIFIERS, boundary=True)
def emit_red(e: Emitter, i: Instruction) -> None:
    """red [a], b."""
    _emit_atomic(e, i, None, list(i.operands))
