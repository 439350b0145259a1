"""Integers of 8 and 16 bits in modifiers: the traced program against numpy, and the kernel against the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir import trace as tr
from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.evaluation import evaluate

Array = npt.NDArray[Any]

DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "bool")
NARROW = DTYPES[:4]

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "distance": lambda x, y: abs(x - y),
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | ~y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << (y & 7),
    "shr": lambda x, y: (x + y) >> (y & 7),
    "min": np.minimum,
    "max": np.maximum,
    "less": lambda x, y: x - y < y,
    "equal": lambda x, y: x + y == x * y,
    "twice": lambda x, y: (x + y) // (y * y + 3) - (x - y),
    "where": lambda x, y: np.where(x > y, x, y) + x,
    "fmod": np.fmod,
    "float": lambda x, y: (x + y) / 4,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "not": lambda x: ~x,
    "square": lambda x: x**2,
    "cube": lambda x: np.power(x, 3),
    "square root of the square": lambda x: x**2.0,
    "sign": lambda x: np.sign(x) - 1,
    "add a number": lambda x: x + 100,
    "take from a number": lambda x: 100 - x,
    "times a number": lambda x: x * 5,
    "by a number": lambda x: x // 7 + x % 7,
    "shl a number": lambda x: x << 3,
    "a number shl": lambda x: 1 << (x & 7),
    "compared with a number": lambda x: x + 100 > 20,
    "a float": lambda x: x + 100.5,
    "to int": lambda x: x.astype(np.int32) + 1000,
    "a type": lambda x: (x + x).astype(np.int8) + np.int8(100),
    "ones": lambda x: np.ones_like(x) + x,
    "clip": lambda x: np.clip(x, 3, 100) * 3,
}


def numbers(dtype: str) -> Array:
    """Numbers of a type: its ends, and those between that wrap in other types."""
    if dtype == "bool":
        return np.array([False, True])
    info = np.iinfo(dtype)
    middle = (0, 1, 2, 3, 7, 44, 100, 127, 128, 200, 255, 300, 40000, -1, -2, -77, -128, -3000)
    small = (info.min, info.max) if dtype != "int32" else ()
    return np.array([x for x in (*middle, *small) if info.min <= x <= info.max], dtype)


def traced(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """What the program of a function of one element of each array gives, [len(x), len(y)]."""
    program, arrays = tr.trace(lambda s, b, h, q, k: s * 0 + function(x[q], y[k]))
    assert program is not None
    at: dict[str, Any] = {
        "score": np.zeros((len(x), len(y))), "batch": 0, "head": 0,
        "q": np.arange(len(x))[:, None], "k": np.arange(len(y))[None, :],
    }  # fmt: skip
    return evaluate(program, at, host_arrays(arrays)).score


@pytest.mark.parametrize("name", BINARY)
def test_pairs_of_types_as_numpy(name: str) -> None:
    """Every pair of types, every pair of numbers."""
    function = BINARY[name]
    for left in DTYPES:
        for right in DTYPES:
            x, y = numbers(left), numbers(right)
            if "int32" in (left, right) and {left, right} <= {"int32", "bool"}:
                continue  # neither integers of 8 or 16 bits nor truth values alone
            if right == "bool" and name in ("mod", "shl"):
                continue
            y = y[y != 0] if name in ("floordiv", "mod", "fmod") else y
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    direct = function(x[:, None], y[None, :])
                except TypeError:  # numpy has no such function of truth values
                    continue
            made = traced(function, x, y)
            np.testing.assert_array_equal(
                made, np.broadcast_to(direct, made.shape).astype(np.float64), f"{left} {right}"
            )


@pytest.mark.parametrize("name", UNARY)
def test_one_type_and_numbers_as_numpy(name: str) -> None:
    function = UNARY[name]
    for dtype in NARROW:
        x = numbers(dtype)
        with np.errstate(all="ignore"):
            direct = function(x)
        made = traced(lambda one, _: function(one), x, x[:1])[:, 0]
        np.testing.assert_array_equal(made, direct.astype(np.float64), dtype)
