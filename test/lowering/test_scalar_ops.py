"""Every scalar operation that kernels may hold, in columns and in rows, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.passes.check_scalars import SCALAR_OPS
from attn_mlir.validation.ws.kernels import ROWS, kernel, lowered, poison, run, threads

COLUMNS = 8  # of the fragment that each case fills
DIVISOR = 3
BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Case:
    """An operation at work.

    Attributes:
      name: the operation; a suffix after a blank tells several cases apart.
      text: defines %y (f32) from f32 %x, %u and i32 %s, %d, all with a column dimension or without.
      expected: the same in numpy, from x, u (f32) and s, d (i32).
      ulps: allowed distance in units of the last place; 0 where the result is exact.
    """

    name: str
    text: str
    expected: Callable[..., Any]
    ulps: float = 0


def unary(name: str, expected: Callable[..., Any], ulps: float = 0, given: str = "%x") -> Case:
    text = f"%y = {name} {given} : f32"
    return Case(name, text, lambda x, u, s, d: expected(u if given == "%u" else x), ulps)


def binary(name: str, expected: Callable[..., Any], ulps: float = 0) -> Case:
    return Case(name, f"%y = {name} %x, %u : f32", lambda x, u, s, d: expected(x, u), ulps)


def integer(name: str, expected: Callable[..., Any]) -> Case:
    text = f"%k = {name} %s, %d : i32\n%y = arith.sitofp %k : i32 to f32"
    return Case(name, text, lambda x, u, s, d: expected(s, d))


def unsigned(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda s, d: operation(s.astype(np.uint32), d.astype(np.uint32)).astype(np.int32)


def truncated(s: Any, d: Any) -> Any:
    return np.trunc(s / d).astype(np.int32)


def away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def narrow(dtype: Any) -> Callable[..., Any]:
    return lambda x, u, s, d: x.astype(dtype).astype(np.float32)


def population(s: Any) -> Any:
    return np.vectorize(lambda n: bin(n).count("1"))(s.astype(np.uint32))


TO_FLOAT = "\n%y = arith.sitofp %k : i32 to f32"
TO_FLOAT_UNSIGNED = "\n%y = arith.uitofp %k : i32 to f32"
LESS = "%b = arith.cmpi slt, %s, %d : i32\n"

# %x lies in (-4, 4), %u in (0.06, 4), %s in -60..67, %d is 3: the special-function unit's
# approximations are good to some units in the last place of f32 there (PTX ISA, ex2, lg2, rsqrt).
CASES = [
    Case("arith.constant", "%y = arith.constant 2.5 : f32", lambda x, *_: np.full_like(x, 2.5)),
    Case("arith.select", LESS + "%y = arith.select %b, %x, %u : f32",
         lambda x, u, s, d: np.where(s < d, x, u)),
    *(
        Case(f"arith.cmpi {name}", f"%b = arith.cmpi {name}, %s, %d : i32\n"
             "%y = arith.select %b, %x, %u : f32",
             lambda x, u, s, d, holds=holds: np.where(holds(s, d), x, u))
        for name, holds in (
            ("eq", np.equal), ("ne", np.not_equal), ("slt", np.less), ("sle", np.less_equal),
            ("sgt", np.greater), ("sge", np.greater_equal), ("ult", unsigned(np.less)),
        )
    ),
    *(
        Case(f"arith.cmpf {name}", f"%b = arith.cmpf {name}, %x, %u : f32\n"
             "%y = arith.select %b, %x, %u : f32",
             lambda x, u, s, d, holds=holds: np.where(holds(x, u), x, u))
        for name, holds in (
            ("oeq", np.equal), ("one", np.not_equal), ("olt", np.less), ("ole", np.less_equal),
            ("ogt", np.greater), ("oge", np.greater_equal),
        )
    ),
    Case("arith.bitcast", "%k = arith.bitcast %x : f32 to i32\n%y = arith.bitcast %k : i32 to f32",
         lambda x, *_: x),
    Case("arith.index_cast", "%n = arith.index_cast %s : i32 to index\n"
         "%k = arith.index_cast %n : index to i32" + TO_FLOAT, lambda x, u, s, d: s),
    binary("arith.addf", np.add),
    binary("arith.subf", np.subtract),
    binary("arith.mulf", np.multiply),
    binary("arith.divf", np.divide),
    binary("arith.remf", np.fmod),
    binary("arith.maximumf", np.maximum),
    binary("arith.minimumf", np.minimum),
    binary("arith.maxnumf", np.fmax),
    binary("arith.minnumf", np.fmin),
    unary("arith.negf", np.negative),
    integer("arith.addi", np.add),
    integer("arith.subi", np.subtract),
    integer("arith.muli", np.multiply),
    integer("arith.andi", np.bitwise_and),
    integer("arith.ori", np.bitwise_or),
    integer("arith.xori", np.bitwise_xor),
    integer("arith.shli", np.left_shift),
    integer("arith.shrsi", np.right_shift),
    integer("arith.shrui", unsigned(np.right_shift)),
    integer("arith.divsi", truncated),
    integer("arith.divui", unsigned(np.floor_divide)),
    integer("arith.remsi", np.fmod),
    integer("arith.remui", unsigned(np.remainder)),
    integer("arith.floordivsi", np.floor_divide),
    integer("arith.ceildivsi", lambda s, d: -(-s // d)),
    integer("arith.ceildivui", unsigned(lambda s, d: -(-s.astype(np.int64) // d))),
    integer("arith.maxsi", np.maximum),
    integer("arith.minsi", np.minimum),
    integer("arith.maxui", unsigned(np.maximum)),
    integer("arith.minui", unsigned(np.minimum)),
    Case("arith.truncf bf16", "%k = arith.truncf %x : f32 to bf16\n"
         "%y = arith.extf %k : bf16 to f32", narrow(BF16)),
    Case("arith.extf f16", "%k = arith.truncf %x : f32 to f16\n%l = arith.addf %k, %k : f16\n"
         "%y = arith.extf %l : f16 to f32", lambda x, u, s, d: narrow(np.float16)(2 * x, u, s, d)),
    Case("arith.extsi", "%n = arith.trunci %s : i32 to i8\n%k = arith.extsi %n : i8 to i32"
         + TO_FLOAT, lambda x, u, s, d: s),
    Case("arith.extui", "%n = arith.trunci %s : i32 to i8\n%k = arith.extui %n : i8 to i32"
         + TO_FLOAT, lambda x, u, s, d: s & 0xFF),
    Case("arith.trunci", "%n = arith.trunci %s : i32 to i1\n%k = arith.extui %n : i1 to i32"
         + TO_FLOAT, lambda x, u, s, d: s & 1),
    Case("arith.sitofp", "%y = arith.sitofp %s : i32 to f32", lambda x, u, s, d: s),
    Case("arith.uitofp", "%y = arith.uitofp %s : i32 to f32",
         lambda x, u, s, d: s.astype(np.uint32)),
    Case("arith.fptosi", "%k = arith.fptosi %x : f32 to i32" + TO_FLOAT, lambda x, *_: np.trunc(x)),
    Case("arith.fptoui", "%k = arith.fptoui %u : f32 to i32" + TO_FLOAT_UNSIGNED,
         lambda x, u, s, d: np.trunc(u)),
    Case("math.fma", "%y = math.fma %x, %x, %u : f32",
         lambda x, u, s, d: (x.astype(np.float64) ** 2 + u).astype(np.float32)),
    unary("math.absf", np.abs),
    Case("math.copysign", "%y = math.copysign %u, %x : f32", lambda x, u, s, d: np.copysign(u, x)),
    unary("math.sqrt", np.sqrt, given="%u"),
    unary("math.rsqrt", lambda u: 1 / np.sqrt(u.astype(np.float64)), ulps=4, given="%u"),
    unary("math.exp", lambda x: np.exp(x.astype(np.float64)), ulps=8),
    unary("math.exp2", lambda x: np.exp2(x.astype(np.float64)), ulps=4),
    unary("math.log", lambda u: np.log(u.astype(np.float64)), ulps=8, given="%u"),
    unary("math.log2", lambda u: np.log2(u.astype(np.float64)), ulps=8, given="%u"),
    unary("math.tanh", lambda x: np.tanh(x.astype(np.float64)), ulps=8),
    unary("math.sin", lambda x: np.sin(x.astype(np.float64)), ulps=1),
    unary("math.cos", lambda x: np.cos(x.astype(np.float64)), ulps=1),
    unary("math.erf", np.vectorize(math.erf), ulps=2),
    unary("math.log1p", lambda u: np.log1p(u.astype(np.float64)), ulps=2, given="%u"),
    unary("math.expm1", lambda x: np.expm1(x.astype(np.float64)), ulps=2),
    Case("math.powf", "%y = math.powf %u, %x : f32",
         lambda x, u, s, d: u.astype(np.float64) ** x.astype(np.float64), 8),
    unary("math.floor", np.floor),
    unary("math.ceil", np.ceil),
    unary("math.round", away),
    unary("math.roundeven", np.rint),
    unary("math.trunc", np.trunc),
    Case("math.absi", "%k = math.absi %s : i32" + TO_FLOAT, lambda x, u, s, d: np.abs(s)),
    Case("math.ctpop", "%k = math.ctpop %s : i32" + TO_FLOAT, lambda x, u, s, d: population(s)),
]  # fmt: skip
NAMES = [case.name for case in CASES]

ELEMENT = """%{0} = "ws.element"(%{1}, %i, {2}) {{operandSegmentSizes = array<i32: 1, 2>}}
      : (memref<?x8xf32>, i32, i32) -> f32"""


def map_text(case: Case, number: int, column: str) -> str:
    """A map whose operands depend on the column, or with column %c0 only on the row."""
    return f"""
    %first{number} = arith.constant {COLUMNS * number} : i32
    %r{number} = "ws.map"(%blank) ({{
    ^bb0(%e: f32, %i: i32, %j: i32):
      {ELEMENT.format("x", "xs", column)}
      {ELEMENT.format("u", "us", column)}
      %row = arith.subi %i, %c60 : i32
      %s = arith.addi %row, {column} : i32
      {case.text}
      "ws.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!full) -> !full
    "ws.store_global"(%r{number}, %ys, %c0, %first{number})
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : (!full, memref<?x?xf32>, i32, i32) -> ()"""


def inputs() -> tuple[Any, Any]:
    numbers = np.random.default_rng(0)
    x = numbers.uniform(-4, 4, (ROWS, COLUMNS)).astype(np.float32)
    u = numbers.uniform(0.0625, 4, (ROWS, COLUMNS)).astype(np.float32)
    x[:8] = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.0, 1.0], np.float32)[:, None]
    u[:, 0] = np.abs(x[:, 0]) + np.float32(0.0625)
    x[8:12] = u[8:12]
    return x, u


@pytest.fixture(scope="module", params=["%j", "%c0"], ids=["columns", "rows"])
def results(request: pytest.FixtureRequest) -> tuple[bool, Any]:
    """Whether operands depend on the column, and [cases, ROWS, COLUMNS] of results."""
    maps = "".join(map_text(case, n, request.param) for n, case in enumerate(CASES))
    text = kernel(
        [
            ("xs", "in", "memref<?x8xf32>", ("m", "")),
            ("us", "in", "memref<?x8xf32>", ("m", "")),
            ("ys", "out", "memref<?x?xf32>", ("m", "n")),
        ],
        threads(
            "%zero = arith.constant 0.0 : f32\n%c60 = arith.constant 60 : i32\n"
            f"%d = arith.constant {DIVISOR} : i32\n"
            '%blank = "ws.fill"(%zero) : (f32) -> !full' + maps
        ),
        columns=COLUMNS,
    )
    y = poison(ROWS, COLUMNS * len(CASES))
    run(text, *inputs(), y)
    return request.param == "%j", y.reshape(ROWS, len(CASES), COLUMNS).transpose(1, 0, 2)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_as_in_numpy(results: tuple[bool, Any], case: Case) -> None:
    by_column, found = results
    x, u = inputs()
    columns = np.arange(COLUMNS, dtype=np.int32)
    if not by_column:
        x, u = (np.repeat(a[:, :1], COLUMNS, axis=1) for a in (x, u))
        columns = np.zeros_like(columns)
    s = np.arange(ROWS, dtype=np.int32)[:, None] - np.int32(60) + columns
    wanted = np.asarray(case.expected(x, u, s, np.full_like(s, DIVISOR)))
    spacing = np.spacing(np.maximum(np.abs(wanted), 1).astype(np.float32))
    error = np.abs(found[NAMES.index(case.name)] - wanted.astype(np.float64)) / spacing
    rounded = np.abs(wanted.astype(np.float32) - wanted.astype(np.float64)) / spacing
    assert (error <= case.ulps + rounded).all(), f"{error.max()} units in the last place"


def test_the_cases_cover_the_table() -> None:
    assert {name.split()[0] for name in NAMES} == SCALAR_OPS


WIDE = "%w = arith.extf %zero : f32 to f64\n"
OTHERS = {
    "math.tan": "%y = math.tan %zero : f32",
    "math.erfc": "%y = math.erfc %zero : f32",
    "math.cbrt": "%y = math.cbrt %zero : f32",
    "arith.mulsi_extended": "%y, %high = arith.mulsi_extended %c1, %c1 : i32",
    "math.exp2": f"{WIDE}%y = math.exp2 %w : f64",  # at which the backend aborts
    "math.erf": f"{WIDE}%y = math.erf %w : f64",
    "math.sin": f"{WIDE}%y = math.sin %w : f64",
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("where", ["map", "role"])
def test_others_are_refused_before_the_backend_sees_them(name: str, where: str) -> None:
    text = OTHERS[name]
    if where == "map":
        text = f"""%row = "ws.fill"(%zero) : (f32) -> !row
          %r = "ws.map"(%row) ({{
          ^bb0(%e: f32, %i: i32):
            {text}
            "ws.yield"(%zero) : (f32) -> ()
          }}) {{operandSegmentSizes = array<i32: 1>}} : (!row) -> !row"""
    body = threads("%zero = arith.constant 0.0 : f32\n" + text)
    with pytest.raises(VerifyError, match=f"'{name}' op has (no )?code .*in a kernel"):
        lowered(kernel([], body), ws_to_nvvm("sm_100a"))
