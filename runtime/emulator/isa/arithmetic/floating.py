"""Floating-point arithmetic: f32, f64, f16, bf16, and the packed f16x2, bf16x2 and f32x2.

Compared with an H200 on the operands of the tests, rounded operations agree bit for bit, but for
the payload of NaN: there a NaN result is always 0x7FFFFFFF, here it is what the host makes. The
`.approx` functions are correctly rounded here; the hardware's differ in the last bits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ptx.ast import Instruction, Operand
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes, select
from ..registry import FLOATS, INTEGERS, RUNTIME, instruction, runtime
from . import integer
from .rounding import f64_to_half, half_to_f64, odd_sum, to_f32

_MODES = ("rn", "rz", "rm", "rp")
_ROUNDINGS = "rn rz rm rp ftz sat"
_HALF_TYPES = frozenset("f16 f16x2 bf16 bf16x2".split())


def _mode(i: Instruction) -> str:
    return next((mode for mode in _MODES if i.has(mode)), "rn")


def _sources(e: Emitter, i: Instruction, operands: tuple[Operand, ...], kind: str) -> list[str]:
    """Source expressions, flushed when the instruction says `.ftz`."""
    read = e.flushed if i.has("ftz") and kind in ("f32", "pair") else e.src
    return [read(operand, kind) for operand in operands]


def _result(e: Emitter, i: Instruction, kind: str, text: str) -> None:
    if i.has("ftz") and kind in ("f32", "pair"):
        text = f"flush({text})"
    if i.has("sat"):
        text = f"saturate({text})"
    e.dst(i.operands[0], kind, text)


@runtime
def saturate(x: Any) -> Any:
    """Clamp to [0, 1]; NaN becomes 0."""
    return select(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))


# ---- half precision: f16, f16x2, bf16, bf16x2 all work on uint16 bits


@runtime
def flush_half(x: Any, is_bf16: bool = False) -> Any:
    """f16 (or bf16) values in float64, subnormal ones as zeros of the same sign."""
    return select(np.abs(x) < (2.0**-126 if is_bf16 else 2.0**-14), np.copysign(0.0, x), x)


@runtime
def half_op(op: str, is_bf16: bool, mode: str, options: frozenset[str], *args: Lanes) -> Any:
    """An operation on uint16 lanes (any number of halves), through exact float64.

    Args:
      options: "ftz", "sat", "relu" and, for min and max, "NaN" and "xorsign" (of magnitudes).
    """
    values = [half_to_f64(a.view(np.uint16), is_bf16) for a in args]
    if "ftz" in options and not is_bf16:
        values = [flush_half(v) for v in values]
    if op == "add":
        exact = odd_sum(values[0], values[1])
    elif op == "sub":
        exact = odd_sum(values[0], -values[1])
    elif op == "mul":
        exact = values[0] * values[1]
    elif op == "fma":
        exact = odd_sum(values[0] * values[1], values[2])
    elif op == "ex2":
        exact = np.exp2(values[0])
    elif op == "tanh":
        exact = np.tanh(values[0])
    elif "xorsign" in options:
        signs = np.signbit(values[0]) ^ np.signbit(values[1])
        exact = minmax_values(op, [np.abs(v) for v in values], "NaN" in options)
        exact = select(signs, -exact, exact)
    else:
        exact = minmax_values(op, values, "NaN" in options)
    if "sat" in options:
        exact = saturate(exact)
    if "relu" in options:
        exact = select(exact > 0, exact, select(np.isnan(exact), exact, 0.0))
    if "ftz" in options:
        exact = flush_half(exact, is_bf16)
    return f64_to_half(exact, is_bf16, mode).view(args[0].dtype)


def _emit_half(e: Emitter, i: Instruction, op: str) -> None:
    kind = "u32" if i.type.endswith("x2") else "u16"
    options = sorted({"ftz", "sat", "relu", "NaN", "xorsign"} & set(i.parts))
    sources = ", ".join(e.src(operand, kind) for operand in i.operands[1:])
    is_bf16 = i.type.startswith("bf16")
    name = f"OPT_{'_'.join(options)}"
    e.namespace[name] = frozenset(options)
    text = f"half_op({op!r}, {is_bf16}, {_mode(i)!r}, {name}, {sources})"
    e.dst(i.operands[0], kind, text)


# ---- add, sub, mul, fma


def emit_add(e: Emitter, i: Instruction) -> None:
    """add and sub."""
    op, kind = i.parts[0], "pair" if i.type == "f32x2" else i.type
    if i.type in _HALF_TYPES and "f32" in i.parts:  # add.rn.f32.bf16: mixed
        _emit_mixed(e, i)
        return
    if i.type in _HALF_TYPES:
        _emit_half(e, i, op)
        return
    a, b = _sources(e, i, i.operands[1:3], kind)
    mode = _mode(i)
    if mode == "rn":
        _result(e, i, kind, f"{a} {'+' if op == 'add' else '-'} {b}")
    elif kind == "f64":
        minus = "" if op == "add" else "-"
        e.dst(i.operands[0], kind, f"f64_operation('add', {mode!r}, {a}, {minus}{b})")
    else:
        minus = "" if op == "add" else "-"
        _result(e, i, kind, f"add_f32_mode({a}, {minus}{b}, {mode!r})")


@runtime
def mixed_op(op: str, is_bf16: bool, mode: str, a: Lanes, b: Lanes, c: Lanes | None) -> Any:
    """add/sub/fma with half operands and a float32 result."""
    x = half_to_f64(a, is_bf16)
    if op == "fma":
        assert c is not None
        return to_f32(odd_sum(x * half_to_f64(b, is_bf16), c.astype(np.float64)), mode)
    y = b.astype(np.float64)
    return to_f32(odd_sum(x, -y if op == "sub" else y), mode)


def _emit_mixed(e: Emitter, i: Instruction) -> None:
    op, is_bf16 = i.parts[0], i.type == "bf16"
    a = e.src(i.operands[1], "u16")
    b = e.src(i.operands[2], "u16" if op == "fma" else "f32")
    c = e.src(i.operands[3], "f32") if op == "fma" else "None"
    text = f"mixed_op({op!r}, {is_bf16}, {_mode(i)!r}, {a}, {b}, {c})"
    if i.has("sat"):
        text = f"saturate({text})"
    e.dst(i.operands[0], "f32", text)


def emit_mul(e: Emitter, i: Instruction) -> None:
    """mul."""
    kind = "pair" if i.type == "f32x2" else i.type
    if i.type in _HALF_TYPES:
        _emit_half(e, i, "mul")
        return
    a, b = _sources(e, i, i.operands[1:3], kind)
    mode = _mode(i)
    if mode == "rn":
        _result(e, i, kind, f"{a} * {b}")
    elif kind == "f64":
        e.dst(i.operands[0], kind, f"f64_operation('mul', {mode!r}, {a}, {b})")
    else:
        _result(e, i, kind, f"mul_f32_mode({a}, {b}, {mode!r})")


@instruction("fma", modifiers=_ROUNDINGS + " relu oob", types=f"{FLOATS} f32x2")
def emit_fma(e: Emitter, i: Instruction) -> None:
    """fma; floating-point mad means the same."""
    kind = "pair" if i.type == "f32x2" else i.type
    if i.type in _HALF_TYPES and "f32" in i.parts:
        _emit_mixed(e, i)
        return
    if i.type in _HALF_TYPES:
        _emit_half(e, i, "fma")
        return
    a, b, c = _sources(e, i, i.operands[1:4], kind)
    mode = _mode(i)
    if kind == "f64":
        e.dst(i.operands[0], kind, f"f64_operation('fma', {mode!r}, {a}, {b}, {c})")
    elif mode == "rn":
        _result(e, i, kind, f"fma_f32({a}, {b}, {c})")
    else:
        _result(e, i, kind, f"fma_f32_mode({a}, {b}, {c}, {mode!r})")


# ---- division, roots, transcendental functions


def _in_float64(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: function(x, dtype=np.float64).astype(np.float32)


# Functions of float32 lanes, rounded to nearest: within the 2 ulp of `.approx` (spec-ptx 11).
_UNARY: dict[str, Callable[[Any], Any]] = {
    "rcp": lambda x: np.float32(1) / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1.0 / np.sqrt(x.astype(np.float64))).astype(np.float32),
    "ex2": _in_float64(np.exp2),
    "lg2": _in_float64(np.log2),
    "sin": _in_float64(np.sin),
    "cos": _in_float64(np.cos),
    "tanh": _in_float64(np.tanh),
}
RUNTIME.update({f"{name}_f32": function for name, function in _UNARY.items()})


@instruction(*_UNARY, modifiers=f"{_ROUNDINGS} approx")
def emit_unary(e: Emitter, i: Instruction) -> None:
    """Functions of one operand; `.approx` forms give the correctly rounded value."""
    op, mode = i.parts[0], _mode(i)
    if i.type in _HALF_TYPES:
        if op not in ("ex2", "tanh"):
            raise e.error(f"{op} has no {i.type} form")
        _emit_half(e, i, op)
        return
    kind = e.kind_of(i.type)
    if op == "ex2" and kind == "f32":
        x = e.src(i.operands[1], kind)  # a subnormal power and 0 both give 1
    else:
        (x,) = _sources(e, i, i.operands[1:2], kind)
    if kind == "f64":
        if i.has("approx") and op in ("rcp", "rsqrt"):
            text = f"approximate_f64({op!r}, {x}, {i.has('ftz')})"
        elif op == "sqrt":
            text = f"f64_operation('sqrt', {mode!r}, {x})"
        elif op == "rcp":
            text = f"f64_operation('div', {mode!r}, {e.const(1.0, 'f64')}, {x})"
        else:
            raise e.error(f"{i.opcode} is not supported")
        e.dst(i.operands[0], kind, text)
        return
    if mode != "rn":
        if op == "rcp":
            _result(e, i, kind, f"div_f32_mode({e.const(1.0, 'f32')}, {x}, {mode!r})")
        elif op == "sqrt":
            _result(e, i, kind, f"sqrt_f32_mode({x}, {mode!r})")
        else:
            raise e.error(f"{op} has no rounding modes")
        return
    _result(e, i, kind, f"{op}_f32({x})")


@runtime
def divide_approximately(a: Any, b: Any) -> Any:
    """div.approx: where 2^126 < |b| < 2^128 the quotient is 0, or NaN of an infinite dividend."""
    quotient = a / b
    large = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    if large.any():
        quotient = select(large, a * np.copysign(np.float32(0), b), quotient)
    return quotient


def emit_div(e: Emitter, i: Instruction) -> None:
    """div: `.approx` and `.full` give the correctly rounded quotient."""
    kind = e.kind_of(i.type)
    a, b = _sources(e, i, i.operands[1:3], kind)
    mode = _mode(i)
    if kind == "f32" and mode != "rn":
        _result(e, i, kind, f"div_f32_mode({a}, {b}, {mode!r})")
    elif kind == "f32" and i.has("approx"):
        _result(e, i, kind, f"divide_approximately({a}, {b})")
    elif kind == "f64" and mode != "rn":
        e.dst(i.operands[0], kind, f"f64_operation('div', {mode!r}, {a}, {b})")
    elif kind in ("f32", "f64"):
        _result(e, i, kind, f"{a} / {b}")
    else:
        raise e.error(f"{i.opcode} is not supported")


# ---- sign and order


@runtime
def flush_half_bits(x: Lanes) -> Any:
    """f16 or f16x2 lanes with subnormal halves as zeros of the same sign."""
    halves = x.view(np.uint16)
    flushed = select(halves & 0x7C00 == 0, halves & np.uint16(0x8000), halves)
    return flushed.astype(np.uint16).view(x.dtype)


_HALF_SIGN = {"f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000}


def emit_abs(e: Emitter, i: Instruction) -> None:
    """abs."""
    _emit_sign(e, i, "& {}", 1)


def emit_neg(e: Emitter, i: Instruction) -> None:
    """neg."""
    _emit_sign(e, i, "^ {}", 0)


def _emit_sign(e: Emitter, i: Instruction, operation: str, invert: int) -> None:
    if i.type in _HALF_SIGN:
        kind, sign = ("u32" if i.type.endswith("x2") else "u16"), _HALF_SIGN[i.type]
        bits = 32 if kind == "u32" else 16
        mask = (~sign if invert else sign) & ((1 << bits) - 1)
        value = e.src(i.operands[1], kind)
        if i.has("ftz"):
            value = f"flush_half_bits({value})"
        e.dst(i.operands[0], kind, f"{value} {operation.format(e.const(mask, kind))}")
        return
    kind = "pair" if i.type == "f32x2" else e.kind_of(i.type)
    (value,) = _sources(e, i, i.operands[1:2], kind)
    e.dst(i.operands[0], kind, f"abs({value})" if invert else f"-{value}")


def minmax_values(op: str, values: list[Any], keep_nan: bool) -> Any:
    """min or max over several operands; a NaN is dropped unless `keep_nan`. -0 < +0."""
    choose = np.minimum if op == "min" else np.maximum
    result = values[0]
    for value in values[1:]:
        best = choose(result, value)
        if not keep_nan:  # not np.fmin, which keeps signalling ones
            best = select(value != value, result, select(result != result, value, best))
        zeros = (result == 0) & (value == 0)
        if zeros.any():
            negative = (
                np.signbit(result) | np.signbit(value)
                if op == "min"
                else np.signbit(result) & np.signbit(value)
            )
            zero = select(negative, best.dtype.type(-0.0), best.dtype.type(0.0))
            best = select(zeros, zero, best)
        result = best
    return result


@runtime
def minmax_f32(op: str, options: tuple[bool, bool, bool], *values: Any) -> Any:
    """min/max of two or three float32 or float64 operands.

    Args:
      options: (.NaN, .abs, .xorsign).
    """
    keep_nan, absolute, xorsign = options
    if xorsign:
        signs = np.signbit(values[0]) ^ np.signbit(values[1])
        result = minmax_values(op, [abs(v) for v in values], keep_nan)
        return select(signs, -result, result)
    if absolute:
        values = tuple(abs(v) for v in values)
    result = minmax_values(op, list(values), keep_nan)
    nan = result != result
    if nan.any() and result.dtype == np.float32:
        canonical = np.uint32(0x7FFF_FFFF).view(np.float32)
        result = select(nan, canonical, result)
    return result


@runtime
def max_f32(*values: Any) -> Any:
    """max without qualifiers: the common case, a NaN operand is dropped."""
    result = np.fmax(values[0], values[1])
    for value in values[2:]:
        result = np.fmax(result, value)
    is_simple = np.count_nonzero(result == result) == result.size
    if is_simple and np.count_nonzero(result) != result.size:  # of zeros fmax takes any
        is_simple = not np.count_nonzero((result == 0) & np.signbit(result))
    return result if is_simple else minmax_f32("max", (False, False, False), *values)


def emit_minmax(e: Emitter, i: Instruction) -> None:
    """min and max with two operands, and f32 with three."""
    op = i.parts[0]
    if i.type in _HALF_TYPES:
        _emit_half(e, i, op)
        return
    kind = e.kind_of(i.type)
    values = ", ".join(_sources(e, i, i.operands[1:], kind))
    options = (i.has("NaN"), i.has("abs"), i.has("xorsign"))
    simple = op == "max" and not any(options)
    text = f"max_f32({values})" if simple else f"minmax_f32({op!r}, {options}, {values})"
    e.dst(i.operands[0], kind, text)  # one of operands that are flushed: not subnormal either


@instruction("copysign", modifiers="", types="f32 f64")
def emit_copysign(e: Emitter, i: Instruction) -> None:
    """copysign d, a, b: the sign of a with the magnitude of b."""
    kind = e.kind_of(i.type)
    a, b = e.src(i.operands[1], kind), e.src(i.operands[2], kind)
    e.dst(i.operands[0], kind, f"copy_sign({b}, {a})")


@runtime
def copy_sign(magnitude: Any, sign: Any) -> Any:
    """np.copysign."""
    return np.copysign(magnitude, sign)


@runtime
def test_property(x: Any, what: str) -> Any:
    """testp; a zero counts as normal (PTX ISA, and seen on an H200)."""
    if what == "finite":
        return np.isfinite(x)
    if what == "infinite":
        return np.isinf(x)
    if what == "number":
        return ~np.isnan(x)
    if what == "notanumber":
        return np.isnan(x)
    tiny = np.finfo(x.dtype).tiny
    subnormal = (x != 0) & (np.abs(x) < tiny)
    return subnormal if what == "subnormal" else np.isfinite(x) & ~subnormal


_PROPERTIES = "finite infinite number notanumber normal subnormal"


@instruction("testp", modifiers=_PROPERTIES, types="f32 f64")
def emit_testp(e: Emitter, i: Instruction) -> None:
    """testp.property.type p, a."""
    value = e.src(i.operands[1], e.kind_of(i.type))
    e.dst(i.operands[0], "pred", f"test_property({value}, {e.modifier(i, _PROPERTIES)!r})")


_SUMS = f"{INTEGERS} u16x2 s16x2 {FLOATS} f32x2"
_SIGNED = f"s16 s32 s64 {FLOATS}"
integer.register_shared("add", integer.emit_add, emit_add, _ROUNDINGS + " cc", _SUMS)
integer.register_shared("sub", integer.emit_add, emit_add, _ROUNDINGS + " cc", _SUMS)
integer.register_shared(
    "mul", integer.emit_mul, emit_mul, _ROUNDINGS + " lo hi wide", f"{INTEGERS} {FLOATS} f32x2"
)
integer.register_shared(
    "mad", integer.emit_mad, emit_fma, _ROUNDINGS + " lo hi wide cc", f"{INTEGERS} f32 f64"
)
integer.register_shared(
    "div", integer.emit_div, emit_div, _ROUNDINGS + " approx full", f"{INTEGERS} f32 f64"
)
integer.register_shared("abs", integer.emit_abs, emit_abs, "ftz", _SIGNED)
integer.register_shared("neg", integer.emit_neg, emit_neg, "ftz", _SIGNED)
_EXTREMES = f"{INTEGERS} u16x2 s16x2 {FLOATS}"
_MINMAX = "ftz NaN xorsign abs relu"
integer.register_shared("min", integer.emit_minmax, emit_minmax, _MINMAX, _EXTREMES)
integer.register_shared("max", integer.emit_minmax, emit_minmax, _MINMAX, _EXTREMES)
