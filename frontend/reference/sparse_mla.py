"""Sparse latent attention: one formula, in float64 (the truth) and in a kernel's types (the
yardstick).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from attn_mlir.reference.arithmetic import EXACT, KERNEL, Arithmetic
from attn_mlir.reference.mha import Attention
from attn_mlir.reference.verdict import Comparison, compare

Array = npt.NDArray[Any]

BF16 = np.dtype(ml_dtypes.bfloat16)
V_DIM = 512  # columns of a row of the cache that are its value


@dataclass(frozen=True)
class SparseAttention:
    """The results of sparse latent attention.

    Attributes:
      o: [s_q, heads, 512]; 0 for a query without an entry that counts.
      lse, max_logits: [s_q, heads], natural logarithms without the sink; -inf for such a query.
    """

    o: Array
    lse: Array
    max_logits: Array


def counting(
    indices: Array, rows: int, topk_length: Array | None = None
) -> list[npt.NDArray[np.int64]]:
    """For each query the rows of the cache that its list names, without entries that do not count.

    Args:
      indices: [s_q, topk].
      rows: of the cache.
      topk_length: [s_q], how many entries of each list count; all if None.
    """
    rows_of_query: list[npt.NDArray[np.int64]] = []
    for number, entries in enumerate(np.asarray(indices, np.int64)):
        if topk_length is not None:
            entries = entries[: max(int(topk_length[number]), 0)]
        rows_of_query.append(entries[(entries >= 0) & (entries < rows)])
    return rows_of_query


def of_pages(
    indices: Array, page_table: Array, batch_of_query: Array, page_size: int, pages: int
) -> npt.NDArray[np.int64]:
    """Positions of sequences as rows of pages, -1 where there is no such row.

    Args:
      indices: [s_q, topk], positions of the sequence of each query.
      page_table: [batch, columns]; batch_of_query: [s_q].
      page_size: rows of each of the `pages`.
    """
    rows = np.full(indices.shape, -1, np.int64)
    for (query, entry), position in np.ndenumerate(np.asarray(indices, np.int64)):
        sequence, column = int(batch_of_query[query]), int(position) // page_size
        if 0 <= sequence < len(page_table) and 0 <= column < page_table.shape[1]:
            number = int(page_table[sequence, column])
            if 0 <= number < pages:
                rows[query, entry] = number * page_size + position % page_size
    return rows


def sparse_mla_f64(q: Array, kv: Array, indices: Array, **options: Any) -> SparseAttention:
    """The truth: `sparse_mla` in float64; options as there."""
    return sparse_mla(EXACT, q, kv, indices, **options)


def sparse_mla_yardstick(
    q: Array, kv: Array, indices: Array, *, out_dtype: npt.DTypeLike | None = None, **options: Any
) -> SparseAttention:
    """`sparse_mla` in a kernel's types: float32, P rounded as that of `attention_yardstick` is.

    Args:
      out_dtype: of O; q's when left out, or bf16 where that has 8 bits.
    """
    return sparse_mla(replace(KERNEL, o=out_dtype), q, kv, indices, **options)


def sparse_mla(
    types: Arithmetic,
    q: Array,
    kv: Array,
    indices: Array,
    *,
    scale: float,
    topk_length: Array | None = None,
    sinks: Array | None = None,
) -> SparseAttention:
    """The formula: softmax over the rows that each list names.

    Args:
      types: that it computes in; P has q's dtype if they name none, and O one of 16 bits.
      q: [s_q, heads, head_dim].
      kv: [rows, head_dim], of which the first 512 columns are values.
      indices, topk_length: as of `counting`.
      scale: of the scores.
      sinks: [heads], logits of a key without a value, which counts in O alone.
    """
    types = types.settled(q.dtype, BF16 if q.dtype.itemsize == 1 else q.dtype)
    number, shape = types.scalar, q.shape[:2]
    o = np.zeros((*shape, V_DIM), types.o)
    lse, top = (np.full(shape, -np.inf, number) for _ in range(2))
    for row, entries in enumerate(counting(indices, len(kv), topk_length)):
        if not len(entries):
            continue
        scores = types.scores(q[row], kv[entries]) * number(scale)
        top[row] = scores.max(1)
        weights = np.exp(scores - top[row][:, None])
        total: Array = weights.sum(1, dtype=number)
        lse[row] = top[row] + np.log(total)
        if sinks is not None:
            with np.errstate(over="ignore"):
                total = total + np.exp(sinks.astype(number) - top[row])
        product = types.product(weights, kv[entries, :V_DIM])
        o[row] = (product / total[:, None]).astype(o.dtype)
    return SparseAttention(o, lse, top)


def check_sparse_mla(
    result: SparseAttention, q: Array, kv: Array, indices: Array, **options: Any
) -> tuple[Comparison, Comparison]:
    """Judge every element that a kernel has written.

    Args:
      result: the kernel's.
      kv: [rows, head_dim]; rows of more than q's precision, as `latent_rows.rows_f64` finds them,
        are the truth as they are, and rounded in the yardstick.
      options: of `sparse_mla`, as its other arguments.

    Returns:
      The verdict on O and LSE, and one on the largest logits in the place of LSE.
    """
    truth = sparse_mla_f64(q, kv, indices, **options)
    rounded_rows = kv.astype(q.dtype)
    yardstick = sparse_mla_yardstick(q, rounded_rows, indices, **options, out_dtype=result.o.dtype)

    def verdict(of_rows: str) -> Comparison:
        """On O and one of the numbers of each row."""
        lines: list[Array] = [getattr(x, of_rows).T[None] for x in (result, truth, yardstick)]
        right, rounded = (
            Attention(x.o[None], line)
            for x, line in zip((truth, yardstick), lines[1:], strict=True)
        )
        return compare(result.o[None], lines[0], right, rounded)

    return verdict("lse"), verdict("max_logits")
