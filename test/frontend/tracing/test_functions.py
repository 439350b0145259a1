"""Functions by name: what numpy, torch and `torch.nn.functional` compute is what their traces compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir import trace as tr
from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.evaluation import evaluate

Array = npt.NDArray[Any]

SIZES = (2, 3, 5, 7)
SCORES = np.random.default_rng(0).standard_normal(SIZES) * 3
SCORES[0, 0, 0] = [0.0, 1.0, -1.0, 30.0, -30.0, 0.5, 2.5]
AT = [np.arange(n).reshape([-1 if a == i else 1 for a in range(4)]) for i, n in enumerate(SIZES)]


def scored(mod: Any, scores: Array = SCORES) -> Array:
    program, arrays = tr.trace(mod)
    assert program is not None
    at = dict(zip(("score", "batch", "head", "q", "k"), (scores, *AT), strict=True))
    return np.asarray(evaluate(program, at, host_arrays(arrays)).score)


NUMPY: dict[str, Callable[..., Any]] = {
    "circular": lambda s, b, h, q, k: np.sin(s) + np.cos(q * 0.3),
    "logarithms": lambda s, b, h, q, k: np.log1p(abs(s)) + np.log10(abs(s) + 1) + np.expm1(s / 9),
    "rounding": lambda s, b, h, q, k: np.round(s) + np.rint(s) * 2 + np.trunc(s) + np.fix(s),
    "of integers": lambda s, b, h, q, k: s + np.round(q) + np.trunc(k) + np.sign(q - 2) * 3,
    "signs": lambda s, b, h, q, k: np.sign(s) + np.sign(k - 3),
    "floor division": lambda s, b, h, q, k: s // 0.7 + 5.0 // (abs(s) + 0.1) + (q - 2.5) // 2,
    "remainders": lambda s, b, h, q, k: s % 0.7 + s % -0.7 + np.fmod(s, 0.3) + np.fmod(q - 3, 2),
    "divmod": lambda s, b, h, q, k: s + divmod(q, 3)[0] * divmod(k, 2)[1] + divmod(7, q + 1)[1],
    "whole powers": lambda s, b, h, q, k: s**0 + s**2 + (abs(s) + 1) ** -2 + q**0 + s ** np.float32(3),
    "powers": lambda s, b, h, q, k: abs(s) ** 0.5 + abs(s) ** 2.5 + 0.9 ** (q - k) + abs(s) ** (q + 1),
    "inverse root": lambda s, b, h, q, k: (abs(s) + 1) ** -0.5 + np.power(abs(s), 17),
    "classes": lambda s, b, h, q, k: np.isnan(s) + np.isinf(s) * 2.0 + np.isfinite(s) * 4 + np.isfinite(q),
    "truth of integers": lambda s, b, h, q, k: s + np.logical_and(q, k) * 2 + np.logical_not(k),
    "nan to num": lambda s, b, h, q, k: np.nan_to_num(s) + np.nan_to_num(s * np.inf, nan=1, posinf=2, neginf=3),
    "log of a sum": lambda s, b, h, q, k: np.logaddexp(s, 1.0),
    "made like": lambda s, b, h, q, k: s + np.full_like(s, 2.5) + np.ndim(s) * 0,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPY)
def test_numpy(name: str) -> None:
    with np.errstate(all="ignore"):
        truth = NUMPY[name](SCORES, *AT)
    made = scored(NUMPY[name])
    if name == "nan to num":  # numpy's largest number is that of f64
        assert np.isfinite(made).all()
    np.testing.assert_allclose(made, truth, rtol=1e-12, atol=1e-14)


def test_infinities_and_nan() -> None:
    scores = np.full(SIZES, 1.0)
    scores[..., :4] = [np.inf, -np.inf, np.nan, 0.0]
    for name in ("classes", "signs"):
        with np.errstate(all="ignore"):
            truth = NUMPY[name](scores, *AT)
        np.testing.assert_array_equal(scored(NUMPY[name], scores), truth)
    made = scored(lambda s, b, h, q, k: np.minimum(s, 0.5) + np.maximum(0.5, s), scores)
    np.testing.assert_array_equal(made, np.minimum(scores, 0.5) + np.maximum(scores, 0.5))
    made = scored(lambda s, b, h, q, k: np.fmin(s, 0.5) + 2 * np.fmax(0.25, s), scores)
    np.testing.assert_array_equal(made, np.fmin(scores, 0.5) + 2 * np.fmax(scores, 0.25))
    made = scored(lambda s, b, h, q, k: np.nan_to_num(s, nan=5.0, neginf=-2.0), scores)
    assert made[0, 0, 0, :4].tolist() == [float(np.finfo(np.float32).max), -2.0, 5.0, 0.0]
    made = scored(lambda s, b, h, q, k: tr.softplus(s) + np.logaddexp(s, s), scores)
    assert made[0, 0, 0, :2].tolist() == [np.inf, -np.inf]


def test_protocols_of_python() -> None:
    made = scored(lambda s, b, h, q, k: math.floor(s) + math.ceil(s) + math.trunc(s) + round(s))
    truth = np.floor(SCORES) + np.ceil(SCORES) + np.trunc(SCORES) + np.rint(SCORES)
    np.testing.assert_array_equal(made, truth)


def test_our_own() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        x = (
            tr.sin(s)
            + tr.cos(s)
            + tr.erf(s)
            + tr.log1p(abs(s))
            + tr.expm1(-abs(s))
            + tr.power(abs(s), 1.5)
        )
        x = x + tr.round(s) + tr.trunc(s) + tr.sign(s) + tr.silu(s) + tr.softplus(s) + tr.gelu(s)
        return tr.where(tr.isfinite(s) & ~tr.isnan(s) & ~tr.isinf(s), x, 0.0)

    s = SCORES
    erf = np.vectorize(math.erf)
    truth = np.sin(s) + np.cos(s) + erf(s) + np.log1p(abs(s)) + np.expm1(-abs(s)) + abs(s) ** 1.5
    truth += np.rint(s) + np.trunc(s) + np.sign(s) + s / (1 + np.exp(-s)) + np.logaddexp(0, s)
    truth += s / 2 * (1 + erf(s / math.sqrt(2)))
    np.testing.assert_allclose(scored(mod), truth, rtol=1e-12, atol=1e-14)


def of_torch() -> dict[str, Callable[..., Any]]:
    """Modifiers in torch's words, by name."""
    torch: Any = pytest.importorskip("torch")
    F = torch.nn.functional
    return {
        "circular": lambda s, b, h, q, k: torch.sin(s) + s.cos() + torch.special.expit(s),
        "activations": lambda s, b, h, q, k: (
            F.gelu(s) + F.gelu(s, approximate="tanh") + F.silu(s) + F.relu(s) + F.sigmoid(s) + F.tanh(s)
            + F.softplus(s) + F.softplus(s, beta=2, threshold=1) + F.logsigmoid(s) + F.elu(s, 0.5)
            + F.leaky_relu(s) + F.relu6(s) + F.hardtanh(s, -0.5, 0.5) + torch.nn.GELU()(s)
        ),
        "bounds": lambda s, b, h, q, k: s.clamp_min(-1) + torch.clamp_max(s, 1) + s.clamp(max=0.5),
        "fills": lambda s, b, h, q, k: (
            s.masked_fill(q < k, -2.0) + torch.masked_fill(s, q > k, 1.0) + s.where(q > k, 0.0)
        ),
        "sums": lambda s, b, h, q, k: torch.add(s, q, alpha=2) - torch.sub(s, k, alpha=3) + torch.rsub(s, 1),
        "division": lambda s, b, h, q, k: (
            torch.div(s, 0.7, rounding_mode="floor") + torch.div(s, 0.7, rounding_mode="trunc")
            + torch.div(q - 3, 2, rounding_mode="trunc") + torch.div(q - 3, 2, rounding_mode="floor")
            + torch.floor_divide(q, 2) + torch.remainder(s, 0.7) + torch.fmod(s, -0.7)
        ),
        "rounding": lambda s, b, h, q, k: s.round() + s.trunc() + s.floor() + s.ceil() + s.sign(),
        "logarithms": lambda s, b, h, q, k: (
            s.abs().log1p() + torch.expm1(s / 9) + torch.logaddexp(s, s * 2) + torch.erf(s)
        ),
        "types": lambda s, b, h, q, k: (
            s.long() + q.to(s.dtype) / 2 + (q > k).float() + q.type_as(s) + s.to(torch.int32).double()
            + torch.full_like(s, 2) + s.new_tensor(1.5) + (s * 0.1).to(device="cpu", dtype=torch.int64)
        ),
        "limits": lambda s, b, h, q, k: torch.where(q >= k, s, torch.finfo(torch.float32).min / 1e30),
        "shape": lambda s, b, h, q, k: s + len(q.shape) * 0 + s.detach().clone(),
        "narrow": lambda s, b, h, q, k: s.half() + s.bfloat16(),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["circular", "activations", "bounds", "fills", "sums", "division",
                                  "rounding", "logarithms", "types", "limits", "shape", "narrow"])  # fmt: skip
def test_torch(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    mod = of_torch()[name]
    at = [torch.from_numpy(axis + np.zeros(SIZES, int)) for axis in AT]
    truth = mod(torch.from_numpy(SCORES), *at).double().numpy()
    rough = {"rtol": 1e-2} if name == "narrow" else {"rtol": 1e-6, "atol": 1e-8}
    np.testing.assert_allclose(np.broadcast_to(scored(mod), SIZES), truth, **rough)


def test_dtypes_are_those_of_the_library_in_use() -> None:
    torch: Any = pytest.importorskip("torch")

    def by_torch(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        assert (s.dtype, q.dtype, (q > k).dtype) == (torch.float32, torch.int32, torch.bool)
        return torch.where(q > k, s, torch.finfo(s.dtype).min)

    def by_numpy(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        assert (s.dtype, q.dtype) == (np.float32, np.int32)
        return np.where(q > k, s, np.finfo(s.dtype).min)

    np.testing.assert_array_equal(scored(by_torch), scored(by_numpy))


def test_erf_of_special_values() -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30])
    program, _ = tr.trace(lambda s, b, h, q, k: tr.erf(s))
    assert program is not None
    at = {"score": values, **dict.fromkeys(("batch", "head", "q", "k"), 0)}
    made = evaluate(program, at, {}).score
    np.testing.assert_allclose(made, list(map(math.erf, values)))
