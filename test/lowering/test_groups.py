"""What the warps of a group find out together, fragments that are turned, and products of A as it lies
turned in memory: executed on the emulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.ws.kernels import ROWS, kernel, normal, poison, product, run, threads

BF16 = ml_dtypes.bfloat16
COLUMNS = 8
ARGUMENTS = [
    ("x", "in", "memref<?x?xf32>", ("mx", "nx")),
    ("y", "out", "memref<?x?xf32>", ("my", "ny")),
]
LOADED = """%x2 = "ws.load_global"(%x, %c0, %c0) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 2>}
      : (memref<?x?xf32>, i32, i32) -> !full
    %t = "ws.turn"(%x2) : (!full) -> !turned"""
STORED = """"ws.store_global"(%z, %y, %c0, %c0) {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!turned, memref<?x?xf32>, i32, i32) -> ()"""
TYPES = f"""!turned = !ws.frag<vector<{COLUMNS}x{ROWS}xf32>>
!line = !ws.frag<vector<{COLUMNS}xf32>>
!cells = !ws.tile<vector<{4 * COLUMNS}xf32>, "shared">
"""


def ran(body: str, x: np.ndarray, seed: int | None = None) -> np.ndarray:
    """y [8, 128] of a kernel whose threads have a row of x [128, 8] each, %t where it is turned."""
    buffer = '  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!cells, 1>'
    text = "\n    ".join((LOADED, body, STORED))
    y = poison(COLUMNS, ROWS)
    run(kernel(ARGUMENTS, buffer + threads(text), types=TYPES, columns=COLUMNS), x, y, seed=seed)
    return y


def test_turned() -> None:
    """Nothing moves, rows are called columns; rank 1 follows."""
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    body = """%i = arith.constant 3.0 : f32
    %l = "ws.fill"(%i) : (f32) -> !line
    %w = "ws.broadcast"(%l) : (!line) -> !turned
    %z = "ws.map"(%t, %w) ({
    ^bb0(%a: f32, %b2: f32, %row: i32, %column: i32):
      %r = arith.sitofp %row : i32 to f32
      %p = arith.mulf %a, %b2 : f32
      %s = arith.addf %p, %r : f32
      "ws.yield"(%s) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 2>} : (!turned, !turned) -> !turned"""
    wanted = 3 * x.T + np.arange(COLUMNS, dtype=np.float32)[:, None]
    np.testing.assert_allclose(ran(body, x), wanted, rtol=1e-6)


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("kind", ["max", "add"])
def test_reduced_by_a_group(kind: str, seed: int | None) -> None:
    """Twice in the same cells: no warp leaves what it finds before all have read what was there."""
    x = normal(ROWS, COLUMNS, dtype=np.float32)
    once = (
        """"ws.reduce_group"({}, %i, %cells) {{kind = "{}"}} : (!turned, !line, !cells) -> !line"""
    )
    body = f"""%start = arith.constant 1.0 : f32
    %i = "ws.fill"(%start) : (f32) -> !line
    %cells = "ws.at"(%b, %c0) : (!ws.buffer<!cells, 1>, i32) -> !cells
    %first = {once.format("%t", kind)}
    %w = "ws.broadcast"(%first) : (!line) -> !turned
    %d = "ws.map"(%t, %w) ({{
    ^bb0(%p: f32, %q: f32, %row: i32, %column: i32):
      %s = arith.subf %q, %p : f32
      "ws.yield"(%s) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2>}} : (!turned, !turned) -> !turned
    %second = {once.format("%d", kind)}
    %z = "ws.broadcast"(%second) : (!line) -> !turned"""
    reduce = np.max if kind == "max" else np.sum

    def found(rows: np.ndarray) -> np.ndarray:
        with_start = np.concatenate([rows, np.ones((COLUMNS, 1), np.float32)], axis=1)
        return reduce(with_start, axis=1, keepdims=True)

    wanted = found(found(x.T) - x.T)
    np.testing.assert_array_equal(ran(body, x, seed), np.broadcast_to(wanted, (COLUMNS, ROWS)))


@pytest.mark.parametrize("place", [None, (3, 0), (100, 7)])
def test_conditions_of_a_group(place: tuple[int, int] | None) -> None:
    """What holds for one element of one warp holds for all threads."""
    x = np.zeros((ROWS, COLUMNS), np.float32)
    if place is not None:
        x[place] = 1
    body = """%c = "ws.map"(%t) ({
    ^bb0(%a: f32, %row: i32, %column: i32):
      %zero = arith.constant 0.0 : f32
      %is = arith.cmpf ogt, %a, %zero : f32
      "ws.yield"(%is) : (i1) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!turned) -> !ws.frag<vector<8x128xi1>>
    %any = "ws.any"(%c) {scope = "group"} : (!ws.frag<vector<8x128xi1>>) -> i1
    %two = arith.constant 2.0 : f32
    %five = arith.constant 5.0 : f32
    %v = arith.select %any, %two, %five : f32
    %z = "ws.map"(%t) ({
    ^bb0(%a: f32, %row: i32, %column: i32):
      "ws.yield"(%v) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!turned) -> !turned"""
    wanted = 5 if place is None else 2
    np.testing.assert_array_equal(ran(body, x), np.full((COLUMNS, ROWS), wanted))


@pytest.mark.parametrize(("columns", "n"), [(128, 8), (64, 16), (128, 32)])
def test_a_as_it_lies_turned(columns: int, n: int) -> None:
    """A [K, M] whose rows are K; of half as many columns every row of D counts twice."""
    a, b = normal(64, columns, dtype=BF16), normal(64, n, dtype=BF16, seed=1)
    y = poison(ROWS, n)
    run(product("bf16", 64, n, "kn", a_columns=columns), a, b, y)
    wanted = a.astype(np.float32).T @ b.astype(np.float32)
    np.testing.assert_array_equal(y, np.tile(wanted, (ROWS // columns, 1)))
