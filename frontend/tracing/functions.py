"""Functions and methods of numpy, torch and `F` by name, in terms of a program's operations.

A function that a program has no operation for is composed of those that it has. Floats of a kernel
are f32, whatever the libraries would make of the types.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from attn_mlir.tracing import integers

Graph = Traced = Any  # of `graph`, which knows this module
MAX_POWER = 16  # larger whole powers are no products: exp2(y * log2(x))
F32_MAX = float(np.finfo(np.float32).max)
LN2 = math.log(2.0)

OPERATIONS = {  # name -> operation of a program
    **{name: name for name in (
        "exp", "exp2", "log", "log2", "tanh", "sqrt", "floor", "ceil", "where", "sin", "cos",
        "erf", "log1p", "expm1", "abs", "neg", "add", "sub", "mul", "div", "min", "max", "and",
        "or", "xor", "eq", "ne", "lt", "le", "gt", "ge",
    )},
    "absolute": "abs", "fabs": "abs", "negative": "neg", "special_erf": "erf",
    "special_expm1": "expm1", "special_log1p": "log1p", "special_exp2": "exp2",
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "truediv": "div", "floor_divide": "floordiv", "floordiv": "floordiv",
    "mod": "mod", "remainder": "mod",
    "minimum": "min", "maximum": "max",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "not",
    "invert": "not", "bitwise_invert": "not",
    "left_shift": "shl", "bitwise_left_shift": "shl", "lshift": "shl",
    "right_shift": "shr", "bitwise_right_shift": "shr", "rshift": "shr",
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge",
}  # fmt: skip
IGNORED = {"inplace": False, "out": None, "dtype": None, "where": True, "rounding_mode": None}


def _apply(op: str) -> Callable[..., Traced]:
    def apply(graph: Graph, *operands: Any) -> Traced:
        return graph.apply(op, *operands)

    return apply


_add, _mul, _sub, _div, _neg, _abs, _exp, _where, _lt, _gt, _eq, _ne, _floor_div, _mod = (
    _apply(op) for op in ("add", "mul", "sub", "div", "neg", "abs", "exp", "where", "lt", "gt",
                          "eq", "ne", "floordiv", "mod")
)  # fmt: skip


def _clip(
    graph: Graph, x: Any, low: Any = None, high: Any = None, **options: Any
) -> Traced:  # numpy says a_min and a_max or min and max, torch min and max
    low = options.pop("min", options.pop("a_min", low))
    high = options.pop("max", options.pop("a_max", high))
    if options:
        raise TypeError(f"clip has no {', '.join(options)}")
    x = graph.lift(x)
    if low is not None:
        x = graph.apply("max", x, low)
    return x if high is None else graph.apply("min", x, high)


def _clamp_min(graph: Graph, x: Any, min: Any) -> Traced:
    return graph.apply("max", x, min)


def _clamp_max(graph: Graph, x: Any, max: Any) -> Traced:
    return graph.apply("min", x, max)


def _of_numbers(op: str) -> Callable[..., Traced]:
    """The smaller or larger of two; where one is NaN the other one."""

    def apply(graph: Graph, a: Any, b: Any) -> Traced:
        a, b = graph.lift(a), graph.lift(b)
        if "f32" not in (a.type, b.type):
            return graph.apply(op, a, b)
        result = _where(graph, _is_nan(graph, a), b, graph.apply(op, a, b))
        return _where(graph, _is_nan(graph, b), a, result)

    return apply


def power(graph: Graph, base: Any, exponent: Any) -> Traced:
    """base ** exponent: products for small whole exponents, roots, and powers of 2 by `exp2`.

    Other powers are f32; those of integers of 8 and 16 bits, which torch wraps around, are refused.
    """
    if isinstance(exponent, np.generic):
        exponent = cast("Any", exponent).item()
    narrow = graph.meet(base, exponent)
    if narrow and not (type(exponent) is int and exponent in range(MAX_POWER + 1)):
        raise graph.refuse(
            f"raises {integers.NUMPY_NAMES[narrow]} to a power that is no whole number from 0 to "
            f"{MAX_POWER}: convert one, with .to(int) or .to(float)"
        )
    if isinstance(base, int | float) and base == 2:
        return graph.apply("exp2", exponent)
    if not isinstance(exponent, int | float):
        return graph.apply("pow", base, exponent)
    base = graph.lift(base)
    if isinstance(exponent, float):
        base = graph.cast(base, "f32")
    if exponent == 0:
        return graph.cast(graph.lift(1), base.kind)
    if exponent < 0 and base.type != "f32":
        raise graph.refuse(
            f"raises an integer to the power {exponent}, which is no integer: use float() of it"
        )
    if exponent < 0:
        return _reciprocal(graph, power(graph, base, -exponent))
    if exponent == 0.5:
        return graph.apply("sqrt", base)
    if exponent not in range(1, MAX_POWER + 1):
        return graph.apply("pow", base, exponent)
    result = base
    for _ in range(int(exponent) - 1):
        result = graph.apply("mul", result, base)
    return result


def _sigmoid(graph: Graph, x: Any) -> Traced:
    return _div(graph, 1.0, _add(graph, _exp(graph, _neg(graph, x)), 1.0))


def _square(graph: Graph, x: Any) -> Traced:
    return _mul(graph, x, x)


def _relu(graph: Graph, x: Any) -> Traced:
    return graph.apply("max", x, 0)


def _reciprocal(graph: Graph, x: Any) -> Traced:
    return _div(graph, 1.0, x)


def _rsqrt(graph: Graph, x: Any) -> Traced:
    return _div(graph, 1.0, graph.apply("sqrt", x))


def _gelu(graph: Graph, x: Any, approximate: str = "none") -> Traced:
    x = graph.cast(graph.lift(x), "f32")
    if approximate == "none":
        inner = graph.apply("erf", x * math.sqrt(0.5))
    elif approximate == "tanh":
        inner = graph.apply("tanh", (x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi))
    else:
        raise graph.refuse(f"calls gelu with approximate={approximate!r:.20}; none and tanh exist")
    return x * 0.5 * (inner + 1.0)


def _silu(graph: Graph, x: Any) -> Traced:
    return _div(graph, x, _add(graph, _exp(graph, _neg(graph, x)), 1.0))


def _softplus(graph: Graph, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Traced:
    """max(x, 0) + log1p(exp(-|x|)), which never overflows."""
    scaled = _mul(graph, x, beta) if beta != 1 else graph.cast(graph.lift(x), "f32")
    tail = graph.apply("log1p", _exp(graph, _neg(graph, _abs(graph, scaled))))
    soft = _add(graph, graph.apply("max", scaled, 0.0), tail)
    if beta != 1:
        soft = _div(graph, soft, beta)
    return soft if threshold >= 20 else _where(graph, _gt(graph, scaled, threshold), x, soft)


def _log_sigmoid(graph: Graph, x: Any) -> Traced:
    return _neg(graph, _softplus(graph, _neg(graph, x)))


def _elu(graph: Graph, x: Any, alpha: float = 1.0) -> Traced:
    below = _mul(graph, graph.apply("expm1", graph.apply("min", x, 0.0)), alpha)
    return _where(graph, _gt(graph, x, 0.0), x, below)


def _leaky_relu(graph: Graph, x: Any, negative_slope: float = 0.01) -> Traced:
    return _where(graph, _gt(graph, x, 0.0), x, _mul(graph, x, negative_slope))


def _hardtanh(graph: Graph, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Traced:
    return _clip(graph, x, min_val, max_val)


def _log_add_exp(graph: Graph, a: Any, b: Any) -> Traced:
    """max(a, b) + log1p(exp(-|a - b|)); of equal infinities that infinity."""
    a, b = (graph.cast(graph.lift(x), "f32") for x in (a, b))
    top = graph.apply("max", a, b)
    soft = _add(
        graph, top, graph.apply("log1p", _exp(graph, _neg(graph, _abs(graph, _sub(graph, a, b)))))
    )
    return _where(graph, _eq(graph, a, b), _add(graph, top, LN2), soft)


def _log10(graph: Graph, x: Any) -> Traced:
    return _mul(graph, graph.apply("log2", x), math.log10(2.0))


def _sign(graph: Graph, x: Any) -> Traced:
    x = graph.lift(x)
    one = graph.cast(graph.lift(1), x.kind)
    otherwise = _where(graph, _lt(graph, x, 0), _neg(graph, one), x)  # 0 and NaN are themselves
    return _where(graph, _gt(graph, x, 0), one, otherwise)


def _whole(op: str) -> Callable[..., Traced]:
    def rounded(graph: Graph, x: Any, decimals: int = 0) -> Traced:
        x = graph.lift(x)
        if decimals != 0:
            raise graph.refuse(f"rounds to {decimals} decimals; to whole numbers it can")
        return x if x.type != "f32" else graph.apply(op, x)

    return rounded


def _is_nan(graph: Graph, x: Any) -> Traced:
    x = graph.cast(graph.lift(x), "f32")
    return graph.apply("ne", x, x)


def _is_inf(graph: Graph, x: Any) -> Traced:
    return _eq(graph, _abs(graph, graph.cast(graph.lift(x), "f32")), math.inf)


def _is_finite(graph: Graph, x: Any) -> Traced:
    return _lt(graph, _abs(graph, graph.cast(graph.lift(x), "f32")), math.inf)


def _nan_to_num(
    graph: Graph, x: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None, copy: bool = True
) -> Traced:
    x = graph.cast(graph.lift(x), "f32")
    high = _where(graph, _eq(graph, x, math.inf), F32_MAX if posinf is None else posinf, x)
    low = _where(graph, _eq(graph, x, -math.inf), -F32_MAX if neginf is None else neginf, high)
    return _where(graph, _is_nan(graph, x), 0.0 if nan is None else nan, low)


def _masked_fill(graph: Graph, x: Any, mask: Any, value: Any) -> Traced:
    return _where(graph, mask, value, x)


def _divide(graph: Graph, a: Any, b: Any, *, rounding_mode: str | None = None) -> Traced:
    if rounding_mode is None:
        return _div(graph, a, b)
    if rounding_mode == "floor":
        return _floor_div(graph, a, b)
    if rounding_mode != "trunc":
        raise graph.refuse(f"divides with rounding_mode {rounding_mode!r:.20}; floor and trunc are")
    if "f32" in (graph.lift(a).type, graph.lift(b).type):
        return graph.apply("trunc", _div(graph, a, b))
    return graph.apply_in_i32("floordiv", _truncated_quotient, a, b)


def _truncated_quotient(graph: Graph, a: Any, b: Any) -> Traced:
    """The quotient of integers, rounded towards 0."""
    quotient = _floor_div(graph, _abs(graph, a), _abs(graph, b))
    differ = graph.apply("xor", _lt(graph, a, 0), _lt(graph, b, 0))
    return _where(graph, differ, _neg(graph, quotient), quotient)


def _fmod(graph: Graph, a: Any, b: Any) -> Traced:
    return graph.apply_in_i32("mod", _remainder, a, b)


def _remainder(graph: Graph, a: Any, b: Any) -> Traced:
    """The remainder with the sign of the dividend."""
    remainder = _mod(graph, _abs(graph, a), _abs(graph, b))
    return _where(graph, _lt(graph, a, 0), _neg(graph, remainder), remainder)


def _scaled_sum(op: str) -> Callable[..., Traced]:
    def apply(graph: Graph, a: Any, b: Any, *, alpha: Any = 1) -> Traced:
        if alpha == 1:
            return graph.apply(op, a, b)
        if isinstance(b, int | float) and isinstance(alpha, int | float):
            return graph.apply(op, a, b * alpha)
        scaled = graph.lift(b)
        b = graph.cast(scaled, graph.meet(a, b) or scaled.type)
        product = _mul(graph, b, alpha)
        if graph.lift(a).type == b.type == "i1":  # a sum of truth values is one
            product = graph.cast(product, "i1")
        return graph.apply(op, a, product)

    return apply


def _reversed_sub(graph: Graph, a: Any, b: Any) -> Traced:
    return _sub(graph, b, a)


def _lerp(graph: Graph, start: Any, end: Any, weight: Any) -> Traced:
    return _add(graph, start, _mul(graph, weight, _sub(graph, end, start)))


def _logical(op: str) -> Callable[..., Traced]:
    """A truth value: numbers other than 0 are true."""

    def apply(graph: Graph, *operands: Any) -> Traced:
        return graph.apply(op, *(graph.cast(graph.lift(x), "i1") for x in operands))

    return apply


def _filled(
    number: Any,
    graph: Graph,
    like: Any,
    size: Any = (),
    *,
    dtype: object = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Traced:  # and_masks and or_masks of PyTorch begin with b.new_ones((), dtype=torch.bool)
    if size not in ((), []) or device is not None:
        raise TypeError("a traced value has no dimensions and no device")
    like = graph.lift(like)
    if type(number) is int and dtype is None:
        return graph.number(like.kind, number, exact=True)
    made = graph.lift(number)
    return graph.cast(made, like.kind) if dtype is None else made.to(dtype)


def _full_like(graph: Graph, like: Any, fill_value: Any, **options: Any) -> Traced:
    return _filled(fill_value, graph, like, **options)


def _new_full(graph: Graph, like: Any, size: Any, fill_value: Any, **options: Any) -> Traced:
    return _filled(fill_value, graph, like, size, **options)


def _new_tensor(graph: Graph, like: Any, data: Any, **options: Any) -> Traced:
    return _filled(data, graph, like, **options)


def _converted(name: str) -> Callable[..., Traced]:
    def convert(graph: Graph, x: Any, *args: Any, **options: Any) -> Traced:
        return getattr(graph.lift(x), name)(*args, **options)

    return convert


COMPOSED: dict[str, Callable[..., Traced]] = {
    "zeros_like": functools.partial(_filled, 0), "ones_like": functools.partial(_filled, 1),
    "new_zeros": functools.partial(_filled, 0), "new_ones": functools.partial(_filled, 1),
    "full_like": _full_like, "new_full": _new_full, "new_tensor": _new_tensor,
    "clip": _clip, "clamp": _clip, "clamp_min": _clamp_min, "clamp_max": _clamp_max,
    "fmin": _of_numbers("min"), "fmax": _of_numbers("max"),
    "hardtanh": _hardtanh, "relu": _relu,
    "relu6": functools.partial(_hardtanh, min_val=0.0, max_val=6.0),
    "leaky_relu": _leaky_relu, "elu": _elu, "gelu": _gelu, "silu": _silu,
    "softplus": _softplus, "logsigmoid": _log_sigmoid, "log_sigmoid": _log_sigmoid,
    "sigmoid": _sigmoid, "expit": _sigmoid, "special_expit": _sigmoid,
    "logaddexp": _log_add_exp, "log10": _log10,
    "power": power, "pow": power, "float_power": power,
    "square": _square, "reciprocal": _reciprocal, "rsqrt": _rsqrt, "lerp": _lerp,
    "sign": _sign, "sgn": _sign,
    "round": _whole("round"), "rint": _whole("round"), "around": _whole("round"),
    "trunc": _whole("trunc"), "fix": _whole("trunc"),
    "isnan": _is_nan, "isinf": _is_inf, "isfinite": _is_finite, "nan_to_num": _nan_to_num,
    "masked_fill": _masked_fill, "fmod": _fmod,
    "div": _divide, "divide": _divide, "true_divide": _divide,
    "add": _scaled_sum("add"), "sub": _scaled_sum("sub"), "subtract": _scaled_sum("sub"),
    "rsub": _reversed_sub,
    "logical_and": _logical("and"), "logical_or": _logical("or"), "logical_xor": _logical("xor"),
    "logical_not": _logical("not"),
    **{name: _converted(name) for name in (
        "to", "float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool",
        "detach", "clone",
    )},
}  # fmt: skip
