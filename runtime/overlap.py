"""Whether tensors share elements: what a kernel writes must lie in memory of its own.

Tensors whose byte ranges are apart, or whose strides nest, are told at once. For the rest numpy's solver
decides exactly, from addresses alone: heads of a packed buffer interleave and share nothing.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from attn_mlir.runtime.tensors import TensorView

MAX_WORK = 100_000  # steps of numpy's solver, about 10 ms; packed layouts take a few


def overlaps_itself(tensor: TensorView) -> bool:
    """Whether two elements share memory: rows of a window, extents that are repeated.

    A layout that the solver gives up on counts as one.
    """
    if tensor.empty or _nests(tensor):
        return False
    array = _placed(tensor)
    # Of two elements that differ along an axis, one may be moved to its begin.
    for axis in range(array.ndim):
        first, others = np.split(array, [1], axis)
        if _share(first, others):
            return True
    return False


def overlap(one: TensorView, other: TensorView) -> bool:
    """Whether two tensors share memory; what the solver gives up on counts as shared."""
    if one.empty or other.empty:
        return False
    (low, length), (other_low, other_length) = one.byte_range, other.byte_range
    if low + length <= other_low or other_low + other_length <= low:
        return False
    return _share(_placed(one), _placed(other))


def _nests(tensor: TensorView) -> bool:
    """Whether each stride steps over all that the smaller ones reach: then no elements meet."""
    reach = 1
    for stride, extent in sorted(zip(map(abs, tensor.strides), tensor.shape, strict=True)):
        if extent > 1 and stride < reach:
            return False
        reach += (extent - 1) * stride
    return True


def _share(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(one, other, max_work=cast(Any, MAX_WORK))  # the stubs know two
    except (np.exceptions.TooHardError, OverflowError):
        return True


def _placed(tensor: TensorView) -> np.ndarray[Any, Any]:
    """An array that lies as the tensor does; its memory, on whichever device, is never touched."""
    return np.asarray(_Placed(tensor))


class _Placed:
    """A tensor's place in numpy's words."""

    def __init__(self, tensor: TensorView):
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{tensor.item_bytes}",
            "shape": tensor.shape,
            "strides": tuple(stride * tensor.item_bytes for stride in tensor.strides),
            "data": (tensor.address, True),
        }
