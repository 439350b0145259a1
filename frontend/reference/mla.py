"""Latent attention before absorption: the formula of `mha` over rows of two parts side by side.

Depth-wise a score is one sum over nope and rope columns, as a kernel adds it up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attn_mlir.masks import Mask
from attn_mlir.reference.arithmetic import EXACT, KERNEL, Arithmetic
from attn_mlir.reference.gradients import attention_backward_f64
from attn_mlir.reference.mha import Attention, attention
from attn_mlir.trace import ScoreMod

Array = npt.NDArray[Any]


def mla_f64(*operands: Array, **options: Any) -> Attention:
    """The truth: `mla` in float64; arguments as there."""
    return mla(EXACT, *operands, **options)


def mla_yardstick(
    *operands: Array, out_dtype: npt.DTypeLike | None = None, **options: Any
) -> Attention:
    """`mla` in a kernel's types: arguments as there,
    and `out_dtype` as of `attention_yardstick`.
    """
    return mla(replace(KERNEL, o=out_dtype), *operands, **options)


class MlaGradients(NamedTuple):
    """The gradients of the operands of `mla`, each of its operand's shape."""

    dq_nope: Array
    dq_rope: Array
    dk_nope: Array
    dk_rope: Array
    dv: Array


def mla_backward_f64(
    q_nope: Array,
    q_rope: Array,
    k_nope: Array,
    k_rope: Array,
    v: Array,
    *results: Array,
    scale: float,
    **options: Any,
) -> MlaGradients:
    """The formula of `attn_mlir.mla_backward`: the gradients of attention over rows of nope and
    rope concatenated; the gradient of k_rope is summed over heads.

    Args:
      q_nope, q_rope, k_nope, k_rope, v, scale: as of `mla`.
      results: o, lse and do, as of `attention_backward_f64`.
      options: `mask` and `dlse`, as of `attention_backward_f64`.

    Raises:
      SpecError: as of `attention_backward_f64`.
    """
    q, k = side_by_side(q_nope, q_rope), side_by_side(k_nope, k_rope)
    dq, dk, dv, *_ = attention_backward_f64(q, k, v, *results, scale=scale, **options)
    nope = q_nope.shape[-1]
    dk_rope = dk[..., nope:].sum(2, keepdims=True)
    return MlaGradients(dq[..., :nope], dq[..., nope:], dk[..., :nope], dk_rope, dv)


def mla(
    types: Arithmetic,
    q_nope: Array,
    q_rope: Array,
    k_nope: Array,
    k_rope: Array,
    v: Array,
    *,
    scale: float,
    mask: Mask | None = None,
    k_rope_descale: Array | None = None,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
) -> Attention:
    """The formula: `softmax(scale * (q_nope k_nope^T + q_rope k_rope^T), mask) v`.

    Args:
      types: that it computes in; P has v's dtype if they name none.
      q_nope, q_rope: [batch, sq, heads, columns].
      k_nope: [batch, sk, kv_heads, columns of q_nope]; k_rope: [batch, sk, 1, columns of q_rope].
      v: [batch, sk, kv_heads, v_head_dim].
      scale: of the scores.
      mask: which keys a query sees; all of them when left out.
      k_rope_descale: [batch, sk], scales of k_rope.
      q_descale: [batch, sq, heads] or [batch, sq], of rows of q_nope and q_rope.
      k_descale: [batch, sk], of positions of k_nope and k_rope.
      v_descale: as of `attention`.

    Raises:
      SpecError: shapes that do not belong together.
    """
    k_rope = rope_in_bf16(k_rope, k_nope.dtype, k_rope_descale)
    q, k = side_by_side(q_nope, q_rope), side_by_side(k_nope, k_rope)
    options: dict[str, Any] = {"mask": mask, "scale": scale, "v_descale": v_descale}
    scaled = _scaled_scores(q, k, q_descale, k_descale)
    return attention(types.settled(v.dtype), q, k, v, score_mod=scaled, **options)


def _scaled_scores(
    q: Array, k: Array, q_descale: Array | None, k_descale: Array | None
) -> ScoreMod | None:
    """The scales of scores from scales of rows; None without any."""
    if q_descale is None and k_descale is None:
        return None
    ones = np.ones(1, np.float32)
    rows = np.asarray(ones if q_descale is None else q_descale)
    if rows.ndim == 2:
        rows = rows[..., None]
    of_rows = np.ascontiguousarray(np.broadcast_to(rows, q.shape[:-1]))
    of_keys = np.ascontiguousarray(
        np.broadcast_to(ones if k_descale is None else k_descale, k.shape[:2])
    )

    def scaled(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        return score * of_keys[batch, key] * of_rows[batch, row, head]

    return scaled


def rope_in_bf16(k_rope: Array, dtype: npt.DTypeLike, scales: Array | None) -> Array:
    """Rope of 8 bits, [batch, sk, 1, columns], times its scales [batch, sk], rounded to `dtype`:
    what a kernel multiplies queries with. Other rope as it is."""
    if k_rope.dtype == dtype or k_rope.dtype.itemsize > np.dtype(dtype).itemsize:
        return k_rope
    widened = k_rope.astype(np.float32)
    if scales is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            widened = widened * scales[..., None, None].astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return widened.astype(dtype)


def side_by_side(nope: Array, rope: Array) -> Array:
    """Rows [..., heads, nope + rope columns]; one head of rope stands for all."""
    if nope.dtype != rope.dtype:
        nope, rope = nope.astype(np.float32), rope.astype(np.float32)
    shared = np.broadcast_to(rope, (*nope.shape[:-1], rope.shape[-1]))
    return np.concatenate([nope, shared], axis=-1)
