"""Counters of launches that may run at the same time are different ones: on a driver that does nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from attn_mlir.runtime.call.tensors import TensorView, dense_strides
from attn_mlir.runtime.devices import counters as module
from attn_mlir.runtime.devices import driver, memory
from attn_mlir.runtime.devices.counters import CHUNK, counters


class _Driver:
    """Notes what is called; streams with numbers from 100 on are being captured."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.allocated: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return self  # enumerations of the driver's interface

    def __call__(self, value: int) -> int:
        return value  # a handle is its number

    def call(self, name: str, *arguments: Any, what: str = "") -> Any:
        self.called.append(name)
        if name == "cuStreamIsCapturing":
            return None if arguments[0] >= 100 else self
        return arguments[0] if name == "cuStreamGetId" else 0

    def empty(self, dtype: str, shape: tuple[int, ...], index: int) -> TensorView:
        self.allocated.append(shape[0])
        address = 1 << (30 + len(self.allocated))
        return TensorView(dtype, shape, dense_strides(shape), address, "cuda", index, False, None)


class _Current:
    def __init__(self, index: int):
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    """A driver, and no counters yet."""
    made = _Driver()
    monkeypatch.setattr(driver, "api", lambda: made)
    monkeypatch.setattr(driver, "call", made.call)
    monkeypatch.setattr(driver, "Current", _Current)
    monkeypatch.setattr(memory, "empty", made.empty)
    monkeypatch.setattr(module, "_pools", {})
    return made


def span(found: TensorView) -> range:
    return range(found.address, found.address + found.span_bytes)


def test_a_stream_keeps_its_counters(fake: _Driver) -> None:
    first, again = counters((64, 4), 0, 7), counters((2, 4), 0, 7)
    assert (first.shape, first.dtype, first.place) == ((64, 4), "i32", "cuda:0")
    assert first.address == again.address and again.shape == (2, 4)
    more = counters((4096,), 0, 7)
    assert more.address not in span(first)
    assert counters((64, 4), 0, 7).address == more.address


def test_what_may_run_at_the_same_time(fake: _Driver) -> None:
    """Two streams, two recorded launches of one stream, two GPUs; a line of the L2 each."""
    found = [counters((3, 1), 0, stream) for stream in (0, 7, 100, 100, 101)]
    starts = sorted(span(x).start for x in found)
    assert all(end - start >= 128 for start, end in itertools.pairwise(starts))
    assert fake.allocated == [CHUNK]
    assert counters((3, 1), 1, 0).place == "cuda:1"
    assert len(fake.allocated) == 2


def test_memory_is_zero_before_it_is_used(fake: _Driver) -> None:
    """Also in a capture, of which neither the allocation nor the memset is part."""
    counters((CHUNK + 1,), 0, 100)
    assert fake.allocated == [CHUNK + 32]
    set_to_zero = fake.called.index("cuMemsetD32Async")
    relaxed, strict = (
        i for i, name in enumerate(fake.called) if name == "cuThreadExchangeStreamCaptureMode"
    )
    assert relaxed < set_to_zero < fake.called.index("cuStreamSynchronize") < strict


def test_memory_is_used_to_its_end(fake: _Driver) -> None:
    first = counters((CHUNK // 2,), 0, 7)
    second = counters((CHUNK // 2,), 0, 8)
    assert second.address == first.address + 2 * CHUNK and fake.allocated == [CHUNK]
