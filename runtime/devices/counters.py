"""Counters in GPU memory at which the CTAs of a launch arrive: 0 before a launch, and 0 after it.

Launches that may run at the same time must not share counters. Those of one stream run one after
the other, so each stream has counters of its own, by the driver's number of the stream, which is
never given twice. What a stream capture records may be replayed on any stream, and beside anything
that is launched there: each recorded launch gets counters that nothing else ever uses, as long as the
process lives. One graph does not run twice at the same time, as its results' memory would be shared.

Memory is set to 0 before it is handed out, on a stream of its own that is waited for, so that no
order with the caller's work is needed. It is taken a chunk at a time and kept: a launch counts a few
hundred work tiles at most unless the caller splits long keys of many queries.
"""

from __future__ import annotations

import threading
from typing import Any

from attn_mlir.runtime.devices import driver, memory
from attn_mlir.runtime.tensors import TensorView, dense_strides, element_count

CHUNK = 1 << 18  # counters, 1 MiB
LEAST = 1 << 10  # counters of a stream
ALIGNMENT = 32  # counters, 128 bytes: a line of the L2 is that of one launch


class _Pool:
    """The counters of one GPU."""

    def __init__(self, index: int):
        self.index = index
        self._chunk: TensorView | None = None
        self._taken = 0
        self._of_streams: dict[int, TensorView] = {}

    def of(self, stream: int, count: int) -> TensorView:
        """Counters for a launch on a stream, at least so many."""
        with driver.Current(self.index):
            handle = driver.api().CUstream(stream)
            status = driver.call("cuStreamIsCapturing", handle)
            if status != driver.api().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
                return self._fresh(count)
            number = int(driver.call("cuStreamGetId", handle))
            found = self._of_streams.get(number)
            if found is None or found.shape[0] < count:
                least = LEAST if found is None else 2 * found.shape[0]
                found = self._of_streams[number] = self._fresh(max(count, least))
            return found

    def _fresh(self, count: int) -> TensorView:
        """Counters that nobody has had."""
        count = -(-count // ALIGNMENT) * ALIGNMENT
        if self._chunk is None or self._taken + count > self._chunk.shape[0]:
            self._chunk, self._taken = _zeros(max(count, CHUNK), self.index), 0
            _kept.append(self._chunk)
        address = self._chunk.address + 4 * self._taken
        self._taken += count
        return TensorView("i32", (count,), (1,), address, "cuda", self.index, False, self._chunk)


def _zeros(count: int, index: int) -> TensorView:
    """New memory full of 0, also while a stream is being captured, of which it is no part."""
    cuda = driver.api()
    relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = driver.call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        made = memory.empty("i32", (count,), index)
        own = driver.call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        driver.call("cuMemsetD32Async", made.address, 0, count, own, what="set counters to 0")
        driver.call("cuStreamSynchronize", own)
        driver.call("cuStreamDestroy", own)
    finally:
        driver.call("cuThreadExchangeStreamCaptureMode", before)
    return made


_kept: list[TensorView] = []
_pools: dict[int, _Pool] = {}
_lock = threading.Lock()


def counters(shape: tuple[int, ...], index: int, stream: int) -> TensorView:
    """Counters for the next launch on a stream of GPU `index`, dense.

    Args:
      stream: the driver's handle, 0 for the default stream.

    Raises:
      LaunchError: there is no memory.
    """
    with _lock:
        pool = _pools.setdefault(index, _Pool(index))
        found: Any = pool.of(stream, element_count(shape))
    return found.reshaped(shape, dense_strides(shape))
