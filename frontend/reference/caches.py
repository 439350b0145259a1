"""Gathers the keys and values of one sequence from a cache, for the reference formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.caches import ContiguousKV, PagedKV

Array = npt.NDArray[Any]


def sequence_kv(cache: ContiguousKV | PagedKV, b: int, queries: int) -> tuple[Array, Array]:
    """K and V of sequence b, each [positions, kv_heads, columns], from a cache of numpy arrays.

    Multiplied by their scales, in float64, if each position has its own.

    Args:
      cache: entries that the sequence uses must be valid.
      b: number of the sequence.
      queries: number of the sequence's queries in this step.
    """
    if isinstance(cache, ContiguousKV):
        row = b if cache.batch_idx is None else int(cache.batch_idx[b])
        begin = 0 if cache.leftpad is None else int(cache.leftpad[b])
        span = np.s_[row, begin : _length(cache, b, queries, cache.k.shape[1])]
        k, v = cache.k[span], cache.v[span]
        index = row, np.arange(begin, begin + len(k)) // _positions_per_scale(cache)
        return _scaled(k, cache.k_scale, index), _scaled(v, cache.v_scale, index)
    keys_in, values_in = pages_of(cache, b)
    k, v = stored(cache)
    size, count = k.shape[1], len(keys_in)
    if cache.page_table is not None:
        length = _length(cache, b, queries, count * size)
    else:
        length = (count - 1) * size + int(cache.last_page_len[b]) if count else 0
    number, row = np.divmod(np.arange(length), size)
    keys, values = k[keys_in[number], row], v[values_in[number], row]
    if (scales := stored_scales(cache)) is None:
        return keys, values
    tables = (keys_in, values_in) if cache.scale_table is None else (cache.scale_table[b],) * 2
    scale_indices = [(x[number], row // _positions_per_scale(cache)) for x in tables]
    at_k, at_v = scale_indices
    return _scaled(keys, scales[0], at_k), _scaled(values, scales[1], at_v)


def pages_of(cache: PagedKV, b: int) -> tuple[Array, Array]:
    """The numbers of the pages of keys and of values of sequence b."""
    if cache.page_table is None:
        pages = cache.indices[cache.indptr[b] : cache.indptr[b + 1]]
        return pages, pages
    pages = cache.page_table[b]
    return (pages[0], pages[1]) if pages.ndim > 1 else (pages, pages)


def stored(cache: ContiguousKV | PagedKV) -> tuple[Array, Array]:
    """K and V as views [lines, offsets, heads, columns] of the cache's own memory."""
    if isinstance(cache, ContiguousKV):
        return cache.k, cache.v
    return _by_position(cache, cache.k_pages, cache.v_pages)


def stored_scales(cache: ContiguousKV | PagedKV) -> tuple[Array, Array] | None:
    """Scales as views [lines, offsets, heads, groups]; None where positions have none of their
    own.
    """
    k, v = cache.k_scale, cache.v_scale
    if k is None or np.ndim(k) < stored(cache)[0].ndim:
        return None
    return (k, v) if isinstance(cache, ContiguousKV) else _by_position(cache, k, v)


def _positions_per_scale(cache: ContiguousKV | PagedKV) -> int:
    """Neighbouring positions that share their scales."""
    scales = stored_scales(cache)
    blocks = 0 if scales is None else scales[0].shape[1]
    return stored(cache)[0].shape[1] // blocks if blocks else 1


def _by_position(cache: PagedKV, k: Array, v: Array | None) -> tuple[Array, Array]:
    """Both pools, or the halves of one, by position."""
    if v is None:
        k, v = k[:, 0], k[:, 1]
    return (k.swapaxes(1, 2), v.swapaxes(1, 2)) if cache.layout == "HND" else (k, v)


def _scaled(elements: Array, all_scales: Any, index: tuple[Any, ...]) -> Array:
    """Elements [positions, heads, columns] at a place, times the scales of positions if any."""
    if np.ndim(all_scales) <= elements.ndim:
        return elements
    scales = all_scales[index].astype(np.float64)
    return elements.astype(np.float64) * np.repeat(scales, elements.shape[2] // scales.shape[2], 2)


def _length(cache: ContiguousKV | PagedKV, b: int, queries: int, capacity: int) -> int:
    """Number of positions in use, including padding before the sequence."""
    if cache.seqused is None:
        return capacity
    return int(cache.seqused[b]) + (0 if cache.counts_new else queries)
