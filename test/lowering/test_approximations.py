"""The functions of `lowering.approximations` over the whole range of f32, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attn_mlir.lowering.compute.approximations import BINARY, MAX_ANGLE, MAX_QUOTIENT, UNARY
from attn_mlir.validation.ws.kernels import ROWS, kernel, poison, run, threads

COLUMNS = 64
COUNT = ROWS * COLUMNS
EXACT: dict[str, Callable[..., Any]] = {
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.erf": np.vectorize(math.erf, otypes=[np.float64]),
    "math.log1p": np.log1p,
    "math.expm1": np.expm1,
    "math.powf": np.power,
    "arith.remf": np.fmod,
    "math.tanh": np.tanh,
    "math.exp": np.exp,
}
SPECIAL_UNIT = {"math.tanh", "math.exp"}  # made of its functions, with bounds of their own
NAMES = list(EXACT)
LEAST = float(np.finfo(np.float32).smallest_normal)
SPECIAL = [0.0, 1.0, 2.0, 0.5, 3.0, 1e-45, 1.1754944e-38, 3.4028235e38, np.inf, 88.72283, 25.0,
           103.97, MAX_ANGLE, MAX_ANGLE + 1, 0.70710677, 0.7071068, 1.4142135, 0.34657359]  # fmt: skip


def inputs() -> tuple[Any, Any]:
    """x over all exponents and signs, dense where functions change; y so that x^y is a number."""
    random = np.random.default_rng(0)
    special = np.array([*SPECIAL, *(-np.array(SPECIAL)), np.nan], np.float32)
    wide = random.uniform(-149, 128, COUNT // 4)
    signs = random.choice([-1.0, 1.0], COUNT // 4)
    quarters = np.arange(1, COUNT // 8 + 1) * (np.pi / 2)
    around = np.concatenate([quarters, -1 + 2.0 ** -random.uniform(0, 24, COUNT // 8)])
    rest = random.uniform(-20, 20, COUNT - len(special) - len(wide) - len(around))
    parts = [special, signs * np.exp2(wide), around, rest]
    x = np.concatenate(parts).astype(np.float32)
    near = random.uniform(-100, 100, COUNT) / np.maximum(np.abs(np.log2(np.abs(x) + 1e-30)), 0.1)
    y = np.where(random.random(COUNT) < 0.5, near, np.rint(near)).astype(np.float32)
    y[: len(special)] = random.choice(special, len(special))
    return x.reshape(ROWS, COLUMNS), y.reshape(ROWS, COLUMNS)


def map_text(name: str, number: int) -> str:
    operands, kinds = ("%x, %y", "f32") if name in BINARY else ("%x", "f32")
    return f"""
    %first{number} = arith.constant {COLUMNS * number} : i32
    %r{number} = "ws.map"(%blank) ({{
    ^bb0(%e: f32, %i: i32, %j: i32):
      %x = "ws.element"(%xs, %i, %j) {{operandSegmentSizes = array<i32: 1, 2>}}
        : (memref<?x{COLUMNS}xf32>, i32, i32) -> f32
      %y = "ws.element"(%ys, %i, %j) {{operandSegmentSizes = array<i32: 1, 2>}}
        : (memref<?x{COLUMNS}xf32>, i32, i32) -> f32
      %z = {name} {operands} : {kinds}
      "ws.yield"(%z) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!full) -> !full
    "ws.store_global"(%r{number}, %zs, %c0, %first{number})
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : (!full, memref<?x?xf32>, i32, i32) -> ()"""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the kernel computes, [ROWS, COLUMNS] per function."""
    text = kernel(
        [
            ("xs", "in", f"memref<?x{COLUMNS}xf32>", ("m", "")),
            ("ys", "in", f"memref<?x{COLUMNS}xf32>", ("m", "")),
            ("zs", "out", "memref<?x?xf32>", ("m", "n")),
        ],
        threads(
            "%zero = arith.constant 0.0 : f32\n"
            '%blank = "ws.fill"(%zero) : (f32) -> !full'
            + "".join(map_text(name, number) for number, name in enumerate(NAMES))
        ),
    )
    z = poison(ROWS, COLUMNS * len(NAMES))
    run(text, *inputs(), z)
    return {name: z[:, COLUMNS * i : COLUMNS * (i + 1)] for i, name in enumerate(NAMES)}


def allowed(name: str, x: Any, y: Any, exact: Any) -> Any:
    """The stated bound of the error."""
    if name in ("math.sin", "math.cos"):
        return np.full_like(exact, 2.0**-23)
    if name == "arith.remf":
        return np.zeros_like(exact)
    if name == "math.tanh":
        return np.full_like(exact, 2.0**-22)
    if name == "math.exp":
        return (2.0**-22 + 2.0**-23 * np.abs(x)) * np.abs(exact)
    if name == "math.powf":
        return 2.0**-21 * (1 + np.abs(y * np.log2(np.abs(x)))) * np.abs(exact)
    return 2.0**-22 * np.abs(exact)


def flushed(array: Any) -> Any:
    """Numbers that are too small for a normal f32 are 0."""
    return np.where(np.abs(array) < LEAST, 0.0, array)


@pytest.mark.parametrize("name", NAMES)
def test_within_the_stated_bound(results: dict[str, Any], name: str) -> None:
    x, y = (flushed(array.astype(np.float64)) for array in inputs())
    found = results[name].astype(np.float64)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x, y) if name in BINARY else EXACT[name](x)
        rounded = exact.astype(np.float32)
        limit = allowed(name, x, y, exact) + np.spacing(np.abs(rounded)).astype(np.float64) / 2
        right = np.abs(found - exact) <= limit + 2 * LEAST
    right |= (found == rounded) | (np.isnan(found) & np.isnan(exact))
    with np.errstate(all="ignore"):
        match name:
            case "math.sin" | "math.cos":
                right |= np.isnan(found) & (np.abs(x) > MAX_ANGLE)
            case "arith.remf":
                right |= np.isnan(found) & (np.abs(x / y) >= MAX_QUOTIENT)
            case "math.powf":  # 0 has no sign, and -inf is as any negative number
                right |= (x == 0) & (np.abs(found) == np.abs(exact))
                right |= np.isneginf(x) & (np.isnan(found) | (found == exact))
            case _:
                pass
    worst = [(x[at], y[at], found[at], exact[at]) for at in zip(*np.nonzero(~right), strict=True)]
    assert not worst, f"{len(worst)} wrong, such as {worst[:5]}"


def test_every_function_is_here() -> None:
    assert set(NAMES) == {*UNARY, *BINARY, *SPECIAL_UNIT}
