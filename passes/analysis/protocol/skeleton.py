"""The control skeleton of a role: its ring operations under its loops and branches.

Everything that only moves or computes data is left out. The rest is a deterministic process
whose only interaction with other roles is through rings, so that roles form a process network in
Kahn's sense: whether they finish does not depend on how fast each one runs.
"""

import operator
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import scf
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.expr import Evaluator, Expr, compiled, names, show

from .integers import RANK, Integers, NoExpressionError, known_at_launch

Value = Any

GROUP = "group"  # name of the group's number in formulas
COORDINATES = ("tile0", "tile1", "tile2")  # names of a work tile's coordinates

Sizes = dict[str, int]


class Formula(NamedTuple):
    """A value on which ring operations depend, and the function that computes it.

    Attributes:
      expr: over run-time sizes, scalars, elements of inputs and the names of block arguments.
      of: computes the value, given the values of these names.
    """

    expr: Expr
    of: Evaluator


@dataclass(frozen=True, eq=False)
class Step:
    """One ring operation.

    Attributes:
      kind: acquire, commit, wait or release.
      ring: the ring's SSA value.
      instance: computes the instance.
      slot: SSA value of the slot, the same for both ends of a pair.
      by: who completes a commit or release; empty otherwise.
      op: the operation, for messages.
    """

    kind: str
    ring: Value
    instance: Formula
    slot: Value
    by: str
    op: Any


@dataclass(frozen=True)
class Loop:
    """An `scf.for` around steps.

    Attributes:
      op: the operation, for messages.
      index: names its induction variable.
      begin, end, step: its values; the step is at least 1.
      body: what a turn does.
      varies: whether that depends on the induction variable.
    """

    op: Any
    index: str
    begin: Formula
    end: Formula
    step: int
    body: "tuple[Node, ...]"
    varies: bool

    def turns(self, sizes: Sizes) -> range:
        """The values that the induction variable takes for given sizes."""
        return range(self.begin.of(sizes), self.end.of(sizes), self.step)


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


@dataclass(frozen=True)
class Meeting:
    """A `ws.barrier`: after it each thread of the group knows what the others have done before
    it.
    """


Node = Step | Loop | Branch | Tiles | Meeting


@dataclass(frozen=True, eq=False)
class Process:
    """One group of a role in one CTA of a cluster.

    Attributes:
      label: name for messages.
      group_name: the role's name, with the group's number where there are several; the same in
        every CTA.
      role: the role.
      group: the group's number.
      rank: the CTA's number in its cluster.
      threads: arrivals of a handover by threads.
      body: what it does.
      sizes: the names that its loops and branches depend on.
    """

    label: str
    group_name: str
    role: ws.RoleOp
    group: int
    rank: int
    threads: int
    body: tuple[Node, ...]
    sizes: frozenset[str]

    @property
    def place(self) -> Sizes:
        """Its group number and rank by name: what its formulas have besides sizes and work
        tiles.
        """
        return {GROUP: self.group, RANK: self.rank}


def processes(kernel: ws.KernelOp) -> list[Process]:
    """The groups of a kernel's roles, in all CTAs of a cluster."""
    found: list[Process] = []
    evaluators: dict[Expr, Evaluator] = {}
    is_alone = ws.cta_count(kernel) == 1
    for role in kernel.roles():
        formulas = Formulas(kernel, evaluators)
        formulas.name(role.body.blocks[0].arguments[0], GROUP, moves=True)
        body = _nodes(role.body.blocks[0].operations, formulas)
        sizes = frozenset(formulas.used)
        threads = role.threads_per_group
        for group in range(role.group_count):
            group_name = f"{role.label}[{group}]" if role.group_count > 1 else role.label
            for rank in role.ranks:
                label = group_name if is_alone else f"{group_name} of CTA {rank}"
                found.append(Process(label, group_name, role, group, rank, threads, body, sizes))
    return found


def _nodes(operations: Sequence[Any], formulas: "Formulas") -> tuple[Node, ...]:
    nodes: list[Node] = []
    for op in operations:
        if isinstance(op, ws.AcquireOp | ws.WaitOp):
            kind = "acquire" if isinstance(op, ws.AcquireOp) else "wait"
            nodes.append(Step(kind, op.ring, formulas(op.instance), op.slot, "", op))
        elif isinstance(op, ws.CommitOp | ws.ReleaseOp):
            opener = op.slot.owner
            kind = "commit" if isinstance(op, ws.CommitOp) else "release"
            instance = formulas(opener.instance)
            nodes.append(Step(kind, opener.ring, instance, op.slot, op.by.value, op))
        elif isinstance(op, ws.BarrierOp):
            nodes.append(Meeting())
        elif isinstance(op, ws.TilesOp):
            for name, argument in zip(COORDINATES, op.body.blocks[0].arguments, strict=False):
                formulas.name(argument, name)
            extents = tuple(formulas.of_sizes(extent, op) for extent in op.extents)
            nodes.append(Tiles(op, extents, _nodes(op.body.blocks[0].operations, formulas)))
        elif isinstance(op, scf.ForOp):
            index = formulas.name(op.induction_variable, f"loop{len(formulas)}", moves=True)
            body = _nodes(op.region.blocks[0].operations, formulas)
            if _takes_steps(body):
                begin, end = formulas(op.lowerBound), formulas(op.upperBound)
                step, varies = _loop_step(op, formulas), index in _deciding(body)
                nodes.append(Loop(op, index, begin, end, step, body, varies))
        elif isinstance(op, scf.IfOp):
            regions = [r for r in op.operation.regions if len(r.blocks)]
            branches = [_nodes(r.blocks[0].operations, formulas) for r in regions] + [()]
            if _same_handovers(branches[0], branches[1]):
                nodes += branches[0]
            elif any(map(_takes_steps, branches)):
                nodes.append(Branch(op, formulas(op.condition), branches[0], branches[1]))
    return tuple(nodes)


def _takes_steps(nodes: Sequence[Node]) -> bool:
    """Whether there is a ring operation; meetings without one between them change nothing."""
    return not all(isinstance(node, Meeting) for node in nodes)


def _deciding(nodes: Sequence[Node]) -> set[str]:
    """The names on which branches and numbers of turns depend."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case Branch(condition=condition, then=then, otherwise=otherwise):
                found |= names(condition.expr) | _deciding(then) | _deciding(otherwise)
            case Loop(begin=begin, end=end, body=body):
                found |= names(begin.expr) | names(end.expr) | _deciding(body)
            case _:
                pass
    return found


def _loop_step(op: Any, formulas: "Formulas") -> int:
    step = formulas(op.step).expr
    if not isinstance(step, int) or step < 1:
        got = show(step)
        raise op_error(
            op, f"expects a constant step of at least 1 around ring operations, got {got}"
        )
    return step


def _same_handovers(then: Sequence[Node], otherwise: Sequence[Node]) -> bool:
    """Whether both branches make the same handovers in the same order.

    Then it does not matter which one is taken, and data may decide.
    """
    sides = [
        [(node.kind, node.slot, node.by) for node in nodes if isinstance(node, Step)]
        for nodes in (then, otherwise)
    ]
    only_steps = len(sides[0]) == len(then) and len(sides[1]) == len(otherwise)
    kinds = {kind for kind, _, _ in sides[0]}
    return only_steps and kinds <= {"commit", "release"} and bool(then) and sides[0] == sides[1]


def steps(process: Process) -> Iterator[Step]:
    """All steps in the body of a process, also within loops and branches, each once."""
    pending: list[Node] = list(process.body)
    while pending:
        match pending.pop():
            case Step() as step:
                yield step
            case Loop(body=body) | Tiles(body=body):
                pending += body
            case Branch(then=then, otherwise=otherwise):
                pending += [*then, *otherwise]
            case Meeting():
                pass


def fixed_instance(process: Process, step: Step) -> int:
    """The instance of a step, which may depend on the group's number alone.

    Raises:
      VerifyError: it is not known before the kernel runs.
    """
    try:
        return step.instance.of({GROUP: process.group})
    except KeyError:
        message = "expects an instance that is constant or the role's group"
        raise op_error(step.op, message) from None


def trips(nodes: Sequence[Node], sizes: Sizes) -> int:
    """How often the loops run in a work tile (`tile0`, ...) of group 0 in CTA 0, 0 where there is
    none; loops within loops count once per loop."""
    sizes = {GROUP: 0, RANK: 0, **sizes}
    total = 0
    for node in nodes:
        match node:
            case Tiles(extents=extents, body=body):
                if all(extent.of(sizes) > 0 for extent in extents):
                    total += trips(body, sizes)
            case Branch(condition=condition, then=then, otherwise=otherwise):
                total += trips(then if condition.of(sizes) else otherwise, sizes)
            case Loop(index=index, body=body) as loop:
                turns = loop.turns(sizes)
                total += len(turns) + trips(body, {**sizes, index: turns.start})
            case _:
                pass
    return total


def turning(members: Sequence[Process]) -> list[tuple[tuple[Node, ...], int]]:
    """The loops of processes, and what is around them: of those with the same `trips` for all sizes
    one, and how many these are."""
    found: dict[Hashable, list[tuple[Node, ...]]] = {}
    for process in members:
        body = _loops_of(process.body)
        found.setdefault(_outline(body), []).append(body)
    return [(bodies[0], len(bodies)) for bodies in found.values()]


def _loops_of(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes without what has no loop in it."""
    found: list[Node] = []
    for node in nodes:
        match node:
            case Tiles(body=body) | Loop(body=body):
                found.append(replace(node, body=_loops_of(body)))
            case Branch(then=then, otherwise=otherwise):
                inner = replace(node, then=_loops_of(then), otherwise=_loops_of(otherwise))
                found += [inner] if inner.then or inner.otherwise else []
            case _:
                pass
    return tuple(found)


def _outline(nodes: Sequence[Node]) -> Hashable:
    """The inputs of `trips`: formulas of loops and branches,
    each of which one function computes.
    """
    found: list[Hashable] = []
    for node in nodes:
        match node:
            case Tiles(extents=extents, body=body):
                found.append((*(extent.of for extent in extents), _outline(body)))
            case Branch(condition=condition, then=then, otherwise=otherwise):
                found.append((condition.of, _outline(then), _outline(otherwise)))
            case Loop(index=index, begin=begin, end=end, step=step, body=body):
                inner = index if body else ""
                found.append((inner, begin.of, end.of, step, _outline(body)))
            case _:
                pass
    return tuple(found)


def step_count(nodes: Sequence[Node], sizes: Sizes) -> int:
    """How many steps happen in one work tile."""
    total = 0
    for node in nodes:
        match node:
            case Step():
                total += 1
            case Tiles(body=body):
                total += step_count(body, sizes)
            case Branch(condition=condition, then=then, otherwise=otherwise):
                total += step_count(then if condition.of(sizes) else otherwise, sizes)
            case Loop(index=index, body=body) as loop:
                turns = loop.turns(sizes)
                if loop.varies:
                    total += sum(step_count(body, {**sizes, index: n}) for n in turns)
                elif turns:
                    total += len(turns) * step_count(body, {**sizes, index: turns.start})
            case Meeting():
                pass
    return total


def tally(nodes: Sequence[Node], sizes: Sizes) -> Counter[tuple[str, Value, int]]:
    """How often each kind of step happens to each ring instance, in one work tile."""
    found: Counter[tuple[str, Value, int]] = Counter()
    for node in nodes:
        match node:
            case Step():
                found[node.kind, node.ring, node.instance.of(sizes)] += 1
            case Tiles(body=body):
                found += tally(body, sizes)
            case Branch(condition=condition, then=then, otherwise=otherwise):
                found += tally(then if condition.of(sizes) else otherwise, sizes)
            case Loop(index=index, body=body) as loop:
                for number in loop.turns(sizes):
                    found += tally(body, {**sizes, index: number})
            case Meeting():
                pass
    return found


def named_sizes(members: Sequence[Process], sizes: Sizes) -> str:
    """The sizes that processes depend on, for messages: `keys = 128, tile0 = 1`; empty if none."""
    used = {name for process in members for name in process.sizes}
    return ", ".join(
        f"{name} = {sizes[name]}" for name in sorted(used & set(sizes) - {GROUP, RANK})
    )


class Formulas:
    """Formulas of the i32 and i1 values on which ring operations depend.

    Their names are those of `Integers`, and those that `name` gives to block arguments.

    Args:
      kernel: the kernel.
      evaluators: of expressions, to which those that are missing are added: roles compute the same
        values.
    """

    def __init__(self, kernel: ws.KernelOp, evaluators: dict[Expr, Evaluator]):
        self._evaluators = evaluators
        self._integers = Integers(kernel)
        self._known_at_launch = known_at_launch(kernel)
        self._found: dict[Value, Formula] = {}
        self.used: set[str] = set()

    def __len__(self) -> int:
        """How many values have been named or composed."""
        return len(self._integers)

    def name(self, argument: Value, name: str, *, moves: bool = False) -> str:
        """Names a block argument; `moves` if it takes several values within a work tile."""
        return self._integers.name(argument, name, moves=moves)

    def __call__(self, value: Value) -> Formula:
        """The formula of an i32 or i1; its names count as used.

        Raises:
          VerifyError: it depends on data.
        """
        if value not in self._found:
            formula = self._found[value] = self._formula(value)
            self.used |= names(formula.expr)
        return self._found[value]

    def of_sizes(self, value: Value, op: Any) -> Formula:
        """The formula of an extent of a tile space; its names do not count as used.

        Raises:
          VerifyError: on `op`, where it depends on more than run-time sizes and scalars.
        """
        formula = self._formula(value)
        others = sorted(names(formula.expr) - self._known_at_launch)
        if others:
            raise op_error(op, f"expects extents known at launch, got one of {', '.join(others)}")
        return formula

    def _formula(self, value: Value) -> Formula:
        try:
            expr = self._integers(value)
        except NoExpressionError as error:
            raise op_error(
                error.owner, "decides over ring operations, but depends on data"
            ) from None
        if expr not in self._evaluators:
            self._evaluators[expr] = _remembering(expr)
        return Formula(expr, self._evaluators[expr])


def _remembering(expr: Expr) -> Evaluator:
    """As `compiled`, but computes the value once for the same values of its names.

    Runs of one kernel ask for the turns of the same loops at the same sizes many times.
    """
    compute = compiled(expr)
    if not (read := sorted(names(expr))):
        return compute
    values_of = operator.itemgetter(*read)
    found: dict[Any, int] = {}

    def value(values: Mapping[str, int]) -> int:
        key = values_of(values)
        if key not in found:
            found[key] = compute(values)
        return found[key]

    return value
