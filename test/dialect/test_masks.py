"""The closed forms of each mask against its definition, element by element."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.dialect.attn.masks import (
    INTS,
    MASKS,
    CausalMask,
    IntArith,
    Mask,
    NullMask,
    mask_named,
)
from attn_mlir.errors import SpecError

LENGTHS = st.integers(0, 70)
MASK_OBJECTS = st.sampled_from([mask() for mask in MASKS])


def grid(mask: Mask, sq: int, sk: int) -> np.ndarray:
    """The definition as a [sq, sk] array of truth values."""
    return np.asarray(mask.visible(np.arange(sq)[:, None], np.arange(sk)[None, :], sq, sk))


class CheckedArith(IntArith):
    """Python's integers, which notice a promise to emitters that is not kept."""

    def floordiv(self, a: int, b: int, /) -> int:
        assert a >= 0 and b > 0
        return a // b

    def ceildiv(self, a: int, b: int, /) -> int:
        assert a >= 0 and b > 0
        return -(-a // b)


@settings(max_examples=400, deadline=None)
@given(MASK_OBJECTS, LENGTHS, LENGTHS, st.data(), st.sampled_from([1, 3, 8, 16]))
def test_tile_range_is_exact(mask: Mask, sq: int, sk: int, data: st.DataObject, tile_n: int):
    row0 = data.draw(st.integers(0, max(sq - 1, 0)))
    rows = data.draw(st.integers(1, 40))
    begin, full_end, end = mask.tile_range(CheckedArith(), row0, rows, sq, sk, tile_n)
    assert 0 <= begin <= full_end <= end
    if sq == 0:
        return
    seen = grid(mask, sq, sk)[row0 : row0 + rows]
    for tile in range(max(end, -(-sk // tile_n)) + 2):
        part = seen[:, tile * tile_n : (tile + 1) * tile_n]
        whole = part.shape[1] == tile_n and bool(part.all())
        if tile < begin or tile >= end:
            assert not part.any(), (tile, "left out although something is visible")
        elif tile < full_end:
            assert whole, (tile, "not tested although something is hidden")
        else:
            assert part.any(), (tile, "visited although nothing is visible")
            assert not whole, (tile, "tested although everything is visible")


@settings(max_examples=200, deadline=None)
@given(MASK_OBJECTS, LENGTHS, LENGTHS)
def test_column_range_is_the_definition(mask: Mask, sq: int, sk: int):
    seen = grid(mask, sq, sk)
    for row in range(sq):
        begin, end = mask.column_range(INTS, row, sq, sk)
        columns = np.arange(sk)
        np.testing.assert_array_equal(seen[row], (columns >= begin) & (columns < end))


@pytest.mark.parametrize(
    ("mask", "row0", "sq", "sk", "expected"),
    [
        (CausalMask(), 0, 1024, 1024, (0, 0, 2)),
        (CausalMask(), 256, 1024, 1024, (0, 2, 4)),
        (CausalMask(), 512, 1000, 1000, (0, 4, 6)),
        (CausalMask(), 0, 1000, 1500, (0, 3, 6)),
        (CausalMask(), 0, 1, 513, (0, 4, 5)),
        (CausalMask(), 0, 300, 77, (0, 0, 1)),
        (CausalMask(), 0, 256, 0, (0, 0, 0)),
        (NullMask(), 0, 300, 300, (0, 2, 3)),
        (NullMask(), 256, 1024, 1024, (0, 8, 8)),
        (NullMask(), 0, 1, 0, (0, 0, 0)),
    ],
)
def test_worked_numbers(mask: Mask, row0: int, sq: int, sk: int, expected: tuple[int, int, int]):
    """Blocks of 256 rows, tiles of 128 columns, as in the kernel's specification."""
    assert mask.tile_range(INTS, row0, 256, sq, sk, 128) == expected


def test_causal_aligns_the_last_query_with_the_last_key():
    assert grid(CausalMask(), 2, 4).tolist() == [[True, True, True, False], [True] * 4]
    assert grid(CausalMask(), 4, 2).tolist() == [
        [False, False],
        [False, False],
        [True, False],
        [True, True],
    ]


def test_keywords_are_distinct():
    assert len({mask.keyword for mask in MASKS}) == len(MASKS)


def test_masks_are_found_by_keyword():
    assert mask_named("causal") == CausalMask()
    with pytest.raises(SpecError, match="mask 'diagonal' does not exist: allowed are null, causal"):
        mask_named("diagonal")
