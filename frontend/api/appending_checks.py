"""Checks the index arrays of an append that are in host memory: every token needs a slot.

Kernels skip tokens without a slot; here such tokens are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from attn_mlir.api.caches import (
    Cached,
    Contents,
    check_cache_indices,
    check_entries,
    stored_lengths,
)
from attn_mlir.compiling.appending import BATCH, INDICES, LENGTHS, OFFSETS, SLOTS
from attn_mlir.dialect.attn.cache import CSR, SCALE_TABLE
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.tensors import TensorView

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Tokens:
    """Tokens that are written, one entry of each array per token.

    Attributes:
      index: number of the token.
      sequence: that it belongs to.
      back: how many new tokens of its sequence follow, itself counted.
    """

    index: Array
    sequence: Array
    back: Array


def check_positions(
    cache: Cached,
    kind: str,
    shape: tuple[int, ...],
    contents: Contents,
    *,
    has_positions: bool,
    angle_count: int | None,
) -> None:
    """Refuses tokens without a slot, as far as arrays can be read.

    Args:
      kind: `sequence_source` of `AppendSpec`: the source of a token's sequence.
      shape: [tokens] or [batch, n].
      contents: the index arrays by name, None where they are not to be read.
      has_positions: whether positions are given.
      angle_count: rows of cos and sin, None without.

    Raises:
      SpecError: names the array, the entry and what is allowed.
    """
    positions = contents.get("positions")
    if positions is not None:
        positions = positions.reshape(-1)
    if kind == SLOTS:
        _check_slots(cache, contents[SLOTS], positions, angle_count)
        return
    capacity, tokens = _capacities(cache, contents), _tokens(cache, kind, shape, contents)
    starts = contents.get("leftpad", np.zeros(cache.batch, np.int32))
    if (
        capacity is None
        or tokens is None
        or starts is None
        or (has_positions and positions is None)
    ):
        return
    if "leftpad" in contents:
        check_cache_indices(cache, {"leftpad": starts}, capacity)
    if positions is not None:
        slots = _given_positions(positions, tokens, starts, capacity)
    else:
        ends = _ends(cache, tokens, contents, capacity)
        if ends is None:
            return
        name = cache.names.get(next(iter(cache.lengths), ""), "the cache")
        slots = _positions_from_ends(name, ends, tokens, starts, capacity)
    if angle_count is not None:
        in_sequence = slots - starts[tokens.sequence]
        _check_angles("rotary", in_sequence, angle_count)
    if positions is not None:
        b = tokens.sequence.astype(np.int64)
        _check_apart(
            "positions",
            tokens.index,
            b * (int(slots.max(initial=0)) + 1) + slots,
            lambda t: f"position {slots[t] - starts[b[t]]} of sequence {b[t]}",
        )
    _check_entries(cache, tokens, slots, contents)


def _check_slots(
    cache: Cached, slots: Array | None, positions: Array | None, angle_count: int | None
) -> None:
    """Refuses slots that the cache does not have, and positions of others without angles."""
    if slots is None:
        return
    k, called = cache.operands["k"], cache.names.get("k", "k")
    check_entries(SLOTS, slots, k.shape[0] * k.shape[1], f"{called} has slots", slots >= 0)
    index = np.flatnonzero(slots >= 0)
    _check_apart(SLOTS, index, slots[index], lambda t: f"slot {slots[index[t]]}")
    if positions is not None and angle_count is not None:
        _check_angles("rotary", positions[slots >= 0], angle_count)


def _given_positions(positions: Array, tokens: _Tokens, starts: Array, capacity: Array) -> Array:
    """The slot of each token within its sequence, from given positions."""
    requested, b = positions[tokens.index].astype(np.int64), tokens.sequence
    slots = requested + starts[b]
    wrong = (requested < 0) | (slots >= capacity[b])
    if wrong.any():
        t = int(np.argmax(wrong))
        raise SpecError(
            f"positions have {requested[t]} for token {tokens.index[t]}: append over the end, "
            f"sequence {b[t]} has room for positions 0 to {capacity[b[t]] - starts[b[t]] - 1}"
        )
    return slots


def _positions_from_ends(
    name: str, ends: Array, tokens: _Tokens, starts: Array, capacity: Array
) -> Array:
    """The slot of each token within its sequence, where new tokens are the last ones.

    Args:
      name: the array that gives the ends, for messages.
    """
    b = tokens.sequence
    slots = ends[b] - tokens.back
    wrong = (slots < starts[b]) | (ends[b] > capacity[b])
    if wrong.any():
        t = int(np.argmax(wrong))
        raise SpecError(
            f"{name} tells that new tokens of sequence {b[t]} end at {ends[b[t]]} and token "
            f"{tokens.index[t]} lies at {slots[t]}: append over the end, positions are "
            f"{starts[b[t]]} to {capacity[b[t]] - 1}"
        )
    return slots


def _check_angles(name: str, positions: Array, count: int) -> None:
    """Refuses positions that cos and sin have no row for."""
    wrong = (positions < 0) | (positions >= count)
    if wrong.any():
        raise SpecError(
            f"{name} needs angles of position {positions[np.argmax(wrong)]}: cos and sin have "
            f"rows 0 to {count - 1}"
        )


def _check_apart(name: str, tokens: Array, slots: Array, where: Callable[[int], str]) -> None:
    """Refuses two tokens for one slot.

    Args:
      name: the array that assigns slots.
      tokens: their numbers.
      slots: their slots.
      where: describes the slot of an entry for messages.
    """
    order = np.argsort(slots, kind="stable")
    same = np.flatnonzero(np.diff(slots[order]) == 0)
    if len(same):
        one, other = (int(x) for x in order[same[0] : same[0] + 2])
        raise SpecError(
            f"{name} leads tokens {tokens[one]} and {tokens[other]} to {where(one)}: a place takes "
            "one token"
        )


def _tokens(cache: Cached, kind: str, shape: tuple[int, ...], contents: Contents) -> _Tokens | None:
    """The tokens that belong to a sequence; None where that cannot be read."""
    if kind == BATCH:
        batch, count = shape
        number = np.arange(batch * count)
        return _Tokens(number, number // max(count, 1), count - number % max(count, 1))
    indices = contents[kind]
    if indices is None:
        return None
    if kind == INDICES:
        check_entries(INDICES, indices, cache.batch, "there are sequences", indices >= 0)
        index = np.flatnonzero(indices >= 0)
        return _Tokens(index, indices[index], np.zeros_like(index))
    assert kind == OFFSETS
    counts = np.diff(indices.astype(np.int64))
    if indices[0] < 0 or indices[-1] > shape[0] or (counts < 0).any():
        raise SpecError(
            f"{OFFSETS} must rise from 0 or more to at most {shape[0]}, the tokens, got "
            f"{shown(indices.tolist(), 60)}"
        )
    index = np.arange(int(indices[0]), int(indices[-1]))
    sequence = np.repeat(np.arange(cache.batch), counts)
    return _Tokens(index, sequence, indices[1:][sequence] - index)


def _capacities(cache: Cached, contents: Contents) -> Array | None:
    """Positions that each sequence has memory for; None if not readable."""
    if cache.kind is None or cache.kind.pages != CSR:
        return np.full(cache.batch, cache.max_positions, np.int64)
    if stored_lengths(cache, contents) is None:  # which checks the rows
        return None
    offsets = contents["indptr"]
    assert offsets is not None
    return np.diff(offsets.astype(np.int64)) * cache.kind.page_size


def _ends(cache: Cached, tokens: _Tokens, contents: Contents, capacity: Array) -> Array | None:
    """The length of each sequence with its new tokens; None if not readable."""
    for name in LENGTHS:
        if name in contents:
            used = contents[name]
            if used is None:
                return None
            ends = used.astype(np.int64)
            if name == "cache_seqlens":
                ends = ends + np.bincount(tokens.sequence, minlength=cache.batch)
            return ends
    lengths = stored_lengths(cache, contents)
    return capacity if lengths is None else lengths.astype(np.int64)


def _check_entries(cache: Cached, tokens: _Tokens, positions: Array, contents: Contents) -> None:
    """Refuses table entries of the new tokens that are out of range."""
    k, called = cache.operands["k"], cache.names.get("k", "k")
    if (rows := contents.get("batch_idx")) is not None:
        check_entries("batch_idx", rows, k.shape[0], f"{called} has rows")
        row_of_token = rows[tokens.sequence].astype(np.int64)
        slots = row_of_token * k.shape[1] + positions
        _check_apart(
            "batch_idx",
            tokens.index,
            slots,
            lambda t: f"position {positions[t]} of row {row_of_token[t]}",
        )
    if cache.kind is None or not cache.kind.page_size:
        return
    numbers = positions // cache.kind.page_size
    range_name = f"{called} has pages"
    if cache.kind.pages == CSR:
        indices, offsets = contents["indices"], contents["indptr"]
        if indices is not None and offsets is not None:
            used = np.zeros(len(indices), np.bool_)
            used[offsets[tokens.sequence] + numbers] = True
            check_entries("indices", indices, k.shape[0], range_name, used)
            pages = indices[offsets[tokens.sequence] + numbers]
            _check_pages("indices", cache, tokens, pages, positions)
    for name in ("page_table", "v_page_table"):
        if (table := contents.get(name)) is not None:
            pages = _check_table(
                "page_table", table, tokens.sequence, numbers, k.shape[0], range_name
            )
            _check_pages("page_table", cache, tokens, pages, positions)
    if (table := contents.get(SCALE_TABLE)) is not None:
        scales = cast("tuple[TensorView, TensorView]", cache.scales)
        pages = min(scale.shape[0] for scale in scales)
        range_name = "k_scale and v_scale have pages"
        _check_table(SCALE_TABLE, table, tokens.sequence, numbers, pages, range_name)


def _check_table(
    name: str, table: Array, sequences: Array, columns: Array, pages: int, range_name: str
) -> Array:
    """The entries of a table in these rows and columns; refuses those out of range."""
    if columns.max(initial=0) >= table.shape[1]:
        raise SpecError(
            f"{name} has {table.shape[1]} columns, a token goes to page {columns.max()} of its "
            "sequence"
        )
    entries = table[sequences, columns]
    wrong = (entries < 0) | (entries >= pages)
    if wrong.any():
        t = int(np.argmax(wrong))
        raise SpecError(
            f"{name}[{sequences[t]}, {columns[t]}] is {entries[t]}: {range_name} 0 to {pages - 1}"
        )
    return entries


def _check_pages(name: str, cache: Cached, tokens: _Tokens, pages: Array, positions: Array) -> None:
    """Refuses tokens of sequences that share a page and write to one slot of it."""
    assert cache.kind is not None
    size = cache.kind.page_size
    slots = pages.astype(np.int64) * size + positions % size
    _check_apart(
        name, tokens.index, slots, lambda t: f"position {positions[t] % size} of page {pages[t]}"
    )
