"""Bitwise logic, shifts and byte permutation."""

from typing import Any

import numpy as np

from ...ptx.ast import Imm, Instruction, Operand, Pair
from ...ptx.emit import Emitter
from ...ptx.kinds import KINDS, Lanes
from ..registry import INTEGERS, instruction, runtime

_BITWISE = {"and": "&", "or": "|", "xor": "^"}


@instruction("and", "or", "xor", modifiers="", types="pred b16 b32 b64")
def emit_bitwise(e: Emitter, i: Instruction) -> None:
    """and, or, xor of bits or predicates."""
    kind = e.kind_of(i.type)
    a, b = (e.src(operand, kind) for operand in i.operands[1:])
    e.dst(i.operands[0], kind, f"{a} {_BITWISE[i.parts[0]]} {b}")


@instruction("not", modifiers="", types="pred b16 b32 b64")
def emit_not(e: Emitter, i: Instruction) -> None:
    """not."""
    kind = e.kind_of(i.type)
    e.dst(i.operands[0], kind, f"~{e.src(i.operands[1], kind)}")


@instruction("cnot", modifiers="", types="b16 b32 b64")
def emit_cnot(e: Emitter, i: Instruction) -> None:
    """cnot: 1 where the operand is zero."""
    kind = e.kind_of(i.type)
    value = e.src(i.operands[1], kind)
    e.dst(i.operands[0], kind, f"({value} == {e.const(0, kind)}).astype({KINDS[kind][0].__name__})")


@runtime
def lookup3(a: Lanes, b: Lanes, c: Lanes, table: int) -> Any:
    """lop3: bit i of the result is table[a_i << 2 | b_i << 1 | c_i]."""
    result = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            term = a if row & 4 else ~a
            term = term & (b if row & 2 else ~b)
            result = result | (term & (c if row & 1 else ~c))
    return result


_LOP3_FORMS = {
    0x80: "{a} & {b} & {c}",
    0xFE: "{a} | {b} | {c}",
    0x96: "{a} ^ {b} ^ {c}",
    0xEA: "({a} & {b}) | {c}",
    0xF8: "{a} | ({b} & {c})",
    0xCA: "({a} & {b}) | (~{a} & {c})",
    0xE8: "({a} & {b}) | ({a} & {c}) | ({b} & {c})",
}


@instruction("lop3", modifiers="or and", types="b32")
def emit_lop3(e: Emitter, i: Instruction) -> None:
    """lop3.b32 d, a, b, c, table; with .or/.and also a predicate d|p."""
    a, b, c = (e.src(operand, "u32") for operand in i.operands[1:4])
    table = i.operands[4]
    if not isinstance(table, Imm):
        raise e.error("lop3 needs an immediate table")
    lut = int(table.value) & 0xFF
    form = _LOP3_FORMS.get(lut)
    text = form.format(a=a, b=b, c=c) if form else f"lookup3({a}, {b}, {c}, {lut})"
    d = i.operands[0]
    if not i.has("or", "and"):
        e.dst(d, "u32", text)
        return
    if not isinstance(d, Pair):
        raise e.error("this lop3 has the form 'd|p, a, b, c, table, q'")
    result = e.hold(text)
    sign, q = ("|" if i.has("or") else "&"), e.src(i.operands[5], "pred")
    holds = e.hold(f"({result} != {e.const(0, 'u32')}) {sign} {q}")
    e.dst(d.first, "u32", result)
    e.dst(d.second, "pred", holds)


# ---- shifts


@runtime
def shift_left(a: Lanes, amount: Lanes) -> Any:
    """shl: amounts of the width or more give zero."""
    bits = 8 * a.itemsize
    wide = amount >= bits
    safe = np.where(wide, np.uint32(0), amount).astype(a.dtype)
    return np.where(wide, a.dtype.type(0), a << safe)


@runtime
def shift_right(a: Lanes, amount: Lanes) -> Any:
    """shr: amounts are clamped to the width; signed values fill with the sign."""
    bits = 8 * a.itemsize
    if a.dtype.kind == "i":
        return a >> np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype)
    wide = amount >= bits
    safe = np.where(wide, np.uint32(0), amount).astype(a.dtype)
    return np.where(wide, a.dtype.type(0), a >> safe)


def _shift(e: Emitter, i: Instruction, kind: str, operator: str, name: str) -> None:
    value, amount = e.src(i.operands[1], kind), i.operands[2]
    bits = 8 * KINDS[kind][1]
    if isinstance(amount, Imm) and 0 <= int(amount.value) < bits:
        e.dst(i.operands[0], kind, f"{value} {operator} {e.const(int(amount.value), kind)}")
    else:
        e.dst(i.operands[0], kind, f"{name}({value}, {e.src(amount, 'u32')})")


@instruction("shl", modifiers="", types="b16 b32 b64")
def emit_shl(e: Emitter, i: Instruction) -> None:
    """shl."""
    _shift(e, i, f"u{i.type[1:]}", "<<", "shift_left")


@instruction("shr", modifiers="", types=f"b16 b32 b64 {INTEGERS}")
def emit_shr(e: Emitter, i: Instruction) -> None:
    """shr: arithmetic for signed types."""
    _shift(e, i, e.kind_of(i.type), ">>", "shift_right")


@runtime
def funnel(low: Lanes, high: Lanes, amount: Lanes, left: bool, clamp: bool) -> Any:
    """shf: the 64-bit value high:low shifted; the upper word for .l, the lower for .r."""
    n = np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)
    wide = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
    n64 = n.astype(np.uint64)
    shifted = (wide << n64) >> np.uint64(32) if left else wide >> n64
    return shifted.astype(np.uint32)


@instruction("shf", modifiers="l r clamp wrap", types="b32")
def emit_shf(e: Emitter, i: Instruction) -> None:
    """shf.{l,r}.{clamp,wrap}.b32 d, a (low), b (high), c."""
    low, high, amount = (e.src(operand, "u32") for operand in i.operands[1:4])
    text = f"funnel({low}, {high}, {amount}, {i.has('l')}, {i.has('clamp')})"
    e.dst(i.operands[0], "u32", text)


# ---- prmt

# Selectors by mode for the values 0..3 of the third operand; byte 0 is the last digit.
_PRMT_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@runtime
def permute_bytes(a: Lanes, b: Lanes, selector: Lanes) -> Any:
    """prmt.b32: selector nibble j names byte j of the result among {b, a}, bit 3 its sign."""
    table = np.stack([a, b], axis=1).view(np.uint8).reshape(-1, 8)
    nibbles = (selector[:, None] >> (np.arange(4, dtype=np.uint32) * 4)) & np.uint32(15)
    chosen = np.take_along_axis(table, (nibbles & 7).astype(np.intp), axis=1)
    signs = np.where(chosen & 0x80, np.uint8(0xFF), np.uint8(0))
    result = np.where(nibbles & 8, signs, chosen).astype(np.uint8)
    return np.ascontiguousarray(result).view(np.uint32).reshape(-1)


@runtime
def permute_mode(a: Lanes, b: Lanes, selector: Lanes, mode: str) -> Any:
    """prmt in one of its special modes."""
    table = np.array(_PRMT_MODES[mode], np.uint32)
    return permute_bytes(a, b, table[selector & np.uint32(3)])


@instruction("prmt", modifiers=" ".join(_PRMT_MODES))
def emit_prmt(e: Emitter, i: Instruction) -> None:
    """prmt.b32{.mode} d, a, b, selector."""
    a, b, selector = (e.src(operand, "u32") for operand in i.operands[1:4])
    mode = i.first_of(_PRMT_MODES)
    if mode:
        e.dst(i.operands[0], "u32", f"permute_mode({a}, {b}, {selector}, {mode!r})")
        return
    form = _known_permutation(e, i.operands)
    e.dst(i.operands[0], "u32", form or f"permute_bytes({a}, {b}, {selector})")


def _known_permutation(e: Emitter, operands: tuple[Operand, ...]) -> str | None:
    """A cheaper expression for frequent constant selectors, or None."""
    selector = operands[3]
    if not isinstance(selector, Imm):
        return None
    a, b = e.src(operands[1], "u32"), e.src(operands[2], "u32")
    low, half = e.const(0xFFFF, "u32"), e.const(16, "u32")
    forms = {
        0x5410: f"({a} & {low}) | ({b} << {half})",
        0x7632: f"({a} >> {half}) | (({b} >> {half}) << {half})",
        0x1032: f"({a} >> {half}) | ({a} << {half})",
    }
    return forms.get(int(selector.value) & 0xFFFF)
