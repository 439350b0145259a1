"""Counters in GPU memory, at which CTAs of a launch arrive; they are 0 before and after it.

Launches that may run at the same time must not share counters. Launches on one stream run one after
the other, so each stream has its own counters, found by the driver's number of the stream, which is
never reused; the default stream, which no capture records, is known without asking the driver.
Launches that a stream capture records may be replayed on any stream, next to any
other launch: each of them gets counters that nothing else uses during the life of the process. A
graph does not run twice at the same time, as the memory of its results would be shared.

Memory is set to 0 on a separate stream, which is waited for before it is used, so that no order
with the caller's work is needed. It is allocated in chunks and kept: a launch needs counters for a
few hundred work tiles at most, unless the caller splits long keys of many queries.
"""

from __future__ import annotations

import functools
import os
import threading

from attn_mlir.runtime.call.tensors import TensorView, dense_strides, element_count
from attn_mlir.runtime.devices import driver, memory

CHUNK = 1 << 18  # counters of a chunk, 1 MiB
LEAST = 1 << 10  # least counters of a stream
DEFAULT_STREAM = 0  # handle of the stream that all threads share, and that no capture records
SHARED = -1  # key of its counters, which is no stream's number
ALIGNMENT = 32  # counters in 128 bytes, so that launches do not share a line of the L2 cache


class _Pool:
    """The counters of one GPU."""

    def __init__(self, index: int):
        self.index = index
        self._chunk: TensorView | None = None
        self._taken = 0
        self._of_streams: dict[int, TensorView] = {}

    def of(self, stream: int, count: int) -> TensorView:
        """At least `count` counters for a launch on a stream."""
        number = SHARED
        if stream != DEFAULT_STREAM or _is_per_thread():
            with driver.Current(self.index):
                handle = driver.api().CUstream(stream)
                status = driver.call("cuStreamIsCapturing", handle)
                if status != driver.api().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
                    return self._fresh(count)
                number = int(driver.call("cuStreamGetId", handle))
        counters = self._of_streams.get(number)
        if counters is None or counters.shape[0] < count:
            least = LEAST if counters is None else 2 * counters.shape[0]
            with driver.Current(self.index):
                counters = self._of_streams[number] = self._fresh(max(count, least))
        return counters

    def _fresh(self, count: int) -> TensorView:
        """Counters that were never used."""
        count = -(-count // ALIGNMENT) * ALIGNMENT
        if self._chunk is None or self._taken + count > self._chunk.shape[0]:
            self._chunk, self._taken = _zeros(max(count, CHUNK), self.index), 0
            _retained.append(self._chunk)
        address = self._chunk.address + 4 * self._taken
        self._taken += count
        return TensorView("i32", (count,), (1,), address, "cuda", self.index, False, self._chunk)


def _zeros(count: int, index: int) -> TensorView:
    """New zeroed memory; works during a stream capture as well, without becoming part of it."""
    cuda = driver.api()
    relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = driver.call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        made = memory.empty("i32", (count,), index)
        stream = driver.call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        driver.call("cuMemsetD32Async", made.address, 0, count, stream, what="set counters to 0")
        driver.call("cuStreamSynchronize", stream)
        driver.call("cuStreamDestroy", stream)
    finally:
        driver.call("cuThreadExchangeStreamCaptureMode", before)
    return made


@functools.cache
def _is_per_thread() -> bool:
    """Whether each thread has its own default stream, as cuda-python is told at import."""
    return os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0")


_retained: list[TensorView] = []
_pools: dict[int, _Pool] = {}
_lock = threading.Lock()


def counters(shape: tuple[int, ...], index: int, stream: int) -> TensorView:
    """Counters for the next launch on a stream of GPU `index`, dense.

    Args:
      stream: the driver's handle, 0 for the default stream.

    Raises:
      LaunchError: the GPU is out of memory.
    """
    with _lock:
        tensor = _pool(index).of(stream, element_count(shape))
    return tensor.reshaped(shape, dense_strides(shape))


def counters_address(count: int, index: int, stream: int) -> int:
    """Where `counters` of that many are."""
    with _lock:
        return _pool(index).of(stream, count).address


def _pool(index: int) -> _Pool:
    pool = _pools.get(index)
    if pool is None:
        pool = _pools[index] = _Pool(index)
    return pool
