"""Random operands of a `Kernel` case, and the formula that its outputs have to follow.

A formula is evaluated twice, as truth in float64 and as yardstick in float32 with values rounded
where the kernel has them in a narrower type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Sizes = Mapping[str, Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


@dataclass(frozen=True)
class Precision:
    """How a formula is evaluated: everything in `kind`, and `rounded` only in the yardstick."""

    kind: type[np.floating[Any]]
    is_truth: bool

    def wide(self, array: Array) -> Array:
        """An operand as it takes part in the formula."""
        return array.astype(self.kind)

    def rounded(self, array: Array, dtype: str) -> Array:
        """A value that the kernel has in `dtype`."""
        return array if self.is_truth else array.astype(DTYPES[dtype]).astype(self.kind)


TRUTH = Precision(np.float64, is_truth=True)
YARDSTICK = Precision(np.float32, is_truth=False)


@dataclass(frozen=True)
class Formula:
    """
    Attributes:
      operands: inputs and poisoned outputs in memory order; what is not named is poison.
      outputs: what is right, by the name of the operand. Elements that are NaN have to be left as
        they were.
      tolerances: of outputs that are judged by an absolute error instead of the yardstick's.
      seen: what of the arrays after the launch is compared with `outputs`.
    """

    operands: Callable[[Sizes, np.random.Generator], Arrays]
    outputs: Callable[[Sizes, Arrays, Precision], Arrays]
    tolerances: Mapping[str, float] = field(default_factory=dict[str, float])
    seen: Callable[[Sizes, Arrays], Arrays] = lambda _, arrays: arrays


def normal(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Values of a normal distribution."""
    return random.standard_normal(shape, np.float32).astype(DTYPES[dtype])


def nothing(shape: tuple[int, ...], dtype: str) -> Array:
    """An output before the launch: every element is NaN."""
    return np.full(shape, np.nan).astype(DTYPES[dtype])
