"""Compressed rows of pages: `plan` checks and keeps them, `run` makes a cache of them."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir.caches import PagedKV
from attn_mlir.compiling.splits import MAX_SPLITS
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.buffers import Buffers
from attn_mlir.flashinfer.options import indices, tensor
from attn_mlir.flashinfer.planned import CallScales, Problem
from attn_mlir.runtime.call.scalars import integer

torch: Any = importlib.import_module("torch")

BOTH = 2  # pools of a pair


@dataclass(frozen=True)
class PageLists:
    """The pages of all sequences that one `plan` gets.

    Attributes:
      page_size: positions of a page.
      rows: offsets, entries and positions in last pages, in i32.
      lengths: positions of each sequence.
      capacity: no sequence has more positions, whatever a captured graph finds in its buffers.
    """

    page_size: int
    rows: Sequence[Any]
    lengths: Sequence[int]
    capacity: int


class Pages:
    """The pages of all sequences, from `plan` to `run`.

    Args:
      arguments: names of the offsets, the entries and the numbers of positions in last pages, as
        arguments of `plan`; buffers: as the caller's buffers.
      index_tensors: of the wrapper.
      layout: NHD or HND.
    """

    def __init__(
        self,
        arguments: tuple[str, str, str],
        buffers: tuple[str, str, str],
        index_tensors: Buffers,
        layout: str,
    ):
        self._arguments, self._buffers, self._index_tensors, self._layout = (
            arguments,
            buffers,
            index_tensors,
            layout,
        )
        self._arrays: dict[str, Any] = {}
        self._size = 0
        self._table: tuple[Any, Any] | None = None  # of a captured graph: pages and lengths

    def checked(self, page_size: object, *lists: Any) -> PageLists:
        """The pages of a plan, which are read back.

        Args:
          lists: offsets [batch + 1], entries [pages of all] and positions in last pages [batch], on
            any device.

        Raises:
          SpecError: names the argument and the entry; or they do not fit the caller's buffers.
        """
        size = integer("page_size", page_size, 1)
        rows = [indices(x, name) for x, name in zip(lists, self._arguments, strict=True)]
        lengths = _lengths(self._arguments, rows, size)
        for name, value in zip(self._buffers, rows, strict=True):
            self._index_tensors.check(name, value, whole=name != self._buffers[1])
        buffers = self._index_tensors.external
        max_positions = None if buffers is None else buffers[self._buffers[1]].shape[0] * size
        return PageLists(
            size, rows, lengths, max(lengths, default=0) if max_positions is None else max_positions
        )

    def store(self, lists: PageLists, split_size: int | None) -> None:
        """Puts the index tensors where `run` finds them.

        Args:
          split_size: keys of a split. Its launch has to know the longest sequence, which compressed
            rows on a GPU do not tell, and a table does by its columns. That of a captured graph has
            room for all pages, or for as many splits as a kernel takes.

        Raises:
          SpecError: a table of a captured graph has too few columns.
        """
        columns = 0
        if split_size is not None:
            positions = min(lists.capacity, MAX_SPLITS * split_size)
            columns = max(-(-positions // lists.page_size), 1)
            if self._table is not None and self._table[0].shape[1] != columns:
                raise SpecError(
                    f"page_size and fixed_split_size make a table of {columns} columns, that of a "
                    f"wrapper for graphs stays {self._table[0].shape[1]}"
                )
        for name, value in zip(self._buffers, lists.rows, strict=True):
            self._index_tensors.store(name, value)
        offsets, entries, last = (self._index_tensors.current[name] for name in self._buffers)
        self._size = lists.page_size
        self._arrays = {"indptr": offsets, "indices": entries, "last_page_len": last}
        if columns:
            counts = offsets.diff()
            used = torch.arange(columns, device=offsets.device) < counts[:, None]
            table = torch.zeros_like(used, dtype=torch.int32).masked_scatter_(used, entries)
            lengths = torch.tensor(lists.lengths, dtype=torch.int32, device=offsets.device)
            if self._index_tensors.external is not None:
                self._table = self._table or (table, lengths)
                for memory, value in zip(self._table, (table, lengths), strict=True):
                    memory.copy_(value)
                table, lengths = self._table
            self._arrays = {"page_table": table, "seqused": lengths}

    def cache(self, problem: Problem, paged_kv_cache: Any, scales: CallScales) -> PagedKV:
        """The cache of a call.

        Args:
          paged_kv_cache: both pools, or K and V in one.

        Raises:
          SpecError: pools that were not planned for.
        """
        v: Any = None
        if isinstance(paged_kv_cache, torch.Tensor):
            k = tensor(paged_kv_cache, "paged_kv_cache", 5)
        else:
            pair = cast("Sequence[Any]", paged_kv_cache)
            if not isinstance(paged_kv_cache, tuple | list) or len(pair) != BOTH:
                got = shown(cast(object, paged_kv_cache), 40)
                raise SpecError(f"paged_kv_cache must be a tensor or a pair of them, got {got}")
            k, v = (tensor(pool, "paged_kv_cache", 4) for pool in pair)
        inner = k.shape[-3:-1]
        heads, page = reversed(inner) if self._layout == "NHD" else inner
        problem.check_keys("paged_kv_cache", k, heads)
        if page != self._size:
            raise SpecError(f"paged_kv_cache has pages of {page}, plan was told {self._size}")
        return PagedKV(
            k, v, layout=self._layout, k_scale=scales.k, v_scale=scales.v, **self._arrays
        )


def _lengths(names: tuple[str, str, str], rows: Sequence[Any], page_size: int) -> list[int]:
    """Lengths of sequences in compressed rows of pages, which are refused where they are none.

    Args:
      names: of the three arguments.
      rows: offsets, entries and positions in last pages, in i32.

    Raises:
      SpecError: names the argument and the entry.
    """
    indptr, entries, last = rows
    offsets, filled = indptr.tolist(), last.tolist()
    batch = len(offsets) - 1
    if batch < 0 or len(filled) != batch:
        raise SpecError(
            f"{names[2]} has {len(filled)} entries, {names[0]} has {max(batch, 0)} sequences"
        )
    if offsets[0] != 0 or offsets[-1] > entries.shape[0]:
        raise SpecError(
            f"{names[0]} goes from {offsets[0]} to {offsets[-1]}: {names[1]} has entries 0 to "
            f"{entries.shape[0]}"
        )
    lengths: list[int] = []
    for b, count in enumerate(y - x for x, y in itertools.pairwise(offsets)):
        if count < 0:
            raise SpecError(f"{names[0]} must not decrease: sequence {b} has {count} pages")
        if count and not 1 <= filled[b] <= page_size:
            raise SpecError(f"{names[2]}[{b}] is {filled[b]}: pages have {page_size} positions")
        lengths.append((count - 1) * page_size + filled[b] if count else 0)
    return lengths
