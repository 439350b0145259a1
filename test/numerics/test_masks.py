"""Every mask on the emulator: right numbers, and no product of a tile that nobody sees."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.dialect.attn.masks import INTS
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.numerics.mha_check import poisoned

HEAD_DIM = 64
TILE_COLUMNS = 128
TILE_ROWS = 256  # query rows of a work tile; with packed heads as many fewer positions
PRODUCTS_PER_TILE = 2 * (HEAD_DIM + TILE_COLUMNS) // 16  # two query tiles, Q K^T and P V, K = 16

INTERVALS = [
    am.full(),
    am.causal(),
    am.sliding_window(127),
    am.sliding_window(30, 70),
    am.sliding_window(200, None),
    am.sliding_window(None, 9),
    am.chunked(200),
    am.chunked(200) & am.causal(),
    am.prefix_lm(150),
    am.chunked(96) | am.sliding_window(20, 0),
]
OTHERS = [
    ~am.causal(),
    ~am.sliding_window(100, 50),
    ~am.chunked(150) & am.causal(),
    ~am.chunked(150) | am.sliding_window(20, 20),
]
COMBINED = [  # of each kind with each operator; the definition counts where ranges are exact
    am.sliding_window(None, None),
    am.chunked(96),
    am.prefix_lm(150) & am.sliding_window(200, None),
    am.prefix_lm(50) | am.chunked(130),
    am.causal() & am.sliding_window(90, 40),
    am.chunked(300) & am.sliding_window(40, 40),
    am.causal() | am.sliding_window(None, 150),
]
LENGTHS = [
    (300, 500),  # two work tiles, the second one's second query tile is empty; ragged keys
    (513, 200),  # rows before key 0 see nothing but a prefix or a window's right part
    (70, 700),  # one query tile is empty; many tiles left of a window
]


@functools.lru_cache(maxsize=2)
def kernel(mask: am.Mask, heads: int) -> Kernel:
    spec = am.mha(heads=heads, kv_heads=1, head_dim=HEAD_DIM, mask=mask, query_tiles=2)
    return am.load(am.compile(spec))


def operands(sq: int, sk: int, heads: int) -> list[NDArray[Any]]:
    random = np.random.default_rng(sq + sk)
    shapes = ((1, sq, heads, HEAD_DIM), (1, sk, 1, HEAD_DIM), (1, sk, 1, HEAD_DIM))
    return [random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]


def run(
    mask: am.Mask, sq: int, sk: int, heads: int, device: EmulatorDevice, counts: list[int]
) -> str:
    """What is wrong with the result, or nothing; the number of products goes to `counts`."""
    q, k, v = operands(sq, sk, heads)
    o, lse = poisoned(q.shape, q.dtype), poisoned((1, heads, sq), np.dtype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        original = Emulator.launch

        def launch(self: Emulator, *arguments: Any, **options: Any) -> Any:
            stats = original(self, *arguments, **options)
            counts.append(stats.mma_count)
            return stats

        patch.setattr(Emulator, "launch", launch)
        kernel(mask, heads)(q, k, v, o, lse, device=device)
    verdict = check_attention(q, k, v, o, lse, mask=mask)
    return "" if verdict.ok else str(verdict)


def tiles_with_something(mask: am.Mask, sq: int, sk: int, positions: int) -> int:
    """Key tiles of which some row of a work tile sees some column, by the definition alone."""
    rows, columns = np.arange(sq)[:, None], np.arange(sk)[None, :]
    seen = np.broadcast_to(mask.visible(rows, columns, sq, sk), (sq, sk))
    return sum(
        bool(seen[row : row + positions, column : column + TILE_COLUMNS].any())
        for row in range(0, sq, positions)
        for column in range(0, sk, TILE_COLUMNS)
    )


def tiles_in_range(mask: am.Mask, sq: int, sk: int, positions: int) -> int:
    """Key tiles within the mask's range of each work tile."""
    ranges = (
        mask.tile_range(INTS, row, positions, sq, sk, TILE_COLUMNS)
        for row in range(0, sq, positions)
    )
    return sum(r.end - r.begin for r in ranges)


@pytest.mark.slow
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
@pytest.mark.parametrize("mask", INTERVALS, ids=str)
@pytest.mark.long(  # the definition has every one in test/dialect
    *(f"{mask}-*" for mask in INTERVALS[::3]),
    *(f"{mask}-513-200" for mask in INTERVALS[::2]),
    *(f"{mask}-70-700" for mask in INTERVALS[1::2]),
    *(f"{mask}-300-500" for mask in INTERVALS[4:]),
    *(f"{mask}-70-700" for mask in INTERVALS[8:]),
)
def test_interval_masks(mask: am.Mask, sq: int, sk: int) -> None:
    counts: list[int] = []
    assert run(mask, sq, sk, 1, EmulatorDevice(), counts) == ""
    assert counts == [tiles_with_something(mask, sq, sk, TILE_ROWS) * PRODUCTS_PER_TILE]


@pytest.mark.slow
@pytest.mark.parametrize("mask", COMBINED, ids=str)
@pytest.mark.long(*map(str, COMBINED[::2]), *map(str, COMBINED[1::4]))
def test_combined_interval_masks(mask: am.Mask) -> None:
    counts: list[int] = []
    assert run(mask, 300, 500, 1, EmulatorDevice(), counts) == ""
    assert counts == [tiles_with_something(mask, 300, 500, TILE_ROWS) * PRODUCTS_PER_TILE]


@pytest.mark.slow
@pytest.mark.parametrize(("sq", "sk"), LENGTHS[:2])
@pytest.mark.parametrize("mask", OTHERS, ids=str)
@pytest.mark.long(
    *(f"{mask}-513-200" for mask in OTHERS[1:]), *(f"{mask}-300-500" for mask in OTHERS[1::2])
)
def test_other_masks(mask: am.Mask, sq: int, sk: int) -> None:
    counts: list[int] = []
    assert run(mask, sq, sk, 1, EmulatorDevice(), counts) == ""
    assert counts == [tiles_in_range(mask, sq, sk, TILE_ROWS) * PRODUCTS_PER_TILE]


@pytest.mark.slow
@pytest.mark.parametrize("mask", [*INTERVALS[1::2], *OTHERS[::3]], ids=str)
@pytest.mark.long(but=(str(INTERVALS[1]), str(OTHERS[3])))
def test_masks_under_an_adversarial_schedule(mask: am.Mask) -> None:
    seed = len(str(mask))
    assert run(mask, 140, 300, 1, EmulatorDevice(schedule="adversarial", seed=seed), []) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask", [am.sliding_window(30, 10), am.chunked(200) & am.causal(), ~am.chunked(150)], ids=str
)
@pytest.mark.long("window:30,10", "~*")
def test_masks_of_packed_heads(mask: am.Mask) -> None:
    """Rows of one tile that belong to one position see the same keys; a work tile has 64 positions."""
    counts: list[int] = []
    assert run(mask, 150, 400, 4, EmulatorDevice(), counts) == ""
    assert counts == [tiles_in_range(mask, 150, 400, TILE_ROWS // 4) * PRODUCTS_PER_TILE]
