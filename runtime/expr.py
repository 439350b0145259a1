"""Sizes that a bundle leaves to run time: small expressions over symbols such as `batch` and `sq`.

An expression is an integer, the name of a symbol, or `[operator, left, right]` with the operators
`add`, `sub`, `mul`, `ceildiv`, `floordiv`, `max` and `min`, as in `["ceildiv", "sq", 256]`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias, cast

from attn_mlir.errors import SpecError

Expr: TypeAlias = int | str | tuple[str, "Expr", "Expr"]

MAX_VALUE = 2**63 - 1  # of numbers, and of what is computed from them and from sizes
MAX_DEPTH = 32  # nesting that no grid rule comes near; bounds the recursion on hostile files


def _floordiv(left: int, right: int) -> int:
    return left // right


def _ceildiv(left: int, right: int) -> int:
    return -(-left // right)


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "ceildiv": _ceildiv,
    "floordiv": _floordiv,
    "max": max,
    "min": min,
}


def parse_expr(value: object, symbols: Collection[str], *, where: str, depth: int = 0) -> Expr:
    """Check decoded JSON and turn it into an `Expr`.

    Args:
      value: what the JSON decoder made of the expression.
      symbols: names that may occur.
      where: the field it stands in, for the message.

    Raises:
      SpecError: not an expression, an unknown operator or an unknown symbol.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_VALUE:
        return value
    if isinstance(value, str):
        if value not in symbols:
            raise SpecError(
                f"{where} uses the symbol '{value}', the bundle declares {sorted(symbols)}"
            )
        return value
    if isinstance(value, list) and depth < MAX_DEPTH:
        items = cast("list[object]", value)
        if len(items) == 3 and isinstance(items[0], str) and items[0] in OPERATORS:
            left = parse_expr(items[1], symbols, where=where, depth=depth + 1)
            right = parse_expr(items[2], symbols, where=where, depth=depth + 1)
            return (items[0], left, right)
    raise SpecError(
        f"{where} is not an expression: got {value!r:.80}, allowed are an integer, a symbol or "
        f"[operator, left, right] with the operators {sorted(OPERATORS)}"
    )


def evaluate(expr: Expr, symbols: Mapping[str, int]) -> int:
    """The value of a parsed expression.

    Raises:
      SpecError: a division by zero or by a negative number, or a value beyond 64 bits.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return symbols[expr]
    name, left, right = expr
    a, b = evaluate(left, symbols), evaluate(right, symbols)
    if name in ("ceildiv", "floordiv") and b <= 0:
        raise SpecError(f"{show(expr)} divides by {b} for {dict(symbols)}")
    value = OPERATORS[name](a, b)
    if abs(value) > MAX_VALUE:
        raise SpecError(f"{show(expr)} is beyond 64 bits for {dict(symbols)}")
    return value


def show(expr: Expr) -> str:
    """The expression as people write it: `ceildiv(sq, 256)`."""
    if isinstance(expr, tuple):
        return f"{expr[0]}({show(expr[1])}, {show(expr[2])})"
    return str(expr)
