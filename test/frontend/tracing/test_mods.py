"""Built-in modifiers and predicates against their formulas, written out with numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir import mods
from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.errors import SpecError
from attn_mlir.trace import trace

Array = npt.NDArray[Any]

B, H, Q, K = 2, 3, 5, 7
RANDOM = np.random.default_rng(0)
SCORES = RANDOM.standard_normal((B, H, Q, K))
b, h, q, k = (np.arange(n).reshape([-1 if a == i else 1 for a in range(4)])
              for i, n in enumerate((B, H, Q, K)))  # fmt: skip
SIZES = {"batch": B, "heads": H, "sq": Q, "sk": K}


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def scored(mod: Any) -> Array:
    program, arrays = trace(mod)
    assert program is not None
    at = {"score": SCORES, "batch": b, "head": h, "q": q, "k": k}
    return np.broadcast_to(evaluate(program, at, host_arrays(arrays)).score, SCORES.shape)


def kept(mod: Any) -> Array:
    program, arrays = trace(None, mod)
    assert program is not None
    at = {"score": SCORES, "batch": b, "head": h, "q": q, "k": k}
    return np.broadcast_to(evaluate(program, at, host_arrays(arrays)).kept, SCORES.shape)


def test_softcap() -> None:
    np.testing.assert_allclose(scored(mods.softcap(3)), 3 * np.tanh(SCORES / 3), rtol=1e-14)


@pytest.mark.parametrize("cap", [1e-3, 1024.0, 1025.0, 1e6, 1e20, 2.0**100])
def test_softcaps_of_all_sizes(cap: float) -> None:
    """In float32 as well: a cap far above the scores leaves them as they are."""
    program, _ = trace(mods.softcap(cap))
    assert program is not None
    for scores in (SCORES * cap, SCORES):
        at = {"score": np.float32(scores), "batch": b, "head": h, "q": q, "k": k}
        made = evaluate(program, at, {}, np.float32).score
        truth = cap * np.tanh(np.float64(at["score"]) / cap)
        np.testing.assert_allclose(made, truth, rtol=1e-6)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2.0**-n for n in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (12, [2.0**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes(heads: int, slopes: list[float]) -> None:
    np.testing.assert_allclose(mods.alibi_slopes(heads), slopes, rtol=1e-7)


def test_alibi() -> None:
    slopes = mods.alibi_slopes(H).astype(np.float64)[:, None, None]
    np.testing.assert_allclose(scored(mods.alibi(H)), SCORES - slopes * abs(q - k), rtol=1e-14)
    ahead = scored(mods.alibi(H, offset=2))
    np.testing.assert_allclose(ahead, SCORES - slopes * abs(q + 2 - k), rtol=1e-14)
    table = normal(B, H)
    by_batch = table.astype(np.float64)[:, :, None, None]
    np.testing.assert_allclose(
        scored(mods.alibi(table)), SCORES - by_batch * abs(q - k), rtol=1e-14
    )


@pytest.mark.parametrize(("zero", "offset"), [(None, 0), (0, 0), (3, 2), (4, -1)])
def test_relative_bias(zero: int | None, offset: int) -> None:
    table = normal(H, 5)
    entry = np.clip(k - q - offset + (2 if zero is None else zero), 0, 4)
    made = scored(mods.relative_bias(table, zero=zero, offset=offset))
    np.testing.assert_allclose(made, SCORES + table[h, entry], rtol=1e-14)


def test_relative_logits() -> None:
    logits = normal(B, Q, H, 4)
    distance = q + 1 - k
    picked = logits[b, q, h, np.clip(distance, 0, 3)]
    truth = SCORES + np.where((distance >= 0) & (distance < 4), picked, 0)
    np.testing.assert_allclose(scored(mods.relative_logits(logits, offset=1)), truth, rtol=1e-14)


@pytest.mark.parametrize(
    "shape", [(Q, K), (B, Q, K), (B, H, Q, K), (1, K), (B, 1, K), (B, 1, Q, K), (1, 1, Q, 1)]
)
def test_bias(shape: tuple[int, ...]) -> None:
    table = normal(*shape)
    full = table[:, None] if len(shape) == 3 else table
    mod = mods.bias(table)
    mods.check_extents(mod, SIZES)
    np.testing.assert_allclose(scored(mod), SCORES + full, rtol=1e-14)


def test_visible_where() -> None:
    table = normal(B, 1, Q, K) > 0
    np.testing.assert_array_equal(
        kept(mods.visible_where(table)), table & np.ones_like(SCORES, bool)
    )


def test_document() -> None:
    ids_q, ids_k = np.array([[0, 0, 1, 1, 2], [5, 5, 5, 6, 6]]), np.arange(K, dtype=np.int32) // 3
    truth = ids_q[:, None, :, None] == ids_k[None, None, None, :]
    np.testing.assert_array_equal(kept(mods.document(ids_q, ids_k)), truth | (SCORES != SCORES))
    own = np.arange(K, dtype=np.int32) // 2
    np.testing.assert_array_equal(kept(mods.document(own))[0, 0], (own[:Q, None] == own[None]))


def test_key_padding() -> None:
    lengths = np.array([3, 0], np.int32)
    truth = np.broadcast_to(k < lengths[:, None, None, None], SCORES.shape)
    np.testing.assert_array_equal(kept(mods.key_padding(lengths)), truth)


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("counts_new", [False, True])
def test_tree(by_batch: bool, counts_new: bool) -> None:
    """Keys in front of the new tokens are seen by all, and those behind lengths by whoever sees the last."""
    table = RANDOM.integers(0, 2, (B, Q, Q)[0 if by_batch else 1 :]).astype(bool)
    ends = np.array([K, Q], np.int32)
    found = kept(mods.tree(table, ends if counts_new else ends - Q, counts_new=counts_new))
    for batch, end in enumerate(ends):
        own = table[batch] if by_batch else table
        np.testing.assert_array_equal(found[batch, 1, :, end - Q : end], own)
        assert found[batch, :, :, : end - Q].all()
    of_all = kept(mods.tree(table, K))
    assert of_all[:, :, :, : K - Q].all()
    np.testing.assert_array_equal(of_all[1, 0, :, K - Q :], table[1] if by_batch else table)


def test_combinations() -> None:
    lengths = np.array([3, 6], np.int32)
    causal, valid = mods.causal_from_top, mods.key_padding(lengths)
    tokens = k < lengths[:, None, None, None]
    full = np.ones_like(SCORES, bool)
    np.testing.assert_array_equal(kept(mods.and_masks(causal, valid)), (q >= k) & tokens & full)
    np.testing.assert_array_equal(kept(mods.or_masks(causal, valid)), (q >= k) | tokens & full)
    np.testing.assert_array_equal(kept(mods.not_mask(causal)), (q < k) & full)
    nested = mods.and_masks(mods.or_masks(causal, valid), mods.not_mask(mods.and_masks(causal)))
    np.testing.assert_array_equal(kept(nested), ((q >= k) | tokens) & (q < k) & full)
    both = mods.compose(mods.alibi(H), mods.softcap(2.0))
    slopes = mods.alibi_slopes(H).astype(np.float64)[:, None, None]
    truth = 2 * np.tanh((SCORES - slopes * abs(q - k)) / 2)
    np.testing.assert_allclose(scored(both), truth, rtol=1e-14)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: mods.softcap(0),
        "cap of a softcap must be a number from 7.889e-31 to 1.268e+30, got 0",
    ),
    (lambda: mods.softcap(1e39), "1.268e+30, got 1e+39"),
    (lambda: mods.softcap(1e-39), "1.268e+30, got 1e-39"),
    (lambda: mods.softcap(float("inf")), "got inf"),
    (lambda: mods.softcap(float("nan")), "got nan"),
    (lambda: mods.softcap("20"), "got '20'"),  # pyright: ignore
    (lambda: mods.alibi_slopes(0), "heads of ALiBi must be an integer of at least 1, got 0"),
    (
        lambda: mods.alibi(normal(1, 2, 3)),
        "slopes must have 1 or 2 dimensions, got shape [1, 2, 3]",
    ),
    (lambda: mods.alibi(np.arange(3)), "slopes must be of f32, bf16, f16, got i64"),
    (lambda: mods.alibi([0.5]), "slopes must be a numpy array"),
    (lambda: mods.relative_bias(normal(3)), "table must have 2 dimensions, got shape [3]"),
    (lambda: mods.relative_bias(normal(3, 4), zero=4), "zero must be an entry of the table's 4"),
    (lambda: mods.relative_logits(normal(3, 4)), "logits must have 4 dimensions"),
    (lambda: mods.bias(normal(3)), "bias must have 2 or 3 or 4 dimensions, got shape [3]"),
    (lambda: mods.visible_where(normal(3, 4)), "mask must be of bool, got f32"),
    (lambda: mods.document(normal(3)), "ids_q must be of i32, i64, got f32"),
    (lambda: mods.key_padding(np.int32([[1]])), "lengths must have 1 dimensions"),
    (lambda: mods.tree(np.ones((3, 4), bool), 9), "mask must be [sq, sq] or [batch, sq, sq], got"),
    (lambda: mods.tree(normal(3, 3), 9), "mask must be of bool, got f32"),
    (lambda: mods.tree(np.ones((3, 3), bool), normal(2)), "lengths must be of i32, i64, got f32"),
    (lambda: mods.tree(np.ones((3, 3), bool), True), "lengths must be a numpy array"),
    (lambda: mods.and_masks(), "and_masks needs at least one function"),
    (lambda: mods.or_masks(), "or_masks needs at least one function"),
    (lambda: mods.compose(), "compose needs at least one function"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        make()


I32 = np.int32
UNFIT: list[tuple[Any, str]] = [
    (mods.alibi(H + 1), "slopes has shape [4], it must be [heads] with heads = 3"),
    (mods.alibi(normal(B + 1, H)), "slopes has shape [3, 3], it must be [batch, heads] with batch"),
    (
        mods.relative_bias(normal(1, 9)),
        "table has shape [1, 9], it must be [heads, any] with heads",
    ),
    (mods.relative_logits(normal(B, K, H, 2)), "it must be [batch, sq, heads, any] with sq = 5"),
    (mods.bias(normal(K, Q)), "bias has shape [7, 5], it must be [sq, sk] with sq = 5"),
    (mods.bias(normal(B, 2, Q, K)), "it must be [batch, heads, sq, sk] with heads = 3"),
    (mods.visible_where(np.ones((B, Q, 2), bool)), "it must be [batch, sq, sk] with sk = 7"),
    (mods.document(np.zeros(Q, I32)), "ids_k has shape [5], it must be [sk] with sk = 7"),
    (mods.document(np.zeros((1, Q), I32), np.zeros(K, I32)), "ids_q has shape [1, 5], it must be"),
    (
        mods.key_padding(np.zeros(1, I32)),
        "lengths has shape [1], it must be [batch] with batch = 2",
    ),
    (mods.tree(np.ones((K, K), bool), K), "mask has shape [7, 7], it must be [sq, sq] with sq = 5"),
    (
        mods.tree(np.ones((Q, Q), bool), np.zeros(3, I32)),
        "lengths has shape [3], it must be [batch]",
    ),
    (mods.and_masks(mods.causal_from_top, mods.key_padding(np.zeros(3, I32))), "lengths has shape"),
    (mods.or_masks(mods.not_mask(mods.key_padding(np.zeros(3, I32)))), "lengths has shape [3]"),
    (mods.compose(mods.softcap(2.0), mods.alibi(5)), "slopes has shape [5]"),
]


@pytest.mark.parametrize(("mod", "message"), UNFIT)
def test_arrays_that_do_not_fit_the_call(mod: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        mods.check_extents(mod, SIZES)


def test_arrays_that_fit_the_call() -> None:
    for mod in (None, mods.softcap(1.0), mods.alibi(H), mods.bias(normal(1, H, 1, K)),
                mods.document(np.zeros((B, Q), I32), np.zeros(K, I32)), lambda s, b, h, q, k: s):  # fmt: skip
        mods.check_extents(mod, SIZES)


def test_bf16_arrays() -> None:
    table = normal(Q, K).astype(ml_dtypes.bfloat16)
    np.testing.assert_allclose(
        scored(mods.bias(table)), SCORES + table.astype(np.float64), rtol=1e-14
    )
