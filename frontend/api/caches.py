"""Checks the arrays of a cache that is passed in place of k and v, and brings them to kernel form.

Pools of both layouts, and pools of K and V together, become tensors [pages, page, heads, columns]
with other strides. Arrays in host memory are checked before every launch, as in `lengths`: table
entries that a sequence uses must be numbers of pages. For wrong numbers in arrays on a GPU, kernels
read zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from attn_mlir.api.array_checks import index_array
from attn_mlir.api.cache_scales import (
    BOTH,
    POOL_RANK,
    check_dense_rows,
    half,
    heads_inside,
    position_scales,
)
from attn_mlir.api.copyable import check_copyable
from attn_mlir.arrays import as_i32
from attn_mlir.caches import LAYOUTS, ContiguousKV, PagedKV
from attn_mlir.compiling import options
from attn_mlir.dialect.attn.cache import CSR, SCALE_TABLE, TABLE, TABLES, Cache
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import MAX_I32
from attn_mlir.runtime.call.tensors import TensorView, view

Numbers = npt.NDArray[np.int32]
Contents = Mapping[str, Numbers | None]

_EXTENTS = {
    "indptr": "batch + 1",
    "indices": "entries",
    "last_page_len": "batch",
    "batch_idx": "batch",
    "leftpad": "batch",
}
_REPLACED_BY = {
    "v": "v of its own",
    "cu_seqlens_k": "seqused, indptr or leftpad",
    "max_seqlen_k": "seqused",
    "seqused_k": "seqused",
    "cache_seqlens": "seqused and counts_new",
    "cache_counts_new": "counts_new",
    "k_descale": "k_scale",
    "v_descale": "v_scale",
}  # arguments of `attention` -> fields of a cache that take their place
_LENGTH_NAMES = {"seqused_k": "seqused", "cache_seqlens": "seqused"}
_SCALE_NAMES = {"k_descale": "k_scale", "v_descale": "v_scale"}
ALL_COUNT = ("batch_idx", "leftpad", "indptr")  # arrays in which no number may be unused


@dataclass(frozen=True)
class Cached:
    """A cache in the form that kernels take.

    Attributes:
      operands: `k` and `v`, stored as `kind` says.
      kind: the static properties; None for plain tensors.
      arrays: the index arrays by name, in the order of the call.
      lengths: the name of the array with lengths, `seqused_k` or `cache_seqlens`; empty without
        one.
      batch: number of sequences.
      batch_source: the array whose extent that is.
      max_positions: an upper bound of the positions of a sequence; see `longest_of`.
      scales: k_scale and v_scale; None if k_descale and v_descale may be given instead.
      names: the caller's name of an operand, if it differs from the kernel's.
    """

    operands: Mapping[str, TensorView]
    kind: Cache | None
    arrays: Mapping[str, object]
    lengths: Mapping[str, object]
    batch: int
    batch_source: str
    max_positions: int
    scales: tuple[object, object] | None
    names: Mapping[str, str]


def check_replaced(cache: Cached, call: object) -> None:
    """Refuses arguments of `attention` that the fields of a cache replace.

    Args:
      call: which has them; None and False count as not given.

    Raises:
      SpecError: names the first one.
    """
    for name, field in _REPLACED_BY.items():
        value, is_of_tensors = getattr(call, name), name in _SCALE_NAMES and cache.scales is None
        if value is not None and value is not False and not is_of_tensors:
            raise SpecError(f"{name} is for k and v as tensors: the cache has {field}")


def cached(cache: ContiguousKV | PagedKV) -> Cached:
    """The operands and index arrays of a cache.

    Raises:
      SpecError: arrays of a wrong kind or shape; names them as the cache does.
    """
    return _paged(cache) if isinstance(cache, PagedKV) else _contiguous(cache)


def _lengths_array(cache: ContiguousKV | PagedKV) -> dict[str, object]:
    """The array with lengths, under the kernel's name for it."""
    name = "seqused_k" if cache.counts_new else "cache_seqlens"
    return {} if cache.seqused is None else {name: cache.seqused}


def _contiguous(cache: ContiguousKV) -> Cached:
    operands = {"k": view(cache.k, "k"), "v": view(cache.v, "v")}
    for name, tensor in operands.items():
        if len(tensor.shape) != POOL_RANK:
            layout = "[rows, positions, heads, head_dim]"
            raise SpecError(f"{name} must be {layout}, got shape {list(tensor.shape)}")
    arrays = _index_arrays({"batch_idx": cache.batch_idx, "leftpad": cache.leftpad})
    kind = Cache(selected="batch_idx" in arrays, padded="leftpad" in arrays)
    batch_source = "batch_idx" if kind.selected else "k"
    has_scales = cache.k_scale is not None or cache.v_scale is not None
    scales: tuple[object, object] | None = (cache.k_scale, cache.v_scale) if has_scales else None
    of_positions = position_scales(cache, operands, kind)
    if of_positions is not None:
        scales, kind = of_positions.scales, of_positions.kind
    rows, max_positions = operands["k"].shape[:2]
    batch = view(arrays["batch_idx"], batch_source).shape[0] if kind.selected else rows
    return Cached(
        operands,
        kind if arrays or of_positions else None,
        arrays,
        _lengths_array(cache),
        _agreed(batch, batch_source, arrays, ["leftpad"]),
        batch_source,
        max_positions,
        scales,
        _LENGTH_NAMES if scales is None else _LENGTH_NAMES | _SCALE_NAMES,
    )


def _paged(cache: PagedKV) -> Cached:
    operands, names = _pools(cache)
    pool = operands["k"]
    page_size = options.page(f"the page size of {names['k']}", pool.shape[1])
    if cache.is_compressed:
        kind, arrays = CSR, _compressed_rows(cache)
        batch = view(arrays["indptr"], "indptr").shape[0] - 1
        batch_source, listing = "indptr", "indices"
        columns = view(arrays["indices"], "indices").shape[0]
    else:
        arrays = _tables(cache.page_table)
        kind = TABLE if len(arrays) == 1 else TABLES
        batch_source = listing = "page_table"
        batch, columns = view(arrays["page_table"], "page_table").shape
    layout = Cache(page_size=page_size, pages=kind)
    scales: tuple[object, object] = (cache.k_scale, cache.v_scale)
    of_positions = position_scales(cache, operands, layout)
    if of_positions is not None:
        scales, layout = of_positions.scales, of_positions.kind
        arrays |= of_positions.arrays(batch, 1 if kind == CSR else columns)
    elif cache.scale_table is not None:
        raise SpecError("scale_table is for scales of positions, which k_scale and v_scale are not")
    if columns * page_size > MAX_I32:
        raise SpecError(
            f"{listing} has {columns} pages of {page_size}: a sequence has at most {MAX_I32} "
            "positions"
        )
    return Cached(
        operands,
        layout,
        arrays,
        _lengths_array(cache),
        batch,
        batch_source,
        columns * page_size,
        scales,
        names | _LENGTH_NAMES | _SCALE_NAMES | {"v_page_table": "page_table"},
    )


def _compressed_rows(cache: PagedKV) -> dict[str, object]:
    """The arrays of compressed rows, which have to agree on the batch."""
    names = ("indptr", "indices", "last_page_len")
    arrays = _index_arrays({name: getattr(cache, name) for name in names})
    batch = view(arrays["indptr"], "indptr").shape[0] - 1
    if batch < 0:
        raise SpecError("indptr must have batch + 1 entries, got none")
    _agreed(batch, "indptr", arrays, ["last_page_len"])
    return arrays


def _tables(page_table: object) -> dict[str, object]:
    """The table for keys and values, or one for each, from an array [batch, 2, columns]."""
    page_table = as_i32(page_table, "page_table")
    table = view(page_table, "page_table")
    rank = len(table.shape)
    if table.dtype != "i32" or rank not in (2, 3) or (rank == 3 and table.shape[1] != BOTH):
        raise SpecError(
            "page_table must be [batch, columns] or [batch, 2, columns] of i32, got "
            f"{list(table.shape)} of {table.dtype}"
        )
    check_dense_rows(table, "page_table")
    if rank == 2:
        return {"page_table": page_table}
    return {"page_table": half(table, 0), "v_page_table": half(table, 1)}


def _pools(cache: PagedKV) -> tuple[dict[str, TensorView], dict[str, str]]:
    """K and V as [pages, page, heads, columns], and the caller's names for them."""
    k = view(cache.k_pages, "k_pages")
    layout = LAYOUTS[cache.layout]
    if cache.v_pages is None:
        shape = list(k.shape)
        if len(shape) != POOL_RANK + 1 or shape[1] != BOTH:
            both = layout.replace("pages,", "pages, 2,")
            raise SpecError(
                f"k_pages must be {both} without v_pages, got shape {shape} (pass v_pages?)"
            )
        pools = {"k": half(k, 0), "v": half(k, 1)}
        names = {"k": "k_pages", "v": "k_pages"}
    else:
        pools = {"k": k, "v": view(cache.v_pages, "v_pages")}
        names = {"k": "k_pages", "v": "v_pages"}
        for name, pool in pools.items():
            if len(pool.shape) != POOL_RANK:
                raise SpecError(f"{names[name]} must be {layout}, got shape {list(pool.shape)}")
        if k.shape[:3] != pools["v"].shape[:3]:
            raise SpecError(
                f"v_pages must agree with k_pages but for head_dim, got {list(pools['v'].shape)} "
                f"and {list(k.shape)}"
            )
    for name, pool in pools.items():
        check_copyable(pool, names[name])
    if cache.layout == "HND":
        pools = {name: heads_inside(pool) for name, pool in pools.items()}
    return pools, names


def _index_arrays(arrays: Mapping[str, object]) -> dict[str, object]:
    """The arrays that are given, checked to be i32 or u32; those in host memory are made dense.

    Raises:
      SpecError: names the array.
    """
    checked: dict[str, object] = {}
    for name, value in arrays.items():
        if value is None:
            continue
        checked[name] = index_array(name, value, (_EXTENTS[name],), all_count=name in ALL_COUNT)
    return checked


def _agreed(
    batch: int, batch_source: str, arrays: Mapping[str, object], names: Sequence[str]
) -> int:
    """Checks that arrays agree on the batch, and returns it.

    Raises:
      SpecError: an array has another batch.
    """
    for name in names:
        if name in arrays and (got := view(arrays[name], name).shape[0]) != batch:
            raise SpecError(f"{name} has batch {got}, {batch_source} has {batch}")
    return batch


def longest_of(cache: Cached, contents: Contents) -> int:
    """An upper bound of the sequences' positions, by what the host can read."""
    offsets = contents.get("indptr")
    if cache.kind is None or offsets is None:
        return cache.max_positions
    count = int(np.diff(offsets.astype(np.int64)).max(initial=0))
    return min(count * cache.kind.page_size, cache.max_positions)


def stored_lengths(cache: Cached, contents: Contents) -> Numbers | None:
    """The number of positions in each sequence's pages or row; None if the host cannot read it.

    Raises:
      SpecError: `indptr`, `indices` and `last_page_len` that are no compressed rows.
    """
    if cache.kind is None or cache.kind.pages != CSR:
        return np.full(cache.batch, cache.max_positions, np.int32)
    offsets, last = contents["indptr"], contents["last_page_len"]
    if offsets is None or last is None:
        return None
    entries = view(cache.arrays["indices"], "indices").shape[0]
    counts = np.diff(offsets.astype(np.int64))
    if offsets[0] < 0 or offsets[-1] > entries or (counts < 0).any():
        raise SpecError(
            f"indptr must rise from 0 or more to at most {entries}, the entries of indices, got "
            f"{shown(offsets.tolist(), 60)}"
        )
    size = cache.kind.page_size
    for b, (count, filled) in enumerate(zip(counts.tolist(), last.tolist(), strict=True)):
        if count and not 1 <= filled <= size:
            raise SpecError(f"last_page_len[{b}] is {filled}: pages have {size} positions")
    return np.where(counts > 0, (counts - 1) * size + last, 0).astype(np.int32)


def check_cache_indices(cache: Cached, contents: Contents, lengths: Numbers | None) -> None:
    """Refuses host arrays with used entries that are out of range.

    Args:
      contents: the index arrays by name; None for those that are not read.
      lengths: of the sequences, including the padding of `leftpad`.

    Raises:
      SpecError: names the array and the entry.
    """
    if (rows := contents.get("batch_idx")) is not None:
        check_entries("batch_idx", rows, cache.operands["k"].shape[0], "k has rows")
    padding = contents.get("leftpad")
    if padding is not None and lengths is not None:
        for b, (got, limit) in enumerate(zip(padding.tolist(), lengths.tolist(), strict=True)):
            if not 0 <= got <= limit:
                raise SpecError(f"leftpad[{b}] is {got}: sequence {b} has {limit} positions")
    pages = cache.operands["k"].shape[0]
    range_name = f"{cache.names.get('k', 'k')} has pages"
    if (indices := contents.get("indices")) is not None:
        offsets = contents["indptr"]
        if offsets is not None and len(offsets):
            used = np.zeros(len(indices), np.bool_)
            used[offsets[0] : offsets[-1]] = True
            check_entries("indices", indices, pages, range_name, used)
    for name in ("page_table", "v_page_table"):
        if (table := contents.get(name)) is not None and lengths is not None:
            size = cast(Cache, cache.kind).page_size
            first = np.arange(table.shape[1], dtype=np.int64) * size
            check_entries("page_table", table, pages, range_name, np.less(first, lengths[:, None]))
    if (table := contents.get(SCALE_TABLE)) is not None and lengths is not None:
        _check_scale_table(cache, table, lengths)


def _check_scale_table(cache: Cached, table: Numbers, lengths: Numbers) -> None:
    """Refuses a host table of scale pages with used entries that are out of range.

    Raises:
      SpecError: names the entry.
    """
    size = cast(Cache, cache.kind).page_size
    if lengths.max(initial=0) > table.shape[1] * size:
        raise SpecError(
            f"{SCALE_TABLE} has {table.shape[1]} columns of {size} positions: a sequence has "
            f"{lengths.max()}"
        )
    pages = min(view(scale, "k_scale").shape[0] for scale in cast("Sequence[object]", cache.scales))
    first = np.arange(table.shape[1], dtype=np.int64) * size
    range_name = "k_scale and v_scale have pages"
    check_entries(SCALE_TABLE, table, pages, range_name, np.less(first, lengths[:, None]))


def check_entries(
    name: str,
    entries: npt.NDArray[Any],
    end: int,
    range_name: str,
    used: npt.NDArray[Any] | None = None,
) -> None:
    """Refuses an entry below 0 or from `end` on, among those that are used.

    Args:
      range_name: begins the allowed range in the message, such as `k has pages`.

    Raises:
      SpecError: names the first one.
    """
    wrong = (entries < 0) | (entries >= end)
    if used is not None:
        wrong &= used
    if wrong.any():
        position = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = ", ".join(map(str, position))
        raise SpecError(f"{name}[{where}] is {entries[position]}: {range_name} 0 to {end - 1}")
