"""Latent attention after absorption: the formulas of `mha` and of `sparse_mla` over rows of a latent cache.

A row is a key, and its first 512 columns are the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.masks import Mask
from attn_mlir.reference.mha import Attention, attention_f64, attention_yardstick
from attn_mlir.reference.sparse_mla import (
    V_DIM,
    SparseAttention,
    sparse_mla_f64,
    sparse_mla_yardstick,
)
from attn_mlir.reference.verdict import Comparison, compare

Array = npt.NDArray[Any]


def mla_decode_f64(
    q: Array,
    kv: Array,
    *,
    scale: float,
    mask: Mask | None = None,
    indices: Array | None = None,
    topk_length: Array | None = None,
    sinks: Array | None = None,
) -> Attention:
    """The truth: softmax over the rows of each sequence, or over those that lists name, in float64.

    Args:
      q: [batch, sq, heads, head_dim].
      kv: [batch, sk, 1, head_dim], the sequences' rows; or with `indices` [rows, head_dim], all rows of
        the cache.
      scale: of the scores.
      mask: which rows of its sequence a query sees; all of them when left out.
      indices: [batch, sq, topk]; entries that are no rows do not count.
      topk_length: [batch, sq], how many entries of each list count; all of them when left out.
      sinks: [heads], logits of a key without a value, which counts in O alone.

    Returns:
      O as [batch, sq, heads, 512] and LSE as [batch, heads, sq]; 0 and -inf for a query without a key.

    Raises:
      SpecError: shapes that do not belong together.
    """
    if indices is None:
        return attention_f64(q, kv, kv[..., :V_DIM], scale=scale, mask=mask, sinks=sinks)
    return _listed(sparse_mla_f64, q, kv, indices, topk_length, sinks, scale)


def mla_decode_yardstick(
    q: Array,
    kv: Array,
    *,
    scale: float,
    mask: Mask | None = None,
    indices: Array | None = None,
    topk_length: Array | None = None,
    sinks: Array | None = None,
) -> Attention:
    """The same in a kernel's types: P rounded to q's dtype, O to it at the end, as of `mla_decode_f64`."""
    if indices is None:
        return attention_yardstick(q, kv, kv[..., :V_DIM], scale=scale, mask=mask, sinks=sinks)
    return _listed(sparse_mla_yardstick, q, kv, indices, topk_length, sinks, scale)


def check_mla_decode(q: Array, kv: Array, o: Array, lse: Array, **options: Any) -> Comparison:
    """Judges every element that a kernel has written.

    Args:
      q, kv: the operands.
      o, lse: the kernel's results.
      options: of `mla_decode_f64`, as its other arguments.
    """
    truth, yardstick = (f(q, kv, **options) for f in (mla_decode_f64, mla_decode_yardstick))
    return compare(o, lse, truth, yardstick)


def _listed(
    formula: Callable[..., SparseAttention],
    q: Array,
    kv: Array,
    indices: Array,
    topk_length: Array | None,
    sinks: Array | None,
    scale: float,
) -> Attention:
    """A formula of single queries for those of all sequences."""
    batch, sq, *row = q.shape
    lengths = None if topk_length is None else np.reshape(topk_length, -1)
    found = formula(
        q.reshape(batch * sq, *row),
        kv,
        np.reshape(indices, (batch * sq, indices.shape[-1])),
        scale=scale,
        topk_length=lengths,
        sinks=sinks,
    )
    heads = q.shape[2]
    lse = found.lse.reshape(batch, sq, heads).transpose(0, 2, 1)
    return Attention(found.o.reshape(batch, sq, heads, V_DIM), lse)
