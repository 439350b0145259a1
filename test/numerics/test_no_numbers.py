"""NaN and infinities among operands: whom those of hidden keys reach, and what modifiers make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import trace as tr
from attn_mlir.reference import attention_f64

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
LENGTH, WORK_TILE, KEY_TILE = 300, 256, 128  # rows of a work tile, keys of a tile
MASK = am.causal()


def operands(length: int = LENGTH) -> list[Array]:
    random = np.random.default_rng(length)
    return [random.standard_normal((1, length, 1, 64)).astype(np.float16) for _ in range(3)]


def attend(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    """O [rows, columns] and LSE [rows]."""
    result = am.attention(q, k, v, return_lse=True, device="emulator", **options)
    o, lse = (np.asarray(x, np.float32) for x in result)
    return o[0, :, 0], lse[0, 0]


@pytest.fixture(scope="module")
def clean() -> tuple[Array, Array]:
    return attend(*operands(), mask=MASK)


@pytest.mark.parametrize(("value", "key"), [(np.nan, LENGTH - 1), (np.inf, KEY_TILE + 9)])
def test_of_a_key_that_rows_do_not_see(value: float, key: int, clean: tuple[Array, Array]) -> None:
    """docs/masks.md: one of K reaches the rows that see it; one of V also those of a work tile that visits it."""
    q, k, v = operands()
    k[0, key], v[0, key, 0, 5] = value, value
    only_v = attend(q, operands()[1], v, mask=MASK)
    only_k = attend(q, k, operands()[2], mask=MASK)
    sees = np.arange(LENGTH) >= key
    visits = np.arange(LENGTH) // WORK_TILE * WORK_TILE + WORK_TILE > key // KEY_TILE * KEY_TILE
    assert not visits.all() or key < WORK_TILE
    for found, before in zip(only_k, clean, strict=True):
        np.testing.assert_array_equal(found[~sees], before[~sees])
        assert np.isnan(found[sees]).all()
    other = np.arange(64) != 5
    np.testing.assert_array_equal(only_v[0][:, other], clean[0][:, other])
    np.testing.assert_array_equal(only_v[0][~visits], clean[0][~visits])
    assert not np.isfinite(only_v[0][sees, 5]).any()
    np.testing.assert_array_equal(only_v[1], clean[1])


def test_of_a_row_behind_the_end() -> None:
    """It is in the tile, and reaches nobody."""
    q, k, v = operands(40)
    used = np.array([33], np.int32)
    before = attend(q, k, v, seqused_k=used)
    k[0, 33:], v[0, 33:] = np.nan, np.inf
    for found, was in zip(attend(q, k, v, seqused_k=used), before, strict=True):
        np.testing.assert_array_equal(found, was)


def bounded(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Every function of two numbers that has to keep NaN."""
    return tr.clip(tr.maximum(tr.minimum(s, 2.0), -2.0), -1.5, 1.5) + 0.01 * tr.maximum(s, q * 1.0)


def test_modifiers_keep_nan() -> None:
    q, k, v = operands(20)
    q[0, 3, 0, 1] = np.nan
    q[0, 7, 0, :] = np.inf
    k[0, 15, 0, 2] = np.nan
    o, lse = attend(q, k, v, mask=MASK, score_mod=bounded)
    with np.errstate(invalid="ignore"):
        truth = attention_f64(q, k, v, mask=MASK, score_mod=bounded)
    isnan = np.isnan(truth.lse[0, 0])
    assert isnan[[3, *range(15, 20)]].all() and not isnan[[*range(3), *range(8, 15)]].any()
    np.testing.assert_array_equal(np.isnan(lse), isnan)
    np.testing.assert_array_equal(np.isnan(o), np.isnan(truth.o[0, :, 0]))
    np.testing.assert_array_equal(np.isnan(o).all(axis=1), isnan)
