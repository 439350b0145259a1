"""How often each ring operation runs, as a sum over the call's sizes.

Two facts are used: a loop from a to b in steps of s runs ceildiv(b - a, s) times (the bounds that
schedules write never cross), and [x > 0] x = x for a tile count x.
"""

from collections import Counter
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.expr import Expr, names

from .integers import RANK, sizes
from .skeleton import COORDINATES, GROUP, Branch, Loop, Meeting, Node, Process, Step, Tiles
from .sums import Sum, Sums, add, constant, multiply


class Counting:
    """Counts the steps of one process."""

    def __init__(self, kernel: ws.KernelOp, process: Process):
        self._process = process
        self._loops: set[str] = set()
        known = {GROUP: process.group, RANK: process.rank}
        self._sums = Sums(known, {*sizes(kernel), *COORDINATES})

    def steps(self) -> dict[tuple[Any, int, str], Sum]:
        """Acquires, commits, waits and releases per ring and instance, in one work tile."""
        found: dict[tuple[Any, int, str], Sum] = {}
        self._collect(self._process.body, constant(1), found)
        return found

    def _collect(
        self, nodes: tuple[Node, ...], times: Sum, found: dict[tuple[Any, int, str], Sum]
    ) -> None:
        for node in nodes:
            match node:
                case Tiles(body=body):
                    self._collect(body, times, found)
                case Loop():
                    turns: Expr = ("sub", node.end.expr, node.begin.expr)
                    if node.step != 1:
                        turns = ("ceildiv", turns, node.step)
                    self._loops.add(node.index)
                    self._collect(node.body, multiply(times, self._sum(turns)), found)
                case Branch(then=then, otherwise=otherwise):
                    self._branch(node, then, times, found, holds=True)
                    self._branch(node, otherwise, times, found, holds=False)
                case Meeting():
                    pass
                case Step():
                    key = (node.ring, self._instance(node), node.kind)
                    found[key] = add(found.get(key, Counter()), times)

    def _branch(
        self,
        node: Branch,
        body: tuple[Node, ...],
        times: Sum,
        found: dict[tuple[Any, int, str], Sum],
        *,
        holds: bool,
    ) -> None:
        """Adds what a branch does, times whether it is taken."""
        inner: dict[tuple[Any, int, str], Sum] = {}
        self._collect(body, constant(1), inner)
        guard, quantity = self._guard(node)
        for key, total in inner.items():
            taken = _under_guard(total, guard, quantity)
            part = taken if holds else add(total, taken, -1)
            found[key] = add(found.get(key, Counter()), multiply(times, part))

    def _guard(self, node: Branch) -> tuple[Sum, Sum | None]:
        """The condition, which is 0 or 1, and, for x > 0, x."""
        expr = node.condition.expr
        quantity = None
        if isinstance(expr, tuple) and expr[0] == "sgt" and not self._sum(expr[2]):
            quantity = self._sum(expr[1])
        return self._sum(expr), quantity

    def _instance(self, step: Step) -> int:
        total = self._sum(step.instance.expr)
        if set(total) - {()}:
            raise op_error(step.op, "expects an instance that is constant or the role's group")
        return total[()]

    def _sum(self, expr: Expr) -> Sum:
        if names(expr) & self._loops:
            raise op_error(self._process.role, "has a loop bound that depends on a loop variable")
        return self._sums(expr)


def _under_guard(total: Sum, guard: Sum, quantity: Sum | None) -> Sum:
    """[x > 0] total, with [x > 0] x = x: the part of `total` that is a multiple of x is free."""
    free: Sum = Counter()
    if quantity:
        factors, coefficient = next(iter(quantity.items()))
        multiple, rest = divmod(total.get(factors, 0), coefficient)
        if multiple and not rest:
            free = multiply(constant(multiple), quantity)
    guarded = add(total, free, -1)
    return add(free, multiply(guarded, guard))
