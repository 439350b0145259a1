"""The gradients of multi-head attention in float64, from what the caller gives of its results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask, full
from attn_mlir.reference.mha import blocks, check_operands

Array = npt.NDArray[Any]


class AttentionGradients(NamedTuple):
    """The gradients of q, k and v, each of the shape of its operand."""

    dq: Array
    dk: Array
    dv: Array


def attention_backward_f64(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    *,
    dlse: Array | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
) -> AttentionGradients:
    """The formula of `attn_mlir.attention_backward`, whatever the operands' dtype:

        p[i, j] = e^(scale x q[i] . k[j] - lse[i]) where i sees j, else 0
        delta[i] = o[i] . do[i] - dlse[i], and 0 where LSE is -inf
        ds[i, j] = p[i, j] (do[i] . v[j] - delta[i])
        dq = scale x ds k        dk = scale x ds^T q        dv = p^T do

    Args:
      q, k, v, mask, scale: as of `attention_f64`.
      o, lse: as that returns them, in any precision.
      do, dlse: as o and lse: their gradients; that of the LSE is 0 if None.

    Raises:
      SpecError: as `attention_f64`, or a result or gradient of another shape than its own.
    """
    factor = check_operands(q, k, v, mask, scale)
    dlse = np.zeros(np.shape(lse)) if dlse is None else dlse
    rows, numbers = (*q.shape[:3], v.shape[3]), (q.shape[0], q.shape[2], q.shape[1])
    named = {"o": (o, rows), "do": (do, rows), "lse": (lse, numbers), "dlse": (dlse, numbers)}
    for name, (array, shape) in named.items():
        if np.shape(array) != shape:
            raise SpecError(f"{name} must be {list(shape)}, got {list(np.shape(array))}")
    q, k, v, o, do, lse, dlse = (x.astype(np.float64) for x in (q, k, v, o, do, lse, dlse))
    delta = np.where(lse == -np.inf, 0.0, (o * do).sum(3).transpose(0, 2, 1) - dlse)
    found = AttentionGradients(*map(np.zeros_like, (q, k, v)))
    for b, h, i, visible in blocks(q, k, [mask or full()] * len(q)):
        g = h // (q.shape[2] // k.shape[2])
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(factor * q[b, i, h] @ k[b, :, g].T - lse[b, h, i, None])
        p = np.where(visible, weights, 0.0)
        ds = p * (do[b, i, h] @ v[b, :, g].T - delta[b, h, i, None])
        found.dq[b, i, h] = factor * ds @ k[b, :, g]
        found.dk[b, :, g] += factor * ds.T @ q[b, i, h]
        found.dv[b, :, g] += p.T @ do[b, i, h]
    return found
