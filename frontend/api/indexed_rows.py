"""Rows that `mla_decode` reads by index: a pool, and a list of row numbers for each query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.api.array_checks import index_array
from attn_mlir.api.cache_scales import POOL_RANK
from attn_mlir.api.latent.caches import pool_rows
from attn_mlir.api.latent.packed_rows import latent_format, stored_rows
from attn_mlir.api.lengths import check_list_lengths
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import MAX_I32
from attn_mlir.runtime.call.tensors import TensorView, view


@dataclass(frozen=True)
class IndexedRows:
    """A pool of rows, and the lists of row numbers.

    Attributes:
      operands: views of the rows by the names of operands: `kv`, and those that a format of 8 bits
        adds.
      lists: `indices`, and `topk_length` where lists have lengths.
      topk: entries of each list.
      group, page: `kv_group` and `kv_page` of a request.
    """

    operands: Mapping[str, TensorView]
    lists: Mapping[str, object]
    topk: int
    group: int | None
    page: int | None


def indexed_rows(
    name: str,
    pool: TensorView,
    q: TensorView,
    lists: Mapping[str, object],
    kv_format: object,
    kv_scale: object,
    *,
    prefix: str = "",
) -> IndexedRows:
    """Checks a pool and its lists.

    Args:
      name: of the pool.
      pool: [pages, page, 1, columns] of q's dtype, or bytes of `kv_format`.
      q: [batch, sq, heads, columns].
      lists: `indices` and `topk_length` of the caller; None for lists without lengths.
      kv_format, kv_scale: as of `mla_decode`.
      prefix: of the names of lists and scales.

    Raises:
      SpecError: an argument is wrong.
    """
    columns = q.shape[3]
    form, group, page = latent_format(kv_format, columns), None, None
    if len(pool.shape) != POOL_RANK:
        raise SpecError(f"{name} must be [pages, page, 1, columns], got {list(pool.shape)}")
    if form is not None:
        stored = stored_rows(form, pool, kv_scale, prefix=prefix, called=name)
        operands, group, page = stored.operands, stored.group, stored.page
    else:
        check_no_scales(kv_format, kv_scale, f"{prefix}kv_scale")
        operands = {"kv": pool_rows(name, pool, columns)}
        if pool.dtype != q.dtype:
            raise SpecError(f"{name} is {pool.dtype}, q is {q.dtype}: both must be the same")
    if (count := operands["kv"].shape[0]) > MAX_I32:
        raise SpecError(f"indices name at most {MAX_I32} rows, {name} has {count}")
    arrays = dict[str, object]()
    for label, array in lists.items():
        if array is not None:
            axes = (*q.shape[:2], "topk") if label == "indices" else q.shape[:2]
            arrays[label] = index_array(f"{prefix}{label}", array, axes, note=" beside this q")
    topk = view(arrays["indices"], "indices").shape[-1]
    if "topk_length" in arrays:
        check_list_lengths(f"{prefix}topk_length", lists["topk_length"], topk)
    return IndexedRows(operands, arrays, topk, group, page)


def check_no_scales(kv_format: object, kv_scale: object, name: str = "kv_scale") -> None:
    """Refuses scales for rows without scales.

    Raises:
      SpecError: names the argument.
    """
    if kv_scale is not None:
        raise SpecError(f"{name} must be None for kv_format {kv_format!r}, got {shown(kv_scale)}")
