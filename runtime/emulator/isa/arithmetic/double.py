"""float64 arithmetic in every rounding mode, lane by lane in exact rational arithmetic.

The host's result, rounded to nearest, is compared with the exact one and moved by one unit where a
directed mode asks for it. Overflow and underflow need nothing special: infinity and zero are then
on the wrong side of the exact value too.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ...ptx.kinds import Lanes, select
from ..registry import runtime


def _compare_exact(op: str, result: float, args: list[float]) -> int:
    """The sign of (exact value - result); the arguments are finite, the divisor is not zero."""
    if math.isinf(result):
        return -1 if result > 0 else 1
    if op == "sqrt":
        exact, got = Fraction(args[0]), Fraction(result) ** 2
    else:
        a, b = Fraction(args[0]), Fraction(args[1])
        got = Fraction(result)
        if op == "add":
            exact = a + b
        elif op == "mul":
            exact = a * b
        elif op == "fma":
            exact = a * b + Fraction(args[2])
        else:
            exact = a / b
    return (exact > got) - (exact < got)


def _directed(mode: str, result: float, side: int) -> float:
    """`result`, moved when the exact value lies on `side` of it."""
    if side == 0:
        return result
    up = mode == "rp" or (mode == "rz" and (result < 0 or math.copysign(1.0, result) < 0))
    if mode == "rz" and result == 0:
        return result
    if up and side > 0:
        return math.nextafter(result, math.inf)
    if not up and side < 0:
        return math.nextafter(result, -math.inf)
    return result


def _negative_zero(op: str, args: list[float]) -> bool:
    """Whether an exact zero sum is -0 when rounding down: unless both terms are +0."""
    first = args[0] if op == "add" else args[0] * args[1]
    second = args[-1]
    return not (
        first == 0 and second == 0 and math.copysign(1, first) > 0 and math.copysign(1, second) > 0
    )


def _fused(a: float, b: float, c: float) -> float:
    """a * b + c rounded once to nearest; finite arguments."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if Fraction(a) * Fraction(b) == 0 else 0.0
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = math.inf
    return math.copysign(rounded, 1 if exact > 0 else -1)


def _on_the_host(op: str, sources: tuple[Lanes, ...]) -> Any:
    if op == "sqrt":
        return np.sqrt(sources[0])
    if op == "fma":
        return sources[0] * sources[1] + sources[2]
    a, b = sources
    return a + b if op == "add" else a * b if op == "mul" else a / b


@runtime
def f64_operation(op: str, mode: str, *sources: Lanes) -> Any:
    """add, mul, fma, div or sqrt of float64 lanes in a rounding mode ("rn", "rz", "rm", "rp")."""
    result = _on_the_host(op, sources)
    if mode == "rn" and op != "fma":
        return result
    for lane in range(result.size):
        args = [float(source[lane]) for source in sources]
        if not all(map(math.isfinite, args)):
            if op == "fma" and math.isinf(args[2]) and all(map(math.isfinite, args[:2])):
                result[lane] = args[2]  # the host's product may have overflowed
            continue
        if (op == "div" and args[1] == 0) or (op == "sqrt" and args[0] < 0):
            continue
        value = _fused(*args) if op == "fma" else float(result[lane])
        if mode != "rn":
            side = _compare_exact(op, value, args)
            if side == 0 and value == 0 and mode == "rm" and op in ("add", "fma"):
                value = -0.0 if _negative_zero(op, args) else 0.0
            value = _directed(mode, value, side)
        result[lane] = value
    return result


@runtime
def approximate_f64(op: str, x: Lanes, with_ftz: bool) -> Any:
    """rcp.approx.ftz.f64 and rsqrt.approx{.ftz}.f64, rounded.

    With `.ftz` subnormals are zeros, and only the high words of source and result count.
    """
    tiny = np.finfo(np.float64).tiny

    def flushed(v: Any) -> Any:
        return select(np.abs(v) < tiny, np.copysign(0.0, v), v) if with_ftz else v

    def high_word(v: Any) -> Any:
        return (v.view(np.uint64) & ~np.uint64(0xFFFF_FFFF)).view(np.float64) if with_ftz else v

    x = flushed(high_word(x))
    return high_word(flushed(1.0 / (x if op == "rcp" else np.sqrt(x))))
