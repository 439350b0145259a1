"""Operands of each case, the truth in float64, the yardstick in the kernel's types, and the verdict.

The rule is the project's: every element of every output may be twice as wrong as the worst element that the same formula
in the kernel's types gets in its neighbourhood, plus the rounding of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.validation.conformance.cases import (
    FORMATS,
    Attention,
    Case,
    Combine,
    Gemm,
    ScaledGemm,
    TritonAttention,
    TritonGemm,
)
from attn_mlir.validation.conformance.formats import dequantised, random_operand
from attn_mlir.validation.conformance.formulas import (
    DTYPES,
    FORMULAS,
    TRUTH,
    YARDSTICK,
    Array,
)
from attn_mlir.validation.conformance.kernel import Kernel

FACTOR = 2.0
GROUP_ROWS = 16  # rows of an output whose yardstick errors count together
LSE_TOLERANCE = 1e-3  # absolute
ROUNDING = {
    "bf16": 2.0**-8,
    "f16": 2.0**-11,
    "f32": 2.0**-24,
    "e4m3": 2.0**-4,
    "e5m2": 2.0**-3,
}  # largest relative error, one half ulp


@dataclass(frozen=True)
class Verdict:
    """How one output compares with the truth.

    Attributes:
      error, yardstick: largest absolute errors of kernel and yardstick.
      ratio: largest error of an element divided by what it may be; at most 1 passes.
      wrong: elements that may not be as they are.
    """

    output: str
    error: float
    yardstick: float
    ratio: float
    wrong: int
    count: int

    @property
    def ok(self) -> bool:
        """Whether every element is right."""
        return self.wrong == 0

    def __str__(self) -> str:
        text = f"{self.output} {self.error:.2e} ({self.ratio:.2f} of what is allowed)"
        return text if self.ok else f"{text}, {self.wrong} of {self.count} elements wrong"


def operands(case: Case) -> dict[str, Array]:
    """Random inputs and poisoned outputs of a case, in memory order."""
    random = np.random.default_rng(0)
    if isinstance(case, Kernel):
        return FORMULAS[case.program].operands(case.sizes, random)

    def normal(shape: tuple[int, ...], dtype: str) -> Array:
        return random.standard_normal(shape, np.float32).astype(DTYPES[dtype])

    def nothing(shape: tuple[int, ...], dtype: str) -> Array:
        return np.full(shape, np.nan).astype(DTYPES[dtype])

    if isinstance(case, Attention):
        head_dim_v = case.head_dim_v or case.head_dim
        return {
            "q": normal((case.batch, case.sq, case.heads, case.head_dim), case.dtype),
            "k": normal((case.batch, case.sk, case.kv_heads, case.head_dim), case.dtype),
            "v": normal((case.batch, case.sk, case.kv_heads, head_dim_v), case.dtype),
            "o": nothing((case.batch, case.sq, case.heads, head_dim_v), case.dtype),
            "lse": nothing((case.batch, case.heads, case.sq), "f32"),
        }
    if isinstance(case, Combine):
        shape = (case.batch, case.sq, case.heads, case.head_dim)
        lse_partial = normal((case.splits, case.batch, case.heads, case.sq), "f32")
        if case.empty_splits:
            rank = random.permuted(
                np.arange(case.splits)[:, None, None, None] + 0 * lse_partial, axis=0
            )
            lse_partial[rank < case.empty_splits] = -np.inf
        return {
            "o_partial": normal((case.splits, *shape), "f32"),
            "lse_partial": lse_partial,
            "o": nothing(shape, case.dtype),
            "lse": nothing((case.batch, case.heads, case.sq), "f32"),
        }
    if isinstance(case, Gemm):

        def operand(rows: int) -> Array:
            inner = (case.k, rows) if case.m_major else (rows, case.k)
            return normal((case.batch, *inner), case.dtype)

        d = (case.batch, case.m, case.n)
        result = {"a": operand(case.m), "b": operand(case.n), "d": nothing(d, case.out_dtype)}
        if case.add:
            result["c"] = normal(d, case.out_dtype)
        return result
    if isinstance(case, ScaledGemm):
        result = {"d": nothing((case.batch, case.m, case.n), case.out_dtype)}
        for name, form, rows in zip("ab", case.formats, (case.m, case.n), strict=True):
            shape = (case.batch, rows, case.k)
            result[name], result[f"{name}_scale"] = random_operand(random, FORMATS[form], shape)
        return result
    if isinstance(case, TritonGemm):
        return {
            "a": normal((case.m, case.k), case.dtype),
            "b": normal((case.k, case.n), case.dtype),
            "d": nothing((case.m, case.n), case.dtype),
        }
    shape = (case.batch, case.heads, case.length, case.head_dim)
    return {
        **{name: normal(shape, case.dtype) for name in "qkv"},
        "o": nothing(shape, case.dtype),
        "lse": nothing(shape[:3], "f32"),
    }


def judge(case: Case, arrays: dict[str, Array]) -> list[Verdict]:
    """A verdict per output.

    Args:
      arrays: operands as `operands` gave them, outputs as the kernel left them.
    """
    if isinstance(case, Kernel):
        return _judge_formula(case, arrays)
    if isinstance(case, Attention):
        return _judge_attention(case, arrays)
    if isinstance(case, TritonAttention):
        turned = {name: arrays[name].transpose(0, 2, 1, 3) for name in "qkvo"}
        return _judge_attention(
            Attention(
                case.name, case.batch, case.heads, case.heads, case.length, case.length, case.head_dim,
                dtype=case.dtype, is_causal=case.is_causal,
            ),
            {**turned, "lse": arrays["lse"]},
        )  # fmt: skip
    if isinstance(case, Combine):
        return _judge_combine(case, arrays)
    a, b = arrays["a"], arrays["b"]
    if isinstance(case, ScaledGemm):
        out_dtype = case.out_dtype
        a, b = (
            dequantised(arrays[name], arrays[f"{name}_scale"], FORMATS[form], case.k)
            for name, form in zip("ab", case.formats, strict=True)
        )
        b = b.swapaxes(1, 2)
    elif isinstance(case, Gemm):
        out_dtype = case.out_dtype
        b = b if case.m_major else b.swapaxes(1, 2)
        a = a.swapaxes(1, 2) if case.m_major else a
    else:
        out_dtype = case.dtype
    truth = a.astype(np.float64) @ b.astype(np.float64)
    own = a.astype(np.float32) @ b.astype(np.float32)
    if "c" in arrays:
        truth += arrays["c"].astype(np.float64)
        own += arrays["c"].astype(np.float32)
    shape = (-1, case.m, case.n)
    return [_compare("D", *(x.reshape(shape) for x in (arrays["d"], own, truth)), out_dtype)]


def _judge_formula(case: Kernel, arrays: dict[str, Array]) -> list[Verdict]:
    formula = FORMULAS[case.program]
    given = operands(case)  # a kernel may work in place
    own = formula.outputs(case.sizes, given, YARDSTICK)
    seen = formula.seen(case.sizes, arrays)
    verdicts: list[Verdict] = []
    for name, truth in formula.outputs(case.sizes, given, TRUTH).items():
        got = seen[name]
        if got.dtype.kind in "iu":
            verdicts.append(_compare_exactly(name.upper(), got, truth))
        elif name in formula.tolerances:
            verdicts.append(_compare_closely(name.upper(), got, truth, formula.tolerances[name]))
        else:
            (dtype,) = (key for key, kind in DTYPES.items() if kind == got.dtype)
            rows = (-1, *truth.shape[-2:]) if truth.ndim > 1 else (1, -1, 1)
            parts = (x.reshape(rows) for x in (got, own[name], truth))
            verdicts.append(_compare(name.upper(), *parts, dtype))
    return verdicts


def _judge_attention(case: Attention, arrays: dict[str, Array]) -> list[Verdict]:
    """Softmax in float32, P rounded to the operands' type before the second product."""
    group = case.heads // case.kv_heads
    rows = np.arange(case.sq)[:, None] + (case.sk - case.sq)
    keys = np.arange(case.sk)[None, :]
    visible = np.ones((case.sq, case.sk), np.bool_)
    if case.is_causal:
        visible &= keys <= rows
    if case.window is not None:
        visible &= keys >= rows - case.window
    scale = case.head_dim**-0.5

    def formula(kind: type[np.floating[Any]]) -> tuple[Array, Array]:
        q, k, v = (arrays[name].astype(kind).transpose(0, 2, 1, 3) for name in "qkv")
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.where(visible, q @ k.swapaxes(2, 3) * kind(scale), kind(-np.inf))
        top = scores.max(axis=3, keepdims=True)
        p = np.exp(scores - np.where(np.isfinite(top), top, kind(0)))
        total = p.sum(axis=3, keepdims=True, dtype=kind)
        weights = p if kind is np.float64 else p.astype(DTYPES[case.dtype]).astype(kind)
        o = weights @ v / np.where(total == 0, kind(1), total)
        with np.errstate(divide="ignore"):
            return o.transpose(0, 2, 1, 3), (top + np.log(total))[..., 0]

    (truth, lse), (own, _) = formula(np.float64), formula(np.float32)

    def flat(x: Array) -> Array:
        return x.transpose(0, 2, 1, 3).reshape(-1, case.sq, x.shape[3])

    return [
        _compare("O", flat(arrays["o"]), flat(own), flat(truth), case.dtype),
        _compare_closely("LSE", arrays["lse"], lse, LSE_TOLERANCE),
    ]


def _judge_combine(case: Combine, arrays: dict[str, Array]) -> list[Verdict]:
    """Sum of exp(lse_s - lse) o_s over the splits; lse is the log of the sum of exponentials."""

    def formula(kind: type[np.floating[Any]]) -> tuple[Array, Array]:
        parts, lses = arrays["o_partial"].astype(kind), arrays["lse_partial"].astype(kind)
        top = lses.max(axis=0)
        weights = np.exp(lses - top)
        total = weights.sum(axis=0, dtype=kind)
        share = (weights / total).transpose(0, 1, 3, 2)[..., None]
        return (share * parts).sum(axis=0, dtype=kind), top + np.log(total)

    (truth, lse), (own, _) = formula(np.float64), formula(np.float32)

    def flat(x: Array) -> Array:
        return x.transpose(0, 2, 1, 3).reshape(-1, case.sq, case.head_dim)

    return [
        _compare("O", flat(arrays["o"]), flat(own), flat(truth), case.dtype),
        _compare_closely("LSE", arrays["lse"], lse, LSE_TOLERANCE),
    ]


def _compare(output: str, got: Array, own: Array, truth: Array, dtype: str) -> Verdict:
    """Judge [batch, rows, columns]; `own` is the yardstick before it is rounded to `dtype`."""
    yardstick = np.abs(own.astype(DTYPES[dtype]).astype(np.float64) - truth)
    batch, rows, columns = truth.shape
    groups = -(-rows // GROUP_ROWS)
    padded = np.zeros((batch, groups * GROUP_ROWS, columns))
    padded[:, :rows] = np.nan_to_num(yardstick)
    top = padded.reshape(batch, groups, -1).max(axis=2, initial=0.0)
    allowed = FACTOR * np.repeat(top, GROUP_ROWS, axis=1)[:, :rows, None]
    allowed = allowed + ROUNDING[dtype] * np.abs(truth)
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - truth)
    left = np.isnan(truth) & np.isnan(got.astype(np.float64))
    error[~np.isfinite(error)] = np.inf
    error[left] = 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(error == 0, 0.0, error / np.where(np.isnan(allowed), 0.0, allowed))
    return Verdict(
        output,
        float(error.max(initial=0.0)),
        float(yardstick.max(initial=0.0)),
        float(ratio.max(initial=0.0)),
        int(np.count_nonzero(ratio > 1.0)),
        int(got.size),
    )


def _compare_closely(output: str, got: Array, truth: Array, tolerance: float) -> Verdict:
    """By an absolute error; infinities have to be the same."""
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - truth)
    error[(got == truth) & np.isinf(truth)] = 0.0
    error[np.isnan(truth) & np.isnan(got)] = 0.0
    error[np.isnan(error)] = np.inf
    wrong = int(np.count_nonzero(error > tolerance))
    worst = float(error.max(initial=0.0))
    return Verdict(output, worst, tolerance, worst / tolerance, wrong, int(got.size))


def _compare_exactly(output: str, got: Array, truth: Array) -> Verdict:
    """Integers."""
    error = np.abs(got.astype(np.float64) - truth)
    wrong = int(np.count_nonzero(error))
    return Verdict(
        output, float(error.max(initial=0.0)), 0.0, float(wrong > 0), wrong, int(got.size)
    )
