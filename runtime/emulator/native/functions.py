"""The native operations of the functions that generated code calls,
such as `flush` and `fma_f32`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from .expressions import FUNCTIONS, ROW_BYTES, Function, Kind, NotNative, Planner, Step, Value

_U16, _U32, _U64 = Kind("u16"), Kind("u32"), Kind("u64")
_F32, _F64, _PAIR = Kind("f32"), Kind("f64"), Kind("f32", 2)
_PREDICATE = Kind("pred")
_DIRECTED = ("rz", "rm", "rp")


def _function(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for name in names:
            FUNCTIONS[name] = function
        return function

    return register


def _literal(node: ast.expr) -> object:
    """A constant argument."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise NotNative from None


def _check(condition: bool) -> None:
    if not condition:
        raise NotNative


def _of_kind(p: Planner, kind: Kind, *nodes: ast.expr) -> list[Value]:
    """Arguments, all of one kind."""
    values = [p.value(node) for node in nodes]
    _check(all(value.kind == kind for value in values))
    return values


def _simple(step: str, result: Kind, operand: Kind) -> Function:
    """A function that is one operation on operands of one kind."""
    return lambda p, name, nodes: p.step(step, result, *_of_kind(p, operand, *nodes))


FUNCTIONS.update(
    {
        "permute_bytes": _simple("permute_bytes", _U32, _U32),
        "pair_to_bits": _simple("pair_to_bits", _U64, _PAIR),
        "bits_to_pair": _simple("bits_to_pair", _PAIR, _U64),
        "pack_words": _simple("pack_words", _U64, _U32),
        "flush_wide": _simple("flush_wide", _F64, _F64),
        "divide_approximately": _simple("div_approx_f32", _F32, _F32),
        "ex2_f32": _simple("exp2_f32", _F32, _F32),
        "lg2_f32": _simple("log2_f32", _F32, _F32),
    }
)
for _name in ("rcp_f32", "sqrt_f32", "rsqrt_f32", "sin_f32", "cos_f32", "tanh_f32"):
    FUNCTIONS[_name] = _simple(_name, _F32, _F32)


# ---- bits


@_function("where")
def _where(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    condition = p.value(nodes[0])
    a, b = p.same(*nodes[1:])
    _check(condition.kind == _PREDICATE)
    element = a.kind.element
    chosen = "select_pred" if element == "pred" else f"select_u{ROW_BYTES[element] // 4}"
    if a.kind.rows == 1:
        return p.step(chosen, a.kind, condition, a, b)
    result = Value(a.kind, p.room(a.kind))
    for row in range(a.kind.rows):
        operands = (condition.place, p.row(a, row).place, p.row(b, row).place)
        p.steps.append(Step(chosen, p.row(result, row).place, operands))
    return result


@_function("abs")
def _abs(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    return p.unary("abs", p.value(nodes[0]))


@_function("minimum", "maximum")
def _extreme(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    a, b = p.same(*nodes)
    element = a.kind.element
    _check(a.kind.rows == 1 and element[0] in "us")
    return p.step(f"{element[0]}{name[:3]}_u{element[1:]}", a.kind, a, b)


@_function("shift_left", "shift_right")
def _shift(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    value, (amount,) = p.value(nodes[0]), _of_kind(p, _U32, nodes[1])
    element = value.kind.element
    _check(value.kind.rows == 1 and element in ("u32", "s32", "u64", "s64"))
    if element[1:] == "64":
        amount = p.step("zext_u32_u64", _U64, amount)
    kind = "shl" if name == "shift_left" else f"shr_{element[0]}"
    return p.step(f"{kind}_u{element[1:]}", value.kind, value, amount)


@_function("divide")
def _divide(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    a, b = p.same(*nodes[:2])
    _check(a.kind.element in ("u32", "s32") and a.kind.rows == 1)
    what = "rem" if _literal(nodes[2]) else "div"
    return p.step(f"{what}_{a.kind.element}", a.kind, a, b)


@_function("mul_high_64")
def _mul_high(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    a, b = p.same(*nodes[:2])
    sign = "s" if _literal(nodes[2]) else "u"
    _check(a.kind == Kind(f"{sign}64"))
    return p.step(f"mul_high_{sign}64", a.kind, a, b)


# ---- packing


@_function("pack_pair")
def _pack_pair(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    low, high = _of_kind(p, _F32, *nodes)
    result = Value(_PAIR, p.room(_PAIR))
    p.copy(low, p.row(result, 0).place)
    p.copy(high, p.row(result, 1).place)
    return result


@_function("pack_many")
def _pack_many(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    kind = str(_literal(nodes[0]))
    values = [p.value(node) for node in nodes[1:]]
    _check(len(values) == 2 and kind in ("u16", "u32"))
    row = ROW_BYTES[kind]
    _check(all(v.kind.rows == 1 and ROW_BYTES[v.kind.element] == row for v in values))
    if kind == "u16":
        return p.step("pack_shorts", _U32, *values)
    return p.step("pack_words", _U64, *values)


@_function("unpack_many")
def _unpack_many(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    value = p.value(nodes[0])
    dtype, count = ast.unparse(nodes[1]), _literal(nodes[2])
    _check(value.kind.rows == 1 and count == 2)
    part = {"uint16": "short", "uint32": "word"}.get(dtype, "")
    kind = _U16 if part == "short" else _U32
    _check(bool(part) and ROW_BYTES[value.kind.element] == 2 * kind.byte_count)
    both = Kind(kind.element, 2)
    result = Value(both, p.room(both))
    for row, half in enumerate(("low", "high")):
        p.steps.append(Step(f"{half}_{part}", p.row(result, row).place, (value.place,)))
    return result


# ---- float32


@_function("flush", "saturate", "relu", "fma_f32")
def _float32(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    values = p.same(*nodes)
    kind = values[0].kind
    return p.step(p.float_name(name.removesuffix("_f32"), kind), kind, *values)


@_function("add_f32_mode", "mul_f32_mode", "fma_f32_mode")
def _directed(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    values, mode = p.same(*nodes[:-1]), _literal(nodes[-1])
    _check(mode in _DIRECTED)
    kind = values[0].kind
    return p.step(p.float_name(f"{name[:3]}_{mode}", kind), kind, *values)


@_function("max_f32")
def _max(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    return _chain(p, "max", nodes)


@_function("minmax_f32")
def _minmax(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    options = _literal(nodes[1])
    _check(options in ((False, False, False), (True, False, False)))
    suffix = "_nan" if options == (True, False, False) else ""
    return _chain(p, f"{_literal(nodes[0])}{suffix}", nodes[2:])


def _chain(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    """min or max of several operands; a NaN result is canonical."""
    first, *others = _of_kind(p, _F32, *nodes)
    for other in others:
        first = p.step(f"{name}_f32", _F32, first, other)
    return p.step("canonical_f32", _F32, first)


# ---- conversions


@_function("integer_to_float")
def _integer_to_float(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    value = p.value(nodes[0])
    _check(_literal(nodes[1]) == "f32" and _literal(nodes[2]) == "rn")
    element = value.kind.element
    _check(value.kind.rows == 1 and element in ("u8", "u16", "u32", "s8", "s16", "s32"))
    if element[1:] != "32":
        value = p.converted(value, f"{element[0]}32")
    return p.step("signed_f32" if element[0] == "s" else "unsigned_f32", _F32, value)


@_function("widen")
def _widen(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    value, kind = p.value(nodes[0]), _literal(nodes[1])
    if kind == "f32":
        _check(value.kind == _F32)
    else:
        _check(kind in ("f16", "bf16") and value.kind in (_U16, Kind("f16")))
    return p.step(f"widen_{kind}", _F64, value)


@_function("float_to_float")
def _float_to_float(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    (value,) = _of_kind(p, _F64, nodes[0])
    _check(_literal(nodes[1]) == "f32" and _literal(nodes[2]) == "rn")
    return p.step("narrow_f32", _F32, value)


@_function("pack_halves")
def _pack_halves(p: Planner, name: str, nodes: list[ast.expr]) -> Value:
    high, low = _of_kind(p, _F32, *nodes[:2])
    is_bf16, mode, (relu, finite) = (_literal(node) for node in nodes[2:])  # type: ignore[misc]
    _check(mode == "rn" and not finite)
    parts: list[Value] = []
    for value in (low, high):
        clamped = p.step("relu_f32", _F32, value) if relu else value
        parts.append(p.step("to_bf16" if is_bf16 else "to_f16", _U16, clamped))
    return p.step("pack_shorts", _U32, *parts)
