"""P V of a yardstick, with P rounded to its type for several positions of the row maximum."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FP8_P_SCALE = (
    2.0**6
)  # factor of 8-bit P, which kernels keep below 2^8, with room for a stale maximum
POSITIONS = 16  # of the maximum in an octave, in which e4m3 has 8 numbers: two to each


def largest_weights(dtype: np.dtype[Any], output: np.dtype[Any]) -> list[np.float32]:
    """Values of a row's largest P, given the types of P and O; see `attention_yardstick`."""
    step, factor = _step(dtype), FP8_P_SCALE if dtype.itemsize == 1 else 1.0
    if _step(output) >= step:
        return [np.float32(factor)]
    first = factor * (1.0 + step / 4)
    return [np.float32(first * 2.0 ** (number / POSITIONS)) for number in range(POSITIONS)]


def weighted_values(
    weights: Array, values: Array, dtype: np.dtype[Any], output: np.dtype[Any]
) -> Array:
    """weights [rows, keys] @ values [keys, columns], with weights rounded to `dtype`.

    Args:
      weights: the largest of each row is 1.
      output: type of O.

    Returns:
      For each row the product with the largest rounding error among `largest_weights`.
    """
    options = largest_weights(dtype, output)
    with np.errstate(invalid="ignore", over="ignore"):
        products = [
            (weights * largest).astype(dtype).astype(weights.dtype) @ values / largest
            for largest in options
        ]
        if len(products) == 1:
            return products[0]
        rounded, exact = np.stack(products), weights @ values
        wrong = np.abs(rounded - exact).max(axis=2, initial=0.0)
    worst = np.argmax(np.where(np.isfinite(wrong), wrong, 0.0), axis=0)
    return np.take_along_axis(rounded, worst[None, :, None], axis=0)[0]


def _step(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next larger number of a dtype."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)
