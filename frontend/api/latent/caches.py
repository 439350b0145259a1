"""A latent cache as an operand: one array of rows that every head reads, checked."""

from __future__ import annotations

import dataclasses

from attn_mlir.api.cache_scales import POOL_RANK, heads_inside
from attn_mlir.api.caches import Cached, cached
from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.dialect.attn.cache import TABLES
from attn_mlir.dialect.attn.latent.columns import ROW_COLUMNS
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import TensorView, view


def latent_cached(
    cache: ContiguousKV | PagedKV, columns: int = ROW_COLUMNS, *, may_scale: bool = False
) -> Cached:
    """The operands and index arrays of a latent cache; `k` and `v` are the same rows.

    Args:
      cache: with `k_pages` [pages, page, 1, columns] alone, or `k` [rows, positions, 1, columns]
        and a `v` of None.
      columns: of its rows.
      may_scale: whether `k_scale` may have a scale for each position of rows of 8 bits.

    Raises:
      SpecError: separate values or scales, other columns or heads, or as `cached`.
    """
    rows = getattr(cache, "k_pages" if isinstance(cache, PagedKV) else "k")
    may_scale = may_scale and view(rows, "k").dtype in NARROW_DTYPES
    keys, values = _check_alone(cache, may_scale=may_scale)
    shared = {values: getattr(cache, keys), "v_scale": cache.k_scale}
    result = cached(dataclasses.replace(cache, **shared))
    _check_columns(keys, result.operands["k"].shape, columns)
    if cache.k_scale is not None and not (result.kind and result.kind.scale_dtype):
        layout = "[rows, positions, 1, groups]" if keys == "k" else "in pages as k_pages"
        raise SpecError(
            f"k_scale of a latent cache must be of each position, {layout}, got shape "
            f"{list(view(cache.k_scale, 'k_scale').shape)}"
        )
    if result.kind is not None and result.kind.pages == TABLES:
        raise SpecError("page_table of a latent cache must be [batch, columns]: pages hold both")
    return result


def latent_pool(cache: ContiguousKV | PagedKV) -> tuple[str, TensorView]:
    """The rows of a latent cache as [pages, page, 1, columns], and the name of their field.

    Raises:
      SpecError: separate values or scales, or another rank.
    """
    keys, _ = _check_alone(cache)
    pool = view(getattr(cache, keys), keys)
    if len(pool.shape) != POOL_RANK:
        layout = "[pages, page, 1, D]" if keys == "k_pages" else "[rows, positions, 1, D]"
        raise SpecError(f"{keys} must be {layout}, got shape {list(pool.shape)}")
    if isinstance(cache, PagedKV) and cache.layout == "HND":
        pool = heads_inside(pool)
    return keys, pool


def pool_rows(name: str, pool: TensorView, columns: int) -> TensorView:
    """All rows of a pool [pages, page, 1, columns] as [rows, columns].

    Args:
      pool: with pages of any size, contiguous in memory.
      columns: of its rows.

    Raises:
      SpecError: other columns or heads, or pages with gaps between them.
    """
    _check_columns(name, pool.shape, columns)
    rows = contiguous_rows(pool, name)
    step, _, inner = rows.strides
    return rows.reshaped((rows.shape[0], columns), (step, inner))


def contiguous_rows(pool: TensorView, name: str) -> TensorView:
    """Contiguous pages [pages, page, heads, columns] as rows [rows, heads, columns].

    Raises:
      SpecError: there are gaps between them.
    """
    (pages, page, *row), (step, *steps) = pool.shape, pool.strides
    if pages > 1 and page > 1 and step != page * steps[0]:
        raise SpecError(
            f"{name} must have its pages one behind the other, {page * steps[0]} elements from "
            f"each to the next, got {step}"
        )
    pitch = step if page == 1 else steps[0]
    return pool.reshaped((pages * page, *row), (pitch, *steps[1:]))


def _check_alone(cache: ContiguousKV | PagedKV, *, may_scale: bool = False) -> tuple[str, str]:
    """The names of the fields of keys and values; refuses separate values.

    Args:
      may_scale: whether `k_scale` is allowed.

    Raises:
      SpecError: there are separate values, or scales.
    """
    values = "v_pages" if isinstance(cache, PagedKV) else "v"
    if getattr(cache, values) is not None:
        raise SpecError(f"{values} must be None: the rows of a latent cache hold keys and values")
    if may_scale and cache.v_scale is not None:
        raise SpecError("v_scale must be None: the rows of a latent cache have k_scale")
    for name in () if may_scale else ("k_scale", "v_scale"):
        if getattr(cache, name) is not None:
            raise SpecError(f"{name} must be None for a latent cache of 16 bits")
    return values.replace("v", "k"), values


def _check_columns(name: str, shape: tuple[int, ...], columns: int) -> None:
    """Refuses rows of another size, or of several heads.

    Raises:
      SpecError: says what was got.
    """
    if shape[2:] != (1, columns):
        raise SpecError(
            f"{name} of a latent cache must have 1 head of {columns} columns, got {shape[2]} of "
            f"{shape[3]}"
        )
