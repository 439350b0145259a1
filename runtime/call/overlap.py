"""Whether tensors share memory: a tensor that a kernel writes must not.

Disjoint byte ranges and nested strides are decided at once. For others numpy's solver decides
exactly, by addresses only: heads of a packed buffer interleave but share no bytes.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from attn_mlir.runtime.call.tensors import TensorView

MAX_WORK = 100_000  # most steps of numpy's solver, about 10 ms; packed layouts need a few


def overlaps_itself(tensor: TensorView) -> bool:
    """Whether two elements of a tensor share memory, as in sliding windows or repeated extents.

    True if the solver gives up.
    """
    if tensor.empty or _nests(tensor):
        return False
    array = _placed(tensor)
    # If two elements differ along an axis, one may be taken from its first slice.
    for axis in range(array.ndim):
        first, rest = np.split(array, [1], axis)
        if _share(first, rest):
            return True
    return False


def overlap(one: TensorView, other: TensorView) -> bool:
    """Whether two tensors share memory; true if the solver gives up."""
    if one.empty or other.empty:
        return False
    (low, length), (other_low, other_length) = one.byte_range, other.byte_range
    if low + length <= other_low or other_low + other_length <= low:
        return False
    return _share(_placed(one), _placed(other))


def _nests(tensor: TensorView) -> bool:
    """Whether each stride exceeds the range of all smaller ones, so that no elements coincide."""
    reach = 1
    for stride, extent in sorted(zip(map(abs, tensor.strides), tensor.shape, strict=True)):
        if extent > 1 and stride < reach:
            return False
        reach += (extent - 1) * stride
    return True


def _share(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    try:
        # the stubs have two arguments only
        return np.shares_memory(one, other, max_work=cast(Any, MAX_WORK))
    except (np.exceptions.TooHardError, OverflowError):
        return True


def _placed(tensor: TensorView) -> np.ndarray[Any, Any]:
    """A numpy array with the tensor's address and strides, whose memory is never accessed."""
    return np.asarray(_Placed(tensor))


class _Placed:
    """A tensor's address, shape and strides in numpy's array interface."""

    def __init__(self, tensor: TensorView):
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{tensor.item_bytes}",
            "shape": tensor.shape,
            "strides": tuple(stride * tensor.item_bytes for stride in tensor.strides),
            "data": (tensor.address, True),
        }
