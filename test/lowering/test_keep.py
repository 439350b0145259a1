"""`ws.keep`, executed: every bit of every word decides over the column that it belongs to."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.validation.ws.kernels import ROWS, kernel, poison, run, threads

ARGUMENTS = [
    ("x", "in", "memref<?x?xf32>", ("m", "n")),
    ("w", "in", "memref<?x?xi32>", ("mw", "nw")),
    ("y", "out", "memref<?x?xf32>", ("my", "ny")),
]
BODY = """
    %other = arith.constant -7.0 : f32
    %s = "ws.map"() ({{
    ^bb0(%i: i32, %j: i32):
      %v = "ws.element"(%x, %i, %j) {{operandSegmentSizes = array<i32: 1, 2>}} : (memref<?x?xf32>, i32, i32) -> f32
      "ws.yield"(%v) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 0>}} : () -> !full
    %bits = "ws.map"() ({{
    ^bb0(%i: i32, %j: i32):
      %v = "ws.element"(%w, %i, %j) {{operandSegmentSizes = array<i32: 1, 2>}} : (memref<?x?xi32>, i32, i32) -> i32
      "ws.yield"(%v) : (i32) -> ()
    }}) {{operandSegmentSizes = array<i32: 0>}} : () -> !ws.frag<vector<128x{words}xi32>>
    %k = "ws.keep"(%s, %bits, %other) : (!full, !ws.frag<vector<128x{words}xi32>>, f32) -> !full
    "ws.store_global"(%k, %y, %c0, %c0) {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : (!full, memref<?x?xf32>, i32, i32) -> ()
"""


@pytest.mark.parametrize("columns", [4, 8, 32, 40, 96, 128])
def test_bits_belong_to_columns(columns: int) -> None:
    words = -(-columns // 32)
    text = kernel(ARGUMENTS, threads(BODY.format(words=words)), columns=columns)
    random = np.random.default_rng(columns)
    x = random.standard_normal((ROWS, columns)).astype(np.float32)
    w = random.integers(-(2**31), 2**31, (ROWS, words)).astype(np.int32)
    w[0], w[1], w[2], w[3] = 0, -1, 1, -(2**31)
    y = poison(ROWS, columns)
    run(text, x, w, y)
    bits = np.unpackbits(w.view(np.uint8), axis=1, bitorder="little")[:, :columns]
    np.testing.assert_array_equal(y, np.where(bits == 1, x, np.float32(-7.0)))


def test_elements_of_16_bits_are_refused() -> None:
    body = """
    %other = arith.constant 0.0 : bf16
    %bits = "ws.fill"(%c0) : (i32) -> !ws.frag<vector<128x1xi32>>
    %s = "ws.fill"(%other) : (bf16) -> !ws.frag<vector<128x32xbf16>>
    %k = "ws.keep"(%s, %bits, %other)
      : (!ws.frag<vector<128x32xbf16>>, !ws.frag<vector<128x1xi32>>, bf16) -> !ws.frag<vector<128x32xbf16>>
"""
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(kernel([], threads(body)))
        with pytest.raises(VerifyError, match=r"'ws\.keep' op .* 32-bit elements, got bf16"):
            run_pipeline(module, "ws-plan-memory,convert-ws-to-nvvm")
