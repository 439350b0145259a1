"""A latent cache as an operand: one array of rows that every head reads, checked."""

from __future__ import annotations

import dataclasses

from attn_mlir.api.caches import Cached, cached
from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.dialect.attn.cache import TABLES
from attn_mlir.dialect.attn.latent import ROW_COLUMNS
from attn_mlir.errors import SpecError


def latent_cached(cache: ContiguousKV | PagedKV) -> Cached:
    """The rows and index arrays of a latent cache: both operands, `k` and `v`, are all of its rows.

    Args:
      cache: with `k_pages` [pages, page, 1, 576] alone, or `k` [rows, positions, 1, 576] and a `v` of
        None.

    Raises:
      SpecError: values or factors of its own, other columns or heads, or what `cached` refuses.
    """
    values = "v_pages" if isinstance(cache, PagedKV) else "v"
    keys = values.replace("v", "k")
    if getattr(cache, values) is not None:
        raise SpecError(f"{values} must be None: the rows of a latent cache hold keys and values")
    for name in ("k_scale", "v_scale"):
        if getattr(cache, name) is not None:
            raise SpecError(f"{name} must be None for a latent cache of 16 bits")
    found = cached(dataclasses.replace(cache, **{values: getattr(cache, keys)}))
    shape = found.operands["k"].shape
    if shape[2:] != (1, ROW_COLUMNS):
        raise SpecError(
            f"{keys} of a latent cache must have 1 head of {ROW_COLUMNS} columns, got {shape[2]} of "
            f"{shape[3]}"
        )
    if found.kind is not None and found.kind.pages == TABLES:
        raise SpecError("page_table of a latent cache must be [batch, columns]: pages hold both")
    return found
