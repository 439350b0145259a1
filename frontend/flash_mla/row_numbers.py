"""Numbers of rows in a pool whose pages have rows between them that belong to none."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from attn_mlir.arrays import on_stream
from attn_mlir.errors import SpecError
from attn_mlir.library import library_of
from attn_mlir.runtime.call.tensors import shape_of, view
from attn_mlir.runtime.call.torch_tensors import is_tensor


def in_one_page(name: str, pool: Any, indices: Any, stream: object | None) -> tuple[Any, Any]:
    """A pool with gaps between its pages as one page, and the numbers of rows there.

    Args:
      name: of the pool.
      pool: [pages, page, 1, columns]; without gaps it is returned as it is.
      indices: [batch, queries, topk] i32, page x page size + offset; any other number is no row.
      stream: that the launch is on.

    Raises:
      SpecError: pages do not begin a whole number of rows apart.
    """
    pages, page, heads, columns = shape_of(pool, name)
    # a graph of PyTorch traces what a tensor says of itself
    step, row, *_ = pool.stride() if is_tensor(pool) else view(pool, name).strides
    if pages < 2 or page < 2 or step == page * row or not columns:
        return pool, indices
    if step < page * row or step % row:
        raise SpecError(
            f"pages of {name} must begin a whole number of rows of {row} elements apart, of at "
            f"least {page}, got {step} elements"
        )
    pitch = step // row
    rows = (pages - 1) * pitch + page
    shape = (1, rows, heads, columns)
    library = library_of(pool, name)
    module: Any = sys.modules[library]
    with on_stream(stream, indices):
        is_row = (indices >= 0) & (indices < pages * page)
        numbers = module.where(is_row, indices // page * pitch + indices % page, -1)
    if library == "torch":
        whole = pool.as_strided(shape, (rows * row, row, columns, 1))
        return whole, numbers.int()
    tricks: Any = importlib.import_module(f"{library}.lib.stride_tricks")
    size = pool.itemsize
    strides = (rows * row * size, row * size, columns * size, size)
    return tricks.as_strided(pool, shape, strides), numbers.astype("int32")
