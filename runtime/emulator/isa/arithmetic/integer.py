"""Integer arithmetic."""

from typing import Any

import numpy as np

from ...ptx.ast import Imm, Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import KINDS, Lanes
from ..registry import INTEGERS, instruction, runtime

_BINARY = {"add": "+", "sub": "-"}
FLOAT_TYPES = frozenset("f16 f16x2 bf16 bf16x2 f32 f64 f32x2".split())


@runtime
def saturating(a: Lanes, b: Lanes, is_sub: bool) -> Any:
    """s32 addition or subtraction clamped to the range of s32."""
    x, y = a.astype(np.int64), b.astype(np.int64)
    return np.clip(x - y if is_sub else x + y, -(2**31), 2**31 - 1).astype(np.int32)


@runtime
def add_carry(s: Any, a: Lanes, b: Lanes, carry_in: bool, carry_out: bool, is_sub: bool) -> Any:
    """add/sub with carry in (`carry_in`) and out (`carry_out`); the carry flag lives with the warp.

    For a subtraction the flag is the borrow.
    """
    bits = 8 * a.itemsize
    limit = 1 << bits
    carry = getattr(s.warp, "carry", None)
    if carry is None:
        carry = np.zeros(a.size, np.int64)
    out = np.empty_like(a)
    flags = np.zeros(a.size, np.int64)
    for lane in range(a.size):
        other = int(b[lane]) + (int(carry[lane]) if carry_in else 0)
        total = int(a[lane]) - other if is_sub else int(a[lane]) + other
        flags[lane] = not 0 <= total < limit
        out[lane] = total % limit
    if carry_out:
        s.warp.carry = np.where(s.lanes, flags, carry)
    return out


def emit_add(e: Emitter, i: Instruction) -> None:
    """add, sub, addc, subc of integers."""
    head = i.parts[0]
    is_sub = head.startswith("sub")
    d, a, b = i.operands
    if head.endswith("c") or i.has("cc"):
        kind = e.kind_of("u" + i.type[1:])
        carry_in, carry_out = head.endswith("c"), i.has("cc")
        a_text, b_text = e.src(a, kind), e.src(b, kind)
        e.dst(d, kind, f"add_carry(s, {a_text}, {b_text}, {carry_in}, {carry_out}, {is_sub})")
        return
    if i.has("sat"):
        e.dst(d, "s32", f"saturating({e.src(a, 's32')}, {e.src(b, 's32')}, {is_sub})")
        return
    if i.type in ("u16x2", "s16x2"):
        a_text, b_text = (f"{e.src(x, 'u32')}.view(uint16)" for x in (a, b))
        e.dst(d, "u32", f"({a_text} {'-' if is_sub else '+'} {b_text}).view(uint32)")
        return
    # Two's complement: signed and unsigned agree.
    kind = e.kind_of("u" + i.type[1:] if i.type[0] in "sub" else i.type)
    e.dst(d, kind, f"{e.src(a, kind)} {'-' if is_sub else '+'} {e.src(b, kind)}")


def _wide(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


@runtime
def mul_high_64(a: Lanes, b: Lanes, signed: bool) -> Any:
    """The high 64 bits of a 64-bit product."""
    dtype = np.int64 if signed else np.uint64
    values = [int(x) * int(y) >> 64 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array(values, dtype)


def _product(e: Emitter, i: Instruction) -> tuple[str, str]:
    """(kind of the result, expression) of the multiplication in mul and mad."""
    kind = e.kind_of(i.type)
    a, b = i.operands[1], i.operands[2]
    a_text, b_text = e.src(a, kind), e.src(b, kind)
    if i.has("wide"):
        wide = _wide(kind)
        dtype = KINDS[wide][0].__name__
        return wide, f"{a_text}.astype({dtype}) * {b_text}.astype({dtype})"
    if i.has("hi"):
        if kind[1:] == "64":
            return kind, f"mul_high_64({a_text}, {b_text}, {kind[0] == 's'})"
        wide = KINDS[_wide(kind)][0].__name__
        narrow = KINDS[kind][0].__name__
        shift = e.const(int(kind[1:]), _wide(kind))
        product = f"{a_text}.astype({wide}) * {b_text}.astype({wide})"
        return kind, f"({product} >> {shift}).astype({narrow})"
    if not i.has("lo"):
        raise e.error("an integer multiplication says .lo, .hi or .wide")
    return kind, f"{a_text} * {b_text}"


def emit_mul(e: Emitter, i: Instruction) -> None:
    """mul of integers."""
    kind, product = _product(e, i)
    e.dst(i.operands[0], kind, product)


def emit_mad(e: Emitter, i: Instruction) -> None:
    """mad and madc of integers."""
    kind, product = _product(e, i)
    carry_in, carry_out = i.parts[0] == "madc", i.has("cc")
    if carry_in or carry_out:
        unsigned = e.kind_of("u" + kind[1:])
        dtype = KINDS[unsigned][0].__name__
        c = e.src(i.operands[3], unsigned)
        text = f"add_carry(s, ({product}).view({dtype}), {c}, {carry_in}, {carry_out}, False)"
        e.dst(i.operands[0], unsigned, text)
        return
    c = e.src(i.operands[3], kind)
    if i.has("sat"):
        e.dst(i.operands[0], kind, f"saturating({product}, {c}, False)")
        return
    e.dst(i.operands[0], kind, f"{product} + {c}")


@instruction("madc", modifiers="lo hi cc", types="u32 u64 s32 s64")
def emit_madc(e: Emitter, i: Instruction) -> None:
    """madc."""
    emit_mad(e, i)


@instruction("sad", modifiers="", types=INTEGERS)
def emit_sad(e: Emitter, i: Instruction) -> None:
    """sad d, a, b, c: c plus the distance of a and b."""
    kind = e.kind_of(i.type)
    a, b, c = (e.src(x, kind) for x in i.operands[1:4])
    e.dst(i.operands[0], kind, f"{c} + (maximum({a}, {b}) - minimum({a}, {b}))")


@instruction("mul24", "mad24", modifiers="lo hi sat", types="u32 s32")
def emit_mul24(e: Emitter, i: Instruction) -> None:
    """24-bit products."""
    kind = e.kind_of(i.type)
    wide = _wide(kind)
    shift = e.const(40, wide)
    parts = [
        f"(({e.src(x, kind)}.astype({KINDS[wide][0].__name__}) << {shift}) >> {shift})"
        for x in i.operands[1:3]
    ]
    product = f"{parts[0]} * {parts[1]}"
    if i.has("hi"):
        product = f"({product}) >> {e.const(16, wide)}"
    text = f"({product}).astype({KINDS[kind][0].__name__})"
    if i.parts[0] == "mad24":
        c = e.src(i.operands[3], kind)
        text = f"saturating({text}, {c}, False)" if i.has("sat") else f"{text} + {c}"
    e.dst(i.operands[0], kind, text)


@runtime
def divide(a: Lanes, b: Lanes, remainder: bool) -> Any:
    """Integer division toward zero, or its remainder; a zero divisor gives all ones."""
    zero = b == 0
    safe = np.where(zero, np.ones_like(b), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        remainder_ = a - quotient * safe
        quotient = quotient + ((remainder_ != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    result = a - quotient * safe if remainder else quotient
    ones = np.full_like(a, -1 if a.dtype.kind == "i" else np.iinfo(a.dtype).max)
    return np.where(zero, ones, result)


def emit_div(e: Emitter, i: Instruction) -> None:
    """div of integers."""
    kind = e.kind_of(i.type)
    a, b = e.src(i.operands[1], kind), e.src(i.operands[2], kind)
    e.dst(i.operands[0], kind, f"divide({a}, {b}, {i.parts[0] == 'rem'})")


@instruction("rem", modifiers="", types=INTEGERS)
def emit_rem(e: Emitter, i: Instruction) -> None:
    """rem."""
    emit_div(e, i)


def emit_abs(e: Emitter, i: Instruction) -> None:
    """abs of integers."""
    kind = e.kind_of(i.type)
    e.dst(i.operands[0], kind, f"abs({e.src(i.operands[1], kind)})")


def emit_neg(e: Emitter, i: Instruction) -> None:
    """neg of integers."""
    kind = e.kind_of(i.type)
    e.dst(i.operands[0], kind, f"-{e.src(i.operands[1], kind)}")


def emit_minmax(e: Emitter, i: Instruction) -> None:
    """min and max of integers."""
    name = "minimum" if i.parts[0] == "min" else "maximum"
    if i.type in ("u16x2", "s16x2"):
        dtype = "uint16" if i.type[0] == "u" else "int16"
        a, b = (f"{e.src(x, 'u32')}.view({dtype})" for x in i.operands[1:3])
        text = f"{name}({a}, {b})"
        if i.has("relu"):
            text = f"maximum({text}, int16(0))"
        e.dst(i.operands[0], "u32", f"{text}.view(uint32)")
        return
    kind = e.kind_of(i.type)
    text = f"{name}({e.src(i.operands[1], kind)}, {e.src(i.operands[2], kind)})"
    if i.has("relu"):
        text = f"maximum({text}, {e.const(0, kind)})"
    e.dst(i.operands[0], kind, text)


@runtime
def population(a: Lanes) -> Any:
    """popc."""
    return np.bitwise_count(a).astype(np.uint32)


@runtime
def leading_zeros(a: Lanes) -> Any:
    """clz."""
    bits = 8 * a.itemsize
    return np.array([bits - int(x).bit_length() for x in a.tolist()], np.uint32)


@runtime
def find_first(a: Lanes, shift_amount: bool) -> Any:
    """bfind: position of the most significant non-sign bit, or -1."""
    bits = 8 * a.itemsize
    result = np.empty(a.size, np.int64)
    for lane, value in enumerate(a.tolist()):
        magnitude = ~value if value < 0 else value
        at = magnitude.bit_length() - 1
        result[lane] = (bits - 1 - at) if shift_amount and at >= 0 else at
    return result.astype(np.uint32)


@runtime
def reverse_bits(a: Lanes) -> Any:
    """brev."""
    flat = np.unpackbits(a.view(np.uint8).reshape(a.size, a.itemsize), axis=1, bitorder="little")
    return np.packbits(flat[:, ::-1], axis=1, bitorder="little").view(a.dtype).reshape(a.size)


@runtime
def extract_bits(a: Lanes, position: Lanes, length: Lanes) -> Any:
    """bfe: `length` bits from `position`, sign-extended for signed types."""
    width = 8 * a.itemsize
    signed = a.dtype.kind == "i"
    result = np.zeros_like(a)
    for lane, value in enumerate(a.tolist()):
        start, count = int(position[lane]) & 0xFF, int(length[lane]) & 0xFF
        if count == 0:
            continue
        raw = (value & ((1 << width) - 1)) >> start & ((1 << count) - 1)
        top = min(start + count - 1, width - 1)
        if signed and value >> top & 1:
            have = max(0, min(count, width - start))
            raw |= ~((1 << have) - 1)
        raw &= (1 << width) - 1
        result[lane] = raw - (1 << width) if signed and raw >> (width - 1) else raw
    return result


@runtime
def insert_bits(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Any:
    """bfi: the low `length` bits of a put into b at `position`."""
    width = 8 * a.itemsize
    start = (position & np.uint32(0xFF)).astype(np.uint64)
    count = np.minimum(length & np.uint32(0xFF), np.uint32(63)).astype(np.uint64)
    field = np.where(
        (length & np.uint32(0xFF)) >= 64,
        np.uint64(0xFFFF_FFFF_FFFF_FFFF),
        (np.uint64(1) << count) - np.uint64(1),
    )
    inside = start < width
    start = np.where(inside, start, np.uint64(0))
    mask = np.where(inside, field << start, np.uint64(0))
    wide = (b.astype(np.uint64) & ~mask) | ((a.astype(np.uint64) << start) & mask)
    return wide.astype(a.dtype)


def _emit_bits(e: Emitter, i: Instruction, result: str, text: str) -> None:
    value = e.src(i.operands[1], e.kind_of(i.type))
    e.dst(i.operands[0], result or e.kind_of(i.type), text.format(value))


_BITS = {"popc": "population({})", "clz": "leading_zeros({})"}


@instruction(*_BITS, modifiers="", types="b32 b64")
def emit_count(e: Emitter, i: Instruction) -> None:
    """popc and clz."""
    _emit_bits(e, i, "u32", _BITS[i.parts[0]])


@instruction("bfind", modifiers="shiftamt", types="u32 u64 s32 s64")
def emit_bfind(e: Emitter, i: Instruction) -> None:
    """bfind."""
    _emit_bits(e, i, "u32", f"find_first({{}}, {i.has('shiftamt')})")


@instruction("brev", modifiers="", types="b32 b64")
def emit_brev(e: Emitter, i: Instruction) -> None:
    """brev."""
    _emit_bits(e, i, "", "reverse_bits({})")


@instruction("bfe", modifiers="", types="u32 u64 s32 s64")
def emit_bfe(e: Emitter, i: Instruction) -> None:
    """bfe."""
    kind = e.kind_of(i.type)
    position, length = i.operands[2:]
    value = e.src(i.operands[1], kind)
    if isinstance(position, Imm) and isinstance(length, Imm) and kind[0] == "u":
        start, count = int(position.value) & 0xFF, int(length.value) & 0xFF
        if start + count <= int(kind[1:]):
            mask = e.const((1 << count) - 1, kind)
            e.dst(i.operands[0], kind, f"({value} >> {e.const(start, kind)}) & {mask}")
            return
    text = f"extract_bits({value}, {e.src(position, 'u32')}, {e.src(length, 'u32')})"
    e.dst(i.operands[0], kind, text)


@instruction("bfi", modifiers="", types="b32 b64")
def emit_bfi(e: Emitter, i: Instruction) -> None:
    """bfi."""
    kind = e.kind_of(i.type)
    a, b = (e.src(x, kind) for x in i.operands[1:3])
    position, length = (e.src(x, "u32") for x in i.operands[3:5])
    e.dst(i.operands[0], kind, f"insert_bits({a}, {b}, {position}, {length})")


@runtime
def dot_bytes(a: Lanes, b: Lanes, c: Lanes) -> Any:
    """dp4a: c plus the dot product of four bytes; signedness is that of the arrays' views."""
    x = a.view(np.int8 if a.dtype.kind == "i" else np.uint8).reshape(-1, 4).astype(np.int64)
    y = b.view(np.int8 if b.dtype.kind == "i" else np.uint8).reshape(-1, 4).astype(np.int64)
    return ((x * y).sum(axis=1) + c.astype(np.int64)).astype(np.uint32)


@instruction("dp4a", modifiers="", types="u32 s32")
def emit_dp4a(e: Emitter, i: Instruction) -> None:
    """dp4a.atype.btype."""
    a = e.src(i.operands[1], e.kind_of(i.parts[1]))
    b = e.src(i.operands[2], e.kind_of(i.parts[2]))
    e.dst(i.operands[0], "u32", f"dot_bytes({a}, {b}, {e.src(i.operands[3], 'u32')})")


@runtime
def dot_halves(a: Lanes, b: Lanes, c: Lanes, first: int) -> Any:
    """dp2a: c plus the dot product of two 16-bit parts of a and bytes `first`, `first` + 1 of b."""
    x = a.view(np.int16 if a.dtype.kind == "i" else np.uint16).reshape(-1, 2).astype(np.int64)
    y = b.view(np.int8 if b.dtype.kind == "i" else np.uint8).reshape(-1, 4).astype(np.int64)
    total = (x * y[:, first : first + 2]).sum(axis=1) + c.astype(np.int64)
    return total.astype(np.uint32)


@instruction("dp2a", modifiers="lo hi", types="u32 s32")
def emit_dp2a(e: Emitter, i: Instruction) -> None:
    """dp2a.{lo,hi}.atype.btype."""
    a = e.src(i.operands[1], e.kind_of(i.parts[2]))
    b = e.src(i.operands[2], e.kind_of(i.parts[3]))
    first = 2 if i.has("hi") else 0
    e.dst(i.operands[0], "u32", f"dot_halves({a}, {b}, {e.src(i.operands[3], 'u32')}, {first})")


def integer_or(integer: Any, floating: Any) -> Any:
    """An emitter that chooses by the instruction's type."""

    def emit(e: Emitter, i: Instruction) -> None:
        (floating if i.type in FLOAT_TYPES else integer)(e, i)

    return emit


def register_shared(name: str, integer: Any, floating: Any, modifiers: str, types: str) -> None:
    """Register a mnemonic that integer and floating-point types share."""
    instruction(name, modifiers=modifiers, types=types)(integer_or(integer, floating))


for _name in ("addc", "subc"):
    instruction(_name, modifiers="cc", types="u32 u64 s32 s64")(emit_add)
