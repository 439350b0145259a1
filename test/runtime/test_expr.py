"""Expressions over run-time sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_mlir.errors import SpecError
from attn_mlir.runtime.expr import evaluate, parse_expr, show

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
    assert evaluate(parse_expr(text, SIZES, where="grid"), SIZES) == value


@pytest.mark.parametrize(
    "text", [None, 1.5, True, "heads", ["add", 1], ["pow", 2, 3], [1, 2, 3], {"add": 1}]
)
def test_refused(text: object) -> None:
    with pytest.raises(SpecError, match="grid"):
        parse_expr(text, SIZES, where="grid")


def test_depth_is_bounded() -> None:
    text: object = 1
    for _ in range(100):
        text = ["add", text, 1]
    with pytest.raises(SpecError, match="not an expression"):
        parse_expr(text, SIZES, where="grid")


def test_division_by_zero_names_the_expression() -> None:
    expr = parse_expr(["ceildiv", "sq", "batch"], SIZES, where="grid")
    with pytest.raises(SpecError, match=r"ceildiv\(sq, batch\) divides by 0"):
        evaluate(expr, {"sq": 1, "batch": 0})


@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_ceildiv_is_the_smallest_cover(size: int, tile: int) -> None:
    count = evaluate(parse_expr(["ceildiv", "n", tile], ["n"], where="grid"), {"n": size})
    assert (count - 1) * tile < size <= count * tile


def test_show() -> None:
    assert show(parse_expr(["ceildiv", ["add", "sq", 1], 256], SIZES, where="grid")) == (
        "ceildiv(add(sq, 1), 256)"
    )
