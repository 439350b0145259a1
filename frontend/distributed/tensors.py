"""Tensors that a program passes: they must have memory, which the ranks can send."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.api.copyable import misfit
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.call.torch_tensors import (
    check_tensor,
    is_differentiated,
    is_traced,
    is_tracing,
)

torch: Any = importlib.import_module("torch")


def check_sendable(name: str, x: Any, *, has_gradient: bool = False) -> None:
    """Refuses all but plain tensors, in calls that nothing traces or transforms.

    Args:
      name: of the argument.
      has_gradient: whether the caller computes its gradient.

    Raises:
      SpecError: names the argument.
    """
    if not isinstance(x, torch.Tensor):
        raise SpecError(f"{name} must be a tensor of torch, got {type(x).__name__}")
    check_tensor(x, name, has_gradient=has_gradient and not is_differentiated())
    if is_traced(x) or is_tracing():
        raise SpecError(
            f"{name} is fake, on meta, or in a function that torch.func transforms or a tracer "
            "records: ranks send tensors in memory; call it outside of these"
        )


def readable(name: str, x: Any) -> Any:
    """The tensor, or a dense copy, with a gradient, if kernels cannot read it where it lies."""
    if misfit(view(x.detach(), name)) is None:
        return x
    return x.clone(memory_format=torch.contiguous_format)
