"""Gathers the keys and values of one sequence from a cache, for the reference formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.caches import ContiguousKV, PagedKV

Array = npt.NDArray[Any]


def gathered(cache: ContiguousKV | PagedKV, b: int, queries: int) -> tuple[Array, Array]:
    """K and V of sequence b, each [positions, kv_heads, columns], from a cache of numpy arrays.

    Multiplied by their factors, in float64, if each position has its own.

    Args:
      cache: entries that the sequence uses must be valid.
      b: number of the sequence.
      queries: number of the sequence's queries in this step.
    """
    if isinstance(cache, ContiguousKV):
        row = b if cache.batch_idx is None else int(cache.batch_idx[b])
        begin = 0 if cache.leftpad is None else int(cache.leftpad[b])
        span = np.s_[row, begin : _length(cache, b, queries, cache.k.shape[1])]
        return _real(cache.k[span], cache.k_scale, span), _real(cache.v[span], cache.v_scale, span)
    k, v = _pools(cache, cache.k_pages, cache.v_pages)
    size = k.shape[1]
    if cache.page_table is not None:
        pages = cache.page_table[b]
        length = _length(cache, b, queries, pages.shape[-1] * size)
    else:
        pages = cache.indices[cache.indptr[b] : cache.indptr[b + 1]]
        length = (len(pages) - 1) * size + int(cache.last_page_len[b]) if len(pages) else 0
    number, row = np.divmod(np.arange(length), size)
    of_keys, of_values = pages if pages.ndim > 1 else (pages, pages)
    keys, values = k[of_keys[number], row], v[of_values[number], row]
    if np.ndim(cache.k_scale) < k.ndim:
        return keys, values
    k_scale, v_scale = _pools(cache, cache.k_scale, cache.v_scale)
    own = (of_keys, of_values) if cache.scale_table is None else (cache.scale_table[b],) * 2
    places = [(x[number], row) for x in own]
    return _real(keys, k_scale, places[0]), _real(values, v_scale, places[1])


def _pools(cache: PagedKV, k: Any, v: Any) -> tuple[Array, Array]:
    """Arrays of K and V, or of their factors, as [pages, page, heads, ...]."""
    if v is None:
        k, v = k[:, 0], k[:, 1]
    return (k.swapaxes(1, 2), v.swapaxes(1, 2)) if cache.layout == "HND" else (k, v)


def _real(elements: Array, factors: Any, place: tuple[Any, ...]) -> Array:
    """Elements [positions, heads, columns] at a place, times the factors of positions if any."""
    if np.ndim(factors) <= elements.ndim:
        return elements
    found = factors[place].astype(np.float64)
    return elements.astype(np.float64) * np.repeat(found, elements.shape[2] // found.shape[2], 2)


def _length(cache: ContiguousKV | PagedKV, b: int, queries: int, room: int) -> int:
    """Number of positions in use, including padding before the sequence."""
    if cache.seqused is None:
        return room
    return int(cache.seqused[b]) + (0 if cache.counts_new else queries)
