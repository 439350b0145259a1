"""Scores of any size that float32 holds: biases that hide, rows of one large score, huge operands."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.reference import check_attention

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
SQ, SK, HEADS, D = 40, 300, 2, 64
ORDINARY = 100  # keys of each row that no bias touches


def operands(factor: float = 1.0) -> tuple[Array, Array, Array]:
    """q, k and v; q and k times a factor."""
    rng = np.random.default_rng(7)
    shapes = ((1, SQ, HEADS, D), (1, SK, 1, D), (1, SK, 1, D))
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return (q * factor).astype(BF16), (k * factor).astype(BF16), v.astype(BF16)


def check(factor: float = 1.0, splits: int = 1, **options: Any) -> tuple[Array, Array]:
    """O and LSE, every element judged."""
    q, k, v = operands(factor)
    call: dict[str, Any] = {"num_splits": splits, "return_lse": True, "device": "emulator"}
    o, lse = am.attention(q, k, v, **options, **call)
    verdict = check_attention(q, k, v, o, lse, **options)
    assert verdict.ok, str(verdict)
    assert np.isfinite(o.astype(np.float32)).all()
    return o, lse


@pytest.mark.parametrize(
    ("value", "splits"),
    [(-1e4, 1), (-1e10, 1), (-1e20, 3), (-1e30, 1), (-1e38, 1), (-1e38, 3)],
)
@pytest.mark.long(but=("-1e+38-1", "-1e+38-3"))
def test_padding_by_a_bias(value: float, splits: int) -> None:
    """The last keys are visited first: large scores are the first maximum, and must leave no trace."""
    bias = np.zeros((SQ, SK), np.float32)
    bias[:, ORDINARY:] = value
    o, _ = check(splits=splits, score_mod=mods.bias(bias))
    q, k, v = operands()
    alone = am.attention(q, k[:, :ORDINARY], v[:, :ORDINARY], device="emulator")
    assert np.allclose(o.astype(np.float32), alone.astype(np.float32), atol=2e-2)


@pytest.mark.parametrize(("value", "splits"), [(-1.9e38, 3), (-1e9, 1), (1e10, 3), (1.9e38, 1)])
@pytest.mark.long("-1000000000.0-1", "10000000000.0-3")
def test_rows_of_equal_scores_are_means(value: float, splits: int) -> None:
    bias = np.full((SQ, SK), value, np.float32)
    o, lse = check(splits=splits, score_mod=mods.bias(bias))
    _, _, v = operands()
    mean = v.astype(np.float64).mean(axis=1, keepdims=True)
    if abs(value) > 1e30:  # the scores are lost in rounding
        assert np.abs(o.astype(np.float64) - mean).max() < 2e-3
    assert np.abs(lse.astype(np.float64) / np.float32(value) - 1).max() < 1e-6


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.long("1")
def test_below_the_lowest_score_is_hidden(splits: int) -> None:
    bias = np.full((SQ, SK), -2.1e38, np.float32)
    bias[::2, ORDINARY:] = 0.0
    q, k, v = operands()
    options: dict[str, Any] = {"num_splits": splits, "return_lse": True, "device": "emulator"}
    o, lse = am.attention(q, k, v, score_mod=mods.bias(bias), **options)
    assert check_attention(q, k, v, o, lse, score_mod=mods.bias(bias)).ok
    assert np.isneginf(lse[:, :, 1::2]).all() and not o[:, 1::2].any()
    assert np.isfinite(lse[:, :, ::2]).all()


def test_hidden_by_a_number_and_by_where() -> None:
    check(score_mod=lambda s, b, h, q, k: mods.where(q >= k, s, -1e30))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.long("3")
def test_large_operands(splits: int) -> None:
    """Without a modifier: scores of 1e10, of which the largest takes all."""
    check(factor=3e4, splits=splits)


def test_sinks_beside_large_scores() -> None:
    sinks = np.array([2e10, -5.0], np.float32)
    o, _ = check(score_mod=lambda s, b, h, q, k: s + 1e10, sinks=sinks)
    assert not o[:, :, 0].any() and o[:, :, 1].any()


def test_bits_of_a_row_do_not_depend_on_its_neighbours() -> None:
    q, k, v = operands()
    plain = am.attention(q, k, v, device="emulator")
    q[:, 1::2] *= 30000
    mixed = am.attention(q, k, v, device="emulator")
    assert mixed[:, ::2].tobytes() == plain[:, ::2].tobytes()
    assert mixed[:, 1::2].tobytes() != plain[:, 1::2].tobytes()
