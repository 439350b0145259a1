"""The reference for new tokens in a cache: one token after the other, in float64.

If positions have their own scales, these are computed from the tokens: `measured` says which they
are, and `appended` what the elements are, given the scales that the cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.element_types import OF_NUMPY
from attn_mlir.reference.caches import pages_of, stored, stored_scales

Array = npt.NDArray[Any]
Rotary = tuple[Array, Array, bool]


class Destination(NamedTuple):
    """Where one token goes.

    Attributes:
      token: its index in k_new.
      sequence: number of its sequence; None if slots give the place.
      position: its position in the sequence; None if it is not needed.
      k, v: page and offset, or row and position, of its key and of its value; None where they go
        nowhere.
      k_scale, v_scale: the same for their scales, if positions have their own.
    """

    token: tuple[int, ...]
    sequence: int | None
    position: int | None
    k: tuple[int, int] | None
    v: tuple[int, int] | None
    k_scale: tuple[int, int] | None
    v_scale: tuple[int, int] | None


def appended(
    cache: ContiguousKV | PagedKV,
    k_new: Array,
    v_new: Array,
    *positions: Array | None,
    **options: Any,
) -> tuple[Array, Array]:
    """The values that `append_kv` writes, in float64 before rounding; NaN where it writes nothing.

    Args:
      k_new, v_new, positions, options: as of `tokens_of`.

    Returns:
      For keys and for values [lines, offsets, heads, columns], as `stored`.
    """
    results = [np.full(operand.shape, np.nan) for operand in stored(cache)]
    scales = stored_scales(cache)
    for destination, rows in tokens_of(cache, k_new, v_new, *positions, **options):
        for number, (operand, row) in enumerate(zip(results, rows, strict=True)):
            at = destination[3 + number]
            if at is None:
                continue
            if scales is not None:
                scale = scales[number][destination[5 + number]].astype(np.float64)
                operand[at] = row / np.repeat(scale, row.shape[1] // scale.shape[1], 1)
            elif k_new.dtype == stored(cache)[0].dtype:
                operand[at] = row
            else:
                name = ("k_scale", "v_scale")[number]
                operand[at] = row / _scale(cache, name, destination.sequence, len(row))[:, None]
    return results[0], results[1]


def measured(
    cache: ContiguousKV | PagedKV,
    k_new: Array,
    v_new: Array,
    *positions: Array | None,
    **options: Any,
) -> tuple[Array, Array]:
    """The scales that `append_kv` writes, in float32 and before they are rounded; NaN where none.

    Of each group of columns the largest element over the largest number of the cache's 8 bits,
    between 2^-80 and 2^80, or 2^-14 and 2^15 for scales of f16.

    Args:
      k_new, v_new, positions, options: as of `tokens_of`.

    Returns:
      For keys and for values [lines, offsets, heads, groups], as `stored_scales`.
    """
    scales = stored_scales(cache)
    assert scales is not None
    least, most = (2.0**-14, 2.0**15) if scales[0].dtype == np.float16 else (2.0**-80, 2.0**80)
    largest = np.float32(OF_NUMPY[stored(cache)[0].dtype.name].largest)
    results = [np.full(operand.shape, np.nan, np.float32) for operand in scales]
    for destination, rows in tokens_of(cache, k_new, v_new, *positions, **options):
        for operand, row, at in zip(results, rows, destination[5:], strict=True):
            if at is not None:
                groups: Array = np.abs(row).reshape(
                    len(row), -1, row.shape[1] // operand[at].shape[1]
                )
                scale = np.fmax.reduce(groups, 2, initial=0.0).astype(np.float32) / largest
                operand[at] = np.clip(scale, np.float32(least), np.float32(most))
    return results[0], results[1]


def tokens_of(
    cache: ContiguousKV | PagedKV,
    k_new: Array,
    v_new: Array,
    positions: Array | None = None,
    *,
    batch_indices: Array | None = None,
    cu_seqlens: Array | None = None,
    slot_mapping: Array | None = None,
    rotary: Rotary | None = None,
) -> Iterator[tuple[Destination, tuple[Array, Array]]]:
    """Each token's destination, its rotated key and its value, [heads, columns] in float64.

    Tokens without a destination are left out, whatever the arrays hold.

    Args:
      k_new, v_new, positions, batch_indices, cu_seqlens, slot_mapping, rotary: as of `append_kv`.
    """
    arguments = (positions, batch_indices, cu_seqlens, slot_mapping)
    for destination in destinations(cache, k_new.shape[:-2], *arguments):
        key = k_new[destination.token].astype(np.float64)
        if rotary is not None:
            assert destination.position is not None
            key = rotated(key, destination.position, *rotary)
        yield destination, (key, v_new[destination.token].astype(np.float64))


def rotated(key: Array, position: int, cos: Array, sin: Array, interleaved: bool) -> Array:
    """A key [heads, columns] with the pairs of its first columns rotated for a position."""
    c, s = (angle[position].astype(np.float64) for angle in (cos, sin))
    count = len(c)
    first = np.s_[..., 0 : 2 * count : 2] if interleaved else np.s_[..., :count]
    second = np.s_[..., 1 : 2 * count : 2] if interleaved else np.s_[..., count : 2 * count]
    result = key.copy()
    result[first] = key[first] * c - key[second] * s
    result[second] = key[second] * c + key[first] * s
    return result


def destinations(
    cache: ContiguousKV | PagedKV,
    shape: tuple[int, ...],
    positions: Array | None,
    batch_indices: Array | None,
    cu_seqlens: Array | None,
    slot_mapping: Array | None,
) -> Iterator[Destination]:
    """The destinations of tokens; those without one are left out.

    Args:
      shape: [tokens] or [batch, n].
    """
    lines, offsets = stored(cache)[0].shape[:2]
    for number, token in enumerate(np.ndindex(*shape)):
        position = None if positions is None else int(positions[token])
        if slot_mapping is not None:
            slot = int(slot_mapping[token])
            if 0 <= slot < lines * offsets:
                yield Destination(token, None, position, *[divmod(slot, offsets)] * 4)
            continue
        sequence = _sequence(number, token, shape, batch_indices, cu_seqlens)
        if sequence is None or not 0 <= sequence[0] < _batch(cache):
            continue
        b, index, count = sequence
        start = 0
        if isinstance(cache, ContiguousKV) and cache.leftpad is not None:
            start = int(cache.leftpad[b])
        if position is None:
            position = _end(cache, b, count) - (count - index) - start
        if position >= 0:
            rows = [_row_of(cache, b, start + position, side) for side in (0, 1)]
            scale_rows = list(rows)
            if isinstance(cache, PagedKV) and cache.scale_table is not None:
                scale_rows = [_scale_row_of(cache, b, start + position, side) for side in (0, 1)]
                is_whole = [None not in pair for pair in zip(rows, scale_rows, strict=True)]
                rows, scale_rows = (
                    [x if whole else None for x, whole in zip(xs, is_whole, strict=True)]
                    for xs in (rows, scale_rows)
                )
            yield Destination(token, b, position, rows[0], rows[1], scale_rows[0], scale_rows[1])


def _sequence(
    number: int,
    token: tuple[int, ...],
    shape: tuple[int, ...],
    batch_indices: Array | None,
    cu_seqlens: Array | None,
) -> tuple[int, int, int] | None:
    """A token's sequence, its number among that one's new tokens, and their count."""
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


def _end(cache: ContiguousKV | PagedKV, b: int, count: int) -> int:
    """The length of a sequence including its new tokens."""
    if cache.seqused is not None:
        return int(cache.seqused[b]) + (0 if cache.counts_new else count)
    if isinstance(cache, ContiguousKV):
        return cache.k.shape[1]
    size, pages = stored(cache)[0].shape[1], len(pages_of(cache, b)[0])
    if cache.page_table is not None:
        return pages * size
    return (pages - 1) * size + int(cache.last_page_len[b]) if pages else 0


def _row_of(
    cache: ContiguousKV | PagedKV, b: int, position: int, side: int
) -> tuple[int, int] | None:
    """Page and offset, or row and position, of a position; None beyond the sequence."""
    lines, offsets = stored(cache)[side].shape[:2]
    if isinstance(cache, ContiguousKV):
        line, offset = b if cache.batch_idx is None else int(cache.batch_idx[b]), position
        return (line, offset) if 0 <= line < lines and 0 <= position < offsets else None
    pages = pages_of(cache, b)[side]
    if not 0 <= position < len(pages) * offsets:
        return None
    line, offset = int(pages[position // offsets]), position % offsets
    return (line, offset) if 0 <= line < lines else None


def _scale_row_of(cache: PagedKV, b: int, position: int, side: int) -> tuple[int, int] | None:
    """Page and offset of a position's scales, where their pages are listed apart."""
    scales, table = stored_scales(cache), cache.scale_table
    assert scales is not None
    lines, offsets = scales[side].shape[:2]
    if not 0 <= position < table.shape[1] * offsets:
        return None
    line = int(table[b, position // offsets])
    return (line, position % offsets) if 0 <= line < lines else None


def _scale(cache: ContiguousKV | PagedKV, name: str, b: int | None, heads: int) -> Array:
    """The scales of a sequence's heads."""
    scale = getattr(cache, name, None)
    if scale is None:
        return np.ones(1)
    table = np.asarray(scale, np.float64)
    table = np.broadcast_to(
        table if table.ndim > 1 else table.reshape(1, -1), (_batch(cache), heads)
    )
    return table[0 if b is None else b]
