"""Block-scaled operands: packed elements and blocked scales, made at random and read back.

Elements lie along k without gaps, the first in the lowest bits. Scales lie in blocks of 512 bytes for 128 rows and 4
scales each; in a block, row 32 i + j has its scales at byte 16 j + 4 i.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from attn_mlir.validation.conformance.cases import Format

Array = npt.NDArray[Any]


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, f"float{name}"))


def _packed(codes: Array, bits: int) -> Array:
    """uint8 codes [..., k] to bytes [..., k * bits / 8]."""
    spread = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(spread.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def _unpacked(raw: Array, bits: int) -> Array:
    """The inverse of `_packed`."""
    spread = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*raw.shape[:-1], -1, bits)
    return np.packbits(spread, axis=-1, bitorder="little")[..., 0]


def random_operand(
    random: np.random.Generator, form: Format, shape: tuple[int, int, int]
) -> tuple[Array, Array]:
    """Bytes of the elements of a [batch, rows, k] operand, and bytes of its scales."""
    values = random.standard_normal(shape, np.float32) * 2
    data = _packed(values.astype(_dtype(form.element)).view(np.uint8), form.bits)
    batch, rows, k = shape
    blocks = (batch, -(-rows // 128), -(-k // (4 * form.block)), 32, 4, 4)
    scales = np.exp2(random.integers(-3, 4, blocks)).astype(np.float32)
    if form.scale == "8_e4m3fn":
        scales = scales * random.uniform(1, 2, blocks)
    return data, scales.astype(_dtype(form.scale)).view(np.uint8)


def unscaled(data: Array, form: Format) -> Array:
    """The elements alone, as float32 [..., k]."""
    return _unpacked(data, form.bits).view(_dtype(form.element)).astype(np.float32)


def dequantised(data: Array, scales: Array, form: Format, k: int) -> Array:
    """What `random_operand` gave as exact float64 [batch, rows, k]."""
    values = _unpacked(data, form.bits).view(_dtype(form.element)).astype(np.float64)
    batch, rows, _ = values.shape
    wide = scales.view(_dtype(form.scale)).astype(np.float64)
    by_row = wide.transpose(0, 1, 4, 3, 2, 5).reshape(batch, -1, wide.shape[2] * 4)
    return values * np.repeat(by_row, form.block, axis=2)[:, :rows, :k]
