"""Makes programs of score modifiers from others, without equal nodes, and simplified.

Simplifications keep values up to rounding and the sign of 0, also where operands are infinite or
NaN. But what a choice leaves out stays 0, in the last line, where 0 times an infinity would be NaN:

    constants                                 their result, where it is finite
    x * 1, x / 1, x + 0, x - 0                x
    x * -1                                    -x
    x + -y, x - -y                            x - y, x + y
    (x * a) * b, (x * a) / b                  x * (a b), x * (a / b)
    x * a + x * b, a and b of one sign        x * (a + b)
    where(c, x, x)                            x
    where(c, where(c, x, y), z)               where(c, x, z)
    where(c, x, 0) + where(c, y, z)           where(c, x + y, z)
    where(c, x, 0) * y, where(c, x, 0) / y    where(c, x * y, 0), where(c, x / y, 0)

Constants are joined in float64, within limits far from those of f32.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from attn_mlir.dialect.attn.programs.program import (
    ARGUMENTS,
    COMPARISONS,
    CapturedTensor,
    Node,
    Program,
)

LEAST, MOST = 2.0**-100, 2.0**100  # joined factors; numbers of f32 end at 2^-126 and 2^127
COMMUTATIVE = ("add", "mul", "min", "max", "and", "or", "xor", "eq", "ne")


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


_FOLDED: dict[str, Callable[..., float]] = {
    "add": float.__add__,
    "sub": float.__sub__,
    "mul": float.__mul__,
    "div": _ratio,
    "neg": float.__neg__,
}


class Rewriter:
    """The nodes of programs that are being made.

    Attributes:
      nodes: in order of evaluation; those that it began with keep their numbers.
    """

    def __init__(self, nodes: Iterable[Node]):
        self.nodes = list(nodes)
        self._places = {_key(node): place for place, node in reversed([*enumerate(self.nodes)])}

    def add_node(self, node: Node) -> int:
        """The number of a node as it is."""
        key = _key(node)
        if key not in self._places:
            self._places[key] = len(self.nodes)
            self.nodes.append(node)
        return self._places[key]

    def constant(self, value: float) -> int:
        """An f32 constant."""
        return self.add_node(Node("constant", "f32", value=float(value)))

    def constant_at(self, number: int) -> float | None:
        """The value of an f32 constant; None for other nodes."""
        node = self.nodes[number]
        is_constant = node.op == "constant" and node.type == "f32"
        return float(node.value) if is_constant and node.value is not None else None

    def is_op(self, number: int, op: str) -> bool:
        """Whether a node is of an operation."""
        return self.nodes[number].op == op

    def apply(self, op: str, *args: int) -> int:
        """The number of a simplified operation on f32, or of a comparison of f32."""
        values = [self.constant_at(number) for number in args]
        known = [value for value in values if value is not None]
        if op in _FOLDED and len(known) == len(args):
            result = _FOLDED[op](*known)
            if math.isfinite(result):
                return self.constant(result)
        if (selected := self._of_choice(op, args)) is not None:
            return selected
        simplified = {"add": self._sum, "sub": self._difference, "mul": self._product}.get(op)
        if simplified is not None:
            return simplified(*args)
        if op == "neg":
            return self._scaled(-1.0, args[0])
        if op == "div" and values[1] is not None:
            return self._quotient(args[0], values[1])
        kind = "i1" if op in COMPARISONS else self.nodes[args[0]].type
        return self.add_node(Node(op, kind, args))

    def where(self, condition: int, a: int, b: int) -> int:
        """a where the condition holds, else b."""
        if self.is_op(condition, "not"):
            return self.where(self.nodes[condition].args[0], b, a)
        a, b = self._chosen(condition, a, 1), self._chosen(condition, b, 2)
        if a == b:
            return a
        return self.add_node(Node("where", self.nodes[a].type, (condition, a, b)))

    def _chosen(self, condition: int, number: int, place: int) -> int:
        """A choice by the same condition, where that holds (place 1) or does not (2)."""
        node = self.nodes[number]
        is_same = node.op == "where" and node.args[0] == condition
        return node.args[place] if is_same else number

    def _of_choice(self, op: str, args: Sequence[int]) -> int | None:
        """The choice of what an operation makes of a choice one of whose operands is 0."""
        places = {"mul": (0, 1), "div": (0,), "neg": (0,)}.get(op, ())
        for place in places:
            node = self.nodes[args[place]]
            if node.op != "where" or 0 not in map(self.constant_at, node.args[1:]):
                continue
            made = [
                self.constant(0.0)
                if self.constant_at(branch) == 0
                else self.apply(op, *args[:place], branch, *args[place + 1 :])
                for branch in node.args[1:]
            ]
            return self.where(node.args[0], *made)
        return None

    def _sum(self, a: int, b: int) -> int:
        if self.constant_at(a) == 0:
            return b
        if self.constant_at(b) == 0:
            return a
        if (together := self._sum_of_choices(a, b)) is not None:
            return together
        (first, x), (second, y) = self._factor(a), self._factor(b)
        if x == y and first * second > 0 and _is_moderate(first + second):
            return self._scaled(first + second, x)
        for x, y in ((a, b), (b, a)):
            if self.is_op(y, "neg"):
                return self.apply("sub", x, self.nodes[y].args[0])
        return self.add_node(Node("add", "f32", (a, b)))

    def _sum_of_choices(self, a: int, b: int) -> int | None:
        """One choice, for two by the same condition that have a 0 in one case."""
        first, second = self.nodes[a], self.nodes[b]
        if not first.op == second.op == "where" or first.args[0] != second.args[0]:
            return None
        pairs = list(zip(first.args[1:], second.args[1:], strict=True))
        if not any(0 in map(self.constant_at, pair) for pair in pairs):
            return None
        return self.where(first.args[0], *(self.apply("add", *pair) for pair in pairs))

    def _difference(self, a: int, b: int) -> int:
        if self.constant_at(b) == 0:
            return a
        if self.constant_at(a) == 0:
            return self.apply("neg", b)
        if self.is_op(b, "neg"):
            return self.apply("add", a, self.nodes[b].args[0])
        return self.add_node(Node("sub", "f32", (a, b)))

    def _product(self, a: int, b: int) -> int:
        for x, factor in ((a, self.constant_at(b)), (b, self.constant_at(a))):
            if factor is not None:
                return self._scaled(factor, x)
        return self.add_node(Node("mul", "f32", (a, b)))

    def _quotient(self, a: int, divisor: float) -> int:
        factor, base = self._factor(a)
        if divisor == 1:
            return a
        if base != a and divisor and _is_moderate(factor / divisor):
            return self._scaled(factor / divisor, base)
        return self.add_node(Node("div", "f32", (a, self.constant(divisor))))

    def _scaled(self, factor: float, number: int) -> int:
        """A node times a constant, joined with the constant that it is a multiple by."""
        inner, base = self._factor(number)
        if base != number and _is_moderate(factor * inner):
            factor, number = factor * inner, base
        if factor == 1:
            return number
        if factor == -1:
            return self.add_node(Node("neg", "f32", (number,)))
        return self.add_node(Node("mul", "f32", (number, self.constant(factor))))

    def _factor(self, number: int) -> tuple[float, int]:
        """The constant and the node whose product a node is."""
        node = self.nodes[number]
        if node.op == "neg":
            return -1.0, node.args[0]
        if node.op == "mul":
            for x, y in (node.args, node.args[::-1]):
                factor = self.constant_at(y)
                if factor is not None:
                    return factor, x
        return 1.0, number


def _is_moderate(factor: float) -> bool:
    return LEAST <= abs(factor) <= MOST


def _key(node: Node) -> str:
    """Text that equal nodes share; it tells 0.0 from -0.0."""
    args = sorted(node.args) if node.op in COMMUTATIVE else node.args
    return repr((node.op, node.type, tuple(args), node.value))


def extracted(nodes: Sequence[Node], tensors: Sequence[CapturedTensor], score: int) -> Program:
    """The program that computes one of the nodes, with the nodes and tensors that it needs alone.

    It begins with all arguments, as traced programs do.
    """
    needed: set[int] = set()
    pending = [score]
    while pending:
        number = pending.pop()
        if number not in needed:
            needed.add(number)
            pending += nodes[number].args
    made = [Node("argument", "f32" if name == "score" else "i32", value=name) for name in ARGUMENTS]
    places = {node: place for place, node in enumerate(made)}
    numbers: dict[int, int] = {}
    used: list[CapturedTensor] = []
    for number in sorted(needed):
        node = nodes[number]
        value = node.value
        if node.op == "load":
            tensor = tensors[int(value or 0)]
            if tensor not in used:
                used.append(tensor)
            value = used.index(tensor)
        moved = Node(node.op, node.type, tuple(numbers[arg] for arg in node.args), value)
        if moved.op == "argument":
            numbers[number] = places[moved]
        else:
            numbers[number] = len(made)
            made.append(moved)
    return Program(tuple(made), numbers[score], tensors=tuple(used))
