"""How often each ring operation runs, as a formula over the call's sizes.

A count is a sum of terms: a coefficient times a product of factors, each the canonical text of a
value that is not a sum; an element of an input counts as a value of its own. Two facts are used: a loop from a to b runs b - a times (the bounds that
schedules write never cross), and [x > 0] x = x for a tile count x.
"""

from collections import Counter
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.passes.infrastructure.diagnostics import op_error

from .atoms import Atoms
from .skeleton import PREDICATES, Branch, Loop, Node, Process, Tiles

Sum = Counter[tuple[str, ...]]  # factors (sorted; empty for the constant) -> coefficient


OPENERS = ("acquire", "wait")  # the steps whose operation names the way


def constant(value: int) -> Sum:
    """A number."""
    return Counter({(): value}) if value else Counter()


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
        name = " ".join(factors)
        size = abs(coefficient)
        term = name if name and size == 1 else f"{size} {name}".rstrip()
        minus = "-" if coefficient < 0 else ""
        found += f" {minus or '+'} {term}" if found else f"{minus}{term}"
    return found or "0"


def _function(operation: str) -> str:
    """What a formula calls an operation: `min` for `arith.minsi`."""
    return operation.removeprefix("arith.").removesuffix("si")


class Counting:
    """Counts the steps of one process."""

    def __init__(self, kernel: ws.KernelOp, process: Process):
        self._atoms = Atoms(kernel)
        self._group = process.role.body.blocks[0].arguments[0]
        self._process = process
        self._named: dict[Any, str] = {}
        self._sums: dict[Any, Sum] = {}

    def steps(self) -> dict[tuple[Any, int, str], Sum]:
        """Number of acquires, commits, waits and releases per ring and way, in one work tile."""
        found: dict[tuple[Any, int, str], Sum] = {}
        self._collect(self._process.body, constant(1), found)
        return found

    def _collect(
        self, nodes: tuple[Node, ...], times: Sum, found: dict[tuple[Any, int, str], Sum]
    ) -> None:
        for node in nodes:
            match node:
                case Tiles(op=op, body=body):
                    for number, argument in enumerate(op.body.blocks[0].arguments):
                        self._named[argument] = f"tile{number}"
                    self._collect(body, times, found)
                case Loop(op=op, body=body):
                    if self.sum(op.step) != constant(1):
                        raise op_error(op, "expects a step of 1 around ring operations")
                    trips = add(self.sum(op.upperBound), self.sum(op.lowerBound), -1)
                    self._collect(body, multiply(times, trips), found)
                case Branch(op=op, then=then, otherwise=otherwise):
                    self._branch(op, then, times, found, holds=True)
                    self._branch(op, otherwise, times, found, holds=False)
                case _:
                    key = (node.ring, self._way(node), node.kind)
                    found[key] = add(found.get(key, Counter()), times)

    def _branch(
        self,
        op: Any,
        body: tuple[Node, ...],
        times: Sum,
        found: dict[tuple[Any, int, str], Sum],
        *,
        holds: bool,
    ) -> None:
        """Adds what a branch does, times whether it is taken."""
        inner: dict[tuple[Any, int, str], Sum] = {}
        self._collect(body, constant(1), inner)
        guard, quantity = self._guard(op.condition)
        for key, total in inner.items():
            taken = _under_guard(total, guard, quantity)
            part = taken if holds else add(total, taken, -1)
            found[key] = add(found.get(key, Counter()), multiply(times, part))

    def _guard(self, condition: Any) -> tuple[str, Sum | None]:
        """The condition's text and, for x > 0, x."""
        owner = condition.owner
        if isinstance(owner, arith.CmpIOp):
            predicate = arith.CmpIPredicate(owner.predicate.value)
            left, right = self.sum(owner.lhs), self.sum(owner.rhs)
            quantity = left if predicate == arith.CmpIPredicate.sgt and not right else None
            sign = PREDICATES.get(predicate.name, predicate.name)
            return f"[{text(left)} {sign} {text(right)}]", quantity
        raise op_error(owner, "decides over ring operations, but depends on data")

    def _way(self, step: Any) -> int:
        total = self.sum((step.op if step.kind in OPENERS else step.op.slot.owner).way)
        if set(total) - {()}:
            raise op_error(step.op, "expects a way that is constant or the role's group")
        return total[()]

    def sum(self, value: Any) -> Sum:
        """An i32 as a sum of terms."""
        if value not in self._sums:
            self._sums[value] = self._compute(value)
        return self._sums[value]

    def _compute(self, value: Any) -> Sum:
        if value == self._group:
            return constant(self._process.group)
        if value in self._named:
            return Counter({(self._named[value],): 1})
        owner = value.owner
        if isinstance(owner, arith.ConstantOp):
            return constant(ir.IntegerAttr(owner.value).value)
        if isinstance(owner, ws.ExtentOp):
            size = self._atoms.extent(owner)
            return constant(size) if isinstance(size, int) else Counter({(size,): 1})
        if name := self._atoms.scalar(value):
            return Counter({(name,): 1})
        if isinstance(owner, ws.ElementOp):
            name = self._atoms.element(owner, lambda coord: text(self.sum(coord)))
            if name is None:
                raise op_error(owner, "decides over ring operations, but is no input's element")
            return Counter({(name,): 1})
        if not hasattr(owner, "operation"):
            raise op_error(self._process.role, "has a loop bound that depends on a loop variable")
        operands = [self.sum(operand) for operand in owner.operation.operands]
        match owner.operation.name:
            case "arith.addi":
                return add(operands[0], operands[1])
            case "arith.subi":
                return add(operands[0], operands[1], -1)
            case "arith.muli":
                return multiply(operands[0], operands[1])
            case name:
                settings = [str(attribute) for _, attribute in owner.operation.attributes.items()]
                inner = ", ".join([*(text(operand) for operand in operands), *settings])
                return Counter({(f"{_function(name)}({inner})",): 1})


def _under_guard(total: Sum, guard: str, quantity: Sum | None) -> Sum:
    """[x > 0] total, with [x > 0] x = x: the part of `total` that is a multiple of x is free."""
    free: Sum = Counter()
    if quantity:
        factors, coefficient = next(iter(quantity.items()))
        multiple, rest = divmod(total.get(factors, 0), coefficient)
        if multiple and not rest:
            free = multiply(constant(multiple), quantity)
    guarded = add(total, free, -1)
    return add(free, multiply(guarded, Counter({(guard,): 1})))
