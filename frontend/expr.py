"""Integers that are computed from named ones: counts of turns, grids, parameters of a kernel.

An expression is an integer, a name, or `(operator, left, right)`, as in `("ceildiv", "sq", 256)`:

| operator | is |
| --- | --- |
| `add`, `sub`, `mul`, `min`, `max` | what they say |
| `floordiv`, `ceildiv` | the quotient rounded down or up, as MLIR's `floordivsi`, `ceildivsi` |
| `divui`, `ceildivui` | the same of unsigned words, C's `a / b` of `uint32_t` |
| `eq`, `ne`, `slt`, `sle`, `sgt`, `sge` | 1 where the signed comparison holds, else 0 |

All are exact on integers of any size; they agree with 32-bit code as long as nothing wraps around.
An unsigned quotient has no `a` below 0 and no `b` below 1: code would take these for large numbers.
Expressions in bundles have the operators in `BUNDLE_OPERATORS` only, and limits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias, cast

from attn_mlir.errors import SpecError

Expr: TypeAlias = int | str | tuple[str, "Expr", "Expr"]
Evaluator: TypeAlias = Callable[[Mapping[str, int]], int]
Apply: TypeAlias = Callable[[int, int], int]

MAX_VALUE = (
    2**63 - 1
)  # in bundles: bits of numbers, and of values computed from them and from sizes
MAX_DEPTH = 32  # in bundles: most nesting, far above that of any grid; bounds the recursion


def _floordiv(left: int, right: int) -> int:
    return left // right


def _ceildiv(left: int, right: int) -> int:
    return -(-left // right)


OPERATORS: dict[str, Apply] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _floordiv,
    "ceildiv": _ceildiv,
    "divui": _floordiv,
    "ceildivui": _ceildiv,
    "max": max,
    "min": min,
    "eq": operator.eq,
    "ne": operator.ne,
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
}
BUNDLE_OPERATORS = ("add", "ceildiv", "floordiv", "max", "min", "mul", "sub")
SIGNS = {"eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}
"""Operators of comparisons for display."""
PLAIN = {"divui": "floordiv", "ceildivui": "ceildiv"}
"""Unsigned divisions, and the signed ones that agree with them on operands that are not negative.
"""
DIVISIONS = (*PLAIN.keys(), *PLAIN.values())


def names(expr: Expr) -> set[str]:
    """The names in an expression."""
    return {leaf for leaf in _leaves(expr) if isinstance(leaf, str)}


def _leaves(expr: Expr) -> set[int | str]:
    """Integers and names in an expression; a shared object is visited once."""
    leaves: set[int | str] = set()
    visited: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if not isinstance(node, tuple):
            leaves.add(node)
        elif id(node) not in visited:
            visited.add(id(node))
            stack += node[1:]
    return leaves


def show(expr: Expr) -> str:
    """The expression for display: `ceildiv(sq, 256)`."""
    if isinstance(expr, tuple):
        return f"{expr[0]}({show(expr[1])}, {show(expr[2])})"
    return str(expr)


class _Quotient:
    """A division that checks its operands, and raises SpecError with its expression."""

    def __init__(self, expr: tuple[str, Expr, Expr]):
        self.expr = expr
        self._apply = OPERATORS[expr[0]]
        self._wraps = expr[0] == "divui"
        self._is_unsigned = expr[0] in PLAIN

    def __call__(self, a: int, b: int) -> int:
        if self._wraps:
            b %= 1 << 32  # as in the code; impossible sizes can make it negative
        if self._is_unsigned and (a < 0 or b < 1):
            raise SpecError(
                f"{show(self.expr)} is promised operands of at least 0 and 1, got {a} and {b}"
            )
        return self._apply(a, b)


def compiled(expr: Expr) -> Evaluator:
    """A function from the values of the names to the expression's value, for repeated use.

    It computes equal parts once. It raises SpecError, with the expression, for a quotient that does
    not exist, and KeyError for a name without a value.
    """
    if isinstance(expr, int):
        return lambda values: expr
    if isinstance(expr, str):
        return operator.itemgetter(expr)
    constants, read, operations = _as_operations(expr)

    def value(values: Mapping[str, int]) -> int:
        numbers = [*constants, *[values[name] for name in read]]
        for apply, left, right in operations:
            try:
                numbers.append(apply(numbers[left], numbers[right]))
            except ZeroDivisionError:
                raise _division_by_zero(apply, values) from None
        return numbers[-1]

    return value


def _division_by_zero(apply: Apply, values: Mapping[str, int]) -> SpecError:
    """The error for a division by 0."""
    assert isinstance(apply, _Quotient)
    values_used = {name: values[name] for name in sorted(names(apply.expr))}
    return SpecError(f"{show(apply.expr)} divides by 0 for {values_used}")


def _as_operations(
    expr: tuple[str, Expr, Expr],
) -> tuple[list[int], list[str], list[tuple[Apply, int, int]]]:
    """An expression as constants, names, and operations on earlier results by number."""
    leaves = _leaves(expr)
    constants = sorted(leaf for leaf in leaves if isinstance(leaf, int))
    read = sorted(leaf for leaf in leaves if isinstance(leaf, str))
    slots: dict[object, int] = {leaf: n for n, leaf in enumerate([*constants, *read])}
    slot_by_id: dict[int, int] = {}
    operations: list[tuple[Apply, int, int]] = []

    def slot_of(node: Expr) -> int:
        """The number of a node's result, after its operations were added."""
        if not isinstance(node, tuple):
            return slots[node]
        if id(node) not in slot_by_id:
            key = node[0], slot_of(node[1]), slot_of(node[2])
            if key not in slots:
                slots[key] = len(slots)
                is_plain = node[0] not in PLAIN and isinstance(node[2], int) and node[2] != 0
                is_checked = node[0] in DIVISIONS and not is_plain
                apply = _Quotient(node) if is_checked else OPERATORS[node[0]]
                operations.append((apply, key[1], key[2]))
            slot_by_id[id(node)] = slots[key]
        return slot_by_id[id(node)]

    slot_of(expr)
    return constants, read, operations


def evaluate(expr: Expr, symbols: Mapping[str, int]) -> int:
    """The value of a bundle's expression, within the limits of bundles.

    Raises:
      SpecError: a division by zero or by a negative number, or a value beyond 64 bits.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return symbols[expr]
    name, left, right = expr
    a, b = evaluate(left, symbols), evaluate(right, symbols)
    if name in DIVISIONS and b <= 0:
        raise SpecError(f"{show(expr)} divides by {b} for {dict(symbols)}")
    value = OPERATORS[name](a, b)
    if abs(value) > MAX_VALUE:
        raise SpecError(f"{show(expr)} is beyond 64 bits for {dict(symbols)}")
    return value


def from_list(value: object, symbols: Collection[str], *, where: str, depth: int = 0) -> Expr:
    """Checks decoded JSON of a bundle, with lists for operations, and returns the expression.

    Args:
      value: the decoded JSON.
      symbols: names that may occur.
      where: the field that has it, for the message.
      depth: nesting depth of the list in the whole expression.

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
        if len(items) == 3 and isinstance(items[0], str) and items[0] in BUNDLE_OPERATORS:
            left = from_list(items[1], symbols, where=where, depth=depth + 1)
            right = from_list(items[2], symbols, where=where, depth=depth + 1)
            return (items[0], left, right)
    raise SpecError(
        f"{where} is not an expression: got {value!r:.80}, allowed are an integer, a symbol or "
        f"[operator, left, right] with the operators {list(BUNDLE_OPERATORS)}"
    )


def to_list(expr: Expr, sizes: Collection[str]) -> int | str | list[object]:
    """The JSON form of an expression in bundles; the inverse of `from_list`.

    An unsigned division becomes the signed one, which is the same if neither operand is negative.

    Args:
      sizes: names whose values are never negative.

    Raises:
      SpecError: an operator that bundles do not have, or an unsigned division whose operands may be
        negative.
    """
    if not isinstance(expr, tuple):
        return expr
    name, left, right = expr
    if name in PLAIN:
        if not (is_size(left, sizes) and is_size(right, sizes)):
            raise SpecError(f"{show(expr)} divides unsigned what may be negative")
        name = PLAIN[name]
    if name not in BUNDLE_OPERATORS:
        raise SpecError(
            f"{show(expr)} is no expression of a bundle: the operators are {list(BUNDLE_OPERATORS)}"
        )
    return [name, to_list(left, sizes), to_list(right, sizes)]


def is_size(expr: Expr, sizes: Collection[str]) -> bool:
    """Whether an expression is known to be never negative.

    Args:
      sizes: names whose values are never negative.
    """
    if isinstance(expr, int):
        return expr >= 0
    if isinstance(expr, str):
        return expr in sizes
    name, left, right = expr
    if name == "max":
        return is_size(left, sizes) or is_size(right, sizes)
    if name in ("add", "mul", "min", "floordiv", "ceildiv"):
        return is_size(left, sizes) and is_size(right, sizes)
    return name in SIGNS or name in PLAIN
