"""Functions that PyTorch's compiler leaves alone, with all that they call."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir.api import outside_graphs as module  # noqa: E402
from attn_mlir.api.outside_graphs import outside_graphs  # noqa: E402


@pytest.fixture
def seen() -> list[bool]:
    """Whether what is called is compiled, call by call."""
    return []


@pytest.fixture
def function(seen: list[bool]) -> Any:
    """A function that calls another one, which adds to `seen`."""

    def called(x: Any) -> Any:
        seen.append(torch.compiler.is_compiling())
        return x + 1

    def function(x: Any) -> Any:
        return called(x) * 2

    return function


@pytest.mark.filterwarnings("error")
def test_a_graph_breaks_at_a_call_and_goes_on_after_it(function: Any, seen: list[bool]) -> None:
    torch._dynamo.utils.warn_once_cache.clear()
    outside = outside_graphs(function)
    compiled = torch.compile(lambda x: outside(x * 3) * 5, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [40, 40] and seen == [False]
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: outside(x) + 1, backend="eager", fullgraph=True)(torch.ones(2))


def test_a_call_that_nobody_compiles_goes_straight(function: Any, seen: list[bool]) -> None:
    torch.compile(lambda x: x, backend="eager")(torch.ones(2))  # the compiler is loaded
    assert outside_graphs(function)(torch.ones(2)).tolist() == [4, 4] and seen == [False]
    assert function not in module._disabled
