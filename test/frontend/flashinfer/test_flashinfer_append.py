"""FlashInfer's functions that append: the example is that of their documentation, restated in numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

import attn_mlir as am
from attn_mlir import flashinfer
from attn_mlir.errors import SpecError
from attn_mlir.runtime.kernel import launching_on
from attn_mlir.validation.numerics.operands import i32

Array = npt.NDArray[Any]
BF16 = ml_dtypes.bfloat16


def test_where_tokens_belong() -> None:
    found = flashinfer.get_batch_indices_positions(i32(0, 1, 3, 6, 10), i32(5, 5, 5, 5), 10)
    assert found[0].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert found[1].tolist() == [4, 3, 4, 2, 3, 4, 1, 2, 3, 4]
    assert {x.dtype for x in found} == {np.dtype(np.int32)}


def test_tokens_of_no_sequence() -> None:
    batch, positions = flashinfer.get_batch_indices_positions(
        np.array([1, 1, 3]), np.array([7, 9]), 5
    )
    assert (batch.tolist(), positions.tolist()) == ([-1, 1, 1, -1, -1], [0, 7, 8, 0, 0])
    empty = flashinfer.get_batch_indices_positions(i32(0), i32(), 2)
    assert empty[0].tolist() == [-1, -1]


def test_memory_of_the_caller() -> None:
    memory = i32(9, 9), i32(9, 9)
    found = flashinfer.get_batch_indices_positions(i32(0, 2), i32(8), 2, *memory)
    assert found[0] is memory[0] and found[1] is memory[1]
    assert memory[0].tolist() == [0, 0] and memory[1].tolist() == [6, 7]
    with pytest.raises(SpecError, match=r"positions must have shape \[2\], got \[3\]"):
        flashinfer.get_batch_indices_positions(i32(0, 2), i32(8), 2, None, i32(0, 0, 0))


@pytest.mark.parametrize(
    ("offsets", "lengths", "message"),
    [
        (i32([0, 2]), i32(3), r"append_indptr must be \[batch \+ 1\], got \[1, 2\]"),
        (i32(0, 2), i32(3, 4), r"seq_lens must be \[1\], got \[2\]"),
    ],
)
def test_wrong_offsets(offsets: Array, lengths: Array, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        flashinfer.get_batch_indices_positions(offsets, lengths, 2)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("in_one_pool", [True, False])
def test_a_paged_cache(layout: str, in_one_pool: bool) -> None:
    random = np.random.default_rng(0)
    inner = (16, 2, 64) if layout == "NHD" else (2, 16, 64)
    pool = np.full((5, 2, *inner), np.nan, BF16)
    given = pool if in_one_pool else (pool[:, 0].copy(), pool[:, 1].copy())
    new = [random.standard_normal((6, 2, 64)).astype(BF16) for _ in range(2)]
    indptr, indices, last = np.array([0, 2, 3]), np.array([4, 0, 2]), np.array([2, 16])
    told = flashinfer.get_batch_indices_positions(i32(0, 3, 5), i32(18, 16), 6)
    with launching_on(am.EmulatorDevice(check="all")):
        found = flashinfer.append_paged_kv_cache(*new, *told, given, indices, indptr, last, layout)
    assert found is None
    for side, rows_of in enumerate(new):
        got = pool[:, side] if in_one_pool else given[side]
        got = got if layout == "NHD" else got.swapaxes(1, 2)
        places = [(4, 15), (0, 0), (0, 1), (2, 14), (2, 15)]
        assert all((got[place] == row).all() for place, row in zip(places, rows_of, strict=False))
        assert np.isfinite(got.astype(np.float32)).any((2, 3)).sum() == len(places)


@pytest.mark.usefixtures("no_compiler")
def test_wrong_tokens_by_their_names() -> None:
    lists, told = (i32(0), i32(0, 1), i32(16)), (i32(0, 0), i32(0, 1))
    pool = np.zeros((1, 2, 16, 2, 64), BF16)
    cases: list[tuple[Array, dict[str, Any], str]] = [
        (np.zeros((2, 3, 64), BF16), {}, "^append_key has 3 heads, paged_kv_cache has 2"),
        (
            np.zeros((2, 2, 64), BF16),
            {"kv_last_page_len": i32(17)},
            r"^kv_last_page_len\[0\] is 17",
        ),
        (
            np.zeros((2, 2, 64), BF16),
            {"kv_indices": i32(3)},
            r"^kv_indices\[0\] is 3: paged_kv_cache has pages 0",
        ),
    ]
    for new, changed, message in cases:
        given: dict[str, Any] = dict(
            zip(("kv_indices", "kv_indptr", "kv_last_page_len"), lists, strict=True)
        )
        with pytest.raises(SpecError, match=message):
            flashinfer.append_paged_kv_cache(new, new, *told, pool, **given | changed)


@pytest.mark.usefixtures("no_compiler")
def test_wrong_pools() -> None:
    new, lists = np.zeros((4, 2, 64), BF16), (i32(0), i32(0, 1), i32(16))
    told = (i32(0, 0, 0, 0), i32(0, 1, 2, 3))
    with pytest.raises(SpecError, match="paged_kv_cache must be one array or a pair, got 1 arrays"):
        flashinfer.append_paged_kv_cache(new, new, *told, (np.zeros((1, 16, 2, 64), BF16),), *lists)
    pools = np.zeros((1, 16, 2, 64), BF16), np.zeros((2, 16, 2, 64), BF16)
    with pytest.raises(
        SpecError, match=r"^paged_kv_cache\[1\] must agree with paged_kv_cache\[0\]"
    ):
        flashinfer.append_paged_kv_cache(new, new, *told, pools, *lists)
    with pytest.raises(SpecError, match="^paged_kv_cache must be .* without a second array, got"):
        flashinfer.append_paged_kv_cache(new, new, *told, pools[0], *lists)
    with pytest.raises(SpecError, match="^kv_layout must be NHD or HND, got 'NDH'"):
        flashinfer.append_paged_kv_cache(
            new, new, *told, np.zeros((1, 2, 16, 2, 64), BF16), *lists, "NDH"
        )
