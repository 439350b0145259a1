"""Packs rows of a latent cache in 8 bits, and unpacks them to float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from attn_mlir.dialect.attn.latent.formats import LatentFormat
from attn_mlir.element_types import OF_NUMPY

Array = npt.NDArray[Any]

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BF16 = np.dtype(ml_dtypes.bfloat16)
LARGEST = OF_NUMPY[E4M3.name].largest
MIN_SCALE = 1e-4  # before it is rounded up to a power of two, as FlashMLA's quantiser has it
PAGE_STEP = 576  # bytes: pages of `model1` begin at multiples of it, as FlashMLA's do
EXPONENT_BIAS, NO_EXPONENT = 127, 255  # of a scale of 8 bits; OCP Microscaling Formats, E8M0


def rows_f64(
    kv: Array, form: LatentFormat, kv_scale: Array | None = None
) -> npt.NDArray[np.float64]:
    """The rows [rows, columns] that bytes stand for.

    Args:
      kv: bytes, [s_kv, 1, token] or [pages, page, 1, token]; pages of `model1` have scales behind
        their rows.
      form: with the group of its scales, where these have a tensor of their own.
      kv_scale: that tensor, [s_kv, n] or [pages, page, n].
    """
    data = kv.view(np.uint8)[..., 0, :]
    if form.is_in_pages:
        data, tail = _split_page(data, form)
        exponents = tail.astype(np.float64)
        scales = np.where(exponents == NO_EXPONENT, np.nan, 2.0 ** (exponents - EXPONENT_BIAS))
    elif form.scales.place == "row":
        end = form.scales_at + 4 * form.scales.stored
        scales = _as(data[..., form.scales_at : end], np.dtype(np.float32))
    else:
        scales = kv_scale
    values = _as(data[..., : form.narrow], E4M3).astype(np.float64)
    if scales is not None:
        group = form.scales.group
        repeated = np.repeat(scales.astype(np.float64), group, axis=-1)[..., : form.narrow]
        with np.errstate(invalid="ignore"):
            values = values * repeated
    rope = _as(data[..., form.wide_at : form.wide_at + 2 * form.wide], BF16).astype(np.float64)
    rows = np.concatenate([values, rope], axis=-1) if form.wide else values
    return rows.reshape(-1, form.columns)


def packed(rows: Array, form: LatentFormat) -> tuple[Array, Array | None]:
    """Rows as bytes, and the tensor of their scales where the format has one of its own.

    Args:
      rows: [s_kv, columns] or [pages, page, columns].
      form: as of `rows_f64`.

    Returns:
      u8 [s_kv, 1, token] or [pages, page, 1, token], and f32 [..., n] or None.
    """
    values, scales = _quantised(rows[..., : form.narrow].astype(np.float32), form)
    *outer, _ = rows.shape
    row = np.zeros((*outer, form.row_bytes), np.uint8)
    row[..., : form.narrow] = values.view(np.uint8)
    if form.wide:
        rope = np.ascontiguousarray(rows[..., form.narrow :]).astype(BF16).view(np.uint8)
        row[..., form.wide_at : form.wide_at + 2 * form.wide] = rope
    if form.scales.place == "outside" or scales is None:
        return row[..., None, :], scales
    if form.scales.place == "row":
        row[..., form.scales_at : form.scales_at + 4 * form.scales.stored] = scales.view(np.uint8)
        return row[..., None, :], None
    pages, page = outer
    tail = np.zeros((pages, page, form.scales.stored), np.uint8)
    tail[..., : scales.shape[-1]] = np.log2(scales).astype(np.int64) + EXPONENT_BIAS
    tokens_end = page * form.token_bytes
    whole = np.zeros((pages, -(-tokens_end // PAGE_STEP) * PAGE_STEP), np.uint8)
    whole[:, : page * form.row_bytes] = row.reshape(pages, -1)
    whole[:, page * form.row_bytes : tokens_end] = tail.reshape(pages, -1)
    return whole[:, :tokens_end].reshape(pages, page, 1, form.token_bytes), None


def _quantised(rows: Array, form: LatentFormat) -> tuple[Array, Array | None]:
    """Elements of e4m3 and scales of f32 whose products are near to rows.

    A scale is the least power of two by which the largest of its group becomes at most 448, and
    none is below 2^-13: FlashMLA's rule.
    """
    group = form.scales.group
    if not group:
        return rows.clip(-LARGEST, LARGEST).astype(E4M3), None
    *outer, columns = rows.shape
    count = form.groups(group)
    padded = np.zeros((*outer, count * group), np.float32)
    padded[..., :columns] = rows
    grouped = padded.reshape(*outer, count, group)
    least = np.maximum(np.abs(grouped).max(-1) / LARGEST, MIN_SCALE)
    scales = np.exp2(np.ceil(np.log2(least))).astype(np.float32)
    values = (grouped / scales[..., None]).reshape(padded.shape)[..., :columns]
    return values.astype(E4M3), scales


def _split_page(data: Array, form: LatentFormat) -> tuple[Array, Array]:
    """Splits pages [pages, page, token] into rows [pages, page, row] and their scales."""
    pages, page, token = data.shape
    flat = np.ascontiguousarray(data).reshape(pages, page * token)
    rows = flat[:, : page * form.row_bytes].reshape(pages, page, form.row_bytes)
    tail = flat[:, page * form.row_bytes :].reshape(pages, page, token - form.row_bytes)
    return rows, tail[..., : form.groups(form.scales.group)]


def _as(data: Array, dtype: np.dtype[Any]) -> Array:
    """Bytes as numbers."""
    return np.ascontiguousarray(data).view(dtype)
