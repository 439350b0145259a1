"""New tokens in a cache, by the meaning of the arrays: one token after the other, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attn_mlir.caches import ContiguousKV, PagedKV

Array = npt.NDArray[Any]
Rotary = tuple[Array, Array, bool]


class Place(NamedTuple):
    """Where one token goes.

    Attributes:
      token: its index in k_new.
      sequence: None where slots tell.
      position: in its sequence; None where nobody asks.
      k, v: page and offset, or row and position, of its key and of its value; None for one that
        has no place.
    """

    token: tuple[int, ...]
    sequence: int | None
    position: int | None
    k: tuple[int, int] | None
    v: tuple[int, int] | None


def stored(cache: ContiguousKV | PagedKV) -> tuple[Array, Array]:
    """K and V as views [lines, offsets, heads, columns] of the cache's own memory."""
    if isinstance(cache, ContiguousKV):
        return cache.k, cache.v
    k, v = cache.k_pages, cache.v_pages
    if v is None:
        k, v = k[:, 0], k[:, 1]
    return (k.swapaxes(1, 2), v.swapaxes(1, 2)) if cache.layout == "HND" else (k, v)


def appended(
    cache: ContiguousKV | PagedKV,
    k_new: Array,
    v_new: Array,
    positions: Array | None = None,
    *,
    batch_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    slot_mapping: Array | None = None,
    rotary: Rotary | None = None,
) -> tuple[Array, Array]:
    """What `append_kv` writes, in float64 and before it is rounded; NaN where it writes nothing.

    Tokens without a place are left out, whatever the arrays hold.

    Returns:
      For keys and for values [lines, offsets, heads, columns], as `stored`.
    """
    found = [np.full(side.shape, np.nan) for side in stored(cache)]
    told = (positions, batch_indices, cu_seqlens, slot_mapping)
    for place in places(cache, k_new.shape[:-2], *told):
        key = k_new[place.token].astype(np.float64)
        if rotary is not None:
            assert place.position is not None
            key = rotated(key, place.position, *rotary)
        rows = (key, v_new[place.token].astype(np.float64))
        scales = [_scale(cache, name, place.sequence, len(key)) for name in ("k_scale", "v_scale")]
        if k_new.dtype == stored(cache)[0].dtype:
            scales = [np.ones(1), np.ones(1)]
        for side, row, scale, where in zip(found, rows, scales, place[3:], strict=True):
            if where is not None:
                side[where] = row / scale[:, None]
    return found[0], found[1]


def rotated(key: Array, position: int, cos: Array, sin: Array, interleaved: bool) -> Array:
    """A key [heads, columns] with the pairs of its first columns turned by the angles of a position."""
    c, s = (angle[position].astype(np.float64) for angle in (cos, sin))
    count = len(c)
    first = np.s_[..., 0 : 2 * count : 2] if interleaved else np.s_[..., :count]
    second = np.s_[..., 1 : 2 * count : 2] if interleaved else np.s_[..., count : 2 * count]
    result = key.copy()
    result[first] = key[first] * c - key[second] * s
    result[second] = key[second] * c + key[first] * s
    return result


def places(
    cache: ContiguousKV | PagedKV,
    shape: tuple[int, ...],
    positions: Array | None,
    batch_indices: Array | None,
    cu_seqlens: Array | None,
    slot_mapping: Array | None,
) -> Iterator[Place]:
    """Where each token goes; those that belong nowhere are left out.

    Args:
      shape: [tokens] or [batch, n].
    """
    lines, offsets = stored(cache)[0].shape[:2]
    for number, token in enumerate(np.ndindex(*shape)):
        position = None if positions is None else int(positions[token])
        if slot_mapping is not None:
            slot = int(slot_mapping[token])
            if 0 <= slot < lines * offsets:
                yield Place(token, None, position, divmod(slot, offsets), divmod(slot, offsets))
            continue
        told = _sequence(number, token, shape, batch_indices, cu_seqlens)
        if told is None or not 0 <= told[0] < _batch(cache):
            continue
        b, own, count = told
        start = 0
        if isinstance(cache, ContiguousKV) and cache.leftpad is not None:
            start = int(cache.leftpad[b])
        if position is None:
            position = _end(cache, b, count) - (count - own) - start
        if position >= 0:
            k, v = (_place(cache, b, start + position, side) for side in (0, 1))
            yield Place(token, b, position, k, v)


def _sequence(
    number: int,
    token: tuple[int, ...],
    shape: tuple[int, ...],
    batch_indices: Array | None,
    cu_seqlens: Array | None,
) -> tuple[int, int, int] | None:
    """A token's sequence, its number among the new ones there, and how many these are."""
    if batch_indices is not None:
        return int(batch_indices[token]), 0, 1
    if cu_seqlens is None:
        return token[0], token[1], shape[1]
    for b, (begin, end) in enumerate(
        zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)
    ):
        if begin <= number < end:
            return b, number - begin, end - begin
    return None


def _batch(cache: ContiguousKV | PagedKV) -> int:
    if isinstance(cache, ContiguousKV):
        return len(cache.k) if cache.batch_idx is None else len(cache.batch_idx)
    return len(cache.page_table) if cache.page_table is not None else len(cache.indptr) - 1


def _pages(cache: PagedKV, b: int, side: int) -> Array:
    """The list of a sequence's pages."""
    if cache.page_table is None:
        return cache.indices[cache.indptr[b] : cache.indptr[b + 1]]
    pages = cache.page_table[b]
    return pages[side] if pages.ndim > 1 else pages


def _end(cache: ContiguousKV | PagedKV, b: int, count: int) -> int:
    """Positions of a sequence once its new tokens are there."""
    if cache.seqused is not None:
        return int(cache.seqused[b]) + (0 if cache.counts_new else count)
    if isinstance(cache, ContiguousKV):
        return cache.k.shape[1]
    size, pages = stored(cache)[0].shape[1], len(_pages(cache, b, 0))
    if cache.page_table is not None:
        return pages * size
    return (pages - 1) * size + int(cache.last_page_len[b]) if pages else 0


def _place(cache: ContiguousKV | PagedKV, b: int, place: int, side: int) -> tuple[int, int] | None:
    """Page and offset, or row and position, of a place in a sequence's room; None where there is none."""
    lines, offsets = stored(cache)[side].shape[:2]
    if isinstance(cache, ContiguousKV):
        line, offset = b if cache.batch_idx is None else int(cache.batch_idx[b]), place
        return (line, offset) if 0 <= line < lines and 0 <= place < offsets else None
    pages = _pages(cache, b, side)
    if not 0 <= place < len(pages) * offsets:
        return None
    line, offset = int(pages[place // offsets]), place % offsets
    return (line, offset) if 0 <= line < lines else None


def _scale(cache: ContiguousKV | PagedKV, name: str, b: int | None, heads: int) -> Array:
    """The factors of a sequence's heads."""
    scale = getattr(cache, name, None)
    if scale is None:
        return np.ones(1)
    table = np.asarray(scale, np.float64)
    table = np.broadcast_to(
        table if table.ndim > 1 else table.reshape(1, -1), (_batch(cache), heads)
    )
    return table[0 if b is None else b]
