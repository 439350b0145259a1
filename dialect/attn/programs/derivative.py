"""Derivatives of a score modifier: by the score, and by the elements of tensors that it reads.

A program is differentiated in reverse: from the modified score back to its operands, each node adds
what it passes on to the adjoint of each operand. The result has the program's own nodes first, so
that a kernel that computes both shares them.

The rules are torch's, kinks included:

* abs is flat at 0 and NaN. Where both operands of max or min are equal, each takes half. A
  constant operand is a bound as in `clamp`, at which the other one takes all; relu and hardtanh,
  which are the same programs, take that too, where torch has 0.
* where passes on to the operand that it takes, 0 to the other one, and nothing to its condition.
  The 0 stays 0 on its way further back, also where torch has 0 * inf.
* floor, ceil, round, trunc, //, comparisons, and integers and truth values in arithmetic are flat:
  a tensor that the score depends on through these alone has no derivative. a % b is a - (a // b) b.
* Rounding to f16 or bf16 passes on what it gets. torch rounds it, too.
* sqrt and pow are infinite or NaN at 0 where torch's are.

Sigmoid and softplus, which are composed of other operations, are differentiated as a whole: pieces
would be inf * 0 for large scores, and softplus has no kink at 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attn_mlir.dialect.attn.programs.program import CapturedTensor, Node, Program
from attn_mlir.dialect.attn.programs.reads import Pattern, axes_of, pattern_of
from attn_mlir.dialect.attn.programs.rewriting import Rewriter, extracted
from attn_mlir.errors import SpecError

LN2 = math.log(2.0)


class Step(NamedTuple):
    """One node on the way back.

    Attributes:
      result: the node.
      args: its operands.
      adjoint: the derivative of the score by the node.
    """

    result: int
    args: tuple[int, ...]
    adjoint: int


Partial = Callable[[Rewriter, Step], int]
"""Adds nodes for what a step passes on to one operand, and returns the last one."""


@dataclass(frozen=True)
class Read:
    """A read of a captured tensor of floats.

    The gradient of the element that it reads is the sum, over all scores, of `adjoint` times the
    gradient of the modified score. Coordinates are those of the read, clamped to the tensor.

    Attributes:
      node: the read, in the nodes of the derivative.
      tensor: number of the tensor.
      adjoint: the node with the derivative by the element.
      pattern: which scores read an element.
      axes: for each coordinate the argument that it is; None for any other number.
    """

    node: int
    tensor: int
    adjoint: int
    pattern: Pattern
    axes: tuple[str | None, ...]


@dataclass(frozen=True)
class Derivative:
    """A score modifier with its derivatives.

    Attributes:
      nodes: in order of evaluation; those of the modifier come first.
      tensors: the tensors that they read, as in the modifier.
      score: the node that is the modified score.
      slope: the node with its derivative by the score.
      reads: of the modified score, those that it has a derivative by.
      sink: the node with the logit of the sink, or None.
      sink_reads: as `reads`, of that logit.
    """

    nodes: tuple[Node, ...]
    tensors: tuple[CapturedTensor, ...]
    score: int
    slope: int
    reads: tuple[Read, ...]
    sink: int | None
    sink_reads: tuple[Read, ...]

    @property
    def is_shift(self) -> bool:
        """Whether the slope is 1 everywhere, as of a bias."""
        node = self.nodes[self.slope]
        return node.op == "constant" and node.value == 1.0

    def program(self, node: int) -> Program:
        """The program whose score is one of the nodes: `slope`, or the adjoint of a read."""
        return extracted(self.nodes, self.tensors, node)


def differentiated(program: Program) -> Derivative:
    """Differentiates a score modifier.

    Predicates (`keeps`) are not differentiated; a kernel passes no gradient on where they hide a
    score.

    Raises:
      SpecError: the score depends on an operation that has no derivative; names it.
    """
    made = Rewriter(program.nodes)
    adjoints = _adjoints(made, len(program.nodes), program.score)
    slope = next(
        (adjoints[n] for n in adjoints if program.nodes[n].value == "score"), made.constant(0.0)
    )
    reads = _reads(program.nodes, adjoints)
    sink_reads: tuple[Read, ...] = ()
    if program.sink is not None:
        sink_reads = _reads(program.nodes, _adjoints(made, len(program.nodes), program.sink))
    return Derivative(
        tuple(made.nodes), program.tensors, program.score, slope, reads, program.sink, sink_reads
    )


def _reads(nodes: Sequence[Node], adjoints: Mapping[int, int]) -> tuple[Read, ...]:
    """The reads among nodes with adjoints, in order."""
    found: list[Read] = []
    for number, adjoint in sorted(adjoints.items()):
        node = nodes[number]
        if node.op == "load":
            pattern, axes = pattern_of(nodes, node.args), axes_of(nodes, node.args)
            found.append(Read(number, int(node.value or 0), adjoint, pattern, axes))
    return tuple(found)


def _adjoints(made: Rewriter, count: int, score: int) -> dict[int, int]:
    """The adjoints of arguments and reads among the first `count` nodes that `score` depends on."""
    is_active = _active(made.nodes[:count])
    adjoints = {score: made.constant(1.0)} if is_active[score] else {}
    found: dict[int, int] = {}
    for number in range(score, -1, -1):
        if number not in adjoints:
            continue
        node, adjoint = made.nodes[number], adjoints[number]
        if node.op in ("argument", "load"):
            found[number] = adjoint
            continue
        for operand, passed_on in _passed_on(made, Step(number, node.args, adjoint)):
            if is_active[operand]:
                part = passed_on(made, Step(number, node.args, adjoint))
                known = adjoints.get(operand)
                adjoints[operand] = part if known is None else made.apply("add", known, part)
    return found


def _active(nodes: Sequence[Node]) -> list[bool]:
    """Which nodes depend on the score, or on a tensor of floats, other than by flat steps."""
    found: list[bool] = []
    for node in nodes:
        if node.type != "f32" or node.op == "constant" or node.op in FLAT:
            found.append(False)
        elif node.op in ("argument", "load"):
            found.append(True)
        else:
            operands = node.args[1:] if node.op == "where" else node.args
            found.append(any(found[number] for number in operands))
    return found


def _passed_on(made: Rewriter, step: Step) -> list[tuple[int, Partial]]:
    """The operands of a step, each with what is passed on to it.

    Raises:
      SpecError: the operation has no derivative.
    """
    whole = _softplus(made, step) or _logistic_quotient(made, step)
    if whole:
        return whole
    op = made.nodes[step.result].op
    if op not in RULES:
        raise SpecError(f"score_mod uses {op}, which has no derivative")
    pairs = zip(step.args, RULES[op], strict=True)
    return [(operand, partial) for operand, partial in pairs if partial is not None]


def _same(made: Rewriter, step: Step) -> int:
    return step.adjoint


def _opposite(made: Rewriter, step: Step) -> int:
    return made.apply("neg", step.adjoint)


def _times(factor: Callable[[Rewriter, Step], int]) -> Partial:
    """The adjoint times a factor."""
    return lambda made, step: made.apply("mul", step.adjoint, factor(made, step))


def _over(divisor: Callable[[Rewriter, Step], int]) -> Partial:
    """The adjoint divided."""
    return lambda made, step: made.apply("div", step.adjoint, divisor(made, step))


def _result(made: Rewriter, step: Step) -> int:
    return step.result


def _operand(place: int) -> Callable[[Rewriter, Step], int]:
    return lambda made, step: step.args[place]


def _multiple(
    factor: float, of: Callable[[Rewriter, Step], int]
) -> Callable[[Rewriter, Step], int]:
    return lambda made, step: made.apply("mul", of(made, step), made.constant(factor))


def _one_more(of: Callable[[Rewriter, Step], int]) -> Callable[[Rewriter, Step], int]:
    return lambda made, step: made.apply("add", of(made, step), made.constant(1.0))


def _function(op: str) -> Callable[[Rewriter, Step], int]:
    return lambda made, step: made.apply(op, step.args[0])


def _by_divisor(made: Rewriter, step: Step) -> int:
    """-g (a / b) / b"""
    ratio = made.apply("div", step.result, step.args[1])
    return made.apply("neg", made.apply("mul", step.adjoint, ratio))


def _by_modulus(made: Rewriter, step: Step) -> int:
    """-g (a // b)"""
    quotient = made.apply("floordiv", *step.args)
    return made.apply("neg", made.apply("mul", step.adjoint, quotient))


def _by_magnitude(made: Rewriter, step: Step) -> int:
    """g above 0, -g below, and 0 at 0 and NaN"""
    (x,), zero = step.args, made.constant(0.0)
    below = made.where(made.apply("lt", x, zero), _opposite(made, step), zero)
    return made.where(made.apply("gt", x, zero), step.adjoint, below)


def _tanh(made: Rewriter, step: Step) -> int:
    """1 - y y"""
    square = made.apply("mul", step.result, step.result)
    return made.apply("sub", made.constant(1.0), square)


def _erf(made: Rewriter, step: Step) -> int:
    """2 exp(-x x) / sqrt(pi)"""
    (x,) = step.args
    bell = made.apply("exp", made.apply("neg", made.apply("mul", x, x)))
    return made.apply("mul", bell, made.constant(2.0 / math.sqrt(math.pi)))


def _extreme(place: int, beats: str, loses: str) -> Partial:
    """A rule of max or min for an operand, which `beats` or `loses` to the other one."""

    def partial(made: Rewriter, step: Step) -> int:
        own, other = step.args[place], step.args[1 - place]
        zero = made.constant(0.0)
        if made.is_op(other, "constant"):
            return made.where(made.apply(beats, own, other), step.adjoint, zero)
        half = made.apply("mul", step.adjoint, made.constant(0.5))
        shared = made.where(made.apply("eq", own, other), half, step.adjoint)
        return made.where(made.apply(loses, own, other), zero, shared)

    return partial


def _power(made: Rewriter, base: int, exponent: int) -> int:
    """base ** exponent, by a simpler operation where the exponent is a constant that has one."""
    match made.constant_at(exponent):
        case 0.0:
            return made.constant(1.0)
        case 0.5:
            return made.apply("sqrt", base)
        case 1.0:
            return base
        case 2.0:
            return made.apply("mul", base, base)
        case _:
            return made.apply("pow", base, exponent)


def _by_base(made: Rewriter, step: Step) -> int:
    """g b a^(b - 1), which is 0 where the exponent is 0, whatever the base is."""
    base, exponent = step.args
    lower = _power(made, base, made.apply("sub", exponent, made.constant(1.0)))
    passed = made.apply("mul", step.adjoint, made.apply("mul", lower, exponent))
    known = made.constant_at(exponent)
    if known is not None:
        return passed if known else made.constant(0.0)
    zero = made.constant(0.0)
    return made.where(made.apply("eq", exponent, zero), zero, passed)


def _by_exponent(made: Rewriter, step: Step) -> int:
    """g y ln a, which is 0 where the base is 0 and the exponent is not below 0."""
    base, exponent = step.args
    zero = made.constant(0.0)
    logarithm = made.apply("mul", step.result, made.apply("log", base))
    passed = made.apply("mul", step.adjoint, logarithm)
    not_below = made.where(made.apply("ge", exponent, zero), zero, passed)
    return made.where(made.apply("eq", base, zero), not_below, passed)


def _taken(place: int) -> Partial:
    """A rule of `where` for the operand at a place."""

    def partial(made: Rewriter, step: Step) -> int:
        zero = made.constant(0.0)
        choices = (step.adjoint, zero) if place == 1 else (zero, step.adjoint)
        return made.where(step.args[0], *choices)

    return partial


RULES: dict[str, tuple[Partial | None, ...]] = {
    "neg": (_opposite,),
    "abs": (_by_magnitude,),
    "exp": (_times(_result),),
    "exp2": (_times(_multiple(LN2, _result)),),
    "expm1": (_times(_one_more(_result)),),
    "log": (_over(_operand(0)),),
    "log2": (_over(_multiple(LN2, _operand(0))),),
    "log1p": (_over(_one_more(_operand(0))),),
    "tanh": (_times(_tanh),),
    "sqrt": (_over(_multiple(2.0, _result)),),
    "sin": (_times(_function("cos")),),
    "cos": (lambda made, step: made.apply("neg", _times(_function("sin"))(made, step)),),
    "erf": (_times(_erf),),
    "f16": (_same,),
    "bf16": (_same,),
    "add": (_same, _same),
    "sub": (_same, _opposite),
    "mul": (_times(_operand(1)), _times(_operand(0))),
    "div": (_over(_operand(1)), _by_divisor),
    "mod": (_same, _by_modulus),
    "pow": (_by_base, _by_exponent),
    "max": (_extreme(0, "ge", "lt"), _extreme(1, "ge", "lt")),
    "min": (_extreme(0, "le", "gt"), _extreme(1, "le", "gt")),
    "where": (None, _taken(1), _taken(2)),
}
"""For each operation on f32 what it passes on to each of its operands."""

FLAT = frozenset({"floor", "ceil", "round", "trunc", "floordiv", "cast"})
"""Operations whose result is an f32 that is constant between jumps."""


def _logistic_quotient(made: Rewriter, step: Step) -> list[tuple[int, Partial]]:
    """The operands of a / (exp(z) + 1), of which z gets -g y (1 - 1 / (exp(z) + 1))."""
    if not made.is_op(step.result, "div"):
        return []
    numerator, divisor = step.args
    exponential = _added_to(made, divisor, 1.0)
    if exponential is None or not made.is_op(exponential, "exp"):
        return []

    def by_exponent(made: Rewriter, step: Step) -> int:
        one = made.constant(1.0)
        weight = made.apply("sub", one, made.apply("div", one, divisor))
        slope = made.apply("mul", step.result, weight)
        return made.apply("neg", made.apply("mul", step.adjoint, slope))

    (inner,) = made.nodes[exponential].args
    return [(numerator, _over(_operand(1))), (inner, by_exponent)]


def _softplus(made: Rewriter, step: Step) -> list[tuple[int, Partial]]:
    """The operand x of max(x, 0) + log1p(exp(-|x|)), which gets g / (exp(-x) + 1)."""
    if not made.is_op(step.result, "add"):
        return []
    top, tail = step.args
    chain = [tail]
    for op in ("log1p", "exp", "neg", "abs"):
        if not made.is_op(chain[-1], op):
            return []
        chain.append(made.nodes[chain[-1]].args[0])
    x, zero = chain[-1], made.constant(0.0)
    if made.nodes[top] != Node("max", "f32", (x, zero)):
        return []

    def by_operand(made: Rewriter, step: Step) -> int:
        divisor = made.apply("add", made.apply("exp", made.apply("neg", x)), made.constant(1.0))
        return made.apply("div", step.adjoint, divisor)

    return [(x, by_operand)]


def _added_to(made: Rewriter, number: int, constant: float) -> int | None:
    """The node that a constant is added to, if the number is such a sum."""
    node = made.nodes[number]
    if node.op != "add":
        return None
    for own, other in (node.args, node.args[::-1]):
        if made.constant_at(other) == constant:
            return own
    return None
