"""Rotary positions for arrays of numpy, torch and cupy, as FlashAttention applies them.

With angles cos and sin [positions, C], the first 2 C columns of a row of position p are pairs (x, y): of
the columns i and i + C, or 2 i and 2 i + 1 where they are interleaved. A pair becomes

    (x cos[p, i] - y sin[p, i],  y cos[p, i] + x sin[p, i])

computed in f32 and rounded to the row's type (FlashAttention, `flash_attn/layers/rotary.py`).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attn_mlir.errors import SpecError, shown

STEP = 16  # of rotary_dim, the columns that are rotated; FlashAttention has no other


def check_angles(cos: Any, sin: Any, head_dim: int) -> None:
    """Refuses angles that do not fit.

    Args:
      head_dim: of the rows.

    Raises:
      SpecError: names the argument.
    """
    shape = tuple(getattr(cos, "shape", ()))
    if len(shape) != 2 or 2 * shape[1] % STEP or not 0 < 2 * shape[1] <= head_dim:
        raise SpecError(
            f"rotary_cos must be [positions, rotary_dim / 2] for a rotary_dim of {STEP} or a multiple, "
            f"at most {head_dim}, got {list(shape) or shown(cos, 40)}"
        )
    if tuple(getattr(sin, "shape", ())) != shape:
        got = list(getattr(sin, "shape", ())) or shown(sin, 40)
        raise SpecError(f"rotary_sin must be {list(shape)} as rotary_cos, got {got}")


def positions_of(
    first: Any, count: int, offsets: Any = None, *, grows: bool, batch: int | None = None
) -> Any:
    """The position of each row.

    Args:
      first: [batch], the position of each sequence's first row.
      count: rows of a sequence, or with `offsets` of all.
      offsets: [batch + 1], where sequences begin and the last one ends; None for dense rows.
      grows: whether each row has a position of its own; else all have that of the first.
      batch: sequences, with `offsets`.

    Returns:
      [batch, count], or with `offsets` [count].
    """
    library = library_of(first)
    steps = _steps(first, count)
    if offsets is None:
        return first[:, None] + (steps if grows else steps * 0)
    if library == "torch":
        found = sys.modules["torch"].searchsorted(offsets, steps.to(offsets.dtype), right=True) - 1
    else:
        found = offsets.searchsorted(steps, side="right") - 1
    sequence = found.clip(0, first.shape[0] - 1)
    return first[sequence] + (steps - offsets[sequence] if grows else 0)


def rotated(x: Any, cos: Any, sin: Any, positions: Any, *, is_interleaved: bool) -> Any:
    """Rows with their first columns rotated, as a new array.

    Args:
      x: [..., heads, head_dim].
      cos, sin: [positions, C].
      positions: [...] integers; one that is not there counts as the nearest.
    """
    at = positions.clip(0, cos.shape[0] - 1)
    if library_of(x) == "torch":
        at = at.long()
    c, s = (_as_f32(table)[at][..., None, :] for table in (cos, sin))
    columns = cos.shape[1]
    first, second = slice(0, columns), slice(columns, 2 * columns)
    if is_interleaved:
        first, second = slice(0, 2 * columns, 2), slice(1, 2 * columns, 2)
    wide = _as_f32(x)
    a, b = wide[..., first], wide[..., second]
    turned = a * c - b * s, b * c + a * s
    made = x.clone() if library_of(x) == "torch" else x.copy()
    for part, value in zip((first, second), turned, strict=True):
        made[..., part] = _as(value, x.dtype)
    return made


def full_like(model: Any, count: int, number: int) -> Any:
    """[count] of i32, all the same number, where `model` lives."""
    match library_of(model):
        case "torch":
            torch: Any = sys.modules["torch"]
            return torch.full((count,), number, dtype=torch.int32, device=model.device)
        case "cupy":
            return sys.modules["cupy"].full((count,), number, "int32")
        case _:
            return np.full((count,), number, np.int32)


def library_of(array: Any) -> str:
    """The library of an array, of those that index and compute alike.

    Raises:
      SpecError: another one.
    """
    name = type(array).__module__.partition(".")[0]
    if name not in ("numpy", "torch", "cupy"):
        raise SpecError(f"positions are computed for numpy, torch and cupy, got {shown(array, 40)}")
    return name


def _steps(model: Any, count: int) -> Any:
    match library_of(model):
        case "torch":
            torch: Any = sys.modules["torch"]
            return torch.arange(count, dtype=torch.int32, device=model.device)
        case "cupy":
            return sys.modules["cupy"].arange(count, dtype="int32")
        case _:
            return np.arange(count, dtype=np.int32)


def _as_f32(array: Any) -> Any:
    return array.float() if library_of(array) == "torch" else array.astype(np.float32)


def _as(array: Any, dtype: Any) -> Any:
    return array.to(dtype) if library_of(array) == "torch" else array.astype(dtype)
