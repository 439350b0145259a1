"""Functions that PyTorch's compiler does not trace, but calls at a break of its graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_disabled: dict[Any, Callable[..., Any]] = {}


def outside_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """Makes `torch.compile` break its graph at a function, call it, and continue after it.

    This imports nothing of PyTorch: as long as its compiler is not loaded, nothing is compiled.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        return _without_compiler(function)(*args, **options)

    call._torchdynamo_disable = True  # pyright: ignore
    return call


def _without_compiler(function: Callable[P, T]) -> Callable[P, T]:
    if function not in _disabled:
        torch: Any = sys.modules["torch"]
        _disabled[function] = torch.compiler.disable(function)
    return _disabled[function]
