"""What several tests of the front ends begin with."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from attn_mlir.api import plan as plans


class Planned(AssertionError):
    """A call that was not refused before it would have been compiled."""


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> type[Planned]:
    """Nothing is compiled: a call that comes so far raises the exception that this returns."""

    def fail(*_: object, **__: object) -> None:
        raise Planned("bad input must be refused before anything is compiled")

    monkeypatch.setattr(plans, "compile", fail)
    return Planned


@pytest.fixture
def graphs_afresh() -> Iterator[None]:
    """PyTorch's compiler without graphs of other tests, the same random numbers each time, no gradients."""
    torch: Any = importlib.import_module("torch")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()
