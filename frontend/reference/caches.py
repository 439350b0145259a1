"""Caches for the formulas: the keys and values of one sequence, gathered by the meaning of its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.caches import ContiguousKV, PagedKV

Array = npt.NDArray[Any]


def gathered(cache: ContiguousKV | PagedKV, b: int, queries: int) -> tuple[Array, Array]:
    """K and V of sequence b, each [positions, kv_heads, columns], from a cache of numpy arrays.

    Args:
      cache: its entries that the sequence uses have to be right.
      b: number of the sequence.
      queries: of the sequence in this step.
    """
    if isinstance(cache, ContiguousKV):
        row = b if cache.batch_idx is None else int(cache.batch_idx[b])
        begin = 0 if cache.leftpad is None else int(cache.leftpad[b])
        end = _length(cache, b, queries, cache.k.shape[1])
        return cache.k[row, begin:end], cache.v[row, begin:end]
    k, v = cache.k_pages, cache.v_pages
    if v is None:
        k, v = k[:, 0], k[:, 1]
    if cache.layout == "HND":
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    size = k.shape[1]
    if cache.page_table is not None:
        pages = cache.page_table[b]
        length = _length(cache, b, queries, pages.shape[-1] * size)
    else:
        pages = cache.indices[cache.indptr[b] : cache.indptr[b + 1]]
        length = (len(pages) - 1) * size + int(cache.last_page_len[b]) if len(pages) else 0
    positions = np.arange(length)
    of_keys, of_values = pages if pages.ndim > 1 else (pages, pages)
    row = positions % size
    return k[of_keys[positions // size], row], v[of_values[positions // size], row]


def _length(cache: ContiguousKV | PagedKV, b: int, queries: int, room: int) -> int:
    """Positions in use, those in front of the sequence counted."""
    if cache.seqused is None:
        return room
    return int(cache.seqused[b]) + (0 if cache.counts_new else queries)
