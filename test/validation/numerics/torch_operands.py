"""Tensors of torch that tests pass to calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attn_mlir.validation.effects import Change


def normal(*shape: int) -> Any:
    """Normal random numbers in bf16."""
    return torch.randn(*shape).to(torch.bfloat16)


def i32(*numbers: Any) -> Any:
    """A tensor of these numbers, or rows of numbers."""
    return torch.tensor(numbers, dtype=torch.int32)


def drawn(*shape: int, seed: int = 0, dtype: Any = torch.float16) -> Any:
    """Normal random numbers, which follow from the seed and the extents."""
    made = torch.Generator().manual_seed(seed * 1000 + sum(shape))
    return torch.randn(*shape, generator=made).to(dtype)


def changed(right: Mapping[str, Any], *names: str) -> dict[str, Change]:
    """Other elements for these operands."""
    return {
        name: Change(drawn(*right[name].shape, seed=9, dtype=right[name].dtype)) for name in names
    }
