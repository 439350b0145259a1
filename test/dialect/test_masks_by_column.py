"""Masks from keys to rows: query tiles of a key tile against the definition, by element.

As `test_masks.py` does from rows to keys: a hypothesis example is a mask and a batch of `SHAPES`
random shapes, which are checked at once as arrays; every kind of mask sees 25 such batches, 12,500
shapes.
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
    IntArith,
    Mask,
    NullMask,
    PrefixMask,
    Transposed,
    WindowMask,
)
from attn_mlir.validation.numerics.mask_strategies import (
    ANY_MASK,
    ARRAYS,
    GENERAL,
    INTERVALS,
    Array,
)

SHAPES = 500
EXAMPLES = 25
MAX_LENGTH = 40  # queries, keys
MAX_COLUMNS = 24
TILES_M = (1, 3, 8, 16)


@dataclass(frozen=True)
class Batch:
    """Shapes as arrays [SHAPES], and what a mask says of each.

    Attributes:
      column0, columns, sq, sk: a block of columns of which at least one is below sk.
      tiles: query_tile_range of the mask, four arrays.
      is_column: [SHAPES, MAX_COLUMNS], which columns of the block exist.
      is_row: [SHAPES, 1, tiles, tile_m], which rows exist.
      seen: [SHAPES, MAX_COLUMNS, tiles, tile_m], the definition.
    """

    column0: Array
    columns: Array
    sq: Array
    sk: Array
    tiles: tuple[Array, ...]
    is_column: Array
    is_row: Array
    seen: Array


def batch(mask: Mask, seed: int, tile_m: int) -> Batch:
    """Random shapes; lengths of 0 and 1 are among them."""
    random = np.random.default_rng(seed)
    sq = random.integers(0, MAX_LENGTH + 1, SHAPES)
    sk = random.integers(1, MAX_LENGTH + 1, SHAPES)
    column0 = random.integers(0, sk)
    columns = random.integers(1, MAX_COLUMNS + 1, SHAPES)
    blocks: Any = columns  # an array where the interface has one number
    bounds = mask.query_tile_range(ARRAYS, column0, blocks, sq, sk, tile_m)
    tiles = tuple(np.broadcast_to(np.asarray(bound), (SHAPES,)) for bound in bounds)
    count = MAX_LENGTH // tile_m + 2
    k = (column0[:, None] + np.arange(MAX_COLUMNS))[:, :, None, None]
    q = np.arange(count * tile_m).reshape(count, tile_m)
    wide = sq[:, None, None, None], sk[:, None, None, None]
    is_column = (np.arange(MAX_COLUMNS) < columns[:, None]) & (k[:, :, 0, 0] < sk[:, None])
    is_row = q < wide[0]
    seen = np.asarray(mask.visible(q, k, *wide)) & is_row & is_column[:, :, None, None]
    return Batch(column0, columns, sq, sk, tiles, is_column, is_row, seen)


def checked(b: Batch) -> tuple[Array, Array, Array, Array, Array]:
    """[SHAPES, tiles]: empty tiles, full tiles; tiles visited, untested, and left of the untested.

    Fails when a visible element is left out or a hidden one goes untested.
    """
    begin, full_begin, full_end, end = (bound[:, None] for bound in b.tiles)
    assert np.all((begin >= 0) & (begin <= full_begin))
    assert np.all((full_begin <= full_end) & (full_end <= end))
    empty = ~b.seen.any(axis=(1, 3))
    full = (b.seen | ~b.is_column[:, :, None, None] | ~b.is_row).all(axis=(1, 3))
    tile = np.arange(b.seen.shape[2])
    visited = (tile >= begin) & (tile < end)
    untested = (tile >= full_begin) & (tile < full_end)
    assert np.all((end <= len(tile)) | (begin >= end))
    assert np.all(visited | empty), "a tile is left out although something is visible"
    assert np.all(~untested | full), "a tile goes untested although something is hidden"
    return empty, full, visited, untested, visited & (tile < full_begin)


@pytest.mark.parametrize("kind", INTERVALS)
def test_query_tiles_of_interval_masks_are_exact(kind: str):
    shape_count = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(INTERVALS[kind], st.integers(0, 2**32), st.sampled_from(TILES_M))
    def check(mask: Mask, seed: int, tile_m: int) -> None:
        nonlocal shape_count
        shape_count += SHAPES
        b = batch(mask, seed, tile_m)
        empty, full, visited, untested, left = checked(b)
        assert not np.any(visited & empty), "visited although nothing is visible"
        assert not np.any(visited & ~untested & full), "tested although everything is visible"
        tile_end = (np.arange(visited.shape[1]) + 1) * tile_m
        _, end = mask.row_range(ARRAYS, b.column0, b.sq, b.sk)
        limit = np.broadcast_to(np.asarray(end), (SHAPES,))[:, None]
        inside = (tile_end <= limit) | (limit >= b.sq[:, None])
        assert np.all(~left | inside), "left tile with a right edge"
        assert mask.row_edges.left or not (np.any(left) or np.any(b.tiles[0]))
        assert mask.row_edges.right or np.all(~visited | untested | left)

    check()
    assert shape_count >= 10_000


@pytest.mark.parametrize("kind", GENERAL)
def test_query_tiles_of_all_masks_are_safe(kind: str):
    shape_count = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(GENERAL[kind], st.integers(0, 2**32), st.sampled_from(TILES_M))
    def check(mask: Mask, seed: int, tile_m: int) -> None:
        nonlocal shape_count
        shape_count += SHAPES
        b = batch(mask, seed, tile_m)
        *_, left = checked(b)
        assert mask.row_edges.left or not (np.any(left) or np.any(b.tiles[0]))

    check()
    assert shape_count >= 10_000


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(
    st.one_of(*(INTERVALS[kind] for kind in ("causal", "window-left", "window-right", "prefix"))),
    st.integers(0, 2**32),
    st.sampled_from(TILES_M),
)
def test_complements_of_one_edge_visit_one_tile_too_many_at_most(
    mask: Mask, seed: int, tile_m: int
):
    empty, full, visited, untested, _ = checked(batch(~mask, seed, tile_m))
    assert np.all((visited & empty).sum(axis=1) <= 1)
    assert not np.any(visited & ~untested & full & ~empty)


@settings(max_examples=200, deadline=None, database=None)
@given(st.one_of(*INTERVALS.values()), st.integers(0, 40), st.integers(0, 40))
def test_both_directions_have_the_same_ends(mask: Mask, sq: int, sk: int):
    for q in range(sq):
        begin, end = mask.column_range(INTS, q, sq, sk)
        for k in range(sk):
            first, last = mask.row_range(INTS, k, sq, sk)
            assert (begin <= k < end) == (first <= q < last)


class RowsOnTheLeft(IntArith):
    """`Arith` that notices a comparison whose left operand is not the row."""

    def __init__(self, row: int):
        self.row = row
        self.compared = 0

    def less(self, a: Any, b: Any, /) -> bool:
        assert a is self.row
        self.compared += 1
        return super().less(a, b)

    def not_less(self, a: Any, b: Any, /) -> bool:
        assert a is self.row
        self.compared += 1
        return super().not_less(a, b)


@settings(max_examples=100, deadline=None, database=None)
@given(ANY_MASK, st.integers(0, 2**32))
def test_transposed_element_tests_are_the_definition(mask: Mask, seed: int):
    b = batch(mask, seed, 8)
    k = (b.column0[:, None] + np.arange(MAX_COLUMNS))[:, :, None, None]
    q = np.arange(b.seen.shape[2] * 8).reshape(-1, 8)
    sizes = b.sq[:, None, None, None], b.sk[:, None, None, None]
    tested: Any = mask.transposed_element(ARRAYS, q, k, *sizes)
    existing = b.is_column[:, :, None, None]
    np.testing.assert_array_equal(np.broadcast_to(tested, b.seen.shape) & existing, b.seen)


@pytest.mark.parametrize(
    "mask",
    [
        *(CausalMask(), WindowMask(3, 2), PrefixMask(9), ChunkedMask(4) | ~CausalMask()),
        *(~WindowMask(3, -1), PrefixMask(9) & WindowMask(3, -1), ~PrefixMask(9) & ChunkedMask(4)),
    ],
    ids=str,
)
def test_transposed_element_tests_have_the_row_on_the_left(mask: Mask):
    """Kernels make words of 32 rows of them, as they make words of 32 columns of `element`."""
    row = 1000  # no other number of the formulas is this object
    ops = RowsOnTheLeft(row)
    mask.transposed_element(ops, row, 7, 2000, 3000)
    assert ops.compared


@pytest.mark.parametrize(
    ("mask", "column0", "sq", "sk", "expected"),
    [
        (CausalMask(), 256, 1024, 1024, (2, 3, 8, 8)),
        (CausalMask(), 256, 1000, 1000, (2, 3, 8, 8)),
        (CausalMask(), 0, 1000, 1500, (0, 0, 8, 8)),
        (CausalMask(), 1408, 1000, 1500, (7, 8, 8, 8)),
        (CausalMask(), 0, 300, 77, (1, 3, 3, 3)),
        (CausalMask(), 128, 0, 256, (0, 0, 0, 0)),
        (NullMask(), 128, 300, 300, (0, 0, 3, 3)),
        (WindowMask(255, 0), 2048, 4096, 4096, (16, 17, 18, 19)),
        (WindowMask(255, 0), 0, 128, 4096, (0, 0, 0, 0)),
        (WindowMask(0, 255), 2048, 4096, 4096, (14, 15, 16, 17)),
        (WindowMask(0, -1), 256, 1024, 1024, (0, 0, 2, 3)),
        (WindowMask(-1, 0), 256, 1024, 1024, (2, 3, 8, 8)),
        (ChunkedMask(512), 512, 2048, 2048, (4, 4, 8, 8)),
        (ChunkedMask(384), 256, 2048, 2048, (0, 0, 3, 3)),
        (ChunkedMask(512) & CausalMask(), 512, 2048, 2048, (4, 5, 8, 8)),
        (PrefixMask(300), 128, 1024, 1024, (0, 0, 8, 8)),
        (PrefixMask(300), 256, 1024, 1024, (0, 3, 8, 8)),
        (~CausalMask(), 256, 1024, 1024, (0, 0, 2, 3)),
        (~WindowMask(255, -1), 256, 1024, 1024, (4, 5, 8, 8)),
        (~WindowMask(255, 0), 1024, 2048, 2048, (0, 0, 8, 16)),
    ],
    ids=str,
)
def test_worked_numbers(
    mask: Mask, column0: int, sq: int, sk: int, expected: tuple[int, int, int, int]
):
    """Blocks of 128 columns, tiles of 128 rows."""
    begin, *rest = mask.query_tile_range(INTS, column0, 128, sq, sk, 128)
    if begin >= rest[-1]:  # empty wherever
        begin, rest = 0, [0, 0, 0]
    assert (begin, *rest) == expected


@settings(max_examples=400, deadline=None)
@given(
    ANY_MASK,
    st.integers(0, MAX_LENGTH),
    st.integers(1, MAX_LENGTH),
    st.sampled_from(TILES_M),
    st.sampled_from(TILES_M),
)
def test_blocks_of_keys_that_visit_a_tile_of_queries_follow_each_other(
    mask: Mask, sq: int, sk: int, block: int, tile: int
) -> None:
    """So each has the one before it as its predecessor, where blocks add to the tile in turn."""
    sight = Transposed(mask)
    visits = [sight.tile_range(INTS, first, block, sk, sq, tile) for first in range(0, sk, block)]
    for number in range(-(-sq // tile)):
        found = [n for n, span in enumerate(visits) if span.begin <= number < span.end]
        assert found == list(range(found[0], found[-1] + 1) if found else [])
