"""Takes batches of unequal lengths apart: each sequence as a batch of one, for the formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.reference.caches import sequence_kv

Array = npt.NDArray[Any]


class Sequence(NamedTuple):
    """One sequence of a batch.

    Attributes:
      batch: its number.
      q, k, v: [1, positions, heads, columns], views of the operands.
      o: index of its rows in O: `o[sequence.o]` is [positions, heads, columns].
      lse: index of its rows in LSE: `lse[sequence.lse]` is [heads, positions].
    """

    batch: int
    q: Array
    k: Array
    v: Array
    o: tuple[Any, ...]
    lse: tuple[Any, ...]


def sequences(
    q: Array,
    k: Array | ContiguousKV | PagedKV,
    v: Array | None = None,
    *,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    cache_seqlens: Array | None = None,
) -> Iterator[Sequence]:
    """The sequences of operands that are stored as these arguments of `attention` say.

    k may be a cache, with v None.

    Masks depend on each sequence's own lengths: query i of n is at the key position i + m - n among
    m keys. Pass `first_batch=sequence.batch` to the formulas.
    """
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    for b in range(batch):
        used = None if seqused_q is None else int(seqused_q[b])
        index_q = _index(q, b, cu_seqlens_q, used)
        rows = q[index_q]
        if isinstance(k, (ContiguousKV, PagedKV)):
            keys, values = sequence_kv(k, b, len(rows))
        else:
            assert v is not None
            used = None if seqused_k is None else int(seqused_k[b])
            if cache_seqlens is not None:
                used = int(cache_seqlens[b]) + len(rows)
            index_k = _index(k, b, cu_seqlens_k, used)
            keys, values = k[index_k], v[index_k]
        *lead, span = index_q
        operands = (rows[None], keys[None], values[None])
        yield Sequence(b, *operands, index_q, (*lead, np.s_[:], span))


def _index(tensor: Array, b: int, offsets: Array | None, used: int | None) -> tuple[Any, ...]:
    """Index of a sequence's positions."""
    if offsets is None:
        return (b, slice(0, tensor.shape[1] if used is None else used))
    begin, end = int(offsets[b]), int(offsets[b + 1])
    return (slice(begin, end if used is None else begin + used),)
