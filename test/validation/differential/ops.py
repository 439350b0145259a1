"""The instructions that chains are made of: one `Op` per opcode with its types.

Register types are those of `values.draw`, plus `pred`. A source `#N` is a random immediate below N,
`#u` a random 32-bit one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

WIDTH = {  # register type -> bits
    "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32,
    "f64": 64, "amount": 32, "byte": 32, "e4m3x2": 16, "e5m2x2": 16,
}  # fmt: skip


def opcodes_of(text: str) -> list[str]:
    """The opcodes of instructions that end in semicolons, without guards and labels."""
    statements = [part.split() for part in text.split(";") if part.strip()]
    return [next(w for w in words if w[0] != "@" and w[-1] != ":") for words in statements]


@dataclass(frozen=True)
class Op:
    """One instruction, or a short sequence that only makes sense together.

    Attributes:
      text: with {d}, {e} for results and {0}, {1}.. for sources.
      results, sources: register types.
      check: how the result is judged; anything but "exact" is never used as an operand.
      fresh: sources come from memory, not from other instructions.
      last: the results are not used as operands.
    """

    text: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    check: str = "exact"
    fresh: bool = False
    last: bool = False

    @property
    def opcodes(self) -> list[str]:
        """The opcodes in the text."""
        return opcodes_of(self.text)


def op(opcode: str, results: str, sources: str, check: str = "exact") -> Op:
    """An op in the usual form: results separated by |, then the sources."""
    rs, ss = results.split(), sources.split()
    into = "|".join(("{d}", "{e}")[: len(rs)])
    return Op(
        f"{opcode} {into}, {', '.join(f'{{{i}}}' for i in range(len(ss)))};",
        tuple(rs),
        tuple(ss),
        check,
    )


def raw(text: str, results: str, sources: str) -> Op:
    """A sequence of instructions."""
    return Op(text, tuple(results.split()), tuple(sources.split()))


def _reg(ptx_type: str) -> str:
    """The register type that holds a PTX type."""
    return f"i{max(16, int(ptx_type[1:]))}"


def integer_ops() -> Iterator[Op]:
    """Arithmetic, bits, shifts, comparisons of integers."""
    for t in ("s16", "u16", "s32", "u32", "s64", "u64"):
        r = _reg(t)
        for name in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            yield op(f"{name}.{t}", r, f"{r} {r}")
        yield op(f"mad.lo.{t}", r, f"{r} {r} {r}")
        yield op(f"mad.hi.{t}", r, f"{r} {r} {r}")
        yield op(f"sad.{t}", r, f"{r} {r} {r}")
        for name in ("div", "rem"):  # a divisor of 0 is undefined
            yield raw(
                f"or.b{r[1:]} {{e}}, {{1}}, 1; {name}.{t} {{d}}, {{0}}, {{e}};",
                f"{r} {r}",
                f"{r} {r}",
            )
        if t[0] == "s":
            yield op(f"abs.{t}", r, r)
            yield op(f"neg.{t}", r, r)
        if r != "i64":
            wide = f"i{2 * int(r[1:])}"
            yield op(f"mul.wide.{t}", wide, f"{r} {r}")
            yield op(f"mad.wide.{t}", wide, f"{r} {r} {wide}")
        for compare in (
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            *(("lo", "ls", "hi", "hs") if t[0] == "u" else ()),
        ):
            yield op(f"setp.{compare}.{t}", "pred", f"{r} {r}")
        yield op(f"setp.lt.and.{t}", "pred pred", f"{r} {r} pred")
        yield op(f"setp.ge.or.{t}", "pred pred", f"{r} {r} pred")
        yield op(f"setp.ne.xor.{t}", "pred pred", f"{r} {r} pred")
        yield op(f"set.gt.u32.{t}", "i32", f"{r} {r}")
        yield op(f"set.le.f32.{t}", "f32", f"{r} {r}")
        yield op(f"set.eq.and.s32.{t}", "i32", f"{r} {r} pred")
        yield op(f"slct.{t}.s32", r, f"{r} {r} i32")
        yield op(f"slct.{t}.f32", r, f"{r} {r} f32")
        yield op(f"slct.ftz.{t}.f32", r, f"{r} {r} f32")
        yield op(f"selp.{t}", r, f"{r} {r} pred")
    for name in ("add.sat", "sub.sat"):
        yield op(f"{name}.s32", "i32", "i32 i32")
    yield op("mad.hi.sat.s32", "i32", "i32 i32 i32")
    for t, part in product(("s32", "u32"), ("lo", "hi")):
        yield op(f"mul24.{part}.{t}", "i32", "i32 i32")
        yield op(f"mad24.{part}.{t}", "i32", "i32 i32 i32")
    yield op("mad24.hi.sat.s32", "i32", "i32 i32 i32")
    for t in ("u32", "s32", "u64", "s64"):
        r = _reg(t)
        yield raw(
            f"add.cc.{t} {{d}}, {{0}}, {{1}}; addc.{t} {{e}}, {{2}}, {{3}};",
            f"{r} {r}",
            f"{r} {r} {r} {r}",
        )
        yield raw(
            f"sub.cc.{t} {{d}}, {{0}}, {{1}}; subc.{t} {{e}}, {{2}}, {{3}};",
            f"{r} {r}",
            f"{r} {r} {r} {r}",
        )
        yield raw(
            f"add.cc.{t} {{d}}, {{0}}, {{1}}; addc.cc.{t} {{d}}, {{2}}, {{3}}; addc.{t} {{e}}, {{0}}, {{2}};",
            f"{r} {r}", f"{r} {r} {r} {r}",
        )  # fmt: skip
        yield raw(
            f"sub.cc.{t} {{d}}, {{0}}, {{1}}; subc.cc.{t} {{d}}, {{2}}, {{3}}; subc.{t} {{e}}, {{0}}, {{2}};",
            f"{r} {r}", f"{r} {r} {r} {r}",
        )  # fmt: skip
        yield raw(
            f"mad.lo.cc.{t} {{d}}, {{0}}, {{1}}, {{2}}; madc.hi.{t} {{e}}, {{0}}, {{1}}, {{3}};",
            f"{r} {r}", f"{r} {r} {r} {r}",
        )  # fmt: skip
    for t in ("u16x2", "s16x2"):
        yield op(f"add.{t}", "i32", "i32 i32")
        yield op(f"min.{t}", "i32", "i32 i32")
        yield op(f"max.{t}", "i32", "i32 i32")
    for name, t in product(("min", "max"), ("s32", "s16x2")):
        yield op(f"{name}.relu.{t}", "i32", "i32 i32")
    for a, b in product(("u32", "s32"), repeat=2):
        yield op(f"dp4a.{a}.{b}", "i32", "i32 i32 i32")
        yield op(f"dp2a.lo.{a}.{b}", "i32", "i32 i32 i32")
        yield op(f"dp2a.hi.{a}.{b}", "i32", "i32 i32 i32")
    for bits in (32, 64):
        yield op(f"popc.b{bits}", "i32", f"i{bits}")
        yield op(f"clz.b{bits}", "i32", f"i{bits}")
        yield op(f"brev.b{bits}", f"i{bits}", f"i{bits}")
        amount = "amount" if bits == 32 else "byte"  # PTX: positions and lengths are 0..255
        yield op(f"bfi.b{bits}", f"i{bits}", f"i{bits} i{bits} {amount} {amount}")
        for sign in "us":
            yield op(f"bfind.{sign}{bits}", "i32", f"i{bits}")
            yield op(f"bfind.shiftamt.{sign}{bits}", "i32", f"i{bits}")
            yield op(f"bfe.{sign}{bits}", f"i{bits}", f"i{bits} {amount} {amount}")
            yield op(f"bfe.{sign}{bits}", f"i{bits}", f"i{bits} #32 #32")
    yield op("fns.b32", "i32", "i32 #32 #4")
    for mode in ("clamp", "wrap"):
        yield op(f"bmsk.{mode}.b32", "i32", "amount amount")
        yield op(f"szext.{mode}.u32", "i32", "i32 amount")
        yield op(f"szext.{mode}.s32", "i32", "i32 amount")
        for side in "lr":
            yield op(f"shf.{side}.{mode}.b32", "i32", "i32 i32 amount")
    for bits in (16, 32, 64):
        r = f"i{bits}"
        for name in ("and", "or", "xor"):
            yield op(f"{name}.b{bits}", r, f"{r} {r}")
        yield op(f"not.b{bits}", r, r)
        yield op(f"cnot.b{bits}", r, r)
        yield op(f"shl.b{bits}", r, f"{r} amount")
        for sign in "bus":
            yield op(f"shr.{sign}{bits}", r, f"{r} amount")
        yield op(f"selp.b{bits}", r, f"{r} {r} pred")
        yield op(f"setp.eq.b{bits}", "pred", f"{r} {r}")
        yield op(f"setp.ne.b{bits}", "pred", f"{r} {r}")
        yield op(f"slct.b{bits}.s32", r, f"{r} {r} i32")
    for name in ("and", "or", "xor"):
        yield op(f"{name}.pred", "pred", "pred pred")
    yield op("not.pred", "pred", "pred")
    for _ in range(6):
        yield op("lop3.b32", "i32", "i32 i32 i32 #256")
    yield op("lop3.or.b32", "i32 pred", "i32 i32 i32 #256 pred")
    yield op("lop3.and.b32", "i32 pred", "i32 i32 i32 #256 pred")
    yield op("prmt.b32", "i32", "i32 i32 i32")
    yield op("prmt.b32", "i32", "i32 i32 #65536")
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield op(f"prmt.b32.{mode}", "i32", "i32 i32 i32")
    yield raw("mov.b32 {d}, {{{0}, {1}}};", "i32", "i16 i16")
    yield raw("mov.b32 {{{d}, {e}}}, {0};", "i16 i16", "i32")
    yield raw("mov.b64 {d}, {{{0}, {1}}};", "i64", "i32 i32")
    yield raw("mov.b64 {{{d}, {e}}}, {0};", "i32 i32", "i64")
    yield raw("mov.b64 {d}, {{{0}, {1}, {2}, {3}}};", "i64", "i16 i16 i16 i16")
    yield raw("@{1} add.s32 {d}, {0}, 17; @!{1} sub.s32 {d}, {0}, 5;", "i32", "i32 pred")


ROUNDINGS = ("rn", "rz", "rm", "rp")
FLOAT_COMPARISONS = (
    *("eq", "ne", "lt", "le", "gt", "ge"),
    *("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"),
)


def float_ops() -> Iterator[Op]:
    """f32 and f64 arithmetic, exactly rounded."""
    for name, ftz, sat in product(("add", "sub", "mul"), ("", ".ftz"), ("", ".sat")):
        for mode in ROUNDINGS:
            yield op(f"{name}.{mode}{ftz}{sat}.f32", "f32", "f32 f32")
    for mode, ftz, sat in product(ROUNDINGS, ("", ".ftz"), ("", ".sat")):
        yield op(f"fma.{mode}{ftz}{sat}.f32", "f32", "f32 f32 f32")
        yield op(f"mad.{mode}{ftz}{sat}.f32", "f32", "f32 f32 f32")
    for mode, ftz in product(ROUNDINGS, ("", ".ftz")):
        yield op(f"div.{mode}{ftz}.f32", "f32", "f32 f32")
        yield op(f"rcp.{mode}{ftz}.f32", "f32", "f32")
        yield op(f"sqrt.{mode}{ftz}.f32", "f32", "f32")
    for ftz in ("", ".ftz"):
        yield op(f"abs{ftz}.f32", "f32", "f32")
        yield op(f"neg{ftz}.f32", "f32", "f32")
        for name, nan, sign in product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
            yield op(f"{name}{ftz}{nan}{sign}.f32", "f32", "f32 f32")
        for compare in FLOAT_COMPARISONS:
            yield op(f"setp.{compare}{ftz}.f32", "pred", "f32 f32")
        yield op(f"setp.ltu.and{ftz}.f32", "pred pred", "f32 f32 pred")
        yield op(f"setp.ge.xor{ftz}.f32", "pred pred", "f32 f32 pred")
        yield op(f"set.lt{ftz}.u32.f32", "i32", "f32 f32")
        yield op(f"set.geu{ftz}.f32.f32", "f32", "f32 f32")
        yield op(f"set.nan.or{ftz}.s32.f32", "i32", "f32 f32 pred")
        yield op(f"slct{ftz}.f32.f32", "f32", "f32 f32 f32")
    yield op("selp.f32", "f32", "f32 f32 pred")
    yield op("selp.f64", "f64", "f64 f64 pred")
    yield op("slct.f32.s32", "f32", "f32 f32 i32")
    yield op("slct.f64.s32", "f64", "f64 f64 i32")
    for t in ("f32", "f64"):
        yield op(f"copysign.{t}", t, f"{t} {t}")
        for what in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield op(f"testp.{what}.{t}", "pred", t)
    for mode in ROUNDINGS:
        for name in ("add", "sub", "mul", "div"):
            yield op(f"{name}.{mode}.f64", "f64", "f64 f64")
        yield op(f"fma.{mode}.f64", "f64", "f64 f64 f64")
        yield op(f"mad.{mode}.f64", "f64", "f64 f64 f64")
        yield op(f"sqrt.{mode}.f64", "f64", "f64")
        yield op(f"rcp.{mode}.f64", "f64", "f64")
    for name in ("min", "max"):
        yield op(f"{name}.f64", "f64", "f64 f64")
    yield op("abs.f64", "f64", "f64")
    yield op("neg.f64", "f64", "f64")
    for compare in FLOAT_COMPARISONS:
        yield op(f"setp.{compare}.f64", "pred", "f64 f64")
    yield op("set.gtu.u32.f64", "i32", "f64 f64")
    yield op("setp.le.or.f64", "pred pred", "f64 f64 pred")


def half_ops() -> Iterator[Op]:
    """f16 and bf16, single and packed."""
    for t in ("f16", "f16x2", "bf16", "bf16x2"):
        is_f16 = t.startswith("f16")
        ftzs = ("", ".ftz") if is_f16 else ("",)
        for name in ("add", "sub", "mul"):
            for ftz, sat in product(ftzs, ("", ".sat") if is_f16 else ("",)):
                yield op(f"{name}.rn{ftz}{sat}.{t}", t, f"{t} {t}")
        for ftz, tail in product(ftzs, ("", ".sat", ".relu") if is_f16 else ("", ".relu")):
            yield op(f"fma.rn{ftz}{tail}.{t}", t, f"{t} {t} {t}")
        for tail in ("", ".relu"):
            yield op(f"fma.rn.oob{tail}.{t}", t, f"{t} {t} {t}")
        for ftz in ftzs:
            yield op(f"neg{ftz}.{t}", t, t)
            yield op(f"abs{ftz}.{t}", t, t)
            for name, nan, sign in product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
                yield op(f"{name}{ftz}{nan}{sign}.{t}", t, f"{t} {t}")
            for compare in FLOAT_COMPARISONS:
                results = "pred pred" if t.endswith("x2") else "pred"
                yield op(f"setp.{compare}{ftz}.{t}", results, f"{t} {t}")
            results = "pred pred" if t.endswith("x2") else "pred"
            yield op(f"setp.lt.and{ftz}.{t}", results, f"{t} {t} pred")
        if not t.endswith("x2"):
            yield op(f"set.gt.u32.{t}", "i32", f"{t} {t}")
            yield op(f"set.leu.{t}.{t}", t, f"{t} {t}")
        else:
            yield op(f"set.gt.{t}.{t}", t, f"{t} {t}")
    yield op("set.eq.f16.f32", "f16", "f32 f32")


def choose(op_: Op) -> Op:
    """The op with what keeps a chain of it within what PTX defines.

    copysign and xorsign look at the sign of a NaN, which PTX leaves open for a computed one. The
    assembler merges a conversion to a 64-bit integer with the next one, and the NaN is then
    converted as for the narrower type; it also carries |-32768| on in 32 bits.
    """
    opcode = op_.opcodes[0]
    to_wide = re.match(r"cvt\.r[nzmp]i.*\.[us]64\.", opcode) is not None
    signs = opcode.startswith("copysign") or "xorsign" in opcode
    return replace(op_, fresh=signs, last=to_wide or opcode == "abs.s16")


def _can_leave_range(source: str, to: str) -> bool:
    """Whether an integer type has values outside another, so that `.sat` means something."""
    bits, wide = int(source[1:]), int(to[1:])
    if source[0] == to[0]:
        return bits > wide
    return source[0] == "s" or bits >= wide


def convert_ops() -> Iterator[Op]:
    """cvt in all its forms."""
    integers = [f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "us"]
    roundings = ("rni", "rzi", "rmi", "rpi")
    for a, b in product(integers, repeat=2):
        if a != b:
            yield op(f"cvt.{b}.{a}", "i32" if b[1:] == "8" else _reg(b), _reg(a))
        if _can_leave_range(a, b):
            yield op(f"cvt.sat.{b}.{a}", "i32" if b[1:] == "8" else _reg(b), _reg(a))
    for a, t, mode in product(integers, ("f16", "bf16", "f32", "f64"), ROUNDINGS):
        if t != "bf16" or (mode == "rn" and a[1:] != "8"):
            yield op(f"cvt.{mode}.{t}.{a}", t, _reg(a))
    for t, b, mode in product(("f16", "bf16", "f32", "f64"), integers, roundings):
        if t == "bf16" and b[1:] == "8":
            continue
        yield op(f"cvt.{mode}.{b}.{t}", "i32" if b[1:] == "8" else _reg(b), t)
        if t == "f32":
            yield op(f"cvt.{mode}.ftz.{b}.{t}", "i32" if b[1:] == "8" else _reg(b), t)
            yield op(f"cvt.{mode}.sat.{b}.{t}", "i32" if b[1:] == "8" else _reg(b), t)
    for mode in roundings:
        for t in ("f16", "f32", "f64"):
            yield op(f"cvt.{mode}.{t}.{t}", t, t)
            yield op(f"cvt.{mode}.sat.{t}.{t}", t, t)
        yield op(f"cvt.{mode}.ftz.f32.f32", "f32", "f32")
    for mode in ROUNDINGS:
        for tail in ("", ".ftz", ".sat", ".ftz.sat"):
            yield op(f"cvt.{mode}{tail}.f16.f32", "f16", "f32")
            yield op(f"cvt.{mode}{tail}.f32.f64", "f32", "f64")
        yield op(f"cvt.{mode}.f16.f64", "f16", "f64")
        yield op(f"cvt.{mode}.bf16.f64", "bf16", "f64")
    for mode, relu, sat in product(("rn", "rz"), ("", ".relu"), ("", ".satfinite")):
        for t in ("f16", "bf16"):
            yield op(f"cvt.{mode}{relu}{sat}.{t}.f32", t, "f32")
            yield op(f"cvt.{mode}{relu}{sat}.{t}x2.f32", f"{t}x2", "f32 f32")
        if not sat:
            yield op(f"cvt.{mode}{relu}.tf32.f32", "f32", "f32")
    yield op("cvt.rm.bf16.f32", "bf16", "f32")
    yield op("cvt.rp.bf16.f32", "bf16", "f32")
    yield op("cvt.rna.tf32.f32", "f32", "f32")
    # the assembler's expansion for sm_90a makes numbers of some NaN
    yield op("cvt.rna.satfinite.tf32.f32", "f32", "f32", "number")
    for a, t in (("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32"), ("bf16", "f64")):
        tails = ("", ".sat") if a != "bf16" else ("",)
        for tail in (*tails, ".ftz") if t == "f32" or a == "f32" else tails:
            yield op(f"cvt{tail}.{t}.{a}", t, a)
    yield op("cvt.rn.bf16.f16", "bf16", "f16")
    yield op("cvt.rz.f16.bf16", "f16", "bf16")
    for t, relu in product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        yield op(f"cvt.rn.satfinite{relu}.{t}.f32", t, "f32 f32")
        yield op(f"cvt.rn.satfinite{relu}.{t}.f16x2", t, "f16x2")
        yield op(f"cvt.rn{relu}.f16x2.{t}", "f16x2", t)
    for b, a in (("s16", "s32"), ("u16", "s32")):
        yield op(f"cvt.pack.sat.{b}.{a}", "i32", "i32 i32")
    for b in ("s8", "u8", "s4", "u4", "s2", "u2"):
        yield op(f"cvt.pack.sat.{b}.s32.b32", "i32", "i32 i32 i32")


def approximate_ops() -> Iterator[Op]:
    """Functions that PTX bounds but does not define."""
    for ftz in ("", ".ftz"):
        for name in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"):
            yield op(f"{name}.approx{ftz}.f32", "f32", "f32", f"approx {name}")
        yield op(f"div.approx{ftz}.f32", "f32", "f32 f32", "approx div")
        yield op(f"div.full{ftz}.f32", "f32", "f32 f32", "approx div")
    yield op("tanh.approx.f32", "f32", "f32", "approx tanh")
    for t in ("f16", "f16x2", "bf16", "bf16x2"):
        yield op(f"tanh.approx.{t}", t, t, f"approx tanh.{t}")
        ftz = ".ftz" if t.startswith("bf16") else ""
        yield op(f"ex2.approx{ftz}.{t}", t, t, f"approx ex2.{t}")
    yield op("rcp.approx.ftz.f64", "f64", "f64", "approx rcp.f64")
    yield op("rsqrt.approx.f64", "f64", "f64", "approx rsqrt.f64")
    yield op("rsqrt.approx.ftz.f64", "f64", "f64", "approx rsqrt.f64")
