"""Overrides PyTorch's operators of flash attention for the tensors of a device."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_mlir.aten.backward import (
    flash_attention_backward,
    scaled_dot_product_flash_attention_backward,
    scaled_dot_product_flash_attention_for_cpu_backward,
)
from attn_mlir.aten.forward import (
    flash_attention_forward,
    flash_attention_forward_no_dropout_inplace,
    scaled_dot_product_flash_attention,
    scaled_dot_product_flash_attention_for_cpu,
)
from attn_mlir.errors import REFUSALS, SpecError
from attn_mlir.fallback import say_fallback
from attn_mlir.naming import rename

__all__ = [
    "flash_attention_backward",
    "flash_attention_forward",
    "flash_attention_forward_no_dropout_inplace",
    "scaled_dot_product_flash_attention",
    "scaled_dot_product_flash_attention_backward",
    "scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_flash_attention_for_cpu_backward",
]

torch: Any = importlib.import_module("torch")

OF_SEQUENCES = (
    flash_attention_forward,
    flash_attention_forward_no_dropout_inplace,
    flash_attention_backward,
)
OPERATORS = {
    "cuda": (
        scaled_dot_product_flash_attention,
        scaled_dot_product_flash_attention_backward,
        *OF_SEQUENCES,
    ),
    "cpu": (
        scaled_dot_product_flash_attention_for_cpu,
        scaled_dot_product_flash_attention_for_cpu_backward,
        *OF_SEQUENCES,
    ),
}
"""By device; each computes the operator that has its name behind an underscore."""

NAMES = {"q": "query", "k": "key", "v": "value"}  # of operands, in errors


@dataclass(frozen=True)
class Override:
    """Kernels in the place of PyTorch's, until they are removed.

    Attributes:
      library: the registration.
    """

    library: Any

    def remove(self) -> None:
        """Restores PyTorch's kernels."""
        self.library._destroy()


def override(device: str, *, falls_back: bool) -> Override:
    """Registers the functions of `OPERATORS` for a device.

    Args:
      falls_back: whether PyTorch's own kernels take what these refuse.
    """
    library, key = torch.library.Library("aten", "IMPL"), device.upper()
    with warnings.catch_warnings():  # PyTorch says once that kernels are overridden
        warnings.simplefilter("ignore", UserWarning)
        for function in OPERATORS[device]:
            name = f"_{function.__name__}"
            if not hasattr(torch.ops.aten, name):
                continue  # nothing calls it in this version of PyTorch
            own = _own_kernel(name, key) if falls_back else None
            kernel = functools.partial(_computed, name, function, own)
            library.impl(name, kernel, key, with_keyset=True)
    return Override(library)


def _own_kernel(name: str, key: str) -> Any:
    """PyTorch's kernel of an operator; None where it has none."""
    try:
        return torch.library.get_kernel(f"aten::{name}", key)
    except RuntimeError:
        return None


def _computed(
    name: str, function: Callable[..., Any], own: Any, keys: Any, *arguments: Any, **options: Any
) -> Any:
    """The results of an operator: of `function`, or of PyTorch's own kernel for what it refuses."""
    try:
        return function(*arguments, **options)
    except REFUSALS as error:
        if isinstance(error, SpecError):
            rename(error, NAMES)
        if own is None:
            raise
        say_fallback(f"aten::{name}", str(error))
    return own.call_boxed(keys, *arguments, **options)
