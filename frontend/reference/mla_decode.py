"""Latent attention after absorption: the formula of `mha` or of `sparse_mla` over rows of a latent
cache.

A row is a key, and its first 512 columns are the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.masks import Mask
from attn_mlir.reference.arithmetic import EXACT, KERNEL, Arithmetic
from attn_mlir.reference.mha import Attention, attention
from attn_mlir.reference.sparse_mla import V_DIM, sparse_mla
from attn_mlir.reference.verdict import Comparison, compare

Array = npt.NDArray[Any]


def mla_decode_f64(q: Array, kv: Array, **options: Any) -> Attention:
    """The truth: `mla_decode` in float64; options as there."""
    return mla_decode(EXACT, q, kv, **options)


def mla_decode_yardstick(q: Array, kv: Array, **options: Any) -> Attention:
    """`mla_decode` in a kernel's types: P rounded to q's dtype, O to it at the end."""
    return mla_decode(KERNEL, q, kv, **options)


def mla_decode(
    types: Arithmetic,
    q: Array,
    kv: Array,
    *,
    scale: float,
    mask: Mask | None = None,
    indices: Array | None = None,
    topk_length: Array | None = None,
    sinks: Array | None = None,
) -> Attention:
    """The formula: softmax over the rows of each sequence, or over those that lists name.

    Args:
      types: that it computes in.
      q: [batch, sq, heads, head_dim].
      kv: [batch, sk, 1, head_dim], the sequences' rows; or with `indices` [rows, head_dim], all
        rows of the cache.
      scale: of the scores.
      mask: which rows of its sequence a query sees; all of them when left out.
      indices: [batch, sq, topk]; entries that are no rows do not count.
      topk_length: [batch, sq], how many entries of each list count; all of them when left out.
      sinks: [heads], logits of a key without a value, which counts in O alone.

    Returns:
      O as [batch, sq, heads, 512] and LSE as [batch, heads, sq]; 0 and -inf for a query without a
      key.

    Raises:
      SpecError: shapes that do not belong together.
    """
    if indices is None:
        return attention(types, q, kv, kv[..., :V_DIM], scale=scale, mask=mask, sinks=sinks)
    batch, sq, heads, columns = q.shape
    result = sparse_mla(
        types,
        q.reshape(batch * sq, heads, columns),
        kv,
        np.reshape(indices, (batch * sq, indices.shape[-1])),
        scale=scale,
        topk_length=None if topk_length is None else np.reshape(topk_length, -1),
        sinks=sinks,
    )
    lse = result.lse.reshape(batch, sq, heads).transpose(0, 2, 1)
    return Attention(result.o.reshape(batch, sq, heads, V_DIM), lse)


def check_mla_decode(q: Array, kv: Array, o: Array, lse: Array, **options: Any) -> Comparison:
    """Judges every element that a kernel has written.

    Args:
      q, kv: the operands.
      o, lse: the kernel's results.
      options: of `mla_decode`, as its other arguments.
    """
    truth, yardstick = (f(q, kv, **options) for f in (mla_decode_f64, mla_decode_yardstick))
    return compare(o, lse, truth, yardstick)
