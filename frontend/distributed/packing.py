"""f32 numbers as pairs of elements of 16 bits, so that LSE travels in O's message."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")

COLUMNS = 2  # elements of a number


def bits_of(numbers: Any, dtype: Any) -> Any:
    """f32 [..., n] as [..., 2 n] of a type of 16 bits; the bits carry no gradient."""
    dense = numbers.detach().clone(memory_format=torch.contiguous_format)  # strides of 1s as well
    return dense.view(dtype)


def numbers_of(bits: Any) -> Any:
    """The numbers that `bits_of` was given."""
    return bits.detach().clone(memory_format=torch.contiguous_format).view(torch.float32)
