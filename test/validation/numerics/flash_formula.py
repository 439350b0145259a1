"""What FlashAttention's functions mean, in float64 and one sequence at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def truth(
    queries: list[Array],
    keys: list[Array],
    values: list[Array],
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
    softmax_scale: float | None = None,
) -> tuple[list[Array], list[Array]]:
    """O [sq, heads, D] and LSE [heads, sq] of each sequence.

    Args:
      queries: [sq, heads, D] of each sequence.
      keys, values: [sk, kv_heads, D] of each.
      causal, window_size, attention_chunk, softcap, alibi_slopes, softmax_scale: as FlashAttention
        has them, the last query at the last key.
    """
    scale = queries[0].shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    outputs: list[Array] = []
    sums: list[Array] = []
    for q, k, v in zip(queries, keys, values, strict=True):
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (k, v))
        scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        own = np.arange(len(q))[:, None] + len(k) - len(q)
        column = np.arange(len(k))
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[:, None, None] * abs(own - column)
        left, right = window_size
        right = 0 if causal else right
        seen = np.ones(scores.shape[1:], bool)
        seen &= (column >= own - left) | (left < 0)
        seen &= (column <= own + right) | (right < 0)
        if attention_chunk:
            seen &= column // attention_chunk == own // attention_chunk
        scores = np.where(seen, scores, -np.inf)
        top = np.maximum(scores.max(-1, initial=-np.inf, keepdims=True), -1e30)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            sums.append((top + np.log(total))[..., 0])
        outputs.append(np.einsum("hqk,khd->qhd", weights / np.maximum(total, 1e-300), v))
    return outputs, sums


def check(found: tuple[Any, Any], want: tuple[list[Array], list[Array]]) -> None:
    """A padded result, O and LSE, or a ragged one, against each sequence's in bf16.

    Raises:
      AssertionError: an element is wrong.
    """
    o, lse = (np.asarray(x).astype(np.float64) for x in found)
    is_ragged = o.ndim == 3
    wanted_o = np.concatenate(want[0]) if is_ragged else np.stack(want[0])
    wanted_lse = np.concatenate(want[1], 1) if is_ragged else np.stack(want[1])
    assert o.shape == wanted_o.shape and lse.shape == wanted_lse.shape
    assert abs(o - wanted_o).max() < 0.02
    finite = np.isfinite(wanted_lse)
    assert (np.isfinite(lse) == finite).all()
    assert abs(lse[finite] - wanted_lse[finite]).max() < 0.01
