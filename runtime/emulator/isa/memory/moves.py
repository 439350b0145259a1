"""mov, cvta, comparison and selection."""

import time
from typing import Any

import numpy as np

from ...core.state import LOCAL_WINDOW, SHARED_WINDOW, WarpContext
from ...ptx.ast import Instruction, Mem, Name, Operand, Pair, Register, Vec
from ...ptx.emit import CLOCKS, Emitter
from ...ptx.kinds import KINDS, WARP_LANES, Lanes
from ..registry import FLOATS, INTEGERS, instruction, runtime

_WRAP = 1 << 64  # of addresses


@runtime
def special(s: WarpContext, name: str) -> Any:
    """A special register as unsigned lanes."""
    value = s.warp.special.get(name)
    if value is not None:
        return value
    if name in CLOCKS:
        now = time.perf_counter_ns() if "global" in name else s.launch.scheduler.warp_instructions
        return np.full(WARP_LANES, now & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    raise AssertionError(name)


@runtime
def symbol_shared(s: WarpContext, offset: int, dtype: Any) -> Any:
    """Address of a shared variable: rank byte and offset (spec-ptx 8)."""
    return np.full(WARP_LANES, s.cta.rank << 24 | offset, dtype)


@runtime
def symbol_local(s: WarpContext, offset: int, dtype: Any) -> Any:
    """Address of a local variable in its own space."""
    return np.full(WARP_LANES, s.local_base + offset, dtype)


@runtime
def symbol_param(s: WarpContext, offset: int, dtype: Any) -> Any:
    """Address of a kernel parameter; param space addresses are generic addresses here."""
    return np.full(WARP_LANES, (s.launch.param_address + offset) % _WRAP, dtype)


@runtime
def symbol_global(s: WarpContext, key: str, offset: int, dtype: Any) -> Any:
    """Address of a .global or .const variable."""
    return np.full(WARP_LANES, (s.launch.symbols[key] + offset) % _WRAP, dtype)


@instruction("mov", modifiers="")
def emit_mov(e: Emitter, i: Instruction) -> None:
    """mov: registers, immediates, special registers, addresses, packing and unpacking."""
    d, source = i.operands
    if isinstance(source, Mem):
        raise e.error("mov does not load; use ld")
    if isinstance(source, Name):
        raise e.error(f"unknown name '{source.name}'")
    kind = e.kind_of(i.type)
    if isinstance(d, Register) and isinstance(source, Register | Vec) and kind != "pred":
        # Bits move unchanged, in whatever form the destination keeps them. (A number does not: the
        # instruction's type says what it means.)
        storage = e.storage[d.index]
        if KINDS[storage][1] == KINDS[kind][1]:
            kind = storage
    elif isinstance(d, Vec) and isinstance(source, Register):
        kind = e.storage[source.index]
    e.dst(d, kind, e.src(source, kind))


_SPACES = "global shared shared::cta shared::cluster local const param"


@instruction("cvta", modifiers=f"to {_SPACES}")
def emit_cvta(e: Emitter, i: Instruction) -> None:
    """cvta{.to}.space: between a space's own addresses and generic ones."""
    if i.type != "u64":
        raise e.error("only 64-bit generic addresses are supported")
    space = e.modifier(i, _SPACES)
    source = i.operands[1]
    value = e.src(source, "u64") if not isinstance(source, Mem) else e.address(source, True)
    base = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space.split("::")[0], 0)
    if base:
        value = f"{value} {'-' if i.has('to') else '+'} {e.const(base, 'u64')}"
    e.dst(i.operands[0], "u64", value)


@instruction("isspacep", modifiers=_SPACES)
def emit_isspacep(e: Emitter, i: Instruction) -> None:
    """isspacep.space p, a."""
    e.dst(
        i.operands[0],
        "pred",
        f"in_space({e.src(i.operands[1], 'u64')}, {e.modifier(i, _SPACES)!r})",
    )


@runtime
def in_space(address: Lanes, space: str) -> Any:
    """Whether generic addresses lie in a space's window."""
    shared = (address >= SHARED_WINDOW) & (address < SHARED_WINDOW + (1 << 32))
    local = (address >= LOCAL_WINDOW) & (address < LOCAL_WINDOW + (1 << 32))
    if space.startswith("shared"):
        return shared
    if space == "local":
        return local
    return ~shared & ~local if space == "global" else np.zeros(address.size, np.bool_)


# ---- comparison

_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_COMPARISONS = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan"
_COMPARISON_MODIFIERS = f"{_COMPARISONS} and or xor ftz relu"

_SIGNS = {"and": "&", "or": "|", "xor": "^"}


@runtime
def half_of(x: Lanes, upper: bool) -> Any:
    """One half of packed 16-bit values (uint32 lanes), as uint16 lanes."""
    return (x >> np.uint32(16) if upper else x).astype(np.uint16)


def _half_comparison(
    e: Emitter, op: str, ptx_type: str, operands: tuple[Operand, Operand], ftz: bool, upper: bool
) -> str:
    """A comparison of f16 or bf16, or of one half of packed ones."""
    values: list[str] = []
    for operand in operands:
        if ptx_type.endswith("x2"):
            value = f"half_of({e.src(operand, 'u32')}, {upper})"
        else:
            value = e.src(operand, "u16")
        value = f"half_to_f64({value}, {ptx_type.startswith('bf16')})"
        values.append(e.hold(f"flush_half({value})" if ftz else value))
    return _compare(e, op, values[0], values[1], True)


def _comparison(e: Emitter, op: str, ptx_type: str, a: Operand, b: Operand, ftz: bool) -> str:
    if ptx_type in ("bf16", "f16"):
        return _half_comparison(e, op, ptx_type, (a, b), ftz, False)
    kind = e.kind_of(ptx_type)
    if op in _UNSIGNED:
        kind = f"u{kind[1:]}"
    read = e.flushed if ftz else e.src
    x, y = read(a, kind), read(b, kind)
    return _compare(e, op, x, y, kind in ("f32", "f64"))


def _compare(e: Emitter, op: str, x: str, y: str, is_float: bool) -> str:
    if op in ("num", "nan"):
        unordered = f"({x} != {x}) | ({y} != {y})"
        return f"~({unordered})" if op == "num" else f"({unordered})"
    if op in _UNSIGNED:
        return f"({x} {_UNSIGNED[op]} {y})"
    if op in _ORDERED:
        if op == "ne" and is_float:  # ordered: false when an operand is NaN
            return f"(({x} < {y}) | ({x} > {y}))"
        return f"({x} {_ORDERED[op]} {y})"
    plain = op[:-1]
    if plain in _ORDERED and op.endswith("u"):
        if plain == "ne":
            return f"({x} != {y})"
        inverse = {"eq": "ne", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}[plain]
        if plain == "eq":
            return f"~(({x} < {y}) | ({x} > {y}))"
        return f"~({x} {_ORDERED[inverse]} {y})"
    raise e.error(f"unknown comparison '.{op}'")


@instruction("setp", modifiers=_COMPARISON_MODIFIERS, types=f"b16 b32 b64 {INTEGERS} {FLOATS}")
def emit_setp(e: Emitter, i: Instruction) -> None:
    """setp.cmp{.bool}.type p{|q}, a, b{, c}."""
    d, a, b = i.operands[:3]
    combine = i.first_of(_SIGNS)
    op = e.modifier(i, _COMPARISONS)
    if i.type in ("f16x2", "bf16x2"):  # one predicate for each half
        parts = (op, i.type, (a, b), i.has("ftz"))
        result, other = (e.hold(_half_comparison(e, *parts, upper)) for upper in (False, True))
    else:
        result = e.hold(_comparison(e, op, i.type, a, b, i.has("ftz")))
        other = f"~{result}"
    if combine:
        third = e.src(i.operands[3], "pred")
        sign = _SIGNS[combine]
        result, other = f"{result} {sign} {third}", f"{other} {sign} {third}"
    if isinstance(d, Pair):
        first, second = e.hold(result), e.hold(other)
        e.dst(d.first, "pred", first)
        e.dst(d.second, "pred", second)
    else:
        e.dst(d, "pred", result)


_ONE = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}  # 1.0


@instruction("set", modifiers=_COMPARISON_MODIFIERS, types=f"b16 b32 b64 {INTEGERS} {FLOATS}")
def emit_set(e: Emitter, i: Instruction) -> None:
    """set.cmp{.bool}.dtype.stype d, a, b{, c}: all ones (or 1.0) where the comparison holds."""
    d, a, b = i.operands[:3]
    to = i.parts[-2]
    combine = i.first_of(_SIGNS)
    op = e.modifier(i, _COMPARISONS)
    tail = f" {_SIGNS[combine]} {e.src(i.operands[3], 'pred')}" if combine else ""
    ftz = i.has("ftz")
    if i.type in ("f16x2", "bf16x2"):
        if to not in ("f16x2", "bf16x2"):
            raise e.error(f"{i.opcode} is not supported")
        halves = [_half_comparison(e, op, i.type, (a, b), ftz, upper) for upper in (False, True)]
        low, high = (
            f"where({half}{tail}, {e.const(_ONE[to[:-2]] << shift, 'u32')}, {e.const(0, 'u32')})"
            for half, shift in zip(halves, (0, 16), strict=True)
        )
        e.dst(d, "u32", f"{low} | {high}")
        return
    result = f"{_comparison(e, op, i.type, a, b, ftz)}{tail}"
    kind = {"f32": "u32", "f16": "u16", "bf16": "u16"}.get(to) or e.kind_of(to)
    yes = e.const(_ONE.get(to, -1), kind)
    e.dst(d, kind, f"where({result}, {yes}, {e.const(0, kind)})")


@instruction("selp", modifiers="", types=f"b16 b32 b64 {INTEGERS} f32 f64")
def emit_selp(e: Emitter, i: Instruction) -> None:
    """selp d, a, b, p."""
    d, a, b, p = i.operands
    kind = e.kind_of(i.type)
    if all(isinstance(operand, Register) for operand in (d, a, b)):
        assert isinstance(d, Register)
        if KINDS[e.storage[d.index]][1] == KINDS[kind][1]:
            kind = e.storage[d.index]
    e.dst(d, kind, f"where({e.src(p, 'pred')}, {e.src(a, kind)}, {e.src(b, kind)})")


@instruction("slct", modifiers="ftz")
def emit_slct(e: Emitter, i: Instruction) -> None:
    """slct.dtype.{s32,f32} d, a, b, c: a where c >= 0."""
    d, a, b, c = i.operands
    kind = e.kind_of(i.parts[-2])
    selector = e.src(c, e.kind_of(i.type))
    if i.has("ftz"):
        selector = f"flush({selector})"
    zero = e.const(0, e.kind_of(i.type))
    e.dst(d, kind, f"where({selector} >= {zero}, {e.src(a, kind)}, {e.src(b, kind)})")
