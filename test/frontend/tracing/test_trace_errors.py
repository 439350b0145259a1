"""What cannot be traced is refused, with the user's file, line and expression."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attn_mlir import trace as tr
from attn_mlir.errors import SpecError

TABLE = np.ones((4, 8), np.float32)
ROW = np.ones(8, np.float32)
WIDE = np.ones(8, np.uint32)
ITEMS = [1.0, 2.0]


def branches(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    if q > k:  # marked
        return s
    return -s


def helper(x: Any) -> Any:
    return math.tanh(x)  # marked


def calls_helper(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + helper(s)


def loops(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    for i in range(q):  # marked
        s = s + i
    return s


def raises(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    raise ValueError("no such thing")  # marked


def in_a_lambda(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    bad = lambda x: np.sinh(x)  # noqa: E731  # marked
    return bad(s)


MARKED: list[tuple[Callable[..., Any], str, str]] = [
    (branches, "branches decides in Python over a traced value", "q > k"),
    (calls_helper, "calls_helper turns a traced value into a Python number", "math.tanh(x)"),
    (loops, "loops needs a traced value as a Python integer (range()", "range(q)"),
    (raises, "raises raised ValueError: no such thing", 'raise ValueError("no such thing")'),
    (in_a_lambda, "in_a_lambda calls sinh, which cannot be traced", "np.sinh(x)"),
]


@pytest.mark.parametrize(
    ("function", "what", "where"), MARKED, ids=lambda x: getattr(x, "__name__", "")
)
def test_the_line_and_the_expression_are_shown(
    function: Callable[..., Any], what: str, where: str
) -> None:
    source = helper if function is calls_helper else function
    lines, first = inspect.getsourcelines(source)
    number = next(i for i, line in enumerate(lines) if "# marked" in line)
    with pytest.raises(SpecError) as caught:
        tr.trace(function)
    message, line, carets = str(caught.value).split("\n")
    assert message.startswith(f"{__file__}:{first + number}: {what}")
    assert line.strip() == lines[number].strip()
    begin = carets.index("^")
    assert line[begin : begin + carets.count("^")] == where


REFUSED: dict[str, tuple[Any, str]] = {
    "and": (lambda s, b, h, q, k: s if q > 1 and k > 1 else -s, "decides in Python"),
    "not": (lambda s, b, h, q, k: s * (not q), "decides in Python"),
    "max": (lambda s, b, h, q, k: s + max(q, k), "decides in Python"),
    "in": (lambda s, b, h, q, k: s + (h in (0, 2)), "decides in Python"),
    "chained comparison": (lambda s, b, h, q, k: s + (0 < q < 3), "decides in Python"),
    "float": (lambda s, b, h, q, k: s + float(q), "turns a traced value into a Python number"),
    "int": (lambda s, b, h, q, k: s + int(s), "turns a traced value into a Python number"),
    "list index": (lambda s, b, h, q, k: s + ITEMS[h], "needs a traced value as a Python integer"),
    "iteration": (lambda s, b, h, q, k: sum(s), "iterates over a traced value"),
    "index": (lambda s, b, h, q, k: s[0], "indexes a traced value, which is one number"),
    "method": (lambda s, b, h, q, k: s.softmax(), "uses .softmax of a traced value"),
    "arguments": (lambda s, b, h, q, k: s.clamp(lowest=0), "calls clamp in a way that"),
    "new tensor": (lambda s, b, h, q, k: s + s.new_ones((2,)), "calls new_ones in a way that"),
    "ufunc": (lambda s, b, h, q, k: np.sinh(s), "calls sinh, which cannot be traced"),
    "ufunc method": (lambda s, b, h, q, k: np.add.reduce(s), "uses add.reduce, which cannot"),
    "option": (lambda s, b, h, q, k: np.add(s, 1, where=q > k), "calls add in a way that cannot"),
    "function": (lambda s, b, h, q, k: np.sum(s), "calls sum, which cannot be traced"),
    "arity": (lambda s, b, h, q, k: np.where(q > k), "calls where with 1 operands; it has 3"),
    "condition": (lambda s, b, h, q, k: np.where(q, s, 0.0), "gives where() an integer as its"),
    "bits of floats": (lambda s, b, h, q, k: s & 1, "applies and to a float"),
    "not of a float": (lambda s, b, h, q, k: ~s, "applies not to a float"),
    "shift of a float": (lambda s, b, h, q, k: s << 2, "applies shl to floats"),
    "zero division": (lambda s, b, h, q, k: s + q // 0, "divides an integer by 0"),
    "zero remainder": (lambda s, b, h, q, k: s + q % 0, "divides an integer by 0"),
    "shift": (lambda s, b, h, q, k: s + (q << 32), "shifts by 32; integers have 32 bits"),
    "negative shift": (lambda s, b, h, q, k: s + (q >> -1), "shifts by -1"),
    "power": (lambda s, b, h, q, k: s + q**-2, "raises an integer to the power -2"),
    "rounding": (lambda s, b, h, q, k: np.round(s, 2), "rounds to 2 decimals"),
    "division mode": (lambda s, b, h, q, k: s.div(2, rounding_mode="up"), "rounding_mode 'up'"),
    "gelu": (lambda s, b, h, q, k: s.gelu(approximate="erf"), "gelu with approximate='erf'"),
    "in place": (lambda s, b, h, q, k: s.add_(1), "calls .add_(), which changes a value in place"),
    "wide unsigned integer": (
        lambda s, b, h, q, k: q.to("uint32"),
        "converts to 'uint32'; allowed are",
    ),
    "power of narrow integers": (
        lambda s, b, h, q, k: s + q.to("int8") ** k.to("int8"),
        "raises int8 to a power that is no whole number from 0 to 16: convert one",
    ),
    "narrow power of 2": (lambda s, b, h, q, k: s + 2 ** k.to("uint8"), "raises uint8 to a power"),
    "narrow shift": (lambda s, b, h, q, k: s + (k.to("uint8") << 8), "integers have 8 bits"),
    "large integer": (
        lambda s, b, h, q, k: q + 2**63,
        "uses 9223372036854775808; integers have 64 bits",
    ),
    "text": (lambda s, b, h, q, k: s + "1", "cannot use str '1' as a number"),
    "none": (lambda s, b, h, q, k: s == None, "cannot use NoneType None as a number"),  # noqa: E711
    "new array": (lambda s, b, h, q, k: s + np.ones(3), "cannot use ndarray"),
    "dtype": (lambda s, b, h, q, k: s.to("complex64"), "converts to 'complex64'; allowed are"),
    "rank": (lambda s, b, h, q, k: s + TABLE[b, h, q], "indexes TABLE with 3 coordinates; it has 2"),
    "rows": (lambda s, b, h, q, k: s + sum(ROW), "uses ROW as a number; a captured array"),
    "row": (lambda s, b, h, q, k: s + TABLE[h], "uses TABLE as a number after 1 of 2 coordinates"),
    "array": (lambda s, b, h, q, k: TABLE + s, "uses TABLE as a number; a captured array"),
    "array by numpy": (lambda s, b, h, q, k: s + np.exp(ROW), "uses ROW as a number"),
    "array in where": (lambda s, b, h, q, k: np.where(q > k, s, ROW), "uses ROW as a number"),
    "array in if": (lambda s, b, h, q, k: s if ROW else -s, "uses ROW as a number"),
    "slice": (lambda s, b, h, q, k: s + TABLE[h, :], "uses TABLE as a number after 1 of 2"),
    "list of indices": (lambda s, b, h, q, k: s + ROW[[q, k]], "indexes ROW with several indices"),
    "float index": (lambda s, b, h, q, k: s + ROW[s], "indexes ROW with a float; indices are"),
    "method of an array": (lambda s, b, h, q, k: s + ROW.sum(), "uses ROW.sum; a captured array"),
    "mean of an array": (lambda s, b, h, q, k: s + ROW.mean(), "so compute ROW.mean outside"),
    "dtype of an array": (lambda s, b, h, q, k: s + WIDE[q], "captures WIDE of dtype u32; allowed"),
    "unknown name": (lambda s, b, h, q, k: s + missing, "raised NameError"),  # noqa: F821  # pyright: ignore
    "nothing": (lambda s, b, h, q, k: None, "returns nothing"),
    "several": (lambda s, b, h, q, k: (s, s), "cannot use tuple"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, what = REFUSED[name]
    line = function.__code__.co_firstlineno
    expected = re.escape(f"{__file__}:{line}: <lambda> ")
    if name == "several":
        expected = ""
    with pytest.raises(SpecError, match=f"^{expected}.*{re.escape(what)}"):
        tr.trace(function)


NOT_FUNCTIONS: list[tuple[Any, str]] = [
    (3, "score_mod must be a Python function, got 3"),
    (np.tanh, "score_mod must be a Python function, got <ufunc 'tanh'>"),
    (lambda s, b, h, q: s, "<lambda> must take (score, batch, head, q, k): too many positional"),
    (lambda s, b, h, q, k, x: s, "must take (score, batch, head, q, k): missing a required"),
    (lambda s, b, h, q, k, *, x: s, "must take (score, batch, head, q, k): missing a required"),
    (functools.partial(branches, 1), "must take (score, batch, head, q, k): too many positional"),
]


@pytest.mark.parametrize(("function", "what"), NOT_FUNCTIONS)
def test_not_a_score_mod(function: Any, what: str) -> None:
    with pytest.raises(SpecError, match=re.escape(what)):
        tr.trace(function)


def test_not_a_mask_mod() -> None:
    with pytest.raises(SpecError, match=r"must take \(batch, head, q, k\): missing"):
        tr.trace(None, lambda s, b, h, q, k: q > k)  # pyright: ignore
    with pytest.raises(SpecError, match="returns an integer, a mask_mod returns a truth value"):
        tr.trace(None, lambda b, h, q, k: q)
    with pytest.raises(SpecError, match="returns a float, a mask_mod returns a truth value"):
        tr.trace(None, lambda b, h, q, k: 0.5)


def test_our_functions_need_a_traced_value() -> None:
    with pytest.raises(SpecError, match="exp of attn_mlir.trace is for score_mod and mask_mod"):
        tr.exp(1.0)


@pytest.mark.parametrize("name", ["sinh", "nonzero", "cumsum"])
def test_unknown_functions_of_torch(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    function = getattr(torch, name)
    with pytest.raises(SpecError, match=f"{name}"):
        tr.trace(lambda s, b, h, q, k: s + function(s))


@pytest.mark.parametrize("name", ["sin", "where", "maximum"])
def test_functions_of_jax_are_refused_by_name(name: str) -> None:
    """In the words of jax, which are all that tells it from other functions; and by jax, if it is there."""
    said = {
        "sin": "interpreting argument to <function sin at 0x7f> as an abstract array. The value is {}",
        "where": "where requires ndarray or scalar arguments, got {} at position 0.",
        "maximum": "The value is of type {} and was passed to maximum at position 0.",
    }

    def like_jax(*args: Any) -> Any:
        raise TypeError(said[name].format(type(args[0])))

    functions = [like_jax]
    with contextlib.suppress(ImportError):
        functions.append(getattr(importlib.import_module("jax.numpy"), name))
    for function in functions:
        with pytest.raises(
            SpecError, match=f"calls ({name}|a function) of jax, which takes no traced"
        ):
            tr.trace(lambda s, b, h, q, k, f=function: f(s, s, s) if name == "where" else f(s))
