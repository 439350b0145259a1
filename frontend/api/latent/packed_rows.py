"""Views of the elements, scales and rope of latent rows packed in 8 bits."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from attn_mlir.api.cache_scales import POOL_RANK
from attn_mlir.api.caches import Cached
from attn_mlir.api.latent.caches import contiguous_rows, latent_cached, latent_pool
from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.compiling.options import MAX_PAGE
from attn_mlir.dialect.attn.latent.columns import ROPE_COLUMNS, ROW_COLUMNS
from attn_mlir.dialect.attn.latent.formats import FORMATS, GROUPS, PLAIN, LatentFormat
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import MAX_I32, integer
from attn_mlir.runtime.call.tensors import TensorView, view

BYTES = ("u8", "i8", "e4m3")  # dtypes of a cache that is passed as bytes
ALIGNED = 16  # bytes: what a thread reads at once
ROPE_FORMATS = (PLAIN, *(x.name for x in FORMATS.values() if x.wide == ROPE_COLUMNS))
_PAGES_LAYOUT = "[pages, page, 1, {bytes}]"
_ROWS_LAYOUT = "[s_kv, 1, {bytes}] or " + _PAGES_LAYOUT


class PackedOperands(NamedTuple):
    """A cache of 8 bits, as the operands of a kernel.

    Attributes:
      operands: views by the names of operands, those of `row_operands`.
      group: columns that share a scale of a tensor; None without such scales.
      page: rows of a page, if the format needs them; else None.
    """

    operands: dict[str, TensorView]
    group: int | None
    page: int | None


def latent_format(name: object, columns: int) -> LatentFormat | None:
    """The format of that name for queries of so many columns; None for rows of 16 bits.

    Raises:
      SpecError: there is none, or its rows have other columns.
    """
    if not isinstance(name, str) or name not in (PLAIN, *FORMATS):
        allowed = ", ".join((PLAIN, *FORMATS))
        raise SpecError(f"kv_format must be one of {allowed}, got {shown(name, 40)}")
    form = FORMATS.get(name)
    if form is not None and form.columns != columns:
        raise SpecError(f"q must have {form.columns} columns for kv_format {name!r}, got {columns}")
    return form


def packed_cached(
    form: LatentFormat, cache: ContiguousKV | PagedKV, kv_scale: object
) -> tuple[Cached, PackedOperands]:
    """The sequences of a cache of 8 bits, and the views of their rows.

    Returns:
      as `latent_cached`, of the 8-bit columns; and views [pages, page, 1, ...] or [rows,
      positions, 1, ...].

    Raises:
      SpecError: what `latent_cached` or `stored_rows` refuses.
    """
    name, pool = latent_pool(cache)
    stored = stored_rows(form, pool, kv_scale, called=name, by_pages=True)
    operands = {
        name: tensor.reshaped((*tensor.shape[:-1], 1, tensor.shape[-1]), _with_head(tensor))
        for name, tensor in stored.operands.items()
    }
    rows = latent_cached(_with_rows(cache, name, operands["kv"]), form.narrow)
    return rows, PackedOperands(operands, stored.group, stored.page)


def rope_cached(kv_format: object, cache: ContiguousKV | PagedKV) -> Cached:
    """A latent cache whose rope columns alone are read.

    Args:
      kv_format: how its rows are stored. Those of 16 bits, or all of e4m3, have 576 columns or
        rope's 64 alone; the others have rope of bf16, and nothing else is read.

    Returns:
      as `latent_cached`, of these 576 or 64 columns.

    Raises:
      SpecError: there is no such format, or rope of it has 8 bits; or as `latent_cached`.
    """
    if kv_format not in ROPE_FORMATS:
        allowed = ", ".join(ROPE_FORMATS)
        raise SpecError(f"kv_format of k_rope must be one of {allowed}, got {shown(kv_format, 40)}")
    if kv_format == PLAIN:
        rows = view(cache.k_pages if isinstance(cache, PagedKV) else cache.k, "k")
        is_alone = rows.shape[-1:] == (ROPE_COLUMNS,)
        return latent_cached(cache, ROPE_COLUMNS if is_alone else ROW_COLUMNS, may_scale=True)
    name, pool = latent_pool(cache)
    stored = stored_rows(FORMATS[str(kv_format)], pool, None, called=name, by_pages=True)
    rope = stored.operands["kv_rope"]
    rope = rope.reshaped((*rope.shape[:-1], 1, ROPE_COLUMNS), _with_head(rope))
    return latent_cached(_with_rows(cache, name, rope), ROPE_COLUMNS)


def _with_rows(
    cache: ContiguousKV | PagedKV, name: str, rows: TensorView
) -> ContiguousKV | PagedKV:
    """The cache with other rows as the field of that name, [pages, page, 1, columns] of pages."""
    layout = {"layout": "NHD"} if isinstance(cache, PagedKV) else {}
    return dataclasses.replace(cache, **{name: rows, **layout})


def stored_rows(
    form: LatentFormat,
    kv: TensorView,
    kv_scale: object,
    *,
    prefix: str = "",
    called: str | None = None,
    by_pages: bool = False,
) -> PackedOperands:
    """The views of a cache of 8 bits.

    Args:
      form: how its rows are stored.
      kv: [s_kv, 1, bytes] or [pages, page, 1, bytes] of u8, i8 or e4m3.
      kv_scale: [s_kv, n] or [pages, page, n] of f32, or None.
      prefix: of the caller's names of both.
      called: the caller's name of a pool, [pages, page, 1, bytes], in place of `kv`.
      by_pages: whether pages stay pages, at any stride.

    Raises:
      SpecError: a shape, a dtype, a stride or an address; names the tensor.
    """
    name, scale_name = called or f"{prefix}kv", f"{prefix}kv_scale"
    _check(form, kv, name, is_pool=called is not None)
    page = (
        integer(f"rows of a page of {name}", kv.shape[1], 1, MAX_PAGE) if form.is_in_pages else None
    )
    if page is not None:
        _check_pages(form, kv, name)
        shape, steps = kv.shape[:2], (kv.strides[0], form.row_bytes)
    elif by_pages:
        shape, steps = kv.shape[:2], kv.strides[:2]
    else:
        rows = as_rows(name, kv)
        shape, steps = rows.shape[:1], rows.strides[:1]
    if kv.address % ALIGNED or any(
        step % ALIGNED for step, count in zip(steps, shape, strict=True) if count > 1
    ):
        raise SpecError(
            f"{name} must have rows that begin at multiples of {ALIGNED} bytes, got address "
            f"{kv.address:#x} and strides {list(kv.strides)}"
        )

    def columns_at(dtype: str, at: int, columns: int, pitch: int = steps[-1]) -> TensorView:
        """Some columns of every row, from a byte on, `pitch` bytes from row to row."""
        bytes_at = dataclasses.replace(kv, dtype=dtype, address=kv.address + at)
        strides = [step // bytes_at.item_bytes for step in (*steps[:-1], pitch)]
        return bytes_at.reshaped((*shape, columns), (*strides, 1))

    operands, layout, group = {"kv": columns_at("e4m3", 0, form.narrow)}, form.scales, None
    if layout.place == "row":
        operands["kv_scale"] = columns_at(layout.dtype, form.scales_at, layout.stored)
    elif page is not None:
        begin = page * form.row_bytes
        operands["kv_scale"] = columns_at(layout.dtype, begin, layout.stored, layout.stored)
    elif kv_scale is not None:
        operands["kv_scale"], group = _scales(form, kv, kv_scale, scale_name, by_pages)
    if form.wide:
        operands["kv_rope"] = columns_at("bf16", form.wide_at, form.wide)
    if layout.place != "outside" and kv_scale is not None:
        raise SpecError(
            f"{scale_name} must be None: rows of kv_format {form.name!r} hold their scales"
        )
    return PackedOperands(operands, group, page)


def as_rows(name: str, kv: TensorView) -> TensorView:
    """Rows, or contiguous pages as rows; see `contiguous_rows`."""
    return contiguous_rows(kv, name) if len(kv.shape) == POOL_RANK else kv


def _check(form: LatentFormat, kv: TensorView, name: str, *, is_pool: bool) -> None:
    """Refuses a cache that is none of that format."""
    is_in_pages = form.is_in_pages or is_pool
    layout = _PAGES_LAYOUT if is_in_pages else _ROWS_LAYOUT
    ranks = (4,) if is_in_pages else (3, 4)
    fits = len(kv.shape) in ranks and kv.shape[-2:] == (1, form.token_bytes)
    if not fits or not 1 <= math.prod(kv.shape[:-2]) <= MAX_I32:
        expected = layout.format(bytes=form.token_bytes)
        raise SpecError(
            f"{name} must be {expected} with 1 to {MAX_I32} rows for kv_format {form.name!r}, got "
            f"{list(kv.shape)}"
        )
    if kv.dtype not in BYTES:
        allowed = " or ".join(BYTES)
        raise SpecError(f"{name} must be {allowed} for kv_format {form.name!r}, got {kv.dtype}")
    if kv.strides[-1] != 1:
        raise SpecError(f"{name} must have its last dimension contiguous, got strides {kv.strides}")


def _check_pages(form: LatentFormat, kv: TensorView, name: str) -> None:
    """Refuses pages that are not dense: their rows, then the scales of these."""
    if kv.shape[1] > 1 and kv.strides[1] != form.token_bytes:
        raise SpecError(
            f"{name} must have {form.token_bytes} bytes from each row of a page to the next for "
            f"kv_format {form.name!r}, got {kv.strides[1]}"
        )


def _scales(
    form: LatentFormat, kv: TensorView, value: object, name: str, by_pages: bool
) -> tuple[TensorView, int]:
    """The scales of a tensor, and how many columns share one."""
    scales = view(value, name)
    groups = {form.groups(group): group for group in reversed(GROUPS)}
    rows, shape = kv.shape[:-2], scales.shape
    if shape[:-1] != rows or scales.dtype != "f32" or shape[-1:] == () or shape[-1] not in groups:
        counts = ", ".join(map(str, sorted(groups)))
        raise SpecError(
            f"{name} must be [{', '.join(map(str, rows))}, n] of f32 with n of {counts} beside "
            f"this kv, got {list(shape)} of {scales.dtype}"
        )
    if len(shape) > len(("rows", "groups")) and not by_pages:
        flat = as_rows(name, scales.reshaped((*rows, 1, shape[-1]), _with_head(scales)))
        scales = flat.reshaped((flat.shape[0], shape[-1]), (flat.strides[0], flat.strides[-1]))
    return scales, groups[shape[-1]]


def _with_head(tensor: TensorView) -> tuple[int, ...]:
    """Strides of [pages, page, n] as [pages, page, 1, n]."""
    *outer, inner = tensor.strides
    return (*outer, tensor.shape[-1] * inner, inner)
