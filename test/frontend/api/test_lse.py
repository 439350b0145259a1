"""LSE as other libraries return it, on the stream of the launch."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attn_mlir import lse as sums
from attn_mlir.arrays import on_stream
from attn_mlir.flash import functions, kvcache
from attn_mlir.flash_mla import decoding, sparse

LSE = np.array([[[1.0, -np.inf], [0.5, 3.0]]], np.float32)
SINKS = np.array([2.0, -np.inf], np.float32)
Q = np.zeros((1, 2, 2, 64), np.float16)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The streams that LSE was computed on."""
    seen: list[object] = []

    @contextlib.contextmanager
    def on(stream: object, _: Any) -> Iterator[None]:
        seen.append(stream)
        yield

    monkeypatch.setattr(sums, "on_stream", on)
    return seen


def test_sinks_of_a_cache(monkeypatch: pytest.MonkeyPatch, streams: list[object]) -> None:
    asked: dict[str, Any] = {}

    def prepared(*_: Any, **given: Any) -> Any:
        asked.update(given)
        return lambda: (Q, LSE)

    monkeypatch.setattr(kvcache, "_prepared", prepared)
    options: dict[str, Any] = {"return_softmax_lse": True, "stream": 7}
    _, found = kvcache.flash_attn_with_kvcache(Q, Q, Q, s_aux=SINKS, **options)
    want = [[[np.logaddexp(1, 2), 2.0], [0.5, 3.0]]]
    assert np.allclose(found, want) and asked["sinks"] is SINKS
    assert asked["stream"] == 7 and streams == [7]


@pytest.mark.long
def test_sinks_of_tensors() -> None:
    """The same in a graph of torch.compile, which keeps what has no effect out."""
    torch: Any = pytest.importorskip("torch")

    def call(q: Any, k: Any, sinks: Any) -> Any:
        options: dict[str, Any] = {"dropout_p": 0.0, "pack_gqa": None, "return_lse": True}
        return functions.flash_attn_func(q, k, k, causal=True, learnable_sink=sinks, **options)

    torch.manual_seed(3)
    q, k = (torch.randn(1, n, 2, 64, dtype=torch.bfloat16) for n in (4, 8))
    sinks = torch.tensor([3.0, 4.0], dtype=torch.bfloat16)
    eager = call(q, k, sinks)
    traced = torch.compile(call, fullgraph=True, backend="eager")(q, k, sinks)
    assert all(map(torch.equal, eager, traced))
    alone = functions.flash_attn_func(q, k, k, causal=True, return_lse=True)[1]
    assert torch.allclose(eager[1], torch.logaddexp(alone, sinks.float()[:, None]))


def test_streams_of_a_launch(monkeypatch: pytest.MonkeyPatch, streams: list[object]) -> None:
    """Whatever is computed of LSE waits for the kernel that wrote it."""
    monkeypatch.setattr(functions, "attention", lambda q, *_, **__: (q, LSE))
    functions.flash_attn_func(Q, Q, Q, learnable_sink=SINKS, return_lse=True, stream=3)
    monkeypatch.setattr(decoding, "_decode", lambda q, *_, **__: (q, LSE.copy()))
    rows = (np.zeros((1, 1), np.int32), np.ones(1, np.int32), 512)
    metadata, _ = decoding.get_mla_metadata()
    _, found = decoding.flash_mla_with_kvcache(Q, Q, *rows, metadata, stream=4)
    assert found[0, 0].tolist() == [1.0, np.inf]
    monkeypatch.setattr(sparse, "sparse_mla", lambda q, *_, **__: (q, LSE.copy(), LSE))
    sparse.flash_mla_sparse_fwd(Q, Q, np.zeros((1, 1, 4), np.int32), 1.0, stream=5)
    assert streams == [3, 4, 5]


class Tensor:
    """Stands for a tensor of PyTorch."""

    def __init__(self, *, is_cuda: bool):
        self.is_cuda, self.device = is_cuda, "cuda:1"


Tensor.__module__ = "torch"


def test_streams_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's stream is the current one while its library computes; without one nothing changes."""
    seen: list[Any] = []

    @contextlib.contextmanager
    def current(stream: Any) -> Iterator[None]:
        seen.append(stream)
        yield

    cuda = types.SimpleNamespace(
        ExternalStream=lambda handle, device: (handle, device),
        default_stream=lambda device: ("default", device),
        stream=current,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))  # pyright: ignore
    given = types.SimpleNamespace(cuda_stream=12)
    for stream, is_cuda in ((given, True), (given, False), (None, True), (0, True), (1, True)):
        with on_stream(stream, Tensor(is_cuda=is_cuda)):
            pass
    with on_stream(given, Q):
        pass
    assert seen == [(12, "cuda:1"), *[("default", "cuda:1")] * 2]
