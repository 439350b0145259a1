"""Derivatives of score modifiers: against differences in float64, and against torch's own rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir import mods
from attn_mlir import trace as tr
from attn_mlir.dialect.attn.programs.derivative import FLAT, RULES, Derivative, differentiated
from attn_mlir.dialect.attn.programs.evaluation import evaluate, value_of
from attn_mlir.dialect.attn.programs.program import (
    ARGUMENTS,
    BINARY,
    COMPARISONS,
    INTEGER_ONLY,
    LOGICAL,
    UNARY,
    Node,
    Program,
)
from attn_mlir.errors import SpecError
from attn_mlir.reference.modifier import host_arrays
from attn_mlir.trace import trace
from attn_mlir.validation.numerics.drawn_programs import FLOATS, arguments, arrays, programs

Array = np.ndarray[Any, Any]

B, H, Q, K = 2, 3, 5, 4
GRID = dict(zip(("batch", "head", "q", "k"), np.ix_(*map(np.arange, (B, H, Q, K))), strict=True))
KINDS = {"f32": np.float64, "i64": np.int64, "i32": np.int32, "i1": np.bool_}
STEP = 2.0**-20
EXACT = {"neg", "abs", "sqrt", "floor", "ceil", "round", "trunc", "f16", "bf16", "not"}
INEXACT = {*UNARY, "pow"} - EXACT
LAST_PLACES = 4 * 2.0**-53  # errors of functions of numpy and torch, relative
DRAWS, OF_SPREAD = 6, 4  # draws seldom have all signs that add up


def values(
    derivative: Derivative,
    at: Mapping[str, Any],
    tensors: Mapping[str, Any],
    dtype: Any = np.float64,
    changed: Callable[[Node, Any], Any] = lambda _, value: value,
) -> list[Any]:
    """The value of each node, where each is changed before others depend on it."""
    program = Program(derivative.nodes, derivative.score, tensors=derivative.tensors)
    found: list[Any] = []
    with np.errstate(all="ignore"):
        for node in derivative.nodes:
            args = [found[number] for number in node.args]
            value = value_of(program, node, args, at, tensors, {**KINDS, "f32": dtype})
            found.append(changed(node, value))
    return found


def spread(derivative: Derivative, at: Mapping[str, Any], tensors: Mapping[str, Any]) -> list[Any]:
    """How far the value of each node may be from that of another library.

    Sums, products and roots have the same bits everywhere, others are off by some units of the last
    place: so each node is as far off as these make it where they change by that much.
    """
    known = values(derivative, at, tensors)
    found = [0.0 * np.zeros(np.shape(x)) for x in known]
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)

        def off(node: Node, value: Any, random: np.random.Generator = random) -> Any:
            if node.type != "f32" or node.op not in INEXACT:
                return value
            return value * (1 + LAST_PLACES * random.choice([-1.0, 1.0], np.shape(value)))

        moved = values(derivative, at, tensors, changed=off)
        with np.errstate(all="ignore"):
            apart = (abs(np.float64(x) - np.float64(y)) for x, y in zip(moved, known, strict=True))
            found = [np.fmax(x, y) for x, y in zip(found, apart, strict=True)]
    return found


def elements(shape: Sequence[int], coordinates: Sequence[Any]) -> tuple[Any, ...]:
    """The element that a read with these coordinates gives, as `Node` says."""
    pairs = zip(coordinates, shape, strict=True)
    return tuple(np.clip(np.where(c < 0, c + n, c), 0, n - 1) for c, n in pairs)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def embedded(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * EMBEDDING[IDS[q], h] + EMBEDDING[IDS[k], h] ** 2


def gated(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * tr.sigmoid(GATE[q]) - SCALE * tr.softplus(GATE[-1] * score)


def by_bucket(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """A bias by the logarithm of the distance, as in T5."""
    distance = abs(q - k)
    far = 2 + (tr.log(distance.float() / 2.0) * 3.0).int()
    return score + BUCKETS[h, tr.where(distance < 2, distance, tr.minimum(far, 5))]


EMBEDDING, IDS = normal(6, H), np.array([5, 1, 1, 0, -2], np.int32)
GATE, SCALE, BUCKETS = normal(Q), np.float32([0.7]), normal(H, 6)
SINKS = normal(H)

MODS: dict[str, Any] = {
    "softcap": mods.softcap(1.5),
    "hardly capped": mods.softcap(2000.0),
    "alibi": mods.alibi(H),
    "alibi by batch": mods.alibi(normal(B, H), offset=np.array([1, 3], np.int32)),
    "relative bias": mods.relative_bias(normal(H, 4)),
    "relative logits": mods.relative_logits(normal(B, Q, H, 3)),
    "bias": mods.bias(normal(B, H, Q, K)),
    "bias of rank 3": mods.bias(normal(1, Q, K)),
    "bias of rank 2": mods.bias(normal(Q, 1)),
    "composed": mods.compose(mods.softcap(2.0), mods.bias(normal(Q, K)), mods.softcap(1.0)),
    "embedded": embedded,
    "gated": gated,
    "by bucket": by_bucket,
}


@pytest.mark.parametrize("name", MODS)
def test_derivatives_are_differences_of_modified_scores(name: str) -> None:
    """By the score, and by each element of the arrays: of a weighted sum of modified scores."""
    program, captured = trace(MODS[name], None, SINKS)
    assert program is not None
    tensors = {name: np.float64(x) for name, x in host_arrays(captured).items()}
    for key, array in host_arrays(captured).items():
        if array.dtype.kind != "f":
            tensors[key] = array
    scores = np.random.default_rng(0).standard_normal((B, H, Q, K))
    weights = np.random.default_rng(1).standard_normal((B, H, Q, K))
    derivative = differentiated(program)

    def modified(scores: Array, tensors: Mapping[str, Array]) -> Array:
        found = evaluate(program, {"score": scores, **GRID}, tensors).score
        return np.broadcast_to(found, scores.shape)

    at = {"score": scores, **GRID}
    slope = evaluate(derivative.program(derivative.slope), at, tensors).score
    difference = (modified(scores + STEP, tensors) - modified(scores - STEP, tensors)) / (2 * STEP)
    np.testing.assert_allclose(
        np.broadcast_to(slope, scores.shape), difference, rtol=1e-8, atol=1e-9
    )

    found = {key: np.zeros_like(array) for key, array in tensors.items() if array.dtype.kind == "f"}
    known = values(derivative, at, tensors)
    for read in derivative.reads:
        key = derivative.tensors[read.tensor].name
        places = elements(tensors[key].shape, [known[n] for n in derivative.nodes[read.node].args])
        adjoint = evaluate(derivative.program(read.adjoint), at, tensors).score
        parts = np.broadcast_to(weights * adjoint, scores.shape)
        np.add.at(found[key], tuple(np.broadcast_to(p, scores.shape) for p in places), parts)
    for key, gradient in found.items():
        for place in np.ndindex(*gradient.shape):
            moved = [{**tensors, key: tensors[key].copy()} for _ in range(2)]
            moved[0][key][place] += STEP
            moved[1][key][place] -= STEP
            up, down = ((weights * modified(scores, tensors)).sum() for tensors in moved)
            np.testing.assert_allclose(
                gradient[place], (up - down) / (2 * STEP), rtol=1e-7, atol=1e-8
            )
    (sink,) = derivative.sink_reads
    assert derivative.tensors[sink.tensor].name == "sinks" and sink.axes == ("head",)
    assert evaluate(derivative.program(sink.adjoint), at, tensors).score == 1.0


def by_torch(
    program: Program, at: Mapping[str, Any], tensors: Mapping[str, Any]
) -> dict[int, Array]:
    """The derivative by each argument and read, by torch's autograd in float64."""
    torch: Any = pytest.importorskip("torch")
    functions: dict[str, Callable[..., Any]] = {
        **{name: getattr(torch, name) for name in UNARY if hasattr(torch, name)},
        **{name: getattr(torch, name) for name in ("sub", "mul", "div", "pow")},
        "add": torch.add,
        "mod": torch.remainder,
        "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "min": torch.minimum,
        "max": torch.maximum,
    }
    bounds = {"min": "max", "max": "min"}
    known = values(Derivative(program.nodes, program.tensors, 0, 0, (), None, ()), at, tensors)
    count = len(at["score"])
    found: list[Any] = []
    leaves: dict[int, Any] = {}
    for number, (node, value) in enumerate(zip(program.nodes, known, strict=True)):
        made = torch.as_tensor(np.broadcast_to(value, (count,)).copy())
        args = [found[arg] for arg in node.args]
        if node.type == "f32" and node.op in ("argument", "load"):
            leaves[number] = made.requires_grad_()
        elif node.type == "f32" and node.op == "where":
            made = torch.where(*args)
        elif node.type == "f32" and node.op in bounds:
            fixed = [n for n in node.args if program.nodes[n].op == "constant"]
            if len(fixed) == 1:  # a bound
                (moving,) = (found[n] for n in node.args if n not in fixed)
                bound = program.nodes[fixed[0]].value
                made = torch.clamp(moving, **{bounds[node.op]: bound})
            else:
                made = functions[node.op](*args)
        elif node.type == "f32" and node.op in ("f16", "bf16"):
            (x,) = args  # rounded as ours: torch rounds float64 twice, by way of float32
            made = x + (made - x).detach()
        elif node.type == "f32" and node.op in functions:
            made = functions[node.op](*args)
        found.append(made)
    score = found[program.score]
    if score.requires_grad:
        score.sum().backward()
    return {n: np.zeros(count) if x.grad is None else x.grad.numpy() for n, x in leaves.items()}


def calm_points(known: Sequence[Any]) -> Array:
    """The points of arguments [count] without large numbers, from which sums lose small ones."""
    floats = [v for v in known if v.dtype == float]
    return np.all(
        [~(abs(v) > 1e4) | np.zeros(max(map(np.size, floats)), bool) for v in floats], axis=0
    )


def like_torch(
    program: Program,
    derivative: Derivative,
    known: Sequence[Any],
    at: Mapping[str, Any],
    tensors: Mapping[str, Any],
    calm: Array,
) -> int:
    """Compares the derivatives with torch's, as near as the two libraries' functions are.

    Returns:
      The number of derivatives that are not 0.
    """
    ours = {0: derivative.slope} | {r.node: r.adjoint for r in derivative.reads}
    by_libraries, compared = spread(derivative, at, tensors), 0
    for number, theirs in by_torch(program, at, tensors).items():
        node = ours.get(number)
        mine, off = (0.0, 0.0) if node is None else (known[node], by_libraries[node])
        got = np.broadcast_to(mine, theirs.shape)
        assert np.isfinite(got[np.isfinite(theirs)]).all()
        usual = np.isfinite(theirs) & calm
        with np.errstate(invalid="ignore"):
            bound = 1e-10 + 1e-9 * abs(theirs) + OF_SPREAD * np.broadcast_to(off, theirs.shape)
            assert np.all(abs(got - theirs)[usual] <= bound[usual])
        compared += np.count_nonzero(theirs[usual])
    return compared


def test_a_unit_of_the_last_place_may_be_amplified() -> None:
    """1 - tanh(x)^2 keeps seven digits where tanh is this near 1, and is then multiplied by 8e7: so a
    unit of the last place, by which functions of numpy and torch differ, is 1e-7 of the slope."""

    def saturated(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (tr.tanh(np.cos(s * 9000.0) + 11.0) - 1.0) * 9000.0

    program, _ = trace(saturated)
    assert program is not None
    at = arguments(np.random.default_rng(0), 500)
    at["score"] /= 8
    derivative = differentiated(program)
    known = values(derivative, at, {})
    slope, (theirs,) = known[derivative.slope], by_torch(program, at, {}).values()
    assert np.count_nonzero(abs(slope - theirs) > 1e-8 + 1e-7 * abs(theirs)) > 10
    assert like_torch(program, derivative, known, at, {}, calm_points(known)) > 400
    with pytest.raises(AssertionError):
        wrong = [x * (1 + 1e-5) if n == derivative.slope else x for n, x in enumerate(known)]
        like_torch(program, derivative, wrong, at, {}, calm_points(known))


@pytest.mark.parametrize("op", FLOATS)
def test_drawn_programs_have_the_derivatives_of_torch(op: str) -> None:
    """Wherever these are numbers; and differences agree where the program is smooth."""
    compared = smooth = 0

    @settings(max_examples=40, deadline=None, database=None)
    @given(programs(op), st.integers(0, 2**32 - 1))
    def check(program: Program, seed: int) -> None:
        nonlocal compared, smooth
        random = np.random.default_rng(seed)
        at, tensors = arguments(random, 24), arrays(random)
        derivative = differentiated(program)
        assert derivative.nodes[: len(program.nodes)] == program.nodes
        known = values(derivative, at, tensors)
        calm = calm_points(known)
        compared += like_torch(program, derivative, known, at, tensors, calm)
        if not {"f16", "bf16"} & {node.op for node in program.nodes}:  # these have steps everywhere
            smooth += smooth_points(program, derivative, at, tensors, calm)

    check()
    assert compared >= 50 or op in FLAT
    assert smooth >= 50 or op in ("f16", "bf16")


def smooth_points(
    program: Program,
    derivative: Derivative,
    at: Mapping[str, Any],
    tensors: Mapping[str, Any],
    calm: Array,
) -> int:
    """Checks the slope where differences of several sizes agree, and returns at how many points.

    Args:
      calm: the points without large numbers, from which sums lose small ones.
    """

    def difference(step: float) -> Array:
        ends = [
            evaluate(program, {**at, "score": at["score"] + s}, tensors).score
            for s in (step, -step)
        ]
        with np.errstate(all="ignore"):
            return np.broadcast_to((ends[0] - ends[1]) / (2 * step), at["score"].shape)

    wide, middle, narrow = difference(2.0**-12), difference(2.0**-13), difference(2.0**-14)
    close = difference(2.0**-20)  # of others that agree, each may span several jumps
    with np.errstate(all="ignore"):
        extrapolated = (4 * narrow - middle) / 3
        settled = (abs(wide - middle) < 1e-5) & (abs(middle - narrow) < 1e-5) & (abs(narrow) < 100)
        settled &= abs(narrow - close) < 1e-4
    slope = evaluate(derivative.program(derivative.slope), at, tensors).score
    got = np.broadcast_to(slope, at["score"].shape)
    settled &= np.isfinite(got) & calm
    np.testing.assert_allclose(got[settled], extrapolated[settled], rtol=1e-4, atol=1e-5)
    return int(np.count_nonzero(settled))


AT_KINKS: dict[str, Callable[[Any, Any], Any]] = {
    "abs": lambda torch, s: torch.abs(s),
    "clamp": lambda torch, s: torch.clamp(s, -1.0, 1.0),
    "clamp of a multiple": lambda torch, s: torch.clamp(2.0 * s, min=-2.0),
    "maximum": lambda torch, s: torch.maximum(s, s * 3.0),
    "minimum": lambda torch, s: torch.minimum(s, -s),
    "where": lambda torch, s: torch.where(s > 0.0, s * 2.0, s),
    "floor": lambda torch, s: torch.floor(s) * s,
    "round": lambda torch, s: torch.round(s) + s,
    "trunc": lambda torch, s: torch.trunc(s * 0.5) - s,
    "sign": lambda torch, s: torch.sign(s) * s,
    "remainder": lambda torch, s: torch.remainder(s, 2.0),
    "remainder by score": lambda torch, s: torch.remainder(torch.full_like(s, 5.0), s),
    "sqrt": lambda torch, s: torch.sqrt(s),
    "power": lambda torch, s: torch.pow(s, 3.0),
    "power of 17": lambda torch, s: torch.pow(s, 17.0),
    "power of 1.5": lambda torch, s: torch.pow(s, 1.5),
    "power of scores": lambda torch, s: torch.pow(abs(s), s),
    "reciprocal": lambda torch, s: 1.0 / s,
    "log": lambda torch, s: torch.log(s) + torch.log2(s),
    "sigmoid": lambda torch, s: torch.sigmoid(s),
    "silu": lambda torch, s: torch.nn.functional.silu(s),
    "gelu": lambda torch, s: torch.nn.functional.gelu(s),
    "gelu by tanh": lambda torch, s: torch.nn.functional.gelu(s, approximate="tanh"),
    "softplus": lambda torch, s: torch.nn.functional.softplus(s),
    "softplus with beta": lambda torch, s: torch.nn.functional.softplus(s, beta=3.0),
    "logsigmoid": lambda torch, s: torch.nn.functional.logsigmoid(s),
    "elu": lambda torch, s: torch.nn.functional.elu(s),
    "leaky relu": lambda torch, s: torch.nn.functional.leaky_relu(s),
    "logaddexp": lambda torch, s: torch.logaddexp(s, -s),
    "expm1": lambda torch, s: torch.expm1(s) + torch.exp2(s) + torch.log1p(s),
}
SPECIAL = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.0, 5.0, 25.0, -25.0, np.inf, -np.inf]


@pytest.mark.parametrize("name", AT_KINKS)
def test_kinks_follow_the_rules_of_torch(name: str) -> None:
    """A function is traced and differentiated here, and by torch: NaN and infinities too."""
    torch: Any = pytest.importorskip("torch")
    score = torch.tensor(SPECIAL, dtype=torch.float64, requires_grad=True)
    AT_KINKS[name](torch, score).sum().backward()
    program, _ = trace(lambda s, b, h, q, k: AT_KINKS[name](torch, s))
    assert program is not None
    slope = slope_at(program, score.detach().numpy())
    np.testing.assert_allclose(slope, score.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_what_a_choice_leaves_out_has_no_part_in_the_slope() -> None:
    """Not even where its own slope is infinite, which gives NaN in torch."""
    program, _ = trace(lambda s, b, h, q, k: tr.where(s > 0.0, tr.log(s) / tr.sqrt(s), 3.0 * s))
    assert program is not None
    np.testing.assert_allclose(slope_at(program, np.array([0.0, -1.0, 1.0])), [3, 3, 1], rtol=1e-12)


def slope_at(program: Program, scores: Array, dtype: Any = np.float64) -> Array:
    """The derivative by the score at scores, for query and key 0."""
    derivative = differentiated(program)
    at = {"score": scores, "batch": 0, "head": 0, "q": 0, "k": 0}
    found = evaluate(derivative.program(derivative.slope), at, {}, dtype).score
    return np.broadcast_to(found, np.shape(scores))


def test_relu_and_hardtanh_pass_all_on_at_their_bounds() -> None:
    """Programs do not tell them from clip, whose rule they take; torch has 0 there."""
    torch: Any = pytest.importorskip("torch")
    functional = torch.nn.functional
    for function, bound in ((functional.relu, 0.0), (functional.hardtanh, 1.0)):
        program, _ = trace(lambda s, b, h, q, k, function=function: function(s))
        assert program is not None and slope_at(program, np.array(bound)) == 1.0


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "tanh", "gelu"])
def test_slopes_of_large_scores_are_numbers_in_float32(name: str) -> None:
    function = getattr(tr, name)
    program, _ = trace(lambda s, b, h, q, k: function(s))
    assert program is not None
    scores = np.float32([-1e4, -200.0, -95.0, 0.0, 95.0, 200.0, 1e4])
    got = slope_at(program, scores, np.float32)
    truth = {"sigmoid": [0, 0, 0, 0.25, 0, 0, 0], "tanh": [0, 0, 0, 1, 0, 0, 0]}
    expected = truth.get(name, [0, 0, 0, 0.5, 1, 1, 1])
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-30)


def test_every_operation_of_floats_has_a_rule() -> None:
    of_others = {*COMPARISONS, *LOGICAL, *INTEGER_ONLY}  # their results are no floats
    assert {*RULES, *FLAT} == ({*UNARY, *BINARY} - of_others) | {"where", "cast"}
    assert not {*RULES} & FLAT


def test_an_operation_without_a_derivative_is_refused_by_name() -> None:
    nodes = [Node("argument", "f32" if n == "score" else "i32", value=n) for n in ARGUMENTS]
    program = Program((*nodes, Node("sorted", "f32", (0,)), Node("neg", "f32", (5,))), 6)
    with pytest.raises(
        SpecError, match=re.escape("score_mod uses sorted, which has no derivative")
    ):
        differentiated(program)
    flat = Program((*nodes, Node("floor", "f32", (0,)), Node("sorted", "f32", (5,))), 6)
    assert differentiated(flat).program(differentiated(flat).slope).nodes[-1].value == 0.0


def ops(program: Program) -> list[str]:
    """Operations of a program but for its arguments, the result's last."""
    return [node.op for node in program.nodes[len(ARGUMENTS) :]]


@pytest.mark.parametrize(
    ("mod", "expected"),
    [
        (mods.softcap(30.0), "constant div tanh constant mul sub"),  # 1 - tanh(s / 30)^2
        (mods.alibi(H), "constant"),
        (mods.relative_bias(normal(H, 4)), "constant"),
        (lambda s, b, h, q, k: s * 0.0 + q, "constant"),
        (lambda s, b, h, q, k: 3.0 * (s * -2.0) - s, "constant"),
        (lambda s, b, h, q, k: tr.sigmoid(s), "neg exp constant add div sub mul"),
        (lambda s, b, h, q, k: 1.0 / s, "constant div div neg"),
        (lambda s, b, h, q, k: tr.where(q > k, s, s), "constant"),
        (lambda s, b, h, q, k: s * s * 0.5, ""),
        (lambda s, b, h, q, k: tr.where(q > k, s * 2.0, s * s), "gt constant mul where"),
        (lambda s, b, h, q, k: tr.floor(s), "constant"),
    ],
)
def test_slopes_are_simplified(mod: Any, expected: str) -> None:
    program, _ = trace(mod)
    assert program is not None
    derivative = differentiated(program)
    slope = derivative.program(derivative.slope)
    assert " ".join(ops(slope)) == expected
    assert derivative.is_shift == (ops(slope) == ["constant"] and slope.nodes[-1].value == 1.0)
    assert Program.from_json(slope.canonical()) == slope


@pytest.mark.parametrize("name", [*MODS, *AT_KINKS])
def test_derivatives_are_programs_as_traced_ones(name: str) -> None:
    """They begin with the arguments, no two nodes are equal, and all that they have is needed."""
    if name in MODS:
        program, _ = trace(MODS[name])
    else:
        torch: Any = pytest.importorskip("torch")
        program, _ = trace(lambda s, b, h, q, k: AT_KINKS[name](torch, s))
    assert program is not None
    derivative = differentiated(program)
    for node in (derivative.slope, *(read.adjoint for read in derivative.reads)):
        made = derivative.program(node)
        assert [n.value for n in made.nodes[: len(ARGUMENTS)]] == list(ARGUMENTS)
        assert len({repr(n) for n in made.nodes}) == len(made.nodes)
        used = {arg for n in made.nodes for arg in n.args} | {made.score}
        assert used >= set(range(len(ARGUMENTS), len(made.nodes)))
        assert all(arg < place for place, n in enumerate(made.nodes) for arg in n.args)
        loads = {n.value for n in made.nodes if n.op == "load"}
        assert loads == set(range(len(made.tensors)))
