"""Simplified programs compute what they would unsimplified, infinities and NaN included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.dialect.attn.programs.evaluation import value_of
from attn_mlir.dialect.attn.programs.program import ARGUMENTS, CapturedTensor, Node, Program
from attn_mlir.dialect.attn.programs.rewriting import LEAST, MOST, Rewriter, extracted

START = [Node("argument", "f32" if name == "score" else "i32", value=name) for name in ARGUMENTS]
SCORES = np.array([0.0, 1.0, -1.0, 0.3, -7.5, 1e4, np.inf, -np.inf, np.nan])
KINDS = {"f32": np.float64, "i32": np.int32, "i1": np.bool_}
CONSTANTS = (0.0, 1.0, -1.0, 2.0, -0.5, 3.0)
OPS = ("add", "sub", "mul", "div", "neg", "where", "constant", "tanh")


def computed(nodes: list[Node]) -> list[Any]:
    """The value of each node for each of the scores; query 0 and key 1."""
    at = {"score": SCORES, "batch": 0, "head": 0, "q": 0, "k": 1}
    program, found = Program(tuple(nodes), 0), list[Any]()
    with np.errstate(all="ignore"):
        for node in nodes:
            args = [found[number] for number in node.args]
            found.append(value_of(program, node, args, at, {}, KINDS))
    return [np.broadcast_to(value, SCORES.shape) for value in found]


@settings(max_examples=500, deadline=None, database=None)
@given(
    st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 99), st.integers(0, 99)), max_size=14)
)
def test_simplified_programs_compute_the_same(steps: list[tuple[str, int, int]]) -> None:
    plain = [*START, Node("lt", "i1", (3, 4)), Node("gt", "i1", (3, 4))]
    made = Rewriter(plain)
    pairs = [(0, 0)]  # numbers of the same value in both
    chooses_zero = False
    for op, first, second in steps:
        (a, x), (b, y) = pairs[first % len(pairs)], pairs[second % len(pairs)]
        if op == "constant":
            value = CONSTANTS[first % len(CONSTANTS)]
            node, simplified = Node("constant", "f32", value=value), made.constant(value)
        elif op == "where":
            condition = 5 + (first + second) % 2
            node, simplified = Node("where", "f32", (condition, a, b)), made.where(condition, x, y)
            chooses_zero = True
        elif op in ("neg", "tanh"):
            node, simplified = Node(op, "f32", (a,)), made.apply(op, x)
        else:
            node, simplified = Node(op, "f32", (a, b)), made.apply(op, x, y)
        plain.append(node)
        pairs.append((len(plain) - 1, simplified))
    expected, got = computed(plain), computed(made.nodes)
    divisors = [node.args[1] for node in plain if node.op == "div"]
    by_zero = np.any([expected[number] == 0 for number in divisors], axis=0)
    for a, x in pairs:
        same = np.isclose(got[x], expected[a], rtol=1e-9, atol=1e-9, equal_nan=True)
        same |= np.isnan(expected[a]) & chooses_zero  # 0 where a choice leaves a NaN out
        same |= by_zero  # the sign of a zero is not kept, so neither is that of an infinity
        assert same.all(), (expected[a], got[x])


def simplified(*steps: tuple[Any, ...]) -> str:
    """The result of operations whose operands are `s`, constants, and earlier results by number."""
    made = Rewriter([*START, Node("lt", "i1", (3, 4))])
    numbers = {"s": 0, "c": 5}
    results: list[int] = []

    def operand(x: Any) -> int:
        if isinstance(x, str):
            return numbers[x]
        return results[x] if isinstance(x, int) else made.constant(x)

    for op, *args in steps:
        function = made.where if op == "where" else lambda *a, op=op: made.apply(op, *a)
        results.append(function(*map(operand, args)))

    def text(number: int) -> str:
        node = made.nodes[number]
        if node.op == "constant":
            return str(node.value)
        if number in numbers.values():
            return "s" if number == 0 else "c"
        return f"{node.op}({', '.join(map(text, node.args))})"

    return text(results[-1])


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("mul", "s", 1.0)], "s"),
        ([("mul", -1.0, "s")], "neg(s)"),
        ([("add", 0.0, "s")], "s"),
        ([("sub", 0.0, "s")], "neg(s)"),
        ([("div", 2.0, 0.0)], "div(2.0, 0.0)"),
        ([("div", 3.0, 2.0)], "1.5"),
        ([("mul", "s", 0.0)], "mul(s, 0.0)"),
        ([("mul", "s", 3.0), ("mul", 0, 0.5)], "mul(s, 1.5)"),
        ([("mul", "s", 3.0), ("div", 0, 3.0)], "s"),
        ([("neg", "s"), ("neg", 0)], "s"),
        ([("neg", "s"), ("add", 1.0, 0)], "sub(1.0, s)"),
        ([("neg", "s"), ("sub", 1.0, 0)], "add(1.0, s)"),
        ([("mul", "s", 0.5), ("add", 0, 0)], "s"),
        ([("mul", "s", 2.0), ("mul", "s", -1.0), ("add", 0, 1)], "sub(mul(s, 2.0), s)"),
        ([("mul", "s", MOST), ("mul", 0, 4.0)], f"mul(mul(s, {MOST}), 4.0)"),
        ([("mul", "s", LEAST), ("mul", 0, 0.25)], f"mul(mul(s, {LEAST}), 0.25)"),
        ([("where", "c", "s", "s")], "s"),
        ([("where", "c", "s", 1.0), ("where", "c", 0, 2.0)], "where(c, s, 2.0)"),
        ([("where", "c", 1.0, 0.0), ("where", "c", 0.0, "s"), ("add", 0, 1)], "where(c, 1.0, s)"),
        ([("where", "c", 1.0, 0.0), ("mul", "s", 0)], "where(c, s, 0.0)"),
        ([("where", "c", 0.0, 1.0), ("div", 0, "s")], "where(c, 0.0, div(1.0, s))"),
        ([("mul", "s", "s"), ("mul", "s", "s"), ("sub", 1.0, 1)], "sub(1.0, mul(s, s))"),
    ],
)
def test_rules(steps: list[tuple[Any, ...]], expected: str) -> None:
    assert simplified(*steps) == expected


def test_an_extract_has_what_it_needs_alone() -> None:
    tensors = tuple(CapturedTensor(name, "f32", 1) for name in "abc")
    nodes = [
        *START,
        Node("load", "f32", (3,), 1),
        Node("load", "f32", (4,), 2),
        Node("neg", "f32", (6,)),
        Node("mul", "f32", (7, 0)),
    ]
    made = extracted(nodes, tensors, 8)
    assert made.tensors == tensors[2:] and not made.keeps and made.sink is None
    assert [node.op for node in made.nodes[5:]] == ["load", "neg", "mul"]
    assert made.nodes[5] == Node("load", "f32", (4,), 0) and made.nodes[7].args == (6, 0)
    assert extracted(nodes, tensors, 0) == Program(tuple(START), 0)
