"""Packing and unpacking rows of a latent cache in 8 bits: `pack_latent`, `unpack_latent`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attn_mlir.api.latent.packed_rows import BYTES, stored_rows
from attn_mlir.dialect.attn.latent.formats import FORMATS, GROUPS, LatentFormat
from attn_mlir.errors import SpecError, shown
from attn_mlir.latent_rows import BF16, Array, packed, rows_f64
from attn_mlir.runtime.call.tensors import TensorView, host_array, view

FLOATS = {"bf16": BF16, "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}


class PackedRows(NamedTuple):
    """A latent cache in 8 bits.

    Attributes:
      kv: u8, [s_kv, 1, bytes] or [pages, page, 1, bytes]: `kv` of `sparse_mla`.
      kv_scale: f32, [s_kv, n] or [pages, page, n]: `kv_scale` of it; None where it has none.
    """

    kv: Array
    kv_scale: Array | None


def pack_latent(kv: Any, kv_format: str, *, group: int | None = None) -> PackedRows:
    """Packs rows of latent attention in a format of 8 bits.

    Columns of 8 bits are divided by a scale that a group of them shares, and rounded to e4m3. A
    scale is the least power of two that brings the largest of its group to 448 or below, 2^-13 at
    least; this is FlashMLA's rule. Without scales what is larger than 448 becomes 448.

    Args:
      kv: [s_kv, 1, columns] or [pages, page, 1, columns] of bf16, f16 or f32, in the host's memory:
        512 columns for `model1`, which is in pages, 576 for the others.
      kv_format: `v32`, `model1`, `e4m3` or `e4m3_rope16`; see `sparse_mla`.
      group: with `e4m3` and `e4m3_rope16` the columns that share a scale, 32, 64, 128, 256, 512 or
        576; None for rows without scales.

    Raises:
      SpecError: an argument is wrong.
    """
    form, rows_view = _form(kv_format, group), _on_host(view(kv, "kv"), "kv", (*FLOATS,))
    ranks = (4,) if form.is_in_pages else (3, 4)
    if (
        len(rows_view.shape) not in ranks
        or rows_view.shape[-2:] != (1, form.columns)
        or rows_view.empty
    ):
        rows = "" if form.is_in_pages else f"[s_kv, 1, {form.columns}] or "
        raise SpecError(
            f"kv must be {rows}[pages, page, 1, {form.columns}] for kv_format {kv_format!r}, got "
            f"{list(rows_view.shape)}"
        )
    return PackedRows(*packed(host_array(rows_view, FLOATS[rows_view.dtype])[..., 0, :], form))


def unpack_latent(kv: Any, kv_format: str, *, kv_scale: Any = None) -> Array:
    """The rows that a packed cache stands for, rounded to bf16 as kernels round them.

    Args:
      kv, kv_format, kv_scale: as of `sparse_mla`, in the host's memory.

    Returns:
      bf16, [s_kv, 1, columns] or [pages, page, 1, columns].

    Raises:
      SpecError: an argument is wrong.
    """
    data, form = _on_host(view(kv, "kv"), "kv", BYTES), _form(kv_format, None)
    scale = None if kv_scale is None else _on_host(view(kv_scale, "kv_scale"), "kv_scale", ("f32",))
    stored = stored_rows(form, data, scale)
    if stored.group is not None:
        form = form.with_scales(stored.group)
    scales_on_host = None if scale is None else host_array(scale)
    with np.errstate(over="ignore"):
        rows = rows_f64(host_array(data, np.dtype(np.uint8)), form, scales_on_host).astype(BF16)
    return rows.reshape(*data.shape[:-1], form.columns)


def _form(kv_format: object, group: object) -> LatentFormat:
    """The format of that name; with a `group`, it has a tensor of scales for so many columns."""
    form = FORMATS.get(kv_format) if isinstance(kv_format, str) else None
    if form is None:
        raise SpecError(
            f"kv_format must be one of {', '.join(FORMATS)}, got {shown(kv_format, 40)}"
        )
    if group is None:
        return form
    if form.scales.place != "outside" or isinstance(group, bool) or group not in GROUPS:
        allowed = ", ".join(map(str, GROUPS)) if form.scales.place == "outside" else "none"
        raise SpecError(
            f"group for kv_format {kv_format!r} must be None or one of {allowed}, got "
            f"{shown(group, 40)}"
        )
    assert isinstance(group, int)
    return form.with_scales(group)


def _on_host(tensor: TensorView, name: str, dtypes: tuple[str, ...]) -> TensorView:
    """The tensor itself.

    Raises:
      SpecError: it is in a GPU's memory, or of another dtype.
    """
    if tensor.device != "cpu" or tensor.dtype not in dtypes:
        raise SpecError(
            f"{name} must be of {', '.join(dtypes)} in the host's memory, got {tensor.dtype} on "
            f"{tensor.place}"
        )
    return tensor
