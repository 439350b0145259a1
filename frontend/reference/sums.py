"""Products whose sums keep few bits, as those of `wgmma` on 8-bit operands do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STEP = 32  # elements of 8 bits that one instruction multiplies and adds
SUM_BITS = 13
"""Bits of a sum of `wgmma` with operands of 8 bits below the first one of the largest addend: seen on an H200,
where sums of 128 values of one sign lose 2^-10 of themselves (docs/kernel.md); DeepSeek-V3's report
(arXiv:2412.19437, section 3.3.2) says 14 bits, the first one included."""


def cut_product(a: Array, b: Array, sum_bits: int) -> Array:
    """a b^T, whose addends are cut, `STEP` of them at a time together with the sum so far.

    What lies below 2^-sum_bits of the largest addend's power of two is cut off, towards 0.

    Args:
      a: [rows, n].
      b: [columns, n].
      sum_bits: bits that are kept below the first one of the largest addend.

    Returns:
      [rows, columns] in float32.
    """
    total = np.zeros((len(a), len(b)))
    for first in range(0, a.shape[1], STEP):
        part = slice(first, first + STEP)
        addends = a[:, None, part].astype(np.float64) * b[None, :, part].astype(np.float64)
        largest = np.maximum(np.abs(addends).max(axis=2), np.abs(total))
        unit = np.ldexp(1.0, np.frexp(largest)[1] - 1 - sum_bits)
        cut = np.trunc(addends / unit[..., None]).sum(axis=2) + np.trunc(total / unit)
        total = cut * unit
    return total.astype(np.float32)
