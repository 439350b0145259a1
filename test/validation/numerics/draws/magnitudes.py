"""The axis of magnitudes: scores, sinks and values of any size that float32 holds.

Below -2e38 a modified score counts as hidden, so that no choice goes between there and the end of
float32 but the one that wants to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir import mods

from .problem import Array, Problem

MOST_EXPONENT = 38.3  # 10^38.3 is 2e38
FACTORS = {  # of q and k, so that their products stay in float32 and they in their dtype
    "bfloat16": 3e4,
    "float16": 1e3,
    "float8_e4m3fn": 20.0,  # growing keys are up to four times as large
    "float8_e5m2": 1e3,
}


def _keys(problem: Problem, value: float) -> Array:
    """[1, sk]: the value for some keys, at the end as padding or anywhere, but not for the first."""
    random = problem.random("large keys")
    table = np.zeros((1, problem.sk), np.float32)
    if random.random() < 0.5:
        table[0, random.integers(0, problem.sk) + 1 :] = value
    else:
        table[0, 1:][random.random(problem.sk - 1) < 0.4] = value
    return table


def _rows(problem: Problem, value: float) -> Array:
    """[sq, 1]: the value for all keys of some queries."""
    rows = problem.random("large rows").random((problem.sq, 1)) < 0.3
    return np.where(rows, np.float32(value), np.float32(0.0))


def _any(problem: Problem) -> Array:
    """[sq, sk]: of either sign, each of its own size."""
    random = problem.random("large scores")
    sizes = 10.0 ** random.uniform(-3.0, MOST_EXPONENT, (problem.sq, problem.sk))
    return (np.where(random.random(sizes.shape) < 0.5, sizes, -sizes)).astype(np.float32)


def _of_all_keys(problem: Problem) -> Array:
    """[sq, 1]: either sign, each row of its own size: all of its scores are about equal."""
    random = problem.random("large scores")
    sizes = 10.0 ** random.uniform(0.0, MOST_EXPONENT, (problem.sq, 1))
    return (np.where(random.random(sizes.shape) < 0.5, sizes, -sizes)).astype(np.float32)


def _biased(make: Callable[[Problem], Array]) -> Callable[[Problem], None]:
    """Adds a bias behind the modifier so far, or in front of it."""

    def apply(problem: Problem) -> None:
        bias, other = mods.bias(make(problem)), problem.options.get("score_mod")
        both = [bias] if other is None else [other, bias]
        if problem.random("order of modifiers").random() < 0.5:
            both.reverse()
        problem.options["score_mod"] = mods.compose(*both)

    return apply


def _operands(problem: Problem) -> None:
    for name, dtype in (("q", problem.dtype), ("k", problem.stored_dtype)):
        problem.factors[name] = FACTORS[np.dtype(dtype).name]


def _values(problem: Problem) -> None:
    problem.factors["v"] = 1e30 if problem.stored_dtype is ml_dtypes.bfloat16 else 100.0


def _sinks(problem: Problem) -> None:
    """Makes sinks a thousand times as large: from ones that never count to ones that take all of the weight."""
    sinks: Any = problem.options.get("sinks")
    if sinks is not None:
        problem.options["sinks"] = (sinks.astype(np.float32) * 1e3).astype(sinks.dtype)


def _has_keys(problem: Problem) -> bool:
    return problem.sk > 0


# name, what it does to the problem, and whether the problem can have it
MAGNITUDES: list[tuple[str, Callable[[Problem], None], Callable[[Problem], bool]]] = [
    ("operands", _operands, lambda problem: True),
    ("values", _values, lambda problem: not problem.stores_narrow),
    ("sinks", _sinks, lambda problem: True),
    *(
        (f"keys {value:g}", _biased(lambda p, value=value: _keys(p, value)), _has_keys)
        for value in (-1e10, -1e20, -1e30, -1e38, 1e38, float(np.finfo(np.float32).min))
    ),
    ("rows -1e9", _biased(lambda p: _rows(p, -1e9)), _has_keys),
    ("rows 1e10", _biased(lambda p: _rows(p, 1e10)), _has_keys),
    ("rows of any size", _biased(_of_all_keys), _has_keys),
    ("any size", _biased(_any), _has_keys),
]
