"""The closed forms of each mask against its definition, element by element.

A hypothesis example is a mask and a batch of `SHAPES` random shapes, which are checked at once as
arrays; every mask below sees 25 such batches, 12,500 shapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.dialect.attn.masks import (
    INTS,
    AndMask,
    CausalMask,
    ChunkedMask,
    Mask,
    NotMask,
    NullMask,
    OrMask,
    PrefixMask,
    WindowMask,
)
from attn_mlir.errors import SpecError
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
MAX_ROWS = 24
TILES_N = (1, 3, 8, 16)


@dataclass(frozen=True)
class Batch:
    """Shapes as arrays [SHAPES], and what a mask says of each.

    Attributes:
      row0, rows, sq, sk: a block of rows [row0, row0 + rows) of which at least one is below sq.
      tile_n: columns per tile.
      tiles: tile_range of the mask, four arrays.
      is_row: [SHAPES, MAX_ROWS], which rows of the block exist.
      seen: [SHAPES, MAX_ROWS, tiles, tile_n], the definition.
      is_column: [SHAPES, 1, tiles, tile_n], which columns exist.
    """

    row0: Array
    rows: Array
    sq: Array
    sk: Array
    tile_n: int
    tiles: tuple[Array, Array, Array, Array]
    is_row: Array
    seen: Array
    is_column: Array


def grid(mask: Mask, sq: int, sk: int) -> Array:
    """The definition as a [sq, sk] array of truth values."""
    return np.asarray(mask.visible(np.arange(sq)[:, None], np.arange(sk)[None, :], sq, sk))


def batch(mask: Mask, seed: int, tile_n: int) -> Batch:
    """Random shapes; lengths of 0 and 1 are among them."""
    random = np.random.default_rng(seed)
    sq = random.integers(1, MAX_LENGTH + 1, SHAPES)
    sk = random.integers(0, MAX_LENGTH + 1, SHAPES)
    row0 = random.integers(0, sq)
    rows = random.integers(1, MAX_ROWS + 1, SHAPES)
    blocks: Any = rows  # an array where the interface has one number
    bounds = mask.tile_range(ARRAYS, row0, blocks, sq, sk, tile_n)
    tiles = tuple(np.broadcast_to(np.asarray(bound), (SHAPES,)) for bound in bounds)
    count = MAX_LENGTH // tile_n + 2
    q = (row0[:, None] + np.arange(MAX_ROWS))[:, :, None, None]
    k = np.arange(count * tile_n).reshape(count, tile_n)
    wide = sq[:, None, None, None], sk[:, None, None, None]
    is_row = (np.arange(MAX_ROWS) < rows[:, None]) & (q[:, :, 0, 0] < sq[:, None])
    seen = np.asarray(mask.visible(q, k, *wide)) & (k < wide[1]) & is_row[:, :, None, None]
    return Batch(row0, rows, sq, sk, tile_n, tiles, is_row, seen, k < wide[1])  # pyright: ignore


def checked(b: Batch) -> tuple[Array, Array, Array, Array, Array]:
    """[SHAPES, tiles]: empty tiles, whole tiles; tiles visited, untested, and left of the untested.

    Fails when a visible element is left out or a hidden one goes untested.
    """
    begin, full_begin, full_end, end = (bound[:, None] for bound in b.tiles)
    assert np.all((begin >= 0) & (begin <= full_begin))
    assert np.all((full_begin <= full_end) & (full_end <= end))
    empty = ~b.seen.any(axis=(1, 3))
    whole = (b.seen | ~b.is_row[:, :, None, None]).all(axis=(1, 3))
    tile = np.arange(b.seen.shape[2])
    visited = (tile >= begin) & (tile < end)
    untested = (tile >= full_begin) & (tile < full_end)
    assert np.all(end <= len(tile))
    assert np.all(visited | empty), "a tile is left out although something is visible"
    assert np.all(~untested | whole), "a tile goes untested although something is hidden"
    return empty, whole, visited, untested, visited & (tile < full_begin)


@pytest.mark.parametrize("kind", INTERVALS)
def test_tile_ranges_of_interval_masks_are_exact(kind: str):
    shape_count = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(INTERVALS[kind], st.integers(0, 2**32), st.sampled_from(TILES_N))
    def check(mask: Mask, seed: int, tile_n: int) -> None:
        nonlocal shape_count
        shape_count += SHAPES
        assert mask.is_interval
        b = batch(mask, seed, tile_n)
        empty, whole, visited, untested, left = checked(b)
        assert not np.any(visited & empty), "visited although nothing is visible"
        assert not np.any(visited & ~untested & whole), "tested although everything is visible"
        tile_end = (np.arange(visited.shape[1]) + 1) * tile_n
        _, end = mask.column_range(ARRAYS, b.row0, b.sq, b.sk)
        assert np.all(~left | (tile_end <= np.asarray(end)[:, None])), "left tile with a right edge"
        assert mask.edges.left or not (np.any(left) or np.any(b.tiles[0]))
        limit = np.minimum(b.sk, tile_end[:, None]).T
        assert mask.edges.right or np.all(~visited | untested | left | (tile_end > limit))

    check()
    assert shape_count >= 10_000


@pytest.mark.parametrize("kind", GENERAL)
def test_tile_ranges_of_all_masks_are_safe(kind: str):
    shape_count = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(GENERAL[kind], st.integers(0, 2**32), st.sampled_from(TILES_N))
    def check(mask: Mask, seed: int, tile_n: int) -> None:
        nonlocal shape_count
        shape_count += SHAPES
        b = batch(mask, seed, tile_n)
        *_, left = checked(b)
        assert mask.edges.left or not (np.any(left) or np.any(b.tiles[0]))

    check()
    assert shape_count >= 10_000


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(
    st.one_of(*(INTERVALS[kind] for kind in ("causal", "window-left", "window-right", "prefix"))),
    st.integers(0, 2**32),
    st.sampled_from(TILES_N),
)
def test_complements_of_one_edge_visit_one_tile_too_many_at_most(
    mask: Mask, seed: int, tile_n: int
):
    empty, whole, visited, untested, _ = checked(batch(~mask, seed, tile_n))
    assert np.all((visited & empty).sum(axis=1) <= 1)
    assert not np.any(visited & ~untested & whole & ~empty)


@settings(max_examples=100, deadline=None, database=None)
@given(ANY_MASK, st.integers(0, 2**32))
def test_element_tests_are_the_definition(mask: Mask, seed: int):
    b = batch(mask, seed, 8)
    q = (b.row0[:, None] + np.arange(MAX_ROWS))[:, :, None, None]
    k = np.arange(b.seen.shape[2] * 8).reshape(-1, 8)
    tested: Any = mask.element(ARRAYS, q, k, b.sq[:, None, None, None], b.sk[:, None, None, None])
    rows = b.is_row[:, :, None, None]
    np.testing.assert_array_equal(np.broadcast_to(tested, b.seen.shape) & rows, b.seen)


@settings(max_examples=200, deadline=None, database=None)
@given(st.one_of(*INTERVALS.values()), st.integers(0, 40), st.integers(0, 40))
def test_rows_are_as_interval_masks_promise(mask: Mask, sq: int, sk: int):
    """What intersections and unions rely on: order, and the row's own position."""
    before = (0, 0)
    for row in range(sq):
        begin, end = mask.column_range(INTS, row, sq, sk)
        end = max(min(end, sk), 0)
        assert begin >= before[0] and end >= before[1]
        before = begin, end
        position = row + sk - sq
        assert begin <= position < end or (position < 0 and begin == 0)


@pytest.mark.parametrize(
    ("mask", "row0", "sq", "sk", "expected"),
    [
        (CausalMask(), 0, 1024, 1024, (0, 0, 0, 2)),
        (CausalMask(), 256, 1024, 1024, (0, 0, 2, 4)),
        (CausalMask(), 512, 1000, 1000, (0, 0, 4, 6)),
        (CausalMask(), 0, 1000, 1500, (0, 0, 3, 6)),
        (CausalMask(), 0, 1, 513, (0, 0, 4, 5)),
        (CausalMask(), 0, 300, 77, (0, 0, 0, 1)),
        (CausalMask(), 0, 256, 0, (0, 0, 0, 0)),
        (NullMask(), 0, 300, 300, (0, 0, 2, 3)),
        (NullMask(), 256, 1024, 1024, (0, 0, 8, 8)),
        (NullMask(), 0, 1, 0, (0, 0, 0, 0)),
        (WindowMask(1023, 0), 0, 4096, 4096, (0, 0, 0, 2)),
        (WindowMask(1023, 0), 2048, 4096, 4096, (8, 10, 16, 18)),
        (WindowMask(511, 0), 2048, 4096, 4096, (12, 14, 16, 18)),
        (WindowMask(255, 0), 2048, 4096, 4096, (14, 16, 16, 18)),
        (WindowMask(-1, 0), 256, 1024, 1024, (0, 0, 2, 4)),
        (WindowMask(0, -1), 256, 1024, 1024, (2, 4, 8, 8)),
        (ChunkedMask(512), 256, 2048, 2048, (0, 0, 4, 4)),
        (ChunkedMask(512), 512, 900, 900, (4, 4, 7, 8)),
        (ChunkedMask(384), 256, 2048, 2048, (0, 3, 3, 6)),
        (ChunkedMask(512) & CausalMask(), 512, 2048, 2048, (4, 4, 4, 6)),
        (PrefixMask(300), 0, 1024, 1024, (0, 0, 2, 3)),
        (PrefixMask(300), 512, 1024, 1024, (0, 0, 4, 6)),
        (~CausalMask(), 256, 1024, 1024, (2, 4, 8, 8)),
        (~CausalMask() | PrefixMask(300), 512, 1024, 1024, (0, 0, 4, 8)),
        (~CausalMask() & WindowMask(-1, 299), 512, 2048, 2048, (4, 6, 6, 9)),
        (~WindowMask(255, 0), 1024, 2048, 2048, (0, 0, 6, 16)),
    ],
    ids=str,
)
def test_worked_numbers(
    mask: Mask, row0: int, sq: int, sk: int, expected: tuple[int, int, int, int]
):
    """Blocks of 256 rows, tiles of 128 columns, as in the kernel's specification."""
    assert mask.tile_range(INTS, row0, 256, sq, sk, 128) == expected


@pytest.mark.parametrize(
    ("mask", "sq", "sk", "rows"),
    [
        (CausalMask(), 2, 4, ["xxx.", "xxxx"]),
        (CausalMask(), 4, 2, ["..", "..", "x.", "xx"]),
        (WindowMask(1, 0), 3, 4, ["xx..", ".xx.", "..xx"]),
        (WindowMask(0, 2), 3, 2, ["xx", "xx", ".x"]),
        (ChunkedMask(2), 3, 4, ["xx..", "..xx", "..xx"]),
        (ChunkedMask(2), 4, 3, ["...", "xx.", "xx.", "..x"]),
        (ChunkedMask(2) & CausalMask(), 4, 4, ["x...", "xx..", "..x.", "..xx"]),
        (PrefixMask(2), 3, 4, ["xx..", "xxx.", "xxxx"]),
        (PrefixMask(2), 3, 2, ["xx", "xx", "xx"]),
        (WindowMask(0, 0) | ChunkedMask(2), 2, 3, ["xx.", "..x"]),
        (~CausalMask(), 3, 3, [".xx", "..x", "..."]),
    ],
    ids=str,
)
def test_pictures(mask: Mask, sq: int, sk: int, rows: list[str]):
    assert ["".join(".x"[int(seen)] for seen in row) for row in grid(mask, sq, sk)] == rows


@settings(max_examples=200, deadline=None, database=None)
@given(ANY_MASK, ANY_MASK, st.integers(0, 20), st.integers(0, 20))
def test_operators_are_those_of_sets(a: Mask, b: Mask, sq: int, sk: int):
    seen_a, seen_b = grid(a, sq, sk), grid(b, sq, sk)
    np.testing.assert_array_equal(grid(a & b, sq, sk), seen_a & seen_b)
    np.testing.assert_array_equal(grid(a | b, sq, sk), seen_a | seen_b)
    np.testing.assert_array_equal(grid(~a, sq, sk), ~seen_a)


def test_operators_have_one_form():
    causal, chunked, window = CausalMask(), ChunkedMask(4), WindowMask(3, 0)
    assert causal & chunked & window == window & (chunked & causal) == (window & chunked) & causal
    assert causal & causal == causal == causal | causal
    assert causal & NullMask() == causal and causal | NullMask() == NullMask()
    assert ~~causal == causal
    assert isinstance(causal & chunked, AndMask) and isinstance(causal | chunked, OrMask)
    assert ~(~causal & chunked) == causal | NotMask(chunked)
    assert ~(causal & chunked) == NotMask(causal & chunked)
    with pytest.raises(TypeError):
        causal & 3  # pyright: ignore


def test_names_and_texts():
    mask = (CausalMask() & ChunkedMask(8)) | ~WindowMask(-1, 3)
    assert str(mask) == "(causal&chunked:8)|~window:inf,3"
    assert mask.name == "causal_and_chunked_8_or_not_window_inf_3"
    assert mask.attribute == (
        "#attn.or<#attn.and<#attn.causal, #attn.chunked<8 : i64>>, "
        "#attn.not<#attn.window<-1 : i64, 3 : i64>>>"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WindowMask(-2, 0), "window left must be an integer from -1 to 1073741824, got -2"),
        (lambda: WindowMask(0, -2), "window right must be an integer from -1"),
        (lambda: ChunkedMask(0), "chunk size must be an integer from 1 to 1073741824, got 0"),
        (lambda: ChunkedMask(2**30 + 1), "got 1073741825"),
        (lambda: PrefixMask(-1), "prefix length must be an integer from 0"),
        (lambda: PrefixMask(True), "got True"),
        (lambda: WindowMask(1.5, 0), "got 1.5"),  # pyright: ignore
    ],
)
def test_parameters_are_checked(make: Any, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        make()
    assert WindowMask(2**30, -1).edges == (True, False)
    assert ChunkedMask(1).size == 1 and PrefixMask(0).length == 0
