"""Integer expressions: their values, and their form in bundles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_mlir.errors import SpecError
from attn_mlir.expr import OPERATORS, Expr, compiled, evaluate, from_list, names, show, to_list

SIZES = {"batch": 3, "sq": 257}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7),
        ("sq", 257),
        (["add", "sq", 3], 260),
        (["sub", 3, "sq"], -254),
        (["mul", "batch", "sq"], 771),
        (["ceildiv", "sq", 256], 2),
        (["ceildiv", 0, 256], 0),
        (["floordiv", "sq", 256], 1),
        (["max", "batch", "sq"], 257),
        (["min", ["mul", "batch", 2], "sq"], 6),
    ],
)
def test_values(text: object, value: int) -> None:
    assert evaluate(from_list(text, SIZES, where="grid"), SIZES) == value


@pytest.mark.parametrize(
    "text", [None, 1.5, True, "heads", ["add", 1], ["pow", 2, 3], [1, 2, 3], {"add": 1}]
)
def test_refused(text: object) -> None:
    with pytest.raises(SpecError, match="grid"):
        from_list(text, SIZES, where="grid")


def test_depth_is_bounded() -> None:
    text: object = 1
    for _ in range(100):
        text = ["add", text, 1]
    with pytest.raises(SpecError, match="not an expression"):
        from_list(text, SIZES, where="grid")


def test_division_by_zero_names_the_expression() -> None:
    expr = from_list(["ceildiv", "sq", "batch"], SIZES, where="grid")
    with pytest.raises(SpecError, match=r"ceildiv\(sq, batch\) divides by 0"):
        evaluate(expr, {"sq": 1, "batch": 0})


@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_ceildiv_is_the_smallest_cover(size: int, tile: int) -> None:
    count = evaluate(from_list(["ceildiv", "n", tile], ["n"], where="grid"), {"n": size})
    assert (count - 1) * tile < size <= count * tile


def test_show() -> None:
    assert show(from_list(["ceildiv", ["add", "sq", 1], 256], SIZES, where="grid")) == (
        "ceildiv(add(sq, 1), 256)"
    )


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (("floordiv", -7, 2), -4),
        (("floordiv", 7, -2), -4),
        (("ceildiv", -7, 2), -3),
        (("ceildiv", 7, 2), 4),
        (("divui", 7, 2), 3),
        (("ceildivui", 7, 2), 4),
        (("ceildivui", 2**32 - 1, 2), 2**31),
        (("slt", -1, 0), 1),
        (("sge", -1, 0), 0),
        (("ne", 3, 3), 0),
    ],
)
def test_signs(expr: Expr, value: int) -> None:
    """The same whether the operands are numbers or names."""
    assert isinstance(expr, tuple)
    operator, a, b = expr
    values = {"a": int(str(a)), "b": int(str(b))}
    for written in (expr, (operator, "a", b), (operator, a, "b"), (operator, "a", "b")):
        assert compiled(written)(values) == value


def expressions() -> st.SearchStrategy[Expr]:
    """Trees over three names."""
    leaves = st.one_of(st.integers(-9, 9), st.sampled_from(["a", "b", "c"]))
    operators = st.sampled_from([o for o in OPERATORS if "div" not in o])
    return st.recursive(leaves, lambda inner: st.tuples(operators, inner, inner), max_leaves=12)


@given(expressions(), st.integers(-5, 5), st.integers(0, 5))
def test_compiled_is_evaluated(expr: Expr, a: int, b: int) -> None:
    values = {"a": a, "b": b, "c": 7}
    assert compiled(expr)(values) == evaluate(expr, values)
    assert names(expr) <= set(values)


def test_parts_that_are_shared_are_computed_once() -> None:
    """2^64 of them, were each computed wherever it occurs."""
    expr: Expr = "a"
    for _ in range(64):
        expr = ("add", expr, expr)
    assert compiled(expr)({"a": 3}) == 3 << 64
    assert names(expr) == {"a"}


def test_compiled_names_the_division_by_zero() -> None:
    for expr, told in (
        (
            ("floordiv", "a", ("sub", "b", 1)),
            r"floordiv\(a, sub\(b, 1\)\) divides by 0 for .*'b': 1",
        ),
        (("ceildiv", "a", 0), r"ceildiv\(a, 0\) divides by 0"),
    ):
        with pytest.raises(SpecError, match=told):
            compiled(expr)({"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("operator", "a", "b"),
    [
        *((operator, a, b) for operator in ("divui", "ceildivui") for a, b in ((-1, 2), (1, 0))),
        ("ceildivui", 1, -1),
    ],
)
def test_an_unsigned_division_of_something_negative_has_no_value(
    operator: str, a: int, b: int
) -> None:
    for expr in ((operator, "a", "b"), (operator, "a", b), (operator, a, b)):
        with pytest.raises(SpecError, match=f"of at least 0 and 1, got {a} and {b}"):
            compiled(expr)({"a": a, "b": b})
    assert compiled((operator, "a", "b"))({"a": 0, "b": 1}) == 0


def test_a_negative_divisor_is_unsigned_as_in_code() -> None:
    for expr in (("divui", "a", "b"), ("divui", "a", -1), ("divui", 7, -1)):
        assert compiled(expr)({"a": 7, "b": -1}) == 0


def test_lists_and_back() -> None:
    expr = ("add", ("ceildiv", "sq", 256), ("max", "batch", 1))
    listed = to_list(expr, SIZES)
    assert listed == ["add", ["ceildiv", "sq", 256], ["max", "batch", 1]]
    assert from_list(listed, SIZES, where="grid") == expr


def test_unsigned_divisions_in_bundles_are_plain() -> None:
    assert to_list(("divui", "sq", ("max", ("sub", "batch", 1), 1)), SIZES) == [
        "floordiv",
        "sq",
        ["max", ["sub", "batch", 1], 1],
    ]
    with pytest.raises(
        SpecError, match=r"divui\(sub\(sq, 1\), 2\) divides unsigned what may be neg"
    ):
        to_list(("divui", ("sub", "sq", 1), 2), SIZES)
    with pytest.raises(SpecError, match="divides unsigned"):
        to_list(("ceildivui", "scalar", 2), SIZES)


def test_bundles_do_not_compare() -> None:
    with pytest.raises(SpecError, match=r"slt\(sq, 2\) is no expression of a bundle"):
        to_list(("slt", "sq", 2), SIZES)
    for operator in ("slt", "divui"):
        with pytest.raises(SpecError, match="grid is not an expression"):
            from_list([operator, "sq", 2], SIZES, where="grid")
