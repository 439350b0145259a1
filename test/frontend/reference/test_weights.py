"""Weights of few keys, rounded to 8 bits: what the judge allows wherever a kernel's maximum lies, and what not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.reference import check_attention, weights

E4M3: Any = ml_dtypes.float8_e4m3fn
BF16: Any = ml_dtypes.bfloat16
HEADS, KEYS, TILE, COLUMNS = 16, 128, 64, 64
SEEDS = range(16)
MOST_STALE = 2.0  # log2 units by which a maximum lags behind


def worst(distinct: int, scale: float, seed: int, wrong: float = 0.0) -> float:
    """How much of what is allowed a kernel's error takes, whose maxima lag by any amount in each key tile.

    Args:
      distinct: keys, which come again and again.
      wrong: by what share the weights of the key that a row looks at most are too large.
    """
    random = np.random.default_rng(seed)
    q = random.standard_normal((1, 1, HEADS, COLUMNS)).astype(E4M3)
    k, v = (random.standard_normal((distinct, COLUMNS)).astype(E4M3) for _ in range(2))
    k, v = (x[np.arange(KEYS) % distinct] for x in (k, v))
    scores = scale * q[0, 0].astype(np.float64) @ k.T.astype(np.float64)
    p = np.exp(scores - scores.max(1, keepdims=True))
    o = np.zeros((HEADS, COLUMNS))
    for tile in (slice(0, TILE), slice(TILE, KEYS)):
        largest = weights.FP8_P_SCALE * 2 ** random.uniform(0, MOST_STALE, (HEADS, 1))
        rounded = (p[:, tile] * largest).astype(E4M3).astype(np.float64) / largest
        rounded *= np.where(p[:, tile] == 1, 1 + wrong, 1)
        o += rounded @ v[tile].astype(np.float64)
    o = (o / p.sum(1, keepdims=True)).astype(BF16)[None, None]
    keys, values = (np.broadcast_to(x[None, :, None], (1, KEYS, HEADS, COLUMNS)) for x in (k, v))
    return check_attention(q, keys, values, o, None, scale=scale).worst_ratio


@pytest.mark.parametrize("distinct", [1, 2, 5, 16])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 0.5])
def test_equal_keys_are_rounded_alike_relative_to_any_maximum(distinct: int, scale: float) -> None:
    assert max(worst(distinct, scale, seed) for seed in SEEDS) < 1


def test_one_place_of_the_maximum_says_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "POSITIONS", 1)
    assert max(worst(5, 1e-3, seed) for seed in SEEDS) > 1


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_weights_that_are_not_rounded_but_wrong_fail(distinct: int) -> None:
    """By the distance of two numbers of e4m3, of which rounding takes half."""
    assert min(worst(distinct, 0.5, seed, wrong=2.0**-3) for seed in SEEDS) > 1


def test_types_of_o_that_are_no_finer_need_no_place() -> None:
    assert weights.largest_weights(np.dtype(BF16), np.dtype(BF16)) == [1.0]
    assert len(weights.largest_weights(np.dtype(E4M3), np.dtype(BF16))) == weights.POSITIONS
