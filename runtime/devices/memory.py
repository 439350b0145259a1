"""Device memory, and copies of host tensors to it and back."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import LaunchError
from attn_mlir.runtime.call.binding import Bound
from attn_mlir.runtime.call.tensors import (
    TensorView,
    bytes_at,
    dense_strides,
    dtype_bytes,
    element_count,
)
from attn_mlir.runtime.devices import driver


class _Allocation:
    """Device memory that is freed with this object, or at the end of the process."""

    def __init__(self, index: int, length: int):
        self.address = 0
        if length:
            with driver.Current(index):
                self.address = int(driver.call("cuMemAlloc", length, what=f"allocate {length} B"))
            weakref.finalize(self, _free, index, self.address).atexit = False


def _free(index: int, address: int) -> None:
    with contextlib.suppress(LaunchError):  # the context has been destroyed, and its memory with it
        with driver.Current(index):
            driver.call("cuMemFree", address)


def empty(dtype: str, shape: tuple[int, ...], index: int) -> TensorView:
    """A dense tensor in the memory of GPU `index`; the memory lives as long as the view."""
    memory = _Allocation(index, dtype_bytes(dtype) * element_count(shape))
    strides = dense_strides(shape)
    return TensorView(dtype, shape, strides, memory.address, "cuda", index, False, memory)


def host_words(tensor: TensorView) -> npt.NDArray[Any]:
    """A tensor in host memory as a numpy array that aliases it, elements as unsigned integers."""
    word = np.dtype(f"u{tensor.item_bytes}")
    flat = bytes_at(tensor.address, tensor.span_bytes)
    strides = [stride * tensor.item_bytes for stride in tensor.strides]
    return np.ndarray(tensor.shape, word, buffer=flat, strides=strides)


def upload(tensor: TensorView, index: int) -> TensorView:
    """Copies a host tensor to a dense one in the memory of GPU `index`; waits for the copy."""
    copy = empty(tensor.dtype, tensor.shape, index)
    if not tensor.empty:
        dense = np.ascontiguousarray(host_words(tensor))
        with driver.Current(index):
            driver.call("cuMemcpyHtoD", copy.address, dense.ctypes.data, dense.nbytes)
    return copy


def download(copy: TensorView, into: TensorView) -> None:
    """Copies a dense tensor in GPU memory to a host tensor; waits for the copy."""
    if copy.empty:
        return
    dense = np.empty(copy.shape, np.dtype(f"u{copy.item_bytes}"))
    with driver.Current(copy.device_index):
        driver.call("cuMemcpyDtoH", dense.ctypes.data, copy.address, dense.nbytes)
    host_words(into)[...] = dense


def stage(bound: Bound, index: int) -> Bound:
    """The call with every host tensor, outputs as well, replaced by a copy on GPU `index`."""
    tensors = {name: upload(tensor, index) for name, tensor in bound.tensors.items()}
    return dataclasses.replace(bound, tensors=tensors)


def unstage(staged: Bound, bound: Bound, stream: int) -> None:
    """Waits for the stream, then copies outputs back to the caller's tensors."""
    outputs = [tensor.name for tensor in bound.manifest.tensors if tensor.is_written]
    with driver.Current(staged.tensors[outputs[0]].device_index):
        handle = driver.api().CUstream(stream)
        driver.call("cuStreamSynchronize", handle, what=bound.manifest.entry)
    for name in outputs:
        download(staged.tensors[name], bound.tensors[name])
