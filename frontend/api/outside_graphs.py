"""Functions that PyTorch's compiler calls as they are, at a break of its graph, and does not look into."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_kept_out: dict[Any, Callable[..., Any]] = {}


def outside_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """The function; where `torch.compile` meets it, its graph breaks, and goes on behind it.

    Nothing of PyTorch is imported for this: as long as its compiler is not loaded, it compiles
    nothing.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        return _without_compiler(function)(*args, **options)

    call._torchdynamo_disable = True  # pyright: ignore
    return call


def _without_compiler(function: Callable[P, T]) -> Callable[P, T]:
    if function not in _kept_out:
        torch: Any = sys.modules["torch"]
        _kept_out[function] = torch.compiler.disable(function)
    return _kept_out[function]
