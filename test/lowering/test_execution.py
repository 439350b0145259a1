"""Operations on fragments and tiles, executed: what each computes, for shapes beyond the schedule's."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.ws.kernels import (
    ROWS,
    bundle,
    compiled,
    kernel,
    poison,
    role,
    run,
    threads,
)

BF16 = ml_dtypes.bfloat16
MATRIX_IN = ("x", "in", "memref<?x?xf32>", ("m", "n"))
MATRIX_OUT = ("y", "out", "memref<?x?xf32>", ("my", "ny"))
ROWS_OUT = ("z", "out", "memref<?xf32>", ("mz",))

CONSTANTS = """
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %minus_inf = arith.constant 0xFF800000 : f32
    %blank = "ws.fill"(%zero) : (f32) -> !full
    %no_rows = "ws.fill"(%zero) : (f32) -> !row
    %s = "ws.map"(%blank) ({
    ^bb0(%e: f32, %i: i32, %j: i32):
      %v = "ws.element"(%x, %i, %j) {operandSegmentSizes = array<i32: 1, 2>} : (memref<?x?xf32>, i32, i32) -> f32
      "ws.yield"(%v) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !full
"""


def store(fragment: str, kind: str = "!full") -> str:
    """Writes a fragment to all of %y."""
    return f""""ws.store_global"(%{fragment}, %y, %c0, %c0)
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : ({kind}, memref<?x?xf32>, i32, i32) -> ()
    """


def store_rows(fragment: str) -> str:
    """Writes a row fragment to all of %z."""
    return f""""ws.store_global"(%{fragment}, %z, %c0)
      {{dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 1>}}
      : (!row, memref<?xf32>, i32) -> ()
    """


def one_role(body: str, *, columns: int, declarations: str = "", types: str = "") -> str:
    """A kernel of x and of y and z where it writes them, with one role, which holds x in %s."""
    outputs = [argument for argument in (MATRIX_OUT, ROWS_OUT) if f"%{argument[0]}, %c0" in body]
    text = declarations + threads(CONSTANTS + body)
    return kernel([MATRIX_IN, *outputs], text, types=types, columns=columns)


def run_role(text: str, x: Any, y: Any, z: Any) -> None:
    """Runs a kernel of `one_role`; what it does not write, it does not take."""
    run(text, x, *(array for name, array in (("y", y), ("z", z)) if f'"{name}"' in text))


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("columns", [1, 3, 8, 24, 40, 48, 64, 96, 128])
@pytest.mark.parametrize("kind", ["add", "max"])
def test_reduce_starts_from_init(kind: str, columns: int) -> None:
    text = one_role(
        f"""
    %init = "ws.fill"(%one) : (f32) -> !row
    %r = "ws.reduce"(%s, %init) {{kind = "{kind}"}} : (!full, !row) -> !row
    {store_rows("r")}""",
        columns=columns,
    )
    x, z = normal(ROWS, columns), poison(ROWS)
    x[0] = -5.0
    run_role(text, x, poison(ROWS, 1), z)
    if kind == "max":
        assert (z == np.maximum(x.max(axis=1), 1.0)).all()
    else:
        exact = 1.0 + x.astype(np.float64).sum(axis=1)
        scale = 1.0 + np.abs(x).sum(axis=1)
        assert (np.abs(z - exact) <= 8 * np.finfo(np.float32).eps * scale).all()


@pytest.mark.parametrize("columns", [8, 24, 40, 96, 128])
def test_fold_adds_columns_that_lie_apart(columns: int) -> None:
    text = one_role(
        f"""
    %init = "ws.fill"(%one) : (f32) -> !ws.frag<vector<{ROWS}x8xf32>>
    %f = "ws.fold"(%s, %init)
      : (!full, !ws.frag<vector<{ROWS}x8xf32>>) -> !ws.frag<vector<{ROWS}x8xf32>>
    {store("f", f"!ws.frag<vector<{ROWS}x8xf32>>")}""",
        columns=columns,
    )
    x, y = normal(ROWS, columns), poison(ROWS, 8)
    run_role(text, x, y, poison(ROWS))
    exact = 1.0 + x.astype(np.float64).reshape(ROWS, -1, 8).sum(axis=1)
    assert np.abs(y - exact).max() <= 1e-5


@pytest.mark.parametrize("columns", [4, 40, 96])
def test_branches_have_results(columns: int) -> None:
    """A fragment, a row fragment and a number, each warp's by what its rows hold."""
    text = one_role(
        f"""
    %top = "ws.reduce"(%s, %no_rows) {{kind = "max"}} : (!full, !row) -> !row
    %large = "ws.map"(%top) ({{
    ^bb0(%e: f32, %i: i32):
      %hundred = arith.constant 100.0 : f32
      %is_large = arith.cmpf ogt, %e, %hundred : f32
      "ws.yield"(%is_large) : (i1) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!row) -> !ws.frag<vector<{ROWS}xi1>>
    %any = "ws.any"(%large) : (!ws.frag<vector<{ROWS}xi1>>) -> i1
    %f, %r, %n = scf.if %any -> (!full, !row, f32) {{
      scf.yield %blank, %top, %one : !full, !row, f32
    }} else {{
      scf.yield %s, %no_rows, %zero : !full, !row, f32
    }}
    %sum = "ws.map"(%r) ({{
    ^bb0(%e: f32, %i: i32):
      %more = arith.addf %e, %n : f32
      "ws.yield"(%more) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!row) -> !row
    {store("f")}{store_rows("sum")}""",
        columns=columns,
    )
    x, y, z = normal(ROWS, columns), poison(ROWS, columns), poison(ROWS)
    x[40, columns - 1] = 1000.0  # of the second warp
    run_role(text, x, y, z)
    warp = np.arange(ROWS) // 32 == 1
    assert (y == np.where(warp[:, None], np.float32(0.0), x)).all()
    top = np.maximum(x.max(axis=1), 0.0) + np.float32(1.0)
    assert (z == np.where(warp, top, np.float32(0.0))).all()


def exp2(period: int, count: int, begin: int, end: int, columns: int) -> str:
    return one_role(
        f"""
    %p = "ws.exp2"(%s) {{fma_period = {period} : i64, fma_count = {count} : i64,
      fma_begin = {begin} : i64, fma_end = {end} : i64}} : (!full) -> !full
    {store("p")}""",
        columns=columns,
    )


def test_exp2_on_the_multiply_add_units() -> None:
    """Relative error of the cubic below 8.8e-5 from the least normal power to the greatest."""
    columns = 128
    x = np.linspace(-126, 127.99, ROWS * columns, dtype=np.float32).reshape(ROWS, columns)
    x[0, :8] = [0.0, 1.0, -1.0, 0.5, -0.5, -126.0, 127.0, 1e-30]
    y = poison(ROWS, columns)
    run_role(exp2(2, 2, 0, columns, columns), x, y, poison(ROWS))
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(y - exact) <= 8.8e-5 * exact).all()
    whole = x == np.floor(x)
    assert whole.sum() >= 5 and (y[whole] == exact[whole]).all()
    assert np.abs(y / exact - 1).max() > 1e-5, "the polynomial was not used"


def test_exp2_far_below_is_next_to_nothing() -> None:
    x = np.tile(np.array([-127.5, -150, -1e4, -np.inf], np.float32), (ROWS, 2))
    y = poison(ROWS, 8)
    run_role(exp2(2, 2, 0, 8, 8), x, y, poison(ROWS))
    assert (y >= 0).all() and (y <= 2.0**-126).all()


@pytest.mark.parametrize(("period", "count", "begin", "end"), [(0, 0, 0, 0), (8, 2, 32, 96)])
def test_exp2_keeps_the_pattern(period: int, count: int, begin: int, end: int) -> None:
    """Columns outside the pattern are as exact as the special-function unit."""
    columns = 128
    x = np.broadcast_to(normal(ROWS, 1) + 0.3, (ROWS, columns)).copy()
    y = poison(ROWS, columns)
    run_role(exp2(period, count, begin, end, columns), x, y, poison(ROWS))
    exact = np.exp2(x.astype(np.float64))
    error = np.abs(y / exact - 1).max(axis=0)
    polynomial = np.array(
        [period > 0 and begin <= c < end and c % period >= period - count for c in range(columns)]
    )
    assert (error[~polynomial] < 5e-7).all()
    assert (error[polynomial] > 1e-6).all() and (error[polynomial] < 8.8e-5).all()


def test_broadcast_any_and_barrier() -> None:
    """Rows above a threshold; a warp's vote is about its own 32 rows."""
    text = one_role(
        f"""
    %r = "ws.reduce"(%s, %no_rows) {{kind = "max"}} : (!full, !row) -> !row
    "ws.barrier"() : () -> ()
    %high = "ws.map"(%r) ({{
    ^bb0(%e: f32, %i: i32):
      %h = arith.cmpf ogt, %e, %one : f32
      "ws.yield"(%h) : (i1) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!row) -> !cond
    %any = "ws.any"(%high) : (!cond) -> i1
    %flag = arith.select %any, %one, %zero : f32
    %flags = "ws.fill"(%flag) : (f32) -> !row
    %wide = "ws.broadcast"(%r) : (!row) -> !full
    {store("wide")}{store_rows("flags")}""",
        columns=40,
    )
    x = np.full((ROWS, 40), 0.5, np.float32)
    x[:, 3] = 0.75
    x[37, 39] = 2.0
    y, z = poison(ROWS, 40), poison(ROWS)
    run_role(text, x, y, z)
    assert (y == x.max(axis=1, keepdims=True)).all()
    assert (z.reshape(4, 32) == [[0], [1], [0], [0]]).all()


def test_elements_outside_are_the_nearest_inside() -> None:
    text = one_role(store("s"), columns=16)
    x, y = normal(70, 11), poison(ROWS, 16)
    run_role(text, x, y, poison(ROWS))
    rows, columns = np.minimum(np.arange(ROWS), 69), np.minimum(np.arange(16), 10)
    assert (y == x[np.ix_(rows, columns)]).all()


@pytest.mark.parametrize("in_turn", [0, 8, 16])
def test_elements_in_turn(in_turn: int) -> None:
    """|i - j| x, whose coordinates wait for x and for what came so many elements before, or do not."""
    hint = f'"ws.in_turn" = {in_turn} : i32, ' if in_turn else ""
    body = f"""%d = "ws.map"(%s) ({{
    ^bb0(%e: f32, %i: i32, %j: i32):
      %difference = arith.subi %i, %j : i32
      %opposite = arith.subi %j, %i : i32
      %distance = arith.maxsi %difference, %opposite : i32
      %number = arith.sitofp %distance : i32 to f32
      %v = arith.mulf %e, %number : f32
      "ws.yield"(%v) : (f32) -> ()
    }}) {{{hint}operandSegmentSizes = array<i32: 1>}} : (!full) -> !full
    """
    text = one_role(body + store("d"), columns=48)
    x, y = normal(ROWS, 48), poison(ROWS, 48)
    run_role(text, x, y, poison(ROWS))
    assert (y == x * np.abs(np.arange(ROWS)[:, None] - np.arange(48)).astype(np.float32)).all()
    ptx = compiled(text).bundle.ptx
    later = (48 - in_turn) // 4 if in_turn else 0
    first = in_turn // 4  # elements that wait for x alone
    assert ptx.count("%nctaid") == first + later
    assert ptx.count("@never") == first + 4 * later  # the others for all of four


def test_rows_outside_are_not_written() -> None:
    """70 of 128 rows exist; the poison after them stays."""
    text = one_role(store("s") + store_rows("no_rows"), columns=8)
    x, y, z = normal(ROWS, 8), poison(ROWS, 8), poison(ROWS)
    run_role(text, x, y[:70], z[:70])
    assert (y[:70] == x[:70]).all() and np.isnan(y[70:]).all()
    assert (z[:70] == 0).all() and np.isnan(z[70:]).all()


def test_loops_and_branches_carry_fragments() -> None:
    """sum of k x for k = 1 .. n, where n is a run-time size; a branch taken once."""
    text = one_role(
        f"""
    %n = "ws.extent"(%x) {{dim = 1 : i64}} : (memref<?x?xf32>) -> i32
    %total, %last = scf.for %k = %c0 to %n step %c1 iter_args(%t = %blank, %l = %zero) -> (!full, f32) : i32 {{
      %f = arith.sitofp %k : i32 to f32
      %next = "ws.map"(%t, %s) ({{
      ^bb0(%a: f32, %b: f32, %i: i32, %j: i32):
        %v = math.fma %b, %f, %a : f32
        "ws.yield"(%v) : (f32) -> ()
      }}) {{operandSegmentSizes = array<i32: 2>}} : (!full, !full) -> !full
      scf.yield %next, %f : !full, f32
    }}
    {store("total")}
    %four = arith.constant 4 : i32
    %few = arith.cmpi slt, %n, %four : i32
    scf.if %few {{
      {store_rows("no_rows")}
    }} else {{
      %lasts = "ws.fill"(%last) : (f32) -> !row
      {store_rows("lasts")}
    }}""",
        columns=40,
    )
    for n, last in ((3, 0.0), (7, 6.0)):
        x = np.round(normal(ROWS, 40)[:, :n] * 4)
        padded = np.concatenate([x, np.repeat(x[:, -1:], 40 - n, axis=1)], axis=1)
        y, z = poison(ROWS, 40), poison(ROWS)
        run_role(text, np.ascontiguousarray(x), y, z)
        assert (y == padded * (n * (n - 1) // 2)).all() and (z == last).all()


def test_tiles_and_static_extents_make_the_grid() -> None:
    """CTA (i, j) writes rows from 128 i of plane j."""
    text = kernel(
        [("y", "out", "memref<?x3x?x8xf32>", ("b", "", "m", ""))],
        threads("""
    %one = arith.constant 1.0 : f32
    %tile = arith.constant 128 : i32
    %m = "ws.extent"(%y) {dim = 2 : i64} : (memref<?x3x?x8xf32>) -> i32
    %planes = "ws.extent"(%y) {dim = 1 : i64} : (memref<?x3x?x8xf32>) -> i32
    %b = "ws.extent"(%y) {dim = 0 : i64} : (memref<?x3x?x8xf32>) -> i32
    %blocks = arith.ceildivsi %m, %tile : i32
    "ws.tiles"(%blocks, %planes, %b) ({
    ^bb0(%t: i32, %p: i32, %e: i32):
      %first = arith.muli %t, %tile : i32
      %blank = "ws.fill"(%one) : (f32) -> !full
      %r = "ws.map"(%blank) ({
      ^bb0(%v: f32, %i: i32, %j: i32):
        %row = arith.addi %first, %i : i32
        %c1000 = arith.constant 1000 : i32
        %pe = arith.addi %p, %e : i32
        %high = arith.muli %pe, %c1000 : i32
        %sum = arith.addi %row, %high : i32
        %f = arith.sitofp %sum : i32 to f32
        "ws.yield"(%f) : (f32) -> ()
      }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !full
      "ws.store_global"(%r, %y, %e, %p, %first, %c0)
        {dims = array<i32: 2, 3>, operandSegmentSizes = array<i32: 1, 1, 4>}
        : (!full, memref<?x3x?x8xf32>, i32, i32, i32, i32) -> ()
    }) {order = "single", operandSegmentSizes = array<i32: 3, 0, 0>} : (i32, i32, i32) -> ()"""),
        columns=8,
    )
    y = poison(2, 3, 300, 8)
    run(text, y)
    batch, plane, row, _ = np.indices(y.shape)
    assert (y == row + 1000 * (plane + batch)).all()


def test_groups_of_a_role_have_their_own_buffers_and_barriers() -> None:
    """Two groups of four warps put their rows through a shared buffer each."""
    body = f"""{CONSTANTS}
    %r = "ws.map"(%no_rows) ({{
    ^bb0(%e: f32, %i: i32):
      %v = "ws.element"(%x, %i, %g) {{operandSegmentSizes = array<i32: 1, 2>}} : (memref<?x?xf32>, i32, i32) -> f32
      "ws.yield"(%v) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!row) -> !row
    %cell = "ws.at"(%cells, %g) : (!ws.buffer<!cell, 2>, i32) -> !cell
    "ws.store"(%r, %cell) : (!row, !cell) -> ()
    "ws.barrier"() : () -> ()
    %back = "ws.load"(%cell) : (!cell) -> !row
    %wide = "ws.broadcast"(%back) : (!row) -> !full
    %c8 = arith.constant 8 : i32
    %column = arith.muli %g, %c8 : i32
    "ws.store_global"(%wide, %y, %c0, %column)
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : (!full, memref<?x?xf32>, i32, i32) -> ()"""
    text = kernel(
        [MATRIX_IN, MATRIX_OUT],
        '  %cells = "ws.alloc_buffer"() {label_name = "cells"} : () -> !ws.buffer<!cell, 2>'
        + role("rows", body, first=0, warps=8, lanes=32, groups=2),
        types='!cell = !ws.tile<vector<128xf32>, "shared">',
        columns=8,
    )
    x, y = normal(ROWS, 2), poison(ROWS, 16)
    run(text, x, y)
    assert (y == np.repeat(x, 8, axis=1)).all()


@pytest.mark.parametrize(("element", "dtype"), [("bf16", BF16), ("f16", np.float16)])
@pytest.mark.parametrize("columns", [64, 96])
def test_sixteen_bit_fragments(element: str, dtype: Any, columns: int) -> None:
    """Rounded, kept in a part of a tensor-memory tile, read back, computed with, stored wide."""
    text = one_role(
        f"""
    %h = "ws.map"(%s) ({{
    ^bb0(%e: f32, %i: i32, %j: i32):
      %v = arith.truncf %e : f32 to {element}
      "ws.yield"(%v) : ({element}) -> ()
    }}) {{operandSegmentSizes = array<i32: 1>}} : (!full) -> !half
    %tile = "ws.at"(%tiles, %c1) : (!ws.buffer<!acc, 2>, i32) -> !acc
    %narrow = "ws.view"(%tile) : (!acc) -> !wide
    %part = "ws.columns"(%narrow) {{first = 32 : i64}} : (!wide) -> !part
    "ws.store"(%h, %part) : (!half, !part) -> ()
    %back = "ws.load"(%part) : (!part) -> !half
    %two = arith.constant 2.0 : {element}
    %twos = "ws.fill"(%two) : ({element}) -> !half
    %scaled = "ws.map"(%back, %twos) ({{
    ^bb0(%a: {element}, %b: {element}, %i: i32, %j: i32):
      %l = arith.extf %a : {element} to f32
      %r = arith.extf %b : {element} to f32
      %v = arith.mulf %l, %r : f32
      "ws.yield"(%v) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2>}} : (!half, !half) -> !full
    {store("scaled")}""",
        columns=columns,
        types=f"""!acc = !ws.tile<vector<128x128xf32>, "tensor">
!wide = !ws.tile<vector<128x256x{element}>, "tensor">
!part = !ws.tile<vector<128x{columns}x{element}>, "tensor">
!half = !ws.frag<vector<128x{columns}x{element}>>""",
        declarations="""  %tiles = "ws.alloc_buffer"() {label_name = "tiles"} : () -> !ws.buffer<!acc, 2>""",
    )
    x, y = normal(ROWS, columns), poison(ROWS, columns)
    run_role(text, x, y, poison(ROWS))
    assert (y == 2 * x.astype(dtype).astype(np.float32)).all()


def test_sixteen_bit_rows_leave_in_one_piece() -> None:
    """A bf16 fragment [128, 24] to a tensor whose rows run through two dimensions."""
    text = kernel(
        [MATRIX_IN, ("y", "out", "memref<?x4x32xbf16>", ("my", "", ""))],
        threads(
            CONSTANTS
            + """
    %h = "ws.map"(%s) ({
    ^bb0(%e: f32, %i: i32, %j: i32):
      %v = arith.truncf %e : f32 to bf16
      "ws.yield"(%v) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !half
    %c8 = arith.constant 8 : i32
    "ws.store_global"(%h, %y, %c1, %c0, %c8)
      {dims = array<i32: 0, 1, 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
      : (!half, memref<?x4x32xbf16>, i32, i32, i32) -> ()"""
        ),
        types="!half = !ws.frag<vector<128x24xbf16>>",
        columns=24,
    )
    x, y = normal(ROWS, 24), np.full((31, 4, 32), np.nan, BF16)
    run(text, x, y)
    written = y[1:, :, 8:].reshape(-1, 24)
    assert (written == x[: len(written)].astype(BF16)).all()
    assert np.isnan(y[0].astype(np.float32)).all()
    assert np.isnan(y[:, :, :8].astype(np.float32)).all()


def test_infinities_pass_through() -> None:
    text = one_role(
        f"""
    %init = "ws.fill"(%minus_inf) : (f32) -> !row
    %r = "ws.reduce"(%s, %init) {{kind = "max"}} : (!full, !row) -> !row
    {store_rows("r")}""",
        columns=8,
    )
    x, z = np.full((ROWS, 8), -math.inf, np.float32), poison(ROWS)
    x[5, 2] = math.inf
    run_role(text, x, poison(ROWS, 1), z)
    assert z[5] == math.inf and (np.delete(z, 5) == -math.inf).all()


def test_elements_are_kept_by_bits() -> None:
    """Bit i of word w decides over column 32 w + i; the sign bit is one of them."""
    text = kernel(
        [MATRIX_IN, ("bits", "in", "memref<?x3xi32>", ("m", "")), MATRIX_OUT],
        threads(
            CONSTANTS
            + """
    %words = "ws.map"() ({
    ^bb0(%i: i32, %j: i32):
      %v = "ws.element"(%bits, %i, %j) {operandSegmentSizes = array<i32: 1, 2>} : (memref<?x3xi32>, i32, i32) -> i32
      "ws.yield"(%v) : (i32) -> ()
    }) {operandSegmentSizes = array<i32: 0>} : () -> !words
    %kept = "ws.keep"(%s, %words, %one) : (!full, !words, f32) -> !full
    """
            + store("kept")
        ),
        types="!words = !ws.frag<vector<128x3xi32>>",
        columns=72,
    )
    numbers = np.random.default_rng(0)
    bits = numbers.integers(0, 2**32, (ROWS, 3), dtype=np.uint32)
    bits[0], bits[1], bits[2] = 0, 2**32 - 1, 1 << 31
    x, y = normal(ROWS, 72), poison(ROWS, 72)
    run(text, x, bits.view(np.int32), y)
    columns = np.arange(72)
    is_kept = bits[:, columns // 32] >> (columns % 32).astype(np.uint32) & 1 == 1
    assert (y == np.where(is_kept, x, np.float32(1))).all()


DIVISIONS = [
    (7, 2),
    (-7, 2),
    (7, -2),
    (-7, -2),
    (-8, 4),
    (0, -3),
    (1 - 2**31, 128),
    (2**31 - 1, -1),
]


def divided(mark: str = "") -> str:
    """y = floordiv(a, b), z = ceildiv(a, b), both computed once per role."""
    return kernel(
        [
            ("y", "out", "memref<?xf32>", ("m",)),
            ("z", "out", "memref<?xf32>", ("mz",)),
            ("a", "scalar", "i32", ()),
            ("b", "scalar", "i32", ()),
        ],
        threads(f"""%q = arith.floordivsi %a, %b {mark} : i32
    %r = arith.ceildivsi %a, %b {mark} : i32
    %fq = arith.sitofp %q : i32 to f32
    %fr = arith.sitofp %r : i32 to f32
    %rows = "ws.fill"(%fq) : (f32) -> !row
    {store_rows("rows").replace("%z", "%y")}
    %others = "ws.fill"(%fr) : (f32) -> !row
    {store_rows("others")}"""),
    )


@pytest.mark.parametrize(("a", "b"), DIVISIONS)
def test_signed_divisions_of_a_role_are_signed(a: int, b: int) -> None:
    y, z = poison(ROWS), poison(ROWS)
    run(divided(), y, z, a=a, b=b)
    assert (y == np.float32(a // b)).all() and (z == np.float32(-(-a // b))).all()


@pytest.mark.parametrize(("a", "b"), [(0, 3), (7, 2), (2**31 - 1, 2**31 - 1), (2**31 - 2, 4)])
def test_divisions_that_promise_plain_operands(a: int, b: int) -> None:
    text = divided('{ws.operands = "nonnegative"}')
    y, z = poison(ROWS), poison(ROWS)
    run(text, y, z, a=a, b=b)
    assert (y == np.float32(a // b)).all() and (z == np.float32(-(-a // b))).all()


def test_exp2_without_arithmetic_on_pairs() -> None:
    """The pattern is a wish: where a target cannot follow it, all columns are exact."""
    columns = 32
    text = exp2(2, 2, 0, columns, columns)
    assert b"f32x2" in bundle(text) and b"f32x2" not in bundle(text, "sm_90a")
    x, y = normal(ROWS, columns), poison(ROWS, columns)
    run(text, x, y, target="sm_90a")
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(y / exact - 1) < 5e-7).all()
