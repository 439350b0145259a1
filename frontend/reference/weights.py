"""P V of a yardstick: weights rounded to their type, where the maximum that they are relative to
may lie.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NARROW_P = 2.0**6  # factor of 8-bit P, which kernels keep below 2^8, with room for a stale maximum
POSITIONS = 16  # of the maximum in an octave, in which e4m3 has 8 numbers: two to each


def largest_weights(dtype: np.dtype[Any], output: np.dtype[Any]) -> list[np.float32]:
    """What the largest P of a row may be, given the types of P and O; see `attention_yardstick`."""
    own, factor = _step(dtype), NARROW_P if dtype.itemsize == 1 else 1.0
    if _step(output) >= own:
        return [np.float32(factor)]
    first = factor * (1.0 + own / 4)
    return [np.float32(first * 2.0 ** (number / POSITIONS)) for number in range(POSITIONS)]


def weighed(weights: Array, values: Array, dtype: np.dtype[Any], output: np.dtype[Any]) -> Array:
    """Weights [rows, keys] @ values [keys, columns] in their dtype, where weights are rounded to
    `dtype`.

    Args:
      weights: of which the largest of a row is 1.
      output: type of O.

    Returns:
      For each row, of the products that `largest_weights` make the one that rounding makes most
      wrong.
    """
    options = largest_weights(dtype, output)
    with np.errstate(invalid="ignore", over="ignore"):
        products = [
            (weights * largest).astype(dtype).astype(weights.dtype) @ values / largest
            for largest in options
        ]
        if len(products) == 1:
            return products[0]
        found, exact = np.stack(products), weights @ values
        wrong = np.abs(found - exact).max(axis=2, initial=0.0)
    worst = np.argmax(np.where(np.isfinite(wrong), wrong, 0.0), axis=0)
    return np.take_along_axis(found, worst[None, :, None], axis=0)[0]


def _step(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next larger number of a dtype."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)
