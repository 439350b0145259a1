"""What the index arrays of an append hold, where they are in host memory: every token has a place.

A kernel leaves out tokens that have none; a caller whose arrays can be read is told instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_mlir.api.caches import Cached, Contents, Numbers, check_found, lengths_of
from attn_mlir.compiling.appending import BATCH, INDICES, LENGTHS, OFFSETS, SLOTS
from attn_mlir.dialect.attn.cache import CSR
from attn_mlir.errors import SpecError, shown


@dataclass(frozen=True)
class _Tokens:
    """Tokens that count, one entry of each array per token.

    Attributes:
      index: number of the token.
      sequence: that it belongs to.
      back: how many new tokens of its sequence follow, itself counted.
    """

    index: Numbers
    sequence: Numbers
    back: Numbers


def check_places(
    cache: Cached,
    told: str,
    shape: tuple[int, ...],
    contents: Contents,
    *,
    has_positions: bool,
    angle_count: int | None,
) -> None:
    """Refuses tokens without a place, as far as arrays can be read.

    Args:
      told: what tells the sequence of a token; see `AppendSpec`.
      shape: [tokens] or [batch, n].
      contents: the index arrays by name, None where they are not to be read.
      has_positions: whether positions are given.
      angle_count: rows of cos and sin, None without.

    Raises:
      SpecError: names the array, the entry and what is allowed.
    """
    k, called = cache.operands["k"], cache.names.get("k", "k")
    positions = contents.get("positions")
    positions = None if positions is None else positions.reshape(-1)
    if told == SLOTS:
        if (slots := contents[SLOTS]) is not None:
            end = k.shape[0] * k.shape[1]
            _refuse(SLOTS, slots, slots >= end, f"{called} has slots 0 to {end - 1}")
            if positions is not None and angle_count is not None:
                _check_angles("positions", positions, positions[slots >= 0], angle_count)
        return
    room = _room(cache, contents)
    tokens = _tokens(cache, told, shape, contents)
    if room is None or tokens is None:
        return
    starts = contents.get("leftpad", np.zeros(cache.batch, np.int32))
    if starts is None:
        return
    if "leftpad" in contents:
        check_found(cache, {"leftpad": starts}, room)
    if has_positions:
        if positions is None:
            return
        own = positions[tokens.index].astype(np.int64)
        places = own + starts[tokens.sequence]
        wrong = (own < 0) | (places >= room[tokens.sequence])
        if wrong.any():
            t = int(np.argmax(wrong))
            b = tokens.sequence[t]
            raise SpecError(
                f"positions have {own[t]} for token {tokens.index[t]}: append over the end, sequence "
                f"{b} has room for positions 0 to {room[b] - starts[b] - 1}"
            )
    else:
        ends = _ends(cache, tokens, contents, room)
        if ends is None:
            return
        places = ends[tokens.sequence] - tokens.back
        own = places - starts[tokens.sequence]
        wrong = (own < 0) | (ends[tokens.sequence] > room[tokens.sequence])
        if wrong.any():
            t = int(np.argmax(wrong))
            b = tokens.sequence[t]
            name = cache.names.get(next(iter(cache.lengths), ""), "the cache")
            raise SpecError(
                f"{name} tells that new tokens of sequence {b} end at {ends[b]} and token "
                f"{tokens.index[t]} lies at {places[t]}: append over the end, positions are "
                f"{starts[b]} to {room[b] - 1}"
            )
    if angle_count is not None:
        _check_angles("rotary", own, own, angle_count)
    _check_entries(cache, tokens, places, contents)


def _check_angles(name: str, positions: Numbers, used: Numbers, count: int) -> None:
    """Refuses positions that cos and sin have no row for."""
    wrong = (used < 0) | (used >= count)
    if wrong.any():
        raise SpecError(
            f"{name} needs angles of position {used[np.argmax(wrong)]}: cos and sin have rows 0 to "
            f"{count - 1}"
        )


def _refuse(name: str, numbers: Numbers, wrong: np.ndarray, there: str) -> None:
    if wrong.any():
        place = int(np.argmax(wrong))
        raise SpecError(f"{name}[{place}] is {numbers[place]}: {there}")


def _tokens(cache: Cached, told: str, shape: tuple[int, ...], contents: Contents) -> _Tokens | None:
    """The tokens that belong to a sequence; None where that cannot be read."""
    if told == BATCH:
        batch, count = shape
        number = np.arange(batch * count)
        return _Tokens(number, number // max(count, 1), count - number % max(count, 1))
    found = contents[told]
    if found is None:
        return None
    if told == INDICES:
        _refuse(INDICES, found, found >= cache.batch, f"there are sequences 0 to {cache.batch - 1}")
        index = np.flatnonzero(found >= 0)
        return _Tokens(index, found[index], np.zeros_like(index))
    assert told == OFFSETS
    counts = np.diff(found.astype(np.int64))
    if found[0] < 0 or found[-1] > shape[0] or (counts < 0).any():
        raise SpecError(
            f"{OFFSETS} must rise from 0 or more to at most {shape[0]}, the tokens, got "
            f"{shown(found.tolist(), 60)}"
        )
    index = np.arange(int(found[0]), int(found[-1]))
    sequence = np.repeat(np.arange(cache.batch), counts)
    return _Tokens(index, sequence, found[1:][sequence] - index)


def _room(cache: Cached, contents: Contents) -> Numbers | None:
    """Positions that each sequence has memory for; None where that cannot be read."""
    if cache.kind is None or cache.kind.pages != CSR:
        return np.full(cache.batch, cache.most, np.int64)
    if lengths_of(cache, contents) is None:  # which checks the rows
        return None
    offsets = contents["indptr"]
    assert offsets is not None
    return np.diff(offsets.astype(np.int64)) * cache.kind.page_size


def _ends(cache: Cached, tokens: _Tokens, contents: Contents, room: Numbers) -> Numbers | None:
    """Positions of each sequence once the tokens are there."""
    for name in LENGTHS:
        if name in contents:
            used = contents[name]
            if used is None:
                return None
            ends = used.astype(np.int64)
            if name == "cache_seqlens":
                ends = ends + np.bincount(tokens.sequence, minlength=cache.batch)
            return ends
    lengths = lengths_of(cache, contents)
    return room if lengths is None else lengths.astype(np.int64)


def _check_entries(cache: Cached, tokens: _Tokens, places: Numbers, contents: Contents) -> None:
    """Refuses entries of tables that tokens are led by and that name nothing."""
    k, called = cache.operands["k"], cache.names.get("k", "k")
    if (rows := contents.get("batch_idx")) is not None:
        end = k.shape[0]
        _refuse("batch_idx", rows, (rows < 0) | (rows >= end), f"{called} has rows 0 to {end - 1}")
    if cache.kind is None or not cache.kind.page_size:
        return
    numbers = places // cache.kind.page_size
    there = f"{called} has pages 0 to {k.shape[0] - 1}"
    if cache.kind.pages == CSR:
        indices, offsets = contents["indices"], contents["indptr"]
        if indices is not None and offsets is not None:
            used = np.zeros(len(indices), np.bool_)
            used[offsets[tokens.sequence] + numbers] = True
            _refuse("indices", indices, used & ((indices < 0) | (indices >= k.shape[0])), there)
        return
    for name in ("page_table", "v_page_table"):
        if (table := contents.get(name)) is not None:
            used = np.zeros(table.shape, np.bool_)
            used[tokens.sequence, numbers] = True
            wrong = used & ((table < 0) | (table >= k.shape[0]))
            if wrong.any():
                b, column = (int(i) for i in np.argwhere(wrong)[0])
                raise SpecError(f"page_table[{b}, {column}] is {table[b, column]}: {there}")
