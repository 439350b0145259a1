"""Tensors of torch that tests pass to calls."""

from __future__ import annotations

from typing import Any

import torch


def normal(*shape: int) -> Any:
    """Normal random numbers in bf16."""
    return torch.randn(*shape).to(torch.bfloat16)


def i32(*numbers: Any) -> Any:
    """A tensor of these numbers, or rows of numbers."""
    return torch.tensor(numbers, dtype=torch.int32)
