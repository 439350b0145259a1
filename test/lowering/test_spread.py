"""`ws.spread`, executed: elements that lie one to a lane, for the threads of rows and of columns."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.validation.ws.kernels import ROWS, kernel, poison, run, threads

ARGUMENTS = [
    ("x", "in", "memref<?xf32>", ("n",)),
    ("y", "out", "memref<?x?xf32>", ("my", "ny")),
]
BODY = """
    %lanes = "ws.map"() ({{
    ^bb0(%i: i32):
      %v = "ws.element"(%x, %i) {{operandSegmentSizes = array<i32: 1, 1>}} : (memref<?xf32>, i32) -> f32
      "ws.yield"(%v) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 0>}} : () -> !ws.frag<vector<{count}xf32>>
    %line = "ws.spread"(%lanes) : (!ws.frag<vector<{count}xf32>>) -> !ws.frag<vector<{count}xf32>>
    %wide = "ws.broadcast"(%line) {{axis = "{axis}"}} : (!ws.frag<vector<{count}xf32>>) -> !full
    "ws.store_global"(%wide, %y, %c0, %c0) {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : (!full, memref<?x?xf32>, i32, i32) -> ()
"""


@pytest.mark.parametrize(("axis", "columns"), [("rows", 32), ("rows", 96), ("columns", 8)])
def test_every_thread_has_its_own(axis: str, columns: int) -> None:
    count = columns if axis == "rows" else ROWS
    text = kernel(ARGUMENTS, threads(BODY.format(count=count, axis=axis)), columns=columns)
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    y = poison(ROWS, columns)
    run(text, x, y)
    wanted = x[None, :] if axis == "rows" else x[:, None]
    np.testing.assert_array_equal(y, np.broadcast_to(wanted, y.shape))


@pytest.mark.parametrize(
    ("kind", "message"),
    [("vector<32xbf16>", "lanes of rank 1 and 32 bits"), ("vector<32x8xf32>", "lanes of rank 1")],
)
def test_refused(kind: str, message: str) -> None:
    body = f"""
    %other = arith.constant 0.0 : {kind.split("x")[-1][:-1]}
    %lanes = "ws.fill"(%other) : ({kind.split("x")[-1][:-1]}) -> !ws.frag<{kind}>
    %line = "ws.spread"(%lanes) : (!ws.frag<{kind}>) -> !ws.frag<{kind}>
"""
    with make_context(), ir.Location.unknown(), pytest.raises(ir.MLIRError, match=message):
        ir.Module.parse(kernel([], threads(body)))
