"""What several tests of the front ends begin with."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest


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
