"""Expressions as sums of products: two that have the same sum are equal for all sizes.

A sum maps products to integer coefficients. A product is a sorted tuple of factors, each the
canonical text of an expression that is not a sum itself.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from attn_mlir.expr import DIVISIONS, OPERATORS, PLAIN, SIGNS, Expr, is_size

Sum = Counter[tuple[str, ...]]  # factors (sorted; empty for the constant) -> coefficient


def constant(value: int) -> Sum:
    """The sum that is a number."""
    return Counter({(): value}) if value else Counter()


def name(factor: str) -> Sum:
    """The sum that is one factor."""
    return Counter({(factor,): 1})


def add(a: Sum, b: Sum, sign: int = 1) -> Sum:
    """a + sign b"""
    total: Sum = Counter(a)
    for factors, coefficient in b.items():
        total[factors] += sign * coefficient
    return Counter({factors: c for factors, c in total.items() if c})


def multiply(a: Sum, b: Sum) -> Sum:
    """a b"""
    total: Sum = Counter()
    for left, x in a.items():
        for right, y in b.items():
            total[tuple(sorted(left + right))] += x * y
    return Counter({factors: c for factors, c in total.items() if c})


def text(total: Sum) -> str:
    """A sum for messages, the same for equal sums: `2 ceildiv(keys, 128) - 1`."""
    found = ""
    for factors, coefficient in sorted(
        total.items(), key=lambda term: (term[1] < 0, not term[0], term)
    ):
        product = " ".join(factors)
        size = abs(coefficient)
        term = product if product and size == 1 else f"{size} {product}".rstrip()
        minus = "-" if coefficient < 0 else ""
        found += f" {minus or '+'} {term}" if found else f"{minus}{term}"
    return found or "0"


class Sums:
    """Expressions as sums, each computed once.

    Args:
      values: names that stand for numbers.
      sizes: names whose values are never negative; an unsigned division of such is a plain one.
    """

    def __init__(self, values: Mapping[str, int], sizes: Collection[str]):
        self._values = values
        self._sizes = sizes
        self._found: dict[int, tuple[Expr, Sum]] = {}  # by identity; holds what it is the sum of

    def __call__(self, expr: Expr) -> Sum:
        """The sum of an expression."""
        if isinstance(expr, int):
            return constant(expr)
        if isinstance(expr, str):
            return constant(self._values[expr]) if expr in self._values else name(expr)
        if id(expr) not in self._found:
            self._found[id(expr)] = expr, self._compute(*expr)
        return self._found[id(expr)][1]

    def _compute(self, operator: str, left: Expr, right: Expr) -> Sum:
        a, b = self(left), self(right)
        if operator == "add":
            return add(a, b)
        if operator == "sub":
            return add(a, b, -1)
        if operator == "mul":
            return multiply(a, b)
        if not {*a, *b} - {()} and (b or operator not in DIVISIONS):
            return constant(int(OPERATORS[operator](a[()], b[()])))
        if operator in SIGNS:
            return name(f"[{text(a)} {SIGNS[operator]} {text(b)}]")
        if operator in PLAIN and is_size(left, self._sizes) and is_size(right, self._sizes):
            operator = PLAIN[operator]
        return name(f"{operator}({text(a)}, {text(b)})")
