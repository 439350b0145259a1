"""Rotary positions for arrays of numpy, torch and cupy, as FlashAttention applies them.

With angles cos and sin [positions, C], the first 2 C columns of a row of position p are pairs (x,
y): of the columns i and i + C, or 2 i and 2 i + 1 where they are interleaved. A pair becomes

    (x cos[p, i] - y sin[p, i],  y cos[p, i] + x sin[p, i])

computed in f32 and rounded to the row's type (FlashAttention, `flash_attn/layers/rotary.py`).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attn_mlir.errors import SpecError
from attn_mlir.library import library_of
from attn_mlir.runtime.call.tensors import shape_of, view
from attn_mlir.runtime.call.torch_tensors import is_compiling

ANGLE_DTYPES = ("bfloat16", "float16", "float32")
STEP = 16  # of rotary_dim, the columns that are rotated; FlashAttention has no other


def check_angles(cos: Any, sin: Any, head_dim: int) -> None:
    """Refuses angles that do not fit.

    Args:
      head_dim: of the rows.

    Raises:
      SpecError: names the argument.
    """
    shape = shape_of(cos, "rotary_cos")
    if len(shape) != 2 or 2 * shape[1] % STEP or not 0 < 2 * shape[1] <= head_dim:
        raise SpecError(
            f"rotary_cos must be [positions, rotary_dim / 2] for a rotary_dim of {STEP} or a "
            f"multiple, at most {head_dim}, got {list(shape)}"
        )
    if (found := shape_of(sin, "rotary_sin")) != shape:
        raise SpecError(f"rotary_sin must be {list(shape)} as rotary_cos, got {list(found)}")
    for name, angle in (("rotary_cos", cos), ("rotary_sin", sin)):
        dtype = str(angle.dtype).rpartition(".")[2]
        if dtype not in ANGLE_DTYPES:
            raise SpecError(f"{name} has dtype {dtype}, allowed are {', '.join(ANGLE_DTYPES)}")


def check_rows(name: str, first: Any, counts: Any, cos: Any) -> None:
    """Refuses rows of angles that are not there, where they can be read without waiting.

    Args:
      name: of `first`.
      first: [batch], the row of each sequence's first token.
      counts: tokens of each sequence, a number or [batch]: one row each, from `first` on.
      cos: [positions, ...].

    Raises:
      SpecError: names the sequence and its row.
    """
    if not is_readable(first):
        return
    begin = np.asarray(first).astype(np.int64)
    many = np.broadcast_to(np.asarray(counts), begin.shape)
    wrong = (many > 0) & ((begin < 0) | (begin + many > cos.shape[0]))
    if wrong.any():
        b = int(np.argmax(wrong))
        raise SpecError(
            f"{name}[{b}] is {begin[b]}, with {many[b]} tokens behind it: rotary_cos has rows 0 to "
            f"{cos.shape[0] - 1}"
        )


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
    c, s = (as_f32(table)[at][..., None, :] for table in (cos, sin))
    columns = cos.shape[1]
    first, second = slice(0, columns), slice(columns, 2 * columns)
    if is_interleaved:
        first, second = slice(0, 2 * columns, 2), slice(1, 2 * columns, 2)
    wide = as_f32(x)
    a, b = wide[..., first], wide[..., second]
    turned = a * c - b * s, b * c + a * s
    made = x.clone() if library_of(x) == "torch" else x.copy()
    for part, value in zip((first, second), turned, strict=True):
        made[..., part] = _as(value, x.dtype)
    return made


def full_like(model: Any, count: int, number: int) -> Any:
    """[count] of i32, all the same number, where `model` lives."""
    return _steps(model, count) * 0 + number


def is_readable(array: Any) -> bool:
    """Whether numbers lie in host memory, and no compiler is tracing."""
    if library_of(array) != "torch":
        return library_of(array) == "numpy"
    if is_compiling():
        return False
    tensor = view(array, "an array")
    return tensor.device == "cpu" and tensor.has_memory


def _steps(model: Any, count: int) -> Any:
    """The numbers from 0 to `count`, as i32 where `model` lives."""
    library = library_of(model)
    module: Any = sys.modules[library]
    where = {"device": model.device} if library == "torch" else {}
    return module.arange(count, dtype=module.int32, **where)


def as_f32(array: Any) -> Any:
    """The array in f32."""
    return array.float() if library_of(array) == "torch" else array.astype(np.float32)


def _as(array: Any, dtype: Any) -> Any:
    return array.to(dtype) if library_of(array) == "torch" else array.astype(dtype)
