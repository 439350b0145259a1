"""The control skeleton of a role: its ring operations under its loops and branches.

Everything that only moves or computes data is left out. What remains is a deterministic process
whose only interaction with other roles is through rings, so that roles form a process network in
Kahn's sense: whether they finish does not depend on how fast each one runs.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, scf
from attn_mlir.dialect.scalars import is_plain_division
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.diagnostics import op_error

from .atoms import Atoms, known_at_launch

Value = Any

GROUP = "group"  # the name of a role's group in formulas

Sizes = dict[str, int]
Formula = Callable[[Sizes], int]


@dataclass(frozen=True)
class Step:
    """One ring operation.

    Attributes:
      kind: acquire, commit, wait or release.
      ring: the ring's SSA value.
      way: computes the way.
      slot: SSA value of the slot, the same for both ends of a pair.
      by: who completes a commit or release; empty otherwise.
      op: the operation, for messages.
    """

    kind: str
    ring: Value
    way: Formula
    slot: Value
    by: str
    op: Any


@dataclass(frozen=True)
class Loop:
    """An `scf.for` around steps; `index` names its induction variable."""

    op: Any
    index: str
    begin: Formula
    end: Formula
    step: Formula
    body: "tuple[Node, ...]"


@dataclass(frozen=True)
class Branch:
    """An `scf.if` around steps."""

    op: Any
    condition: Formula
    then: "tuple[Node, ...]"
    otherwise: "tuple[Node, ...]"


@dataclass(frozen=True)
class Tiles:
    """The tile-scheduler loop; one work tile at a time."""

    op: ws.TilesOp
    extents: tuple[Formula, ...]
    body: "tuple[Node, ...]"


Node = Step | Loop | Branch | Tiles


@dataclass(frozen=True)
class Process:
    """One group of a role.

    Attributes:
      label: name for messages.
      role: the role.
      group: the group's number.
      threads: arrivals of a handover by threads.
      body: what it does.
      sizes: the names that decide over it.
    """

    label: str
    role: ws.RoleOp
    group: int
    threads: int
    body: tuple[Node, ...]
    sizes: frozenset[str]


def processes(kernel: ws.KernelOp) -> list[Process]:
    """The groups of a kernel's roles."""
    found: list[Process] = []
    for role in kernel.roles():
        formulas = Formulas(kernel)
        formulas.name(role.body.blocks[0].arguments[0], GROUP)
        body = _nodes(role.body.blocks[0].operations, formulas)
        sizes = frozenset(formulas.used)
        for group in range(role.group_count):
            label = f"{role.label}[{group}]" if role.group_count > 1 else role.label
            threads = role.threads_per_group
            found.append(Process(label, role, group, threads, body, sizes))
    return found


def _nodes(operations: Sequence[Any], formulas: "Formulas") -> tuple[Node, ...]:
    nodes: list[Node] = []
    for op in operations:
        if isinstance(op, ws.AcquireOp | ws.WaitOp):
            kind = "acquire" if isinstance(op, ws.AcquireOp) else "wait"
            nodes.append(Step(kind, op.ring, formulas(op.way), op.slot, "", op))
        elif isinstance(op, ws.CommitOp | ws.ReleaseOp):
            opener = op.slot.owner
            kind = "commit" if isinstance(op, ws.CommitOp) else "release"
            way = formulas(opener.way)
            nodes.append(Step(kind, opener.ring, way, op.slot, op.by.value, op))
        elif isinstance(op, ws.TilesOp):
            for number, argument in enumerate(op.body.blocks[0].arguments):
                formulas.name(argument, f"tile{number}")
            extents = tuple(formulas.of_sizes(extent, op) for extent in op.extents)
            nodes.append(Tiles(op, extents, _nodes(op.body.blocks[0].operations, formulas)))
        elif isinstance(op, scf.ForOp):
            index = formulas.name(op.induction_variable, f"loop{len(formulas)}")
            body = _nodes(op.region.blocks[0].operations, formulas)
            if body:
                begin, end = formulas(op.lowerBound), formulas(op.upperBound)
                nodes.append(Loop(op, index, begin, end, formulas(op.step), body))
        elif isinstance(op, scf.IfOp):
            regions = [r for r in op.operation.regions if len(r.blocks)]
            branches = [_nodes(r.blocks[0].operations, formulas) for r in regions] + [()]
            if _same_handovers(branches[0], branches[1]):
                nodes += branches[0]
            elif any(branches):
                nodes.append(Branch(op, formulas(op.condition), branches[0], branches[1]))
    return tuple(nodes)


def _same_handovers(then: Sequence[Node], otherwise: Sequence[Node]) -> bool:
    """Whether both branches hand over the same slots, in one order and in one way: then it does not
    matter which is taken, and data may decide."""
    sides = [
        [(node.kind, node.slot, node.by) for node in nodes if isinstance(node, Step)]
        for nodes in (then, otherwise)
    ]
    only_steps = len(sides[0]) == len(then) and len(sides[1]) == len(otherwise)
    kinds = {kind for kind, _, _ in sides[0]}
    return only_steps and kinds <= {"commit", "release"} and bool(then) and sides[0] == sides[1]


def steps(process: Process) -> Iterator[Step]:
    """All steps of a process, wherever they stand, each once."""
    pending: list[Node] = list(process.body)
    while pending:
        match pending.pop():
            case Step() as step:
                yield step
            case Loop(body=body) | Tiles(body=body):
                pending += body
            case Branch(then=then, otherwise=otherwise):
                pending += [*then, *otherwise]


def fixed_way(process: Process, step: Step) -> int:
    """The way of a step, over which only the group may decide.

    Raises:
      VerifyError: it is not known before the kernel runs.
    """
    try:
        return step.way({GROUP: process.group})
    except KeyError:
        message = "expects a way that is constant or the role's group"
        raise op_error(step.op, message) from None


def trips(nodes: Sequence[Node], sizes: Sizes) -> int:
    """How often the loops run in a work tile (`tile0`, ...) of group 0, 0 where there is none; loops
    within loops count once per loop."""
    sizes = {GROUP: 0, **sizes}
    total = 0
    for node in nodes:
        match node:
            case Tiles(extents=extents, body=body):
                if all(extent(sizes) > 0 for extent in extents):
                    total += trips(body, sizes)
            case Branch(condition=condition, then=then, otherwise=otherwise):
                total += trips(then if condition(sizes) else otherwise, sizes)
            case Loop(index=index, begin=begin, end=end, body=body):
                first = begin(sizes)
                total += max(0, end(sizes) - first) + trips(body, {**sizes, index: first})
            case _:
                pass
    return total


def tally(nodes: Sequence[Node], sizes: Sizes) -> Counter[tuple[str, Value, int]]:
    """How often each kind of step happens to each ring way, in one work tile."""
    found: Counter[tuple[str, Value, int]] = Counter()
    for node in nodes:
        match node:
            case Step():
                found[node.kind, node.ring, node.way(sizes)] += 1
            case Tiles(body=body):
                found += tally(body, sizes)
            case Branch(condition=condition, then=then, otherwise=otherwise):
                found += tally(then if condition(sizes) else otherwise, sizes)
            case Loop(index=index, begin=begin, end=end, step=step, body=body):
                for number in range(begin(sizes), end(sizes), step(sizes)):
                    found += tally(body, {**sizes, index: number})
    return found


def named_sizes(members: Sequence[Process], sizes: Sizes) -> str:
    """The sizes that decide over processes, for messages: `keys = 128, tile0 = 1`; or nothing."""
    used = {name for process in members for name in process.sizes}
    found = (f"{name} = {sizes[name]}" for name in sorted(used & set(sizes) - {GROUP}))
    return _BRACKETED.sub(r"[\1]", ", ".join(found))


def decisions(nodes: Sequence[Node], sizes: Sizes) -> tuple[Any, ...]:
    """What the loops and branches do in one work tile: equal decisions make equal runs."""
    found: list[Any] = []
    for node in nodes:
        match node:
            case Tiles(body=body):
                found.append(decisions(body, sizes))
            case Branch(condition=condition, then=then, otherwise=otherwise):
                holds = bool(condition(sizes))
                found.append((holds, decisions(then if holds else otherwise, sizes)))
            case Loop(index=index, begin=begin, end=end, step=step, body=body):
                turns = range(begin(sizes), end(sizes), step(sizes))
                if any(not isinstance(inner, Step) for inner in body):
                    found += [decisions(body, {**sizes, index: number}) for number in turns]
                found.append(len(turns))
            case _:
                pass
    return tuple(found)


_BINARY = {
    "arith.addi": "({} + {})",
    "arith.subi": "({} - {})",
    "arith.muli": "({} * {})",
    "arith.floordivsi": "({} // {})",
    "arith.ceildivsi": "(-(-{} // {}))",
    "arith.maxsi": "max({}, {})",
    "arith.minsi": "min({}, {})",
}
_DIVISIONS = ("arith.floordivsi", "arith.ceildivsi")
PREDICATES = {"eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}

_BRACKETED = re.compile(r"\[\(([^()]*)\)\]")  # the place of an element: a sum in parentheses
_NAME = re.compile(r"n\['([^']+)'\]")


def plain(operand: int, least: int) -> int:
    """An operand of a division that is promised to be at least `least`.

    Raises:
      VerifyError: it is less; the code, which divides unsigned, would not do what is proved.
    """
    if operand < least:
        raise VerifyError(
            f"a division that decides over ring operations is promised operands of at least "
            f"{least}, got {operand}; without the promise, arith's signed divisions take any"
        )
    return operand


class Formulas:
    """The i32 and i1 values that decide over ring operations, as Python functions of their names.

    Names are those of `Atoms`, and the ones given to block arguments with `name`.
    """

    def __init__(self, kernel: ws.KernelOp):
        self._atoms = Atoms(kernel)
        self._known_at_launch = known_at_launch(kernel)
        self._texts: dict[Value, str] = {}
        self.used: set[str] = set()

    def __len__(self) -> int:
        """How many values have been named or composed."""
        return len(self._texts)

    def name(self, argument: Value, name: str) -> str:
        """Names a block argument."""
        self._texts[argument] = self._size(name)
        return name

    def __call__(self, value: Value) -> Formula:
        """The function that computes an i32 or i1; its names count as used.

        Raises:
          VerifyError: it depends on data.
        """
        text = self._text(value)
        self.used.update(_NAME.findall(text))
        return eval(f"lambda n: {text}")

    def of_sizes(self, value: Value, op: Any) -> Formula:
        """The function that computes an extent of a tile space; its names do not count as used.

        Raises:
          VerifyError: on `op`, where it depends on more than run-time sizes and scalars.
        """
        text = self._text(value)
        others = sorted(set(_NAME.findall(text)) - self._known_at_launch)
        if others:
            raise op_error(op, f"expects extents known at launch, got one of {', '.join(others)}")
        return eval(f"lambda n: {text}")

    def _size(self, name: str) -> str:
        return f"n[{name!r}]"

    def _text(self, value: Value) -> str:
        if value not in self._texts:
            self._texts[value] = self._compose(value)
        return self._texts[value]

    def _compose(self, value: Value) -> str:
        owner = value.owner
        if isinstance(owner, arith.ConstantOp):
            return str(int(ir.IntegerAttr(owner.value).value))
        if isinstance(owner, ws.ExtentOp):
            size = self._atoms.extent(owner)
            return str(size) if isinstance(size, int) else self._size(size)
        if scalar := self._atoms.scalar(value):
            return self._size(scalar)
        name = owner.operation.name if hasattr(owner, "operation") else ""
        if name in _BINARY:
            operands = [self._text(operand) for operand in owner.operands]
            if name in _DIVISIONS and is_plain_division(owner):
                operands = [f"plain({operands[0]}, 0)", f"plain({operands[1]}, 1)"]
            return _BINARY[name].format(*operands)
        if isinstance(owner, arith.CmpIOp):
            sign = PREDICATES[arith.CmpIPredicate(owner.predicate.value).name]
            return f"({self._text(owner.lhs)} {sign} {self._text(owner.rhs)})"
        if isinstance(owner, ws.ElementOp):
            name = self._atoms.element(owner, lambda coord: _NAME.sub(r"\1", self._text(coord)))
            if name is not None:
                return self._size(name)
        raise op_error(owner, "decides over ring operations, but depends on data")
