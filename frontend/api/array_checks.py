"""Arrays of a call, checked for their shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence

from attn_mlir.arrays import as_i32, dense_on_host
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import TensorView, view


def checked_array(
    name: str,
    value: object,
    shape: Sequence[int | str],
    *dtypes: str,
    label: str = "",
    note: str = "",
) -> TensorView:
    """The view of an array.

    Args:
      shape: its extents; a string names one that may have any value.
      dtypes: those that it may have.
      label: the shape in messages; by default its extents.
      note: follows the shape and the dtypes in messages.

    Raises:
      SpecError: no array, or one of another shape or dtype.
    """
    array = view(value, name)
    is_fit = len(array.shape) == len(shape) and all(
        isinstance(expected, str) or got == expected
        for got, expected in zip(array.shape, shape, strict=True)
    )
    if not is_fit or array.dtype not in dtypes:
        label = label or f"[{', '.join(map(str, shape))}]"
        *first, last = dtypes
        allowed = f"{', '.join(first)} or {last}" if first else last
        raise SpecError(
            f"{name} must be {label} of {allowed}{note}, got {list(array.shape)} of {array.dtype}"
        )
    return array


def dense_array(
    name: str, value: object, shape: Sequence[int | str], *dtypes: str, **texts: str
) -> object:
    """A small array as kernels take it, dense in host memory; arguments as of `checked_array`."""
    checked_array(name, value, shape, *dtypes, **texts)
    return dense_on_host(value, name)


def index_array(
    name: str, value: object, shape: Sequence[int | str], *, all_count: bool = False, **texts: str
) -> object:
    """An array of i32 or u32 as kernels take it: of i32, and dense in host memory.

    Args:
      shape, texts: as of `checked_array`.
      all_count: as of `as_i32`.

    Raises:
      SpecError: as of `checked_array` and `as_i32`.
    """
    value = as_i32(value, name, all_count=all_count)
    return dense_array(name, value, shape, "i32", **texts)
