"""Masks at offsets: each is a cut of the mask of a longer problem, and its tile ranges are exact.

The definition never meets an offset: it is the mask of a problem with all positions, of which the
shard's rows and columns are cut out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.dialect.attn.masks import (
    INTS,
    CausalMask,
    ChunkedMask,
    ColumnRange,
    Mask,
    NullMask,
    TileRange,
    WindowMask,
)
from attn_mlir.dialect.attn.masks.shifted import ShiftedMask, shifted
from attn_mlir.errors import SpecError
from attn_mlir.validation.numerics.mask_strategies import ANY_MASK, GENERAL, INTERVALS

BEFORE, POSITIONS = 30, 90  # queries before position 0; keys of the longer problem
TILES = st.sampled_from((1, 3, 8, 16))
Grid = np.ndarray[Any, Any]


def cut(mask: Mask, q_offset: int, k_offset: int, sq: int, sk: int) -> Grid:
    """[sq, sk]: which keys the rows of a shard see."""
    rows, columns = np.arange(BEFORE + POSITIONS)[:, None], np.arange(POSITIONS)[None]
    whole = mask.visible(rows, columns, BEFORE + POSITIONS, POSITIONS)
    whole = np.broadcast_to(whole, (BEFORE + POSITIONS, POSITIONS))
    return whole[BEFORE + q_offset :, k_offset:][:sq, :sk]


def kinds(seen: Grid, tile: int) -> tuple[list[int], list[int]]:
    """The tiles along the last axis in which something is seen; and those in which all is."""
    tiles = [seen[:, i : i + tile] for i in range(0, seen.shape[1], tile)]
    return [i for i, x in enumerate(tiles) if x.any()], [i for i, x in enumerate(tiles) if x.all()]


def check_safe(span: TileRange[int], seen: Grid, tile: int, *, cut_off_is_full: bool) -> None:
    """No tile with something to see is left out, and none with something hidden goes untested."""
    some, whole = kinds(seen, tile)
    assert 0 <= span.begin <= span.full_begin <= span.full_end <= span.end
    assert set(some) <= set(range(span.begin, span.end))
    assert set(range(span.full_begin, span.full_end)) <= set(whole)
    if span.begin < span.end:
        assert span.end <= -(-seen.shape[1] // tile)
    if not cut_off_is_full:
        assert (span.full_end * tile <= seen.shape[1]) or span.full_begin == span.full_end


def check_exact(span: TileRange[int], seen: Grid, tile: int, *, cut_off_is_full: bool) -> None:
    """The tiles in which something is seen are visited, those in which all is go untested."""
    some, whole = kinds(seen, tile)
    if not cut_off_is_full:
        whole = [i for i in whole if (i + 1) * tile <= seen.shape[1]]
    assert list(range(span.begin, span.end)) == some
    assert list(range(span.full_begin, span.full_end)) == whole


def check_left_edges(mask: Mask, span: TileRange[int], truth: Grid, rows: range, tile: int) -> None:
    """In tiles below `full_begin` the left edge alone says what a row sees, past the end as well.

    Also in tiles before `begin`, which the other query tile of a work tile may visit.
    """
    sq, sk = truth.shape
    columns = np.arange(span.full_begin * tile)
    for q in rows:
        begin, _ = mask.column_range(INTS, q, sq, sk)
        seen = np.pad(truth[q], (0, tile))[: len(columns)]
        np.testing.assert_array_equal(columns >= begin, seen)


def check_top_edges(mask: Mask, span: TileRange[int], truth: Grid, keys: range, tile: int) -> None:
    """The same of query tiles: below `full_begin` the first query alone says which ones see a key.

    Queries past the end are the caller's to hide, as in tiles that go untested.
    """
    sq, sk = truth.shape
    rows = np.arange(min(span.full_begin * tile, sq))
    for k in keys:
        begin, _ = mask.row_range(INTS, k, sq, sk)
        np.testing.assert_array_equal(rows >= begin, truth[: len(rows), k])


@st.composite
def shards(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(q_offset, k_offset, sq, sk): apart, overlapping, before position 0."""
    sq, sk = draw(st.integers(1, 25)), draw(st.integers(1, 25))
    return draw(st.integers(-BEFORE, 60)), draw(st.integers(0, 60)), sq, sk


def check(mask: Mask, shard: tuple[int, int, int, int], tile: int, *, is_exact: bool) -> None:
    """Every block of rows and of columns against the definition."""
    q_offset, k_offset, sq, sk = shard
    moved, truth = shifted(mask, q_offset, k_offset), cut(mask, *shard)
    rows, columns = np.arange(sq)[:, None], np.arange(sk)[None]
    np.testing.assert_array_equal(
        np.broadcast_to(moved.visible(rows, columns, sq, sk), truth.shape), truth
    )
    for q, k in np.ndindex(sq, sk):
        assert moved.element(INTS, q, k, sq, sk) == truth[q, k]
        assert moved.transposed_element(INTS, q, k, sq, sk) == truth[q, k]
    assert not moved.element(INTS, 0, sk, sq, sk)
    checked = check_exact if is_exact else check_safe
    for size in (1, 7, 40):
        for first in range(0, sq, size):
            span = moved.tile_range(INTS, first, size, sq, sk, tile)
            checked(span, truth[first : first + size], tile, cut_off_is_full=False)
            if is_exact:
                check_left_edges(moved, span, truth, range(first, min(first + size, sq)), tile)
        for first in range(0, sk, size):
            span = moved.query_tile_range(INTS, first, size, sq, sk, tile)
            checked(span, truth[:, first : first + size].T, tile, cut_off_is_full=True)
            if is_exact:
                check_top_edges(moved, span, truth, range(first, min(first + size, sk)), tile)


@pytest.mark.parametrize("kind", INTERVALS)
def test_shifted_interval_masks_have_exact_ranges_both_ways(kind: str):
    @settings(max_examples=80, deadline=None, database=None)
    @given(INTERVALS[kind], shards(), TILES)
    def drawn(mask: Mask, shard: tuple[int, int, int, int], tile: int) -> None:
        check(mask, shard, tile, is_exact=True)

    drawn()


@pytest.mark.parametrize("kind", GENERAL)
def test_shifted_masks_of_all_kinds_have_safe_ranges_both_ways(kind: str):
    @settings(max_examples=80, deadline=None, database=None)
    @given(GENERAL[kind], shards(), TILES)
    def drawn(mask: Mask, shard: tuple[int, int, int, int], tile: int) -> None:
        check(mask, shard, tile, is_exact=False)

    drawn()


@settings(max_examples=100, deadline=None, database=None)
@given(ANY_MASK, st.integers(1, 20), st.integers(1, 20), TILES)
def test_the_alignment_at_the_end_is_an_offset(mask: Mask, sq: int, sk: int, tile: int):
    moved = shifted(mask, sk - sq, 0)
    for q, k in np.ndindex(sq, sk):
        assert moved.element(INTS, q, k, sq, sk) == mask.element(INTS, q, k, sq, sk)
    if mask.is_interval:
        rows, columns = np.arange(sq)[:, None], np.arange(sk)[None]
        truth = np.broadcast_to(mask.visible(rows, columns, sq, sk), (sq, sk))
        for first in range(0, sq, 4):
            block = (INTS, first, 4, sq, sk, tile)
            span = mask.tile_range(*block)
            assert moved.tile_range(*block) == span
            check_left_edges(mask, span, truth, range(first, min(first + 4, sq)), tile)
        for first in range(0, sk, 4):
            span = mask.query_tile_range(INTS, first, 4, sq, sk, tile)
            check_top_edges(mask, span, truth, range(first, min(first + 4, sk)), tile)


def test_keys_after_all_queries_and_queries_far_behind_a_window_visit_no_tile():
    for mask, offsets in ((CausalMask(), (0, 64)), (WindowMask(20, 0), (200, 64))):
        moved = shifted(mask, *offsets)
        span = moved.tile_range(INTS, 0, 64, 64, 50, 16)
        assert span.begin == span.end
        span = moved.query_tile_range(INTS, 0, 16, 50, 64, 16)
        assert span.begin == span.end


@dataclass(frozen=True)
class OfQueries(CausalMask):
    """A mask of another project, whose rows see one key more from 50 queries on."""

    def column_range(self, ops: Any, row: Any, sq: Any, sk: Any) -> ColumnRange[Any]:
        many = ops.min(ops.floordiv(ops.max(sq, ops.const(0)), ops.const(50)), ops.const(1))
        begin, end = super().column_range(ops, row, sq, sk)
        return ColumnRange(begin, ops.min(ops.add(end, many), sk))


@dataclass(frozen=True)
class OfKeys(CausalMask):
    """One whose rows see the first half of all keys."""

    def column_range(self, ops: Any, row: Any, sq: Any, sk: Any) -> ColumnRange[Any]:
        return ColumnRange(ops.const(0), ops.floordiv(sk, ops.const(2)))


@pytest.mark.parametrize("mask", [OfQueries(), OfKeys(), OfQueries() & ChunkedMask(8)])
def test_masks_of_lengths_are_refused(mask: Mask):
    with pytest.raises(SpecError, match="with q_offset or k_offset: its column_range uses sq, or"):
        shifted(mask, 5, 7)


@pytest.mark.parametrize("kind", INTERVALS)
def test_our_masks_are_of_positions(kind: str):
    @settings(max_examples=40, deadline=None, database=None)
    @given(INTERVALS[kind])
    def drawn(mask: Mask) -> None:
        assert shifted(mask, 1, 2)

    drawn()


def test_masks_without_a_formula_for_positions_are_refused():
    class Odd(CausalMask):
        @property
        def is_interval(self) -> bool:
            return False

    assert shifted(NullMask(), 5, 7) == NullMask()
    assert isinstance(shifted(ChunkedMask(4), 5, 7), ShiftedMask)
    with pytest.raises(SpecError, match="q_offset or k_offset: it is no interval mask"):
        shifted(Odd(), 5, 7)
