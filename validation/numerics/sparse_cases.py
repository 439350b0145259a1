"""Problems of sparse latent attention, and what is wrong with a result: FlashMLA's tests in small.

So are the inputs: strided tensors, entries that do not count drawn from the numbers that it draws, and
rows of the cache that nothing names filled with NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attn_mlir.reference.sparse_mla import (
    SparseAttention,
    check_sparse_mla,
    counting,
    sparse_mla_f64,
)

BF16: Any = ml_dtypes.bfloat16
SCALE = 0.5
LINE_LIMITS = (1e-6, 2.01 / 65536)  # absolute and relative, of LSE and of the largest logits
FILLERS = (
    -(2**31),
    -123456,
    -1,
    114514,
    1919810,
    2147480000,
    2**31 - 1,
)  # and the first row too many


class Case(NamedTuple):
    """Sizes and features of a problem; the names are FlashMLA's."""

    s_q: int = 1
    s_kv: int = 128
    topk: int = 128
    heads: int = 64
    d_qk: int = 576
    lengths: bool = False
    sinks: bool = False
    empty: bool = False  # queries without an entry that counts


def strided(array: NDArray[Any], room: int = 64) -> NDArray[Any]:
    """The same numbers in memory whose rows lie apart."""
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + room), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def problem(case: Case, seed: int = 0) -> dict[str, Any]:
    """The arguments of a call."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> NDArray[Any]:
        numbers = random.standard_normal(shape) / 10 + random.uniform(-0.05, 0.05)
        return numbers.clip(-10, 10).astype(BF16)

    fillers = np.array([*FILLERS, case.s_kv], np.int64)
    indices = random.choice(fillers, (case.s_q, case.topk))
    count = min(case.topk, case.s_kv)
    for row in indices:
        row[:count] = random.permutation(case.s_kv)[:count]
        random.shuffle(row)
    if case.empty:
        indices[::2] = random.choice(fillers, indices[::2].shape)
    options: dict[str, Any] = {"scale": SCALE}
    if case.lengths:
        most = max(case.topk, 63) + 1
        options["topk_length"] = random.integers(0, most, case.s_q).clip(0, case.topk).astype("i4")
    if case.sinks:
        sinks = random.standard_normal(case.heads).astype(np.float32)
        sinks[random.random(case.heads) < 0.3] = np.inf
        sinks[random.random(case.heads) < 0.3] = -np.inf
        options["sinks"] = sinks
    kv = drawn(case.s_kv, case.d_qk)
    named = np.concatenate(counting(indices, case.s_kv, options.get("topk_length")))
    kv[np.setdiff1d(np.arange(case.s_kv), named)] = np.nan
    return {
        "q": strided(drawn(case.s_q, case.heads, case.d_qk)),
        "kv": strided(kv)[:, None],
        "indices": strided(indices.astype(np.int32), 4),
        **options,
    }


def agrees(given: NDArray[Any], truth: NDArray[Any], absolute: float, relative: float) -> bool:
    """FlashMLA's comparison of an output with its reference."""
    given, truth = given.astype(np.float64), truth.astype(np.float64)
    is_finite = np.isfinite(truth)
    if not np.array_equal(given[~is_finite], truth[~is_finite], equal_nan=True):
        return False
    given, truth = given[is_finite], truth[is_finite]
    error = np.abs(given - truth)
    close = (error < absolute) | (error / (np.abs(truth) + 1e-6) < relative)
    squares = (given**2 + truth**2).sum()
    apart = 1 - 2 * (given * truth).sum() / squares if (truth**2).sum() >= 1e-12 else 0.0
    return bool(close.all()) and abs(apart) < 7e-6


def wrong(given: dict[str, Any], found: SparseAttention) -> str:
    """What is wrong with a result, by our measure or by FlashMLA's; nothing where every element is right.

    Args:
      given: the arguments of the call, without pages.
    """
    plain = {**given, "kv": given["kv"][:, 0]}
    reasons = [str(verdict) for verdict in check_sparse_mla(found, **plain) if not verdict.ok]
    truth = sparse_mla_f64(**plain)
    limits = {"o": (8e-4, 3.01 / 128), "lse": LINE_LIMITS, "max_logits": LINE_LIMITS}
    for name, tolerances in limits.items():
        if not agrees(getattr(found, name), getattr(truth, name), *tolerances):
            reasons.append(f"{name} is not within FlashMLA's tolerances")
    return "; ".join(reasons)
