"""`ws.repeat`, executed: numbers of runs of columns, in threads of which each has a row, or parts of some."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.validation.ws.kernels import bundle, kernel, poison, run, threads

ARGUMENTS = [
    ("x", "in", "memref<?x?xf32>", ("n", "nx")),
    ("y", "out", "memref<?x?xf32>", ("my", "ny")),
]


def repeated(rows: int, columns: int, wide: int) -> str:
    """A kernel that writes to all of %y each column of %x in all columns of its run."""
    runs, full = (f"!ws.frag<vector<{rows}x{count}xf32>>" for count in (columns, wide))
    body = f"""
    %runs = "ws.map"() ({{
    ^bb0(%i: i32, %j: i32):
      %v = "ws.element"(%x, %i, %j) {{operandSegmentSizes = array<i32: 1, 2>}} : (memref<?x?xf32>, i32, i32) -> f32
      "ws.yield"(%v) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 0>}} : () -> {runs}
    %wide = "ws.repeat"(%runs) : ({runs}) -> {full}
    "ws.store_global"(%wide, %y, %c0, %c0) {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
      : ({full}, memref<?x?xf32>, i32, i32) -> ()
    """
    return kernel(ARGUMENTS, threads(body), columns=wide)


@pytest.mark.parametrize(
    ("rows", "columns", "wide"),
    [(128, 2, 64), (128, 3, 96), (128, 8, 8), (64, 2, 16), (64, 3, 48), (64, 4, 16)],
)
def test_each_column_is_repeated_in_its_place(rows: int, columns: int, wide: int) -> None:
    """128 rows are one to a thread; of 64 rows each is in four threads, which share runs of 8 columns."""
    x = np.random.default_rng(rows + wide).standard_normal((rows, columns)).astype(np.float32)
    y = poison(rows, wide)
    run(repeated(rows, columns, wide), x, y)
    np.testing.assert_array_equal(y, x.repeat(wide // columns, axis=1))


def test_columns_that_are_the_strips_of_threads() -> None:
    with pytest.raises(VerifyError, match="expects runs of 2 columns of a layout that goes with"):
        bundle(repeated(8, 64, 128))
