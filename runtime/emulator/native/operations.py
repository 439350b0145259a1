"""The fixed set of native operations, as LLVM IR.

An operation reads up to three places of the frame and writes one. A place holds one value for each
of the 32 lanes of a warp, or two for a packed pair: row 0 first. Predicates take a byte per lane, 0
or 1. Every operation gives what the numpy expression of the same meaning gives, bit for bit, NaN
payloads included: x86 keeps the first NaN operand and makes it quiet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LANES = 32
# Bytes of the frame before the places of a block; `driver.py` and `machine.py` use them.
PYTHON_TABLE = 0  # addresses of PyArray_NewFromDescr, Py_IncRef and Py_DecRef
# int64 2, 32: the shape of a packed pair, and behind its first of other registers
ARRAY_SHAPES = 64
MATH_TABLE = 128  # (address, data) of a ufunc loop for each function of MATH
MATH_ROOM = 256  # operands and results of a loop: float64[32] each, and its arguments
PLACES = 1024

MATH = ("exp2", "log2", "sin", "cos", "tanh")

_LLVM = {"u8": "i8", "u16": "i16", "u32": "i32", "u64": "i64", "f32": "float", "f64": "double"}
_BITS = {"u8": 8, "u16": 16, "u32": 32, "u64": 64}


@dataclass(frozen=True)
class Operation:
    """One operation: kinds of result and operands, and the IR that makes %r of %a, %b, %c.

    A kind is "pred" or one of `_LLVM`, with "*2" for a packed pair.
    """

    name: str
    result: str
    operands: tuple[str, ...]
    body: str


OPERATIONS: dict[str, Operation] = {}


def _add(name: str, result: str, operands: str, body: str) -> None:
    assert name not in OPERATIONS, name
    OPERATIONS[name] = Operation(name, result, tuple(operands.split()), body)


def vector(kind: str) -> str:
    """The LLVM type of a kind: <32 x i1> for predicates."""
    if kind == "pred":
        return f"<{LANES} x i1>"
    base, _, rows = kind.partition("*")
    return f"<{LANES * int(rows or 1)} x {_LLVM[base]}>"


def splat(kind: str, value: str) -> str:
    """A vector constant of equal elements."""
    count, base = vector(kind)[1:-1].split(" x ")
    return "<" + ", ".join([f"{base} {value}"] * int(count)) + ">"


def _integers() -> None:
    for kind, bits in _BITS.items():
        v = vector(kind)
        zero, ones, top = (splat(kind, str(n)) for n in (0, -1, bits - 1))
        _add(f"copy_{kind}", kind, kind, f"%r = or {v} %a, {zero}")
        for op in ("add", "sub", "mul", "and", "or", "xor"):
            _add(f"{op}_{kind}", kind, f"{kind} {kind}", f"%r = {op} {v} %a, %b")
        _add(f"not_{kind}", kind, kind, f"%r = xor {v} %a, {ones}")
        _add(f"neg_{kind}", kind, kind, f"%r = sub {v} {zero}, %a")
        _add(
            f"abs_{kind}",
            kind,
            kind,
            f"%n = sub {v} {zero}, %a\n%k = icmp slt {v} %a, {zero}\n"
            f"%r = select {vector('pred')} %k, {v} %n, {v} %a",
        )
        # An amount of the width or more leaves nothing, or the sign.
        inside = f"%k = icmp ult {v} %b, {splat(kind, str(bits))}\n"
        safe = f"{inside}%s = select {vector('pred')} %k, {v} %b, {v} {zero}\n"
        for op, name in (("shl", "shl"), ("lshr", "shr_u")):
            _add(
                f"{name}_{kind}",
                kind,
                f"{kind} {kind}",
                f"{safe}%t = {op} {v} %a, %s\n%r = select {vector('pred')} %k, {v} %t, {v} {zero}",
            )
        _add(
            f"shr_s_{kind}",
            kind,
            f"{kind} {kind}",
            f"{inside}%s = select {vector('pred')} %k, {v} %b, {v} {top}\n%r = ashr {v} %a, %s",
        )
        for op in ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"):
            _add(f"{op}_{kind}", "pred", f"{kind} {kind}", f"%r = icmp {op} {v} %a, %b")
        for op in ("smin", "smax", "umin", "umax"):
            call = f"%r = call {v} @llvm.{op}.v{LANES}i{bits}({v} %a, {v} %b)"
            _add(f"{op}_{kind}", kind, f"{kind} {kind}", call)
        choose = f"%r = select {vector('pred')} %a, {v} %b, {v} %c"
        _add(f"select_{kind}", kind, f"pred {kind} {kind}", choose)
        _add(f"widen_pred_{kind}", kind, "pred", f"%r = zext {vector('pred')} %a to {v}")
        for wide, wide_bits in _BITS.items():
            if wide_bits > bits:
                w = vector(wide)
                _add(f"trunc_{wide}_{kind}", kind, wide, f"%r = trunc {w} %a to {v}")
                _add(f"zext_{kind}_{wide}", wide, kind, f"%r = zext {v} %a to {w}")
                _add(f"sext_{kind}_{wide}", wide, kind, f"%r = sext {v} %a to {w}")
    pred = vector("pred")
    for op in ("and", "or", "xor"):
        _add(f"{op}_pred", "pred", "pred pred", f"%r = {op} {pred} %a, %b")
    _add("not_pred", "pred", "pred", f"%r = xor {pred} %a, {splat('pred', 'true')}")
    _add("copy_pred", "pred", "pred", f"%r = or {pred} %a, {splat('pred', 'false')}")
    _add("select_pred", "pred", "pred pred pred", f"%r = select {pred} %a, {pred} %b, {pred} %c")
    wide2 = vector("u32*2")
    _add("copy_u32*2", "u32*2", "u32*2", f"%r = or {wide2} %a, {splat('u32*2', '0')}")


def _words() -> None:
    i32, i64 = vector("u32"), vector("u64")
    half = splat("u64", "32")
    join = (
        f"%x = zext {i32} %a to {i64}\n%y = zext {i32} %b to {i64}\n%z = shl {i64} %y, {half}\n"
        f"%w = or {i64} %x, %z\n"
    )
    _add("pack_words", "u64", "u32 u32", join.replace("%w =", "%r ="))
    _add("low_word", "u32", "u64", f"%r = trunc {i64} %a to {i32}")
    high = f"%x = lshr {i64} %a, {half}\n%r = trunc {i64} %x to {i32}"
    _add("high_word", "u32", "u64", high)
    i16, sixteen = vector("u16"), splat("u32", "16")
    _add(
        "pack_shorts",
        "u32",
        "u16 u16",
        f"%x = zext {i16} %a to {i32}\n%y = zext {i16} %b to {i32}\n%z = shl {i32} %y, {sixteen}\n"
        f"%r = or {i32} %x, %z",
    )
    _add("low_short", "u16", "u32", f"%r = trunc {i32} %a to {i16}")
    high = f"%x = lshr {i32} %a, {sixteen}\n%r = trunc {i32} %x to {i16}"
    _add("high_short", "u16", "u32", high)
    # A packed pair lies in two rows of 32 floats; 64 bits of a lane hold element 0 in their low
    # half.
    pair, alternate = vector("u32*2"), ", ".join(f"i32 {i // 2 + i % 2 * 32}" for i in range(64))
    swap = f"shufflevector {pair} %w, {pair} poison, <64 x i32> <{alternate}>"
    _add("pair_to_bits", "u64", "u32*2", f"%w = or {pair} %a, {splat('u32*2', '0')}\n%x = {swap}\n"
         f"%r = bitcast {pair} %x to {i64}")  # fmt: skip
    rows = ", ".join(f"i32 {i % 32 * 2 + i // 32}" for i in range(64))
    _add("bits_to_pair", "u32*2", "u64", f"%w = bitcast {i64} %a to {pair}\n"
         f"%r = shufflevector {pair} %w, {pair} poison, <64 x i32> <{rows}>")  # fmt: skip
    # prmt: nibble j of the selector names byte j of the result, its bit 3 asks for the byte's sign.
    body, result = join, f"{i32} {splat('u32', '0')}"
    for j in range(4):
        body += (
            f"%n{j} = lshr {i32} %c, {splat('u32', str(4 * j))}\n"
            f"%i{j} = and {i32} %n{j}, {splat('u32', '7')}\n"
            f"%o{j} = shl {i32} %i{j}, {splat('u32', '3')}\n%q{j} = zext {i32} %o{j} to {i64}\n"
            f"%s{j} = lshr {i64} %w, %q{j}\n%b{j} = trunc {i64} %s{j} to {vector('u8')}\n"
            f"%g{j} = ashr {vector('u8')} %b{j}, {splat('u8', '7')}\n"
            f"%e{j} = and {i32} %n{j}, {splat('u32', '8')}\n"
            f"%k{j} = icmp ne {i32} %e{j}, {splat('u32', '0')}\n"
            f"%c{j} = select {vector('pred')} %k{j}, {vector('u8')} %g{j}, {vector('u8')} %b{j}\n"
            f"%z{j} = zext {vector('u8')} %c{j} to {i32}\n"
            f"%h{j} = shl {i32} %z{j}, {splat('u32', str(8 * j))}\n%r{j} = or {result}, %h{j}\n"
        )
        result = f"{i32} %r{j}"
    _add("permute_bytes", "u32", "u32 u32 u32", body + f"%r = or {result}, {splat('u32', '0')}")
    # Division toward zero; float64 is exact enough for quotients of 32 bits. A divisor of 0 gives
    # all ones.
    for sign, prefix in (("u", "ui"), ("s", "si")):
        ext, double = "zext" if sign == "u" else "sext", vector("f64")
        quotient = (
            f"%k = icmp eq {i32} %b, {splat('u32', '0')}\n"
            f"%s = select {vector('pred')} %k, {i32} {splat('u32', '1')}, {i32} %b\n"
            f"%x = {prefix}tofp {i32} %a to {double}\n%y = {prefix}tofp {i32} %s to {double}\n"
            f"%d = fdiv {double} %x, %y\n%q = fptosi {double} %d to {i64}\n"
        )
        ones = f"select {vector('pred')} %k, {i32} {splat('u32', '-1')}, {i32}"
        _add(f"div_{sign}32", "u32", "u32 u32",
             f"{quotient}%t = trunc {i64} %q to {i32}\n%r = {ones} %t")  # fmt: skip
        _add(f"rem_{sign}32", "u32", "u32 u32",
             f"{quotient}%t = trunc {i64} %q to {i32}\n%p = mul {i32} %t, %s\n"
             f"%m = sub {i32} %a, %p\n%r = {ones} %m")  # fmt: skip
        i128 = f"<{LANES} x i128>"
        sixty_four = "<" + ", ".join(["i128 64"] * LANES) + ">"
        _add(f"mul_high_{sign}64", "u64", "u64 u64",
             f"%x = {ext} {i64} %a to {i128}\n%y = {ext} {i64} %b to {i128}\n"
             f"%p = mul {i128} %x, %y\n%h = lshr {i128} %p, {sixty_four}\n"
             f"%r = trunc {i128} %h to {i64}")  # fmt: skip


def _float_text(count: int) -> dict[str, str]:
    """Types and constants for float32 vectors of a length."""

    def constant(base: str, value: str) -> str:
        return "<" + ", ".join([f"{base} {value}"] * count) + ">"

    return {
        "F": f"<{count} x float>", "D": f"<{count} x double>", "I": f"<{count} x i32>",
        "L": f"<{count} x i64>", "B": f"<{count} x i1>", "n": f"v{count}",
        "QUIET": constant("i32", str(0x40_0000)), "SIGN": constant("i32", str(-0x8000_0000)),
        "MAGNITUDE": constant("i32", str(0x7FFF_FFFF)), "I0": constant("i32", "0"),
        "I1": constant("i32", "1"), "IM1": constant("i32", "-1"),
        "NORMAL": constant("i32", str(0x0080_0000)), "NAN": constant("i32", str(0x7FFF_FFFF)),
        "L0": constant("i64", "0"), "L1": constant("i64", "1"), "LM1": constant("i64", "-1"),
        "DEXP": constant("i64", str(0x7FF0_0000_0000_0000)),
        "F0": constant("float", "0.0"), "F1": constant("float", "1.0"),
        "D0": constant("double", "0.0"), "D1": constant("double", "1.0"),
        "FINF": constant("i32", str(0x7F80_0000)), "TINY": constant("i32", "1"),
        "MTINY": constant("i32", str(0x8000_0001 - (1 << 32))),
        "F2_126": constant("float", "0x47D0000000000000"),
    }  # fmt: skip


# 2Sum of %p + %q in float64, rounded to odd: what a second rounding to 24 bits cannot disturb.
_ODD = """
%s = fadd {D} %p, %q
%t1 = fsub {D} %s, %p
%t2 = fsub {D} %s, %t1
%t3 = fsub {D} %p, %t2
%t4 = fsub {D} %q, %t1
%e = fadd {D} %t3, %t4
%sb = bitcast {D} %s to {L}
%even = and {L} %sb, {L1}
%k1 = fcmp une {D} %e, {D0}
%k2 = icmp eq {L} %even, {L0}
%xp = and {L} %sb, {DEXP}
%k3 = icmp ne {L} %xp, {DEXP}
%k4 = and {B} %k1, %k2
%fix = and {B} %k4, %k3
%u1 = fcmp ogt {D} %e, {D0}
%u2 = fcmp ogt {D} %s, {D0}
%u3 = xor {B} %u1, %u2
%step = select {B} %u3, {L} {LM1}, {L} {L1}
%sm = add {L} %sb, %step
%so = select {B} %fix, {L} %sm, {L} %sb
%o = bitcast {L} %so to {D}
"""

# %y (float32) of %v (float64), in a directed mode.
_DIRECTED = """
%y = fptrunc {D} %v to {F}
%yw = fpext {F} %y to {D}
%wrong = fcmp {compare} {D} {left}, {right}
%yb = bitcast {F} %y to {I}
%yneg = icmp slt {I} %yb, {I0}
%ymag = and {I} %yb, {MAGNITUDE}
%yzero = icmp eq {I} %ymag, {I0}
%up = add {I} %yb, {I1}
%down = add {I} %yb, {IM1}
%moved = select {B} %yneg, {I} {negative}, {I} {positive}
%nextb = select {B} %yzero, {I} {from_zero}, {I} %moved
%rb = select {B} %wrong, {I} %nextb, {I} %yb
"""
_MODES = {
    "rm": ("ogt", "%yw", "%v", "%up", "%down", "{MTINY}"),
    "rp": ("olt", "%yw", "%v", "%down", "%up", "{TINY}"),
    "rz": ("ogt", "%aw", "%ao", "%down", "%down", "{I0}"),
}


def _directed(mode: str, zero_terms: str) -> str:
    compare, left, right, negative, positive, zero = _MODES[mode]
    text = _DIRECTED.replace("{compare}", compare).replace("{left}", left)
    text = text.replace("{right}", right).replace("{negative}", negative)
    text = text.replace("{positive}", positive).replace("{from_zero}", zero)
    if mode == "rz":
        magnitudes = (
            "%yw = fpext {F} %y to {D}\n%aw = call {D} @llvm.fabs.{n}f64({D} %yw)\n"
            "%ao = call {D} @llvm.fabs.{n}f64({D} %v)"
        )
        text = text.replace("%yw = fpext {F} %y to {D}", magnitudes)
    if mode == "rm" and zero_terms:
        # An exact zero is -0 unless both terms are +0.
        text += (
            "%ob = fcmp oeq {D} %v, {D0}\n%pb = bitcast {D} %p to {L}\n%qb = bitcast {D} %q to "
            "{L}\n"
            "%pq = or {L} %pb, %qb\n%plus = icmp eq {L} %pq, {L0}\n%odd0 = xor {B} %plus, %ob\n"
            "%minus = and {B} %odd0, %ob\n%rz = select {B} %minus, {I} {SIGN}, {I} %rb\n"
            "%r = bitcast {I} %rz to {F}"
        )
    else:
        text += "%r = bitcast {I} %rb to {F}"
    return text


def _floats() -> None:
    for suffix, kind, count in (("f32", "f32", 32), ("pair", "f32*2", 64)):
        c = _float_text(count)

        def add(name: str, operands: int, body: str, result: str = kind) -> None:
            text = body
            for key, value in c.items():  # noqa: B023
                text = text.replace("{" + key + "}", value)
            _add(f"{name}_{suffix}", result, " ".join([kind] * operands), text)  # noqa: B023

        both = (
            "%na = fcmp uno {F} %a, {F0}\n%nb = fcmp uno {F} %b, {F0}\n%nn = and {B} %na, %nb\n"
            "%ab = bitcast {F} %a to {I}\n%aq = or {I} %ab, {QUIET}\n%af = bitcast {I} %aq to {F}\n"
            "%r = select {B} %nn, {F} %af, {F} %x"
        )
        for op in ("add", "sub", "mul", "div"):
            add(op, 2, f"%x = f{op} {{F}} %a, %b\n{both}")
        for op, compare in (("eq", "oeq"), ("ne", "une"), ("lt", "olt"), ("le", "ole"),
                            ("gt", "ogt"), ("ge", "oge")):  # fmt: skip
            if count == 32:
                add(op, 2, f"%r = fcmp {compare} {{F}} %a, %b", "pred")
        bits = "%i = bitcast {F} %a to {I}\n"
        add("neg", 1, bits + "%x = xor {I} %i, {SIGN}\n%r = bitcast {I} %x to {F}")
        add("abs", 1, bits + "%x = and {I} %i, {MAGNITUDE}\n%r = bitcast {I} %x to {F}")
        add(
            "flush",
            1,
            bits + "%m = and {I} %i, {MAGNITUDE}\n%k = icmp ult {I} %m, {NORMAL}\n"
            "%z = and {I} %i, {SIGN}\n%x = select {B} %k, {I} %z, {I} %i\n%r = bitcast {I} %x to "
            "{F}",
        )
        # 1 first, as numpy's minimum takes it; NaN and zeros give 0.
        add(
            "saturate",
            1,
            "%k = fcmp ogt {F} %a, {F0}\n%l = fcmp olt {F} %a, {F1}\n"
            "%x = select {B} %l, {F} %a, {F} {F1}\n%r = select {B} %k, {F} %x, {F} {F0}",
        )
        add("relu", 1, "%k = fcmp ole {F} %a, {F0}\n%r = select {B} %k, {F} {F0}, {F} %a")
        product = "%da = fpext {F} %a to {D}\n%db = fpext {F} %b to {D}\n%p0 = fmul {D} %da, %db\n"
        # The first of two NaN factors stays, in whatever order the multiplication takes them.
        product += (
            "%na = fcmp uno {D} %da, {D0}\n%nb = fcmp uno {D} %db, {D0}\n%nn = and {B} %na, %nb\n"
            "%p = select {B} %nn, {D} %da, {D} %p0\n"
        )
        third = "%q = fpext {F} %c to {D}\n"
        pq = "%np = fcmp uno {D} %p, {D0}\n%v = select {B} %np, {D} %p, {D} %o\n"
        add("fma", 3, product + third + _ODD + pq + "%r = fptrunc {D} %v to {F}")
        for mode in ("rz", "rm", "rp"):
            directed = _directed(mode, "terms")
            add(f"fma_{mode}", 3, product + third + _ODD + pq + directed)
            terms = "%p = fpext {F} %a to {D}\n%q = fpext {F} %b to {D}\n"
            add(f"add_{mode}", 2, terms + _ODD + pq + directed)
            exact = product + "%v = select {B} %nn, {D} %da, {D} %p\n"
            add(f"mul_{mode}", 2, exact + _directed(mode, ""))
        for op, compare, signs in (("max", "ogt", "and"), ("min", "olt", "or")):
            chosen = (
                f"%k = fcmp {compare} {{F}} %a, %b\n%x = select {{B}} %k, {{F}} %a, {{F}} %b\n"
                "%na = fcmp uno {F} %a, {F0}\n%nb = fcmp uno {F} %b, {F0}\n"
            )
            zeros = (
                "%za = fcmp oeq {F} %a, {F0}\n%zb = fcmp oeq {F} %b, {F0}\n%zz = and {B} %za, %zb\n"
                "%ia = bitcast {F} %a to {I}\n%ib = bitcast {F} %b to {I}\n"
                f"%iz = {signs} {{I}} %ia, %ib\n%fz = bitcast {{I}} %iz to {{F}}\n"
                "%r = select {B} %zz, {F} %fz, {F} %x2"
            )
            dropped = (
                "%x1 = select {B} %na, {F} %b, {F} %x\n%x2 = select {B} %nb, {F} %a, {F} %x1\n"
            )
            kept = "%x1 = select {B} %nb, {F} %b, {F} %x\n%x2 = select {B} %na, {F} %a, {F} %x1\n"
            add(op, 2, chosen + dropped + zeros)
            add(f"{op}_nan", 2, chosen + kept + zeros)
        add(
            "canonical",
            1,
            "%k = fcmp uno {F} %a, {F0}\n%n = bitcast {I} {NAN} to {F}\n"
            "%r = select {B} %k, {F} %n, {F} %a",
        )


def _conversions() -> None:
    f, d, i, p = vector("f32"), vector("f64"), vector("u32"), vector("pred")
    c = _float_text(32)
    _add("rcp_f32", "f32", "f32", f"%r = fdiv {f} {c['F1']}, %a")
    _add("sqrt_f32", "f32", "f32", f"%r = call {f} @llvm.sqrt.v32f32({f} %a)")
    _add("rsqrt_f32", "f32", "f32",
         f"%x = fpext {f} %a to {d}\n%y = call {d} @llvm.sqrt.v32f64({d} %x)\n"
         f"%z = fdiv {d} {c['D1']}, %y\n%r = fptrunc {d} %z to {f}")  # fmt: skip
    # div.approx: of divisors above 2^126 the quotient is a zero, or NaN of an infinite dividend.
    _add("div_approx_f32", "f32", "f32 f32",
         f"%x = fdiv {f} %a, %b\n%na = fcmp uno {f} %a, {c['F0']}\n"
         f"%nb = fcmp uno {f} %b, {c['F0']}\n%nn = and {p} %na, %nb\n"
         f"%ab = bitcast {f} %a to {i}\n%aq = or {i} %ab, {c['QUIET']}\n"
         f"%af = bitcast {i} %aq to {f}\n%q = select {p} %nn, {f} %af, {f} %x\n"
         f"%bb = bitcast {f} %b to {i}\n%bm = and {i} %bb, {c['MAGNITUDE']}\n"
         f"%bf = bitcast {i} %bm to {f}\n%l1 = fcmp ogt {f} %bf, {c['F2_126']}\n"
         f"%l2 = icmp ult {i} %bm, {c['FINF']}\n%l = and {p} %l1, %l2\n"
         f"%s = and {i} %bb, {c['SIGN']}\n%sf = bitcast {i} %s to {f}\n%z = fmul {f} %a, %sf\n"
         f"%r = select {p} %l, {f} %z, {f} %q")  # fmt: skip
    _add("signed_f32", "f32", "u32", f"%r = sitofp {i} %a to {f}")
    _add("unsigned_f32", "f32", "u32", f"%r = uitofp {i} %a to {f}")
    _add("widen_f32", "f64", "f32", f"%r = fpext {f} %a to {d}")
    _add("narrow_f32", "f32", "f64", f"%r = fptrunc {d} %a to {f}")
    i16, sixteen = vector("u16"), splat("u32", "16")
    word = f"%w = zext {i16} %a to {i}\n"
    _add("widen_bf16", "f64", "u16",
         f"{word}%s = shl {i} %w, {sixteen}\n%f = bitcast {i} %s to {f}\n"
         f"%r = fpext {f} %f to {d}")  # fmt: skip
    _add("widen_f16", "f64", "u16",
         f"%h = bitcast {i16} %a to <32 x half>\n%f = fpext <32 x half> %h to {f}\n"
         f"%r = fpext {f} %f to {d}")  # fmt: skip
    tiny = "<" + ", ".join(["double 0x3810000000000000"] * LANES) + ">"
    high = "<" + ", ".join([f"i64 {-(1 << 63)}"] * LANES) + ">"
    i64 = vector("u64")
    _add("flush_wide", "f64", "f64",
         f"%m = call {d} @llvm.fabs.v32f64({d} %a)\n%k = fcmp olt {d} %m, {tiny}\n"
         f"%i = bitcast {d} %a to {i64}\n%s = and {i64} %i, {high}\n"
         f"%z = bitcast {i64} %s to {d}\n%r = select {p} %k, {d} %z, {d} %a")  # fmt: skip
    nan16 = splat("u16", str(0x7FFF))
    is_nan = f"%n = fcmp uno {f} %a, {c['F0']}\n"
    _add("to_bf16", "u16", "f32",
         f"{is_nan}%i = bitcast {f} %a to {i}\n%h = lshr {i} %i, {sixteen}\n"
         f"%o = and {i} %h, {c['I1']}\n%t = add {i} %o, {splat('u32', str(0x7FFF))}\n"
         f"%u = add {i} %i, %t\n%v = lshr {i} %u, {sixteen}\n%x = trunc {i} %v to {i16}\n"
         f"%r = select {p} %n, {i16} {nan16}, {i16} %x")  # fmt: skip
    _add("to_f16", "u16", "f32",
         f"{is_nan}%h = fptrunc {f} %a to <32 x half>\n%x = bitcast <32 x half> %h to {i16}\n"
         f"%r = select {p} %n, {i16} {nan16}, {i16} %x")  # fmt: skip
    for number, name in enumerate(MATH):
        at = MATH_TABLE + 16 * number
        _add(f"{name}_f32", "f32", "f32",
             f"%w = fpext {f} %a to {d}\n%in = getelementptr i8, ptr %frame, i64 {MATH_ROOM}\n"
             f"store {d} %w, ptr %in, align 32\n"
             f"%out = getelementptr i8, ptr %frame, i64 {MATH_ROOM + 256}\n"
             f"%fa = getelementptr i8, ptr %frame, i64 {at}\n%f = load ptr, ptr %fa\n"
             f"%da = getelementptr i8, ptr %frame, i64 {at + 8}\n%data = load ptr, ptr %da\n"
             f"%p0 = getelementptr i8, ptr %frame, i64 {MATH_ROOM + 512}\n"
             f"%p1 = getelementptr i8, ptr %frame, i64 {MATH_ROOM + 520}\n"
             f"%n = getelementptr i8, ptr %frame, i64 {MATH_ROOM + 528}\n"
             f"%s0 = getelementptr i8, ptr %frame, i64 {MATH_ROOM + 536}\n"
             f"%s1 = getelementptr i8, ptr %frame, i64 {MATH_ROOM + 544}\n"
             "store ptr %in, ptr %p0\nstore ptr %out, ptr %p1\nstore i64 32, ptr %n\n"
             "store i64 8, ptr %s0\nstore i64 8, ptr %s1\n"
             "call void %f(ptr %p0, ptr %n, ptr %s0, ptr %data)\n"
             f"%x = load {d}, ptr %out, align 32\n%r = fptrunc {d} %x to {f}")  # fmt: skip


def _lookups() -> None:
    def element(name: str, at: str, base: str) -> str:
        return (
            f"%{name}p = getelementptr {base}, ptr %{at}, i64 %{name}i\n"
            f"%{name} = load {base}, ptr %{name}p\n"
        )

    # d[i] = a[b[i]]; b is int64[32].
    lines: list[str] = []
    last = "poison"
    for lane in range(LANES):
        lines.append(f"%l{lane}i = extractelement {vector('u64')} %b, i32 {lane}\n")
        lines.append(element(f"l{lane}", "at.pa", "i32"))
        lines.append(f"%v{lane} = insertelement {vector('u32')} {last}, i32 %l{lane}, i32 {lane}\n")
        last = f"%v{lane}"
    lines.append(f"%r = or {vector('u32')} {last}, {splat('u32', '0')}")
    _add("gather_u32", "u32", "u32 u64", "".join(lines))


_integers()
_words()
_floats()
_conversions()
_lookups()


def _declarations(text: str) -> str:
    """Declarations of the intrinsics that a text calls."""
    declarations: dict[str, str] = {}
    for result, name, arguments in re.findall(r"call (<[^>]+>) (@llvm[\w.]+)\(([^)]*)\)", text):
        types = ", ".join(part.rsplit(" ", 1)[0] for part in re.split(r", (?=<)", arguments))
        declarations[name] = f"declare {result} {name}({types})"
    return "\n".join(declarations.values())


def symbol(name: str) -> str:
    """The function of an operation."""
    return "op_" + name.replace("*", "x")


def _function(operation: Operation) -> str:
    lines = [f"define void @{symbol(operation.name)}(ptr %frame, ptr %record) {{"]
    for letter, kind, at in zip("abc", operation.operands, (12, 16, 20), strict=False):
        stored = vector("u8") if kind == "pred" else vector(kind)
        lines.append(
            f"%at.q{letter} = getelementptr i8, ptr %record, i64 {at}\n%at.o{letter} = load i32, "
            f"ptr %at.q{letter}\n%at.l{letter} = sext i32 %at.o{letter} to i64\n%at.p{letter} = "
            f"getelementptr i8, ptr %frame, i64 %at.l{letter}"
        )
        if kind == "pred":
            lines.append(
                f"%at.m{letter} = load {stored}, ptr %at.p{letter}, align 32\n"
                f"%{letter} = icmp ne {stored} %at.m{letter}, {splat('u8', '0')}"
            )
        else:
            lines.append(f"%{letter} = load {stored}, ptr %at.p{letter}, align 32")
    lines.append(operation.body)
    lines.append(
        "%at.qd = getelementptr i8, ptr %record, i64 8\n%at.od = load i32, ptr %at.qd\n"
        "%at.ld = sext i32 %at.od to i64\n%at.pd = getelementptr i8, ptr %frame, i64 %at.ld"
    )
    if operation.result == "pred":
        lines.append(f"%rw = zext {vector('pred')} %r to {vector('u8')}")
        lines.append(f"store {vector('u8')} %rw, ptr %at.pd, align 32")
    else:
        lines.append(f"store {vector(operation.result)} %r, ptr %at.pd, align 32")
    lines.append("ret void\n}")
    return "\n".join(lines)


def module_text() -> str:
    """The IR of all operations."""
    functions = "\n".join(map(_function, OPERATIONS.values()))
    return f"{_declarations(functions)}\n{functions}\n"
