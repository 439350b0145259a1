"""The formulas against the plainest possible spelling, and the verdict's own judgement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir import reference
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask, causal, chunked, full, prefix_lm, sliding_window
from attn_mlir.reference import mha as mha_module
from attn_mlir.reference import verdict
from attn_mlir.reference.mla import mla_yardstick

Array = npt.NDArray[Any]
DTYPES = [ml_dtypes.bfloat16, np.float16]
LENGTHS = [(1, 1), (5, 3), (3, 5), (17, 17), (4, 0), (0, 4)]


def operands(sq: int, sk: int, dtype: Any, heads: int = 4, kv_heads: int = 2) -> list[Array]:
    random = np.random.default_rng(sq * 1000 + sk)
    return [
        random.standard_normal((2, n, h, 8)).astype(dtype)
        for n, h in ((sq, heads), (sk, kv_heads), (sk, kv_heads))
    ]


SEES: dict[Mask, Callable[[int, int], bool]] = {  # with the query's own position p
    full(): lambda p, k: True,
    causal(): lambda p, k: k <= p,
    sliding_window(3, 2): lambda p, k: p - 3 <= k <= p + 2,
    chunked(4): lambda p, k: p // 4 == k // 4,
    causal() & chunked(4): lambda p, k: k <= p and p // 4 == k // 4,
    prefix_lm(5): lambda p, k: k < 5 or k <= p,
    ~causal() | chunked(4): lambda p, k: k > p or p // 4 == k // 4,
}


def plain(q: Array, k: Array, v: Array, mask: Mask, scale: float) -> tuple[Array, Array]:
    """One score at a time, in Python floats."""
    batch, sq, heads, _ = q.shape
    sk, group = k.shape[1], heads // k.shape[2]
    o, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full((batch, heads, sq), -math.inf)
    for b in range(batch):
        for h in range(heads):
            for i in range(sq):
                seen = [j for j in range(sk) if SEES[mask](i + sk - sq, j)]
                scores = [
                    scale * sum(float(x) * float(y) for x, y in zip(q[b, i, h], k[b, j, h // group],
                                                                    strict=True))
                    for j in seen
                ]  # fmt: skip
                total = sum(math.exp(s) for s in scores)
                if seen:
                    lse[b, h, i] = math.log(total)
                for j, s in zip(seen, scores, strict=True):
                    o[b, i, h] += math.exp(s) / total * v[b, j, h // group].astype(np.float64)
    return o, lse


@pytest.mark.parametrize("mask", SEES, ids=str)
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
def test_truth(sq: int, sk: int, mask: Mask) -> None:
    q, k, v = operands(sq, sk, np.float16)
    o, lse = plain(q, k, v, mask, 1 / math.sqrt(8))
    truth = reference.attention_f64(q, k, v, mask=mask)
    np.testing.assert_allclose(truth.o, o, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(truth.lse, lse, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [full(), causal()])
def test_yardstick_is_near_the_truth_and_in_the_types(mask: Mask, dtype: Any) -> None:
    q, k, v = operands(40, 23, dtype)
    truth = reference.attention_f64(q, k, v, mask=mask, scale=0.7)
    yardstick = reference.attention_yardstick(q, k, v, mask=mask, scale=0.7)
    assert yardstick.o.dtype == dtype and yardstick.lse.dtype == np.float32
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[yardstick.o.dtype.name]
    error = np.abs(yardstick.o.astype(np.float64) - truth.o).max()
    assert 0 < error < 4 * unit * np.abs(v.astype(np.float64)).max()
    seen = np.isfinite(truth.lse)
    assert (np.isneginf(yardstick.lse) == ~seen).all()
    assert np.abs(yardstick.lse[seen] - truth.lse[seen]).max() < 1e-5


@pytest.mark.parametrize("mask", [full(), causal()])
def test_blocks_do_not_change_anything(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = operands(37, 23, np.float16)
    whole = reference.attention_f64(q, k, v, mask=mask)
    monkeypatch.setattr(mha_module, "BLOCK_SCORES", 100)
    parts = reference.attention_f64(q, k, v, mask=mask)
    np.testing.assert_allclose(parts.o, whole.o, rtol=1e-13)
    np.testing.assert_array_equal(np.isneginf(parts.lse), np.isneginf(whole.lse))


def test_row_without_keys() -> None:
    q, k, v = operands(5, 3, np.float16)
    for result in (
        reference.attention_f64(q, k, v, mask=causal()),
        reference.attention_yardstick(q, k, v, mask=causal()),
    ):
        assert (result.o[:, :2] == 0).all() and np.isneginf(result.lse[:, :, :2]).all()
        assert (result.o[:, 2:] != 0).any(axis=3).all() and np.isfinite(result.lse[:, :, 2:]).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("score_mod", [None, lambda s, b, h, q, k: s * 0.5])
@pytest.mark.parametrize("compute", [reference.attention_f64, reference.attention_yardstick])
def test_a_score_that_is_no_number(compute: Any, score_mod: Any) -> None:
    """O and LSE of rows that see it are NaN, those of others are not."""
    q, k, v = operands(5, 5, np.float16, 1, 1)
    q[0, 1, 0, 2], k[0, 4, 0, 3], q[1, 3] = np.nan, np.nan, np.inf
    found = compute(q, k, v, mask=causal(), score_mod=score_mod)
    lost = np.zeros((2, 5), bool)
    lost[0, [1, 4]] = lost[1, 3] = True
    np.testing.assert_array_equal(np.isnan(found.lse[:, 0]), lost)
    np.testing.assert_array_equal(np.isnan(found.o[:, :, 0].astype(np.float64)).all(2), lost)
    assert np.isfinite(found.lse[:, 0][~lost]).all()


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 8), (2, 3, 3, 8), (2, 3, 3, 8)),
        ((2, 3, 4, 8), (1, 3, 2, 8), (1, 3, 2, 8)),
        ((2, 3, 4, 8), (2, 3, 2, 8), (2, 4, 2, 8)),
        ((2, 3, 4, 8), (2, 3, 2, 4), (2, 3, 2, 8)),
        ((2, 3, 4), (2, 3, 2, 8), (2, 3, 2, 8)),
    ],
)
def test_shapes_that_do_not_belong_together(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(SpecError):
        reference.attention_f64(*(np.zeros(shape, np.float16) for shape in shapes))


class TestVerdict:
    """`compare` lets the yardstick pass, and catches one wrong element anywhere."""

    def judged(self, dtype: Any = np.float16) -> tuple[Any, Any]:
        q, k, v = operands(60, 45, dtype)
        return (
            reference.attention_f64(q, k, v, mask=causal()),
            reference.attention_yardstick(q, k, v, mask=causal()),
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_yardstick_passes(self, dtype: Any) -> None:
        truth, yardstick = self.judged(dtype)
        verdict = reference.compare(yardstick.o, yardstick.lse, truth, yardstick)
        assert verdict.ok and verdict.worst_ratio <= 0.5
        assert verdict.max_error == verdict.yardstick_error
        assert str(verdict).startswith("ok: O error")

    @pytest.mark.parametrize("index", [(0, 20, 0, 0), (1, 59, 3, 7)])
    def test_one_element_off(self, index: tuple[int, ...]) -> None:
        truth, yardstick = self.judged()
        o = yardstick.o.copy()
        own = np.abs(yardstick.o.astype(np.float64) - truth.o).max()
        o[index] = truth.o[index] + 3 * own + 2.0**-10 * abs(truth.o[index])
        verdict = reference.compare(o, yardstick.lse, truth, yardstick)
        assert (verdict.ok, verdict.wrong_count, verdict.worst_index) == (False, 1, index)
        assert "WRONG" in str(verdict)

    @pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
    def test_poison(self, poison: float) -> None:
        truth, yardstick = self.judged()
        o, lse = yardstick.o.copy(), yardstick.lse.copy()
        o[1, 30, 2, 5] = poison
        verdict = reference.compare(o, lse, truth, yardstick)
        assert verdict.wrong_count == 1 and verdict.max_error == np.inf
        lse[0, 0, 40] = poison
        assert reference.compare(o, lse, truth, yardstick).lse_wrong_count == 1

    def test_a_row_without_keys_must_be_zero(self) -> None:
        truth, yardstick = self.judged()
        o = yardstick.o.copy()
        o[0, 3, 0, 0] = 1e-7
        assert reference.compare(o, yardstick.lse, truth, yardstick).wrong_count == 1

    def test_lse(self) -> None:
        truth, yardstick = self.judged()
        lse = yardstick.lse.copy()
        lse[1, 2, 30] += 0.9e-3
        assert reference.compare(yardstick.o, lse, truth, yardstick).ok
        lse[1, 2, 30] += 0.3e-3
        lse[0, 0, 0] = 0.0
        verdict = reference.compare(yardstick.o, lse, truth, yardstick)
        assert verdict.lse_wrong_count == 2 and verdict.lse_error == np.inf

    def test_late_rows_are_not_excused_by_early_ones(self) -> None:
        random = np.random.default_rng(0)
        q, k, v = (random.standard_normal((1, 2048, 1, 8)).astype(np.float16) for _ in range(3))
        truth = reference.attention_f64(q, k, v, mask=causal())
        yardstick = reference.attention_yardstick(q, k, v, mask=causal())
        own = np.abs(yardstick.o.astype(np.float64) - truth.o)
        o = yardstick.o.copy()
        o[0, 2000, 0, 0] = truth.o[0, 2000, 0, 0] + own.max()
        assert own[0, 1984:2016].max() < own.max() / 3
        assert not reference.compare(o, yardstick.lse, truth, yardstick).ok

    def test_no_elements(self) -> None:
        q, k, v = operands(0, 4, np.float16)
        empty = reference.check_attention(q, k, v, q, np.zeros((2, 4, 0), np.float32))
        assert empty.ok and empty.worst_index is None

    def test_shapes_and_dtypes(self) -> None:
        truth, yardstick = self.judged()
        with pytest.raises(SpecError, match="must have the shapes"):
            reference.compare(yardstick.o[:1], None, truth, yardstick)
        with pytest.raises(SpecError, match="o has dtype float64"):
            reference.compare(yardstick.o.astype(np.float64), None, truth, yardstick)

    def test_without_lse(self) -> None:
        truth, yardstick = self.judged()
        assert reference.compare(yardstick.o, None, truth, yardstick).lse_error == 0.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mask": "causal"}, "mask must be made by attn_mlir.masks, got str"),
        ({"mask": np.ones((5, 3), bool)}, "mask must be made by attn_mlir.masks, got ndarray"),
        ({"q": [1.0]}, "q must be a numpy array, got list"),
        ({"scale": "x"}, "scale must be a number, got 'x'"),
        ({"scale": float("nan")}, "scale must be finite, got nan"),
        ({"scale": -np.inf}, "scale must be finite, got -inf"),
        ({"sinks": np.zeros(7, np.float32)}, r"sinks must be \[\d\], one for each head, got \[7\]"),
        ({"sinks": np.zeros((), np.float32)}, r"sinks must be \[\d\], one for each head, got \[\]"),
        ({"k_descale": np.ones((3, 3))}, "k_descale must be numbers of shape"),
        ({"v_descale": "a"}, "v_descale must be numbers of shape"),
    ],
)
def test_a_wrong_argument_is_named(changed: dict[str, Any], message: str) -> None:
    q, k, v = operands(5, 3, np.float16)
    with pytest.raises(SpecError, match=message):
        reference.attention_f64(**{"q": q, "k": k, "v": v, **changed})


def test_rounding_table() -> None:
    for name, (relative, absolute) in verdict.ROUNDING.items():
        info = ml_dtypes.finfo(name)
        assert relative == float(info.eps) / 2
        assert absolute == float(info.smallest_subnormal) / 2


def test_the_yardstick_of_mla_has_the_mask() -> None:
    random = np.random.default_rng(0)
    nope, rope, v = (random.standard_normal((1, 3, 2, 8)).astype(np.float16) for _ in range(3))
    operands = (nope, rope, nope, rope[:, :, :1], v)
    found = mla_yardstick(*operands, scale=0.25, mask=causal())
    assert np.array_equal(found.o[:, 0], v[:, 0].astype(found.o.dtype))


def test_scales_of_queries_in_mla_are_of_rows_or_of_rows_and_heads() -> None:
    random = np.random.default_rng(0)
    nope, rope, v = (random.standard_normal((1, 3, 2, 8)).astype(np.float16) for _ in range(3))
    scales = np.array([[1.0, 2.0, 4.0]], np.float32)
    found = [
        mla_yardstick(nope, rope, nope, rope[:, :, :1], v, scale=0.25, q_descale=given).o
        for given in (scales, np.repeat(scales[..., None], 2, axis=2))
    ]
    assert np.array_equal(*found)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_the_judge_counts_the_scales_that_it_is_given(name: str) -> None:
    """Truth and yardstick of a call with a scale of 2 are those of operands that are twice as large."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 5, 2, 16)).astype(np.float32) for _ in range(3))
    given = {"q": q, "k": k, "v": v}
    doubled = given | {name[0]: 2 * given[name[0]]}
    o = mha_module.attention_f64(*doubled.values()).o.astype(np.float32)
    assert verdict.check_attention(q, k, v, o, None, **{name: np.full(1, 2, np.float32)}).ok  # pyright: ignore
    assert not verdict.check_attention(q, k, v, o, None).ok
