"""Compressed rows of pages by lengths, which may end before the pages that are listed do."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.options import indices
from attn_mlir.runtime.call.scalars import integer

torch: Any = importlib.import_module("torch")


def rows_by_lengths(
    kv_indptr: Any, kv_indices: Any, kv_len_arr: Any, page_size: object
) -> tuple[Any, Any, Any]:
    """The pages that lengths need, which are read back.

    Args:
      kv_indptr: [batch + 1], sequence b has the pages kv_indices[kv_indptr[b]:kv_indptr[b + 1]].
      kv_indices: [entries]; kv_len_arr: [batch], positions of each sequence.
      page_size: positions of a page.

    Returns:
      Offsets, entries and positions in last pages, of i32 in host memory.

    Raises:
      SpecError: names the argument and the sequence.
    """
    size = integer("page_size", page_size, 1)
    offsets = indices(kv_indptr, "kv_indptr").tolist()
    entries = indices(kv_indices, "kv_indices").cpu()
    lengths = indices(kv_len_arr, "kv_len_arr").tolist()
    if len(offsets) != len(lengths) + 1:
        raise SpecError(f"kv_indptr must have {len(lengths) + 1} entries, got {len(offsets)}")
    if offsets[0] != 0 or offsets[-1] > len(entries):
        raise SpecError(
            f"kv_indptr goes from {offsets[0]} to {offsets[-1]}: kv_indices has entries 0 to "
            f"{len(entries)}"
        )
    counts: list[int] = []
    for b, ((begin, end), length) in enumerate(
        zip(itertools.pairwise(offsets), lengths, strict=True)
    ):
        if end < begin:
            raise SpecError(f"kv_indptr must not decrease: sequence {b} has {end - begin} pages")
        if not 0 <= length <= (end - begin) * size:
            raise SpecError(
                f"kv_len_arr[{b}] is {length}: the {end - begin} pages of sequence {b} have "
                f"{(end - begin) * size} positions"
            )
        counts.append(-(-length // size))
    used = [entries[x : x + n] for x, n in zip(offsets[:-1], counts, strict=True)]
    last = [(n - 1) % size + 1 if n else 0 for n in lengths]
    ends = [0, *itertools.accumulate(counts)]
    return (
        torch.tensor(ends, dtype=torch.int32),
        torch.cat([entries[:0], *used]),
        torch.tensor(last, dtype=torch.int32),
    )
