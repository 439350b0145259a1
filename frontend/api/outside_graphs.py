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

    This imports nothing of PyTorch: as long as its compiler is not loaded, nothing is compiled. If
    the compiler is loaded but watches no frames, as within a function that it does not trace, the
    function is called directly.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if "torch._dynamo" not in sys.modules or _watches_no_frames():
            return function(*args, **options)
        return _without_compiler(function)(*args, **options)

    call._torchdynamo_disable = True  # pyright: ignore
    return call


def _watches_no_frames() -> bool:
    """Whether PyTorch's compiler, which must be loaded, does not watch the frames of calls.

    The compiler traces this function as well, and warns of builtins that it has no rule for.
    """
    torch: Any = sys.modules["torch"]
    if torch.compiler.is_dynamo_compiling():
        return False
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() is None


def _without_compiler(function: Callable[P, T]) -> Callable[P, T]:
    if function not in _disabled:
        torch: Any = sys.modules["torch"]
        _disabled[function] = torch.compiler.disable(function)
    return _disabled[function]
