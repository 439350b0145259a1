"""cvt: between integer and floating types, to packed pairs, and to the 8-, 6- and 4-bit types."""

import math
from typing import Any

import numpy as np

from ...machine import formats
from ...ptx.ast import Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import KINDS, Lanes, select
from ..registry import instruction, runtime
from .rounding import f32_to_bf16, f32_to_f16, f64_to_half, half_to_f64, to_f32
from .stochastic import emit_stochastic

_INTEGER = frozenset(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
_FLOAT = frozenset("f16 bf16 f32 f64".split())
_HALF_PAIRS = frozenset("f16x2 bf16x2".split())
_TINY_PAIRS = frozenset("e4m3x2 e5m2x2 e2m3x2 e3m2x2 e2m1x2 ue8m0x2".split())
_ROUND_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@runtime
def integer_to_integer(x: Lanes, dtype: Any, saturate: bool) -> Any:
    """Between integer types; wraps, or clamps when saturating."""
    if not saturate:
        return x.astype(dtype)
    info = np.iinfo(dtype)
    values = [min(max(int(v), int(info.min)), int(info.max)) for v in x.tolist()]
    return np.array(values, dtype)


@runtime
def float_to_integer(x: Any, dtype: Any, mode: str, from_f64: bool) -> Any:
    """float64 lanes to integers, clamped to the range.

    NaN gives 0, but 2^(width - 1) when the source is f64 or the result has 64 bits (PTX ISA, cvt).
    64-bit results go through Python integers, for their full range.
    """
    rounded = _ROUND_TO_INTEGER[mode](x)
    info = np.iinfo(dtype)
    nan = np.isnan(rounded)
    if info.bits == 64:
        least, greatest = int(info.min), int(info.max)
        values = [
            0 if v != v else min(max(int(max(min(v, 2.0**70), -(2.0**70))), least), greatest)
            for v in rounded.tolist()
        ]
        result = np.array(values, dtype)
    else:
        clamped = np.clip(select(nan, 0.0, rounded), info.min, info.max)
        result = clamped.astype(np.int64).astype(dtype)
    if nan.any() and (from_f64 or info.bits == 64):
        top = np.array([1 << (info.bits - 1)], f"u{info.bits // 8}").view(dtype)
        result = select(nan, top[0], result)
    return result


@runtime
def integer_to_float(x: Lanes, name: str, mode: str) -> Any:
    """Integers to a floating type with one rounding: f32 lanes, f64 lanes or uint16 bits."""
    exact = x.astype(np.float64)
    if name == "f64":
        if mode == "rn" or x.itemsize < 8:
            return exact
        return np.array([_directed_f64(int(v), mode) for v in x.tolist()], np.float64)
    if x.itemsize == 8:  # more bits than float64 has: mark inexact values by their last bit
        values = [_odd_f64(int(v)) for v in x.tolist()]
        exact = np.array(values, np.float64)
    if name == "f32":
        return to_f32(exact, mode)
    return f64_to_half(exact, name == "bf16", mode)


def _odd_f64(value: int) -> float:
    magnitude = abs(value)
    excess = max(0, magnitude.bit_length() - 53)
    truncated = magnitude >> excess
    if magnitude & ((1 << excess) - 1):
        truncated |= 1
    return float((-truncated if value < 0 else truncated) << excess)


def _directed_f64(value: int, mode: str) -> float:
    near = float(value)
    if int(near) == value:
        return near
    goal = {"rz": 0.0, "rm": -math.inf, "rp": math.inf}[mode]
    wrong = abs(int(near)) > abs(value) if mode == "rz" else (int(near) > value) == (mode == "rm")
    return math.nextafter(near, goal) if wrong else near


@runtime
def widen(x: Lanes, name: str) -> Any:
    """Any floating type to exact float64; halves come as uint16 bits."""
    if name in ("f16", "bf16"):
        return half_to_f64(x.view(np.uint16), name == "bf16")
    return x.astype(np.float64)


@runtime
def float_to_float(x: Any, name: str, mode: str) -> Any:
    """Exact float64 lanes to f32 or f64 lanes, or to uint16 bits of a half type."""
    if name == "f64":
        return x
    if name == "f32":
        return to_f32(x, mode)
    return f64_to_half(x, name == "bf16", mode)


@runtime
def round_to_integral(x: Any, mode: str) -> Any:
    """Round to an integral value in the same type."""
    return _ROUND_TO_INTEGER[mode](x)


@runtime
def clamp_unit(x: Any) -> Any:
    """`.sat` of a floating result: to [0, 1], NaN to 0."""
    return select(x > 0, np.minimum(x, 1.0), 0.0)


@runtime
def relu(x: Any) -> Any:
    """Negative values and -0 to +0; NaN stays."""
    return select(x <= 0, x.dtype.type(0), x)


@runtime
def flush_wide(x: Any) -> Any:
    """float64 lanes that will become f32 with `.ftz`: what is below 2^-126 before rounding is 0."""
    return select(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)


_LARGEST = {"f16": (0x7C00, 0x7BFF), "bf16": (0x7F80, 0x7F7F), "tf32": (0x7F80_0000, 0x7F7F_E000)}


@runtime
def finite_bits(bits: Any, name: str) -> Any:
    """`.satfinite`: infinities to the largest finite value of their sign; NaN stays."""
    infinity, largest = _LARGEST[name]
    kind = bits.dtype.type
    magnitude = bits & kind((1 << (8 * bits.itemsize - 1)) - 1)
    sign = bits & kind(1 << (8 * bits.itemsize - 1))
    return select(magnitude == infinity, sign | kind(largest), bits)


@runtime
def pack_halves(high: Any, low: Any, is_bf16: bool, mode: str, options: tuple[bool, bool]) -> Any:
    """cvt.{rn,rz}.{f16x2,bf16x2}.f32: two float32 lanes to packed halves.

    Args:
      options: (.relu, .satfinite).
    """
    both = np.empty((high.size, 2), np.float32)
    both[:, 0] = low
    both[:, 1] = high
    if options[0]:
        both = relu(both)
    bits = f32_to_bf16(both, mode) if is_bf16 else f32_to_f16(both, mode)
    if options[1]:
        bits = finite_bits(bits, "bf16" if is_bf16 else "f16")
    return np.ascontiguousarray(bits).view(np.uint32).reshape(high.size)


@runtime
def pack_tiny(high: Any, low: Any, name: str, mode: formats.Rounding, with_relu: bool) -> Any:
    """Two float32 lanes to a packed pair of e4m3, e5m2 ... codes, saturated; uint16 lanes.

    A 4-bit pair takes the low byte.
    """
    parts: list[Any] = []
    for value in (low, high):
        if with_relu:
            value = relu(value)
        parts.append(formats.encode(name, value, mode, True).astype(np.uint16))
    return parts[0] | parts[1] << np.uint16(4 if name == "e2m1" else 8)


@runtime
def unpack_tiny(x: Lanes, name: str, to_bf16: bool, with_relu: bool) -> Any:
    """A packed pair of codes (uint16 lanes) to packed halves (uint32 lanes)."""
    shift, mask = (4, 0xF) if name == "e2m1" else (8, 0xFF)
    halves: list[Any] = []
    for part in (x & np.uint16(mask), (x >> np.uint16(shift)) & np.uint16(mask)):
        value = formats.decode(name, part).astype(np.float32)
        if with_relu:
            value = relu(value)
        halves.append(f32_to_bf16(value) if to_bf16 else f32_to_f16(value))
    return halves[0].astype(np.uint32) | halves[1].astype(np.uint32) << np.uint32(16)


@runtime
def split_halves(x: Lanes, is_bf16: bool) -> Any:
    """Packed halves (uint32 lanes) to (low, high) float32 lanes."""
    low, high = x.astype(np.uint16), (x >> np.uint32(16)).astype(np.uint16)
    return tuple(half_to_f64(part, is_bf16).astype(np.float32) for part in (low, high))


@runtime
def to_tf32(x: Any, mode: str) -> Any:
    """float32 lanes to tf32 bits: 10 fraction bits, ties away (rna), to even (rn) or cut (rz).

    By `rna` a NaN whose fraction is rounded to zero becomes an infinity (H200, 2026-11-28).
    """
    bits = x.view(np.uint32).astype(np.uint64)
    if mode == "rna":
        bits = bits + np.uint64(0x1000)
    elif mode == "rn":
        bits = bits + np.uint64(0xFFF) + ((bits >> np.uint64(13)) & np.uint64(1))
    result = (bits & np.uint64(0xFFFF_E000)).astype(np.uint32)
    is_nan = np.isnan(x)
    if mode == "rna":
        is_nan &= (result & np.uint32(0x7FFF_FFFF)) != np.uint32(0x7F80_0000)
    return select(is_nan, np.uint32(0x7FFF_FFFF), result)


def _mode(i: Instruction, allowed: tuple[str, ...], default: str) -> str:
    return next((part for part in i.parts if part in allowed), default)


@instruction("cvt")
def emit_cvt(e: Emitter, i: Instruction) -> None:
    """cvt{.rnd}{.ftz}{.sat}{.relu}{.satfinite}.dtype.atype d, a{, b}."""
    if i.has("pack"):
        _emit_pack_integers(e, i)
        return
    if i.has("rs"):
        emit_stochastic(e, i)
        return
    allowed = {*"rn rz rm rp rna ftz sat relu satfinite".split(), *_ROUND_TO_INTEGER}
    e.check_modifiers(i, i.parts[1:-2], allowed)
    if len(i.parts) < 3:
        raise e.error(f"'{i.opcode}' lacks a type")
    to, source = i.parts[-2:]
    if to in _HALF_PAIRS and source == "f32":
        _emit_pack_halves(e, i, to)
    elif to in _TINY_PAIRS:
        _emit_pack_tiny(e, i, to, source)
    elif source in _TINY_PAIRS and to in _HALF_PAIRS:
        value = _tiny_source(e, i, source)
        name = source[:-2]
        text = f"unpack_tiny({value}, {name!r}, {to == 'bf16x2'}, {i.has('relu')})"
        e.dst(i.operands[0], "u32", text)
    elif to == "tf32":
        mode = _mode(i, ("rna", "rn", "rz"), "rna")
        value = e.src(i.operands[1], "f32")
        if i.has("relu"):
            value = f"relu({value})"
        text = f"to_tf32({value}, {mode!r})"
        e.dst(i.operands[0], "u32", f"finite_bits({text}, 'tf32')" if i.has("satfinite") else text)
    else:
        _emit_scalar(e, i, to, source)


@runtime
def pack_integers(high: Lanes, low: Lanes, above: Lanes | None, signed: bool, bits: int) -> Any:
    """cvt.pack: two s32 saturated to `bits` bits, side by side, below the low bits of `above`."""
    least, greatest = (
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    )
    mask = np.uint32((1 << bits) - 1)
    parts = [
        np.clip(x, least, greatest).astype(np.int32).view(np.uint32) & mask for x in (low, high)
    ]
    result = parts[0] | parts[1] << np.uint32(bits)
    return result if above is None else result | above << np.uint32(2 * bits)


_PACKED_INTEGERS = ("s16", "u16", "s8", "u8", "s4", "u4", "s2", "u2")


def _emit_pack_integers(e: Emitter, i: Instruction) -> None:
    """cvt.pack.sat.TYPE.s32{.b32} d, a, b{, c}."""
    name = i.first_of(_PACKED_INTEGERS)
    if not i.has("sat") or not name:
        raise e.error(f"unknown conversion '{i.opcode}'")
    a, b = (e.src(x, "s32") for x in i.operands[1:3])
    above = list(i.operands[3:])
    c = e.src(above[0], "u32") if above else "None"
    e.dst(i.operands[0], "u32", f"pack_integers({a}, {b}, {c}, {name[0] == 's'}, {name[1:]})")


def _tiny_source(e: Emitter, i: Instruction, source: str) -> str:
    if source == "e2m1x2":
        return f"{e.src(i.operands[1], 'u8')}.astype(uint16)"
    return e.src(i.operands[1], "u16")


def _emit_pack_halves(e: Emitter, i: Instruction, to: str) -> None:
    mode = _mode(i, ("rn", "rz", "rna"), "rn")
    high, low = (e.src(operand, "f32") for operand in i.operands[1:3])
    if i.has("ftz"):
        high, low = f"flush({high})", f"flush({low})"
    options = (i.has("relu"), i.has("satfinite"))
    text = f"pack_halves({high}, {low}, {to == 'bf16x2'}, {mode!r}, {options})"
    e.dst(i.operands[0], "u32", text)


def _emit_pack_tiny(e: Emitter, i: Instruction, to: str, source: str) -> None:
    name = to[:-2]
    mode = _mode(i, ("rn", "rz", "rp"), "rn")
    if source == "f32":
        high, low = (e.src(operand, "f32") for operand in i.operands[1:3])
    elif source in _HALF_PAIRS:
        halves = e.hold(f"split_halves({e.src(i.operands[1], 'u32')}, {source == 'bf16x2'})")
        low, high = f"{halves}[0]", f"{halves}[1]"
    else:
        raise e.error(f"'{i.opcode}' is not supported")
    text = f"pack_tiny({high}, {low}, {name!r}, {mode!r}, {i.has('relu')})"
    if name == "e2m1":
        e.dst(i.operands[0], "u8", f"{text}.astype(uint8)")
    else:
        e.dst(i.operands[0], "u16", text)


def _emit_scalar(e: Emitter, i: Instruction, to: str, source: str) -> None:
    integral = next((part for part in i.parts if part in _ROUND_TO_INTEGER), None)
    d, a = i.operands
    if source in _INTEGER and to in _INTEGER:
        value = e.src(a, source)
        dtype = KINDS[to][0].__name__
        if i.has("sat"):
            e.dst(d, to, f"integer_to_integer({value}, {dtype}, True)")
        elif source == to:
            e.dst(d, to, value)
        else:
            e.dst(d, to, f"{value}.astype({dtype})")
        return
    mode = _mode(i, ("rn", "rz", "rm", "rp"), "rn")
    if source in _INTEGER and to in _FLOAT:
        kind = to if to in ("f32", "f64") else "u16"
        e.dst(d, kind, f"integer_to_float({e.src(a, source)}, {to!r}, {mode!r})")
        return
    if source not in _FLOAT:
        raise e.error(f"unknown conversion '{i.opcode}'")
    kind = source if source in ("f32", "f64") else "u16"
    value = e.src(a, kind)
    if i.has("ftz") and source == "f32" and to != "f16":
        # Measured on an H200: conversions to f16 see subnormal sources in spite of `.ftz`.
        value = f"flush({value})"
    wide = f"widen({value}, {source!r})"
    if to in _INTEGER:
        if integral is None:
            raise e.error(f"'{i.opcode}' needs .rni, .rzi, .rmi or .rpi")
        dtype = KINDS[to][0].__name__
        e.dst(d, to, f"float_to_integer({wide}, {dtype}, {integral!r}, {source == 'f64'})")
        return
    if to not in _FLOAT:
        raise e.error(f"unknown conversion '{i.opcode}'")
    if integral is not None:
        wide = f"round_to_integral({wide}, {integral!r})"
    if i.has("relu"):
        wide = f"relu({wide})"
    if i.has("sat"):
        wide = f"clamp_unit({wide})"
    if i.has("ftz") and to == "f32":
        wide = f"flush_wide({wide})"
    result_kind = to if to in ("f32", "f64") else "u16"
    text = f"float_to_float({wide}, {to!r}, {mode!r})"
    if i.has("satfinite"):
        text = f"finite_bits({text}, {to!r})"
    e.dst(d, result_kind, text)
