"""Caches of keys and values, to be passed to attention in place of k and v.

A cache only refers to the arrays that it was made of; `attention` checks them in every call, so
tables, lengths and pages may be changed in place between calls. Arrays are numpy, torch, cupy or
any with DLPack, all on one device.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

from attn_mlir.errors import SpecError, shown

LAYOUTS = {"NHD": "[pages, page, heads, D]", "HND": "[pages, heads, page, D]"}


@dataclass(frozen=True, eq=False)
class ContiguousKV:
    """Keys and values of each sequence in consecutive positions of one row of an array.

    Attributes:
      k: [rows, positions, kv_heads, head_dim].
      v: [rows, positions, kv_heads, v_head_dim].
      seqused: [batch] i32: sequence b has the positions before seqused[b]; None for all of its row.
      batch_idx: [batch] i32: sequence b is in row batch_idx[b], as in continuous batching; None for
        row b.
      leftpad: [batch] i32: sequence b begins at position leftpad[b] of its row; None for 0.
        `seqused` includes this padding. For masks and modifiers its first key has position 0.
      counts_new: whether `seqused` includes the tokens of this step, as many as there are queries;
        otherwise that many positions after them belong to the sequence as well.
      k_scale, v_scale: scales of 8-bit elements: f32 of one element, [kv_heads] or
        [batch, kv_heads]; or f32, f16 or bf16 for each position, [rows, positions, kv_heads,
        groups], where a group has head_dim / groups columns; or [rows, positions / n, ...] where n
        neighbouring positions share a scale, a power of two up to 128, without `leftpad`.
    """

    k: Any = field(repr=False)
    v: Any = field(repr=False)
    seqused: Any
    _: KW_ONLY
    batch_idx: Any = None
    leftpad: Any = None
    counts_new: bool = True
    k_scale: Any = None
    v_scale: Any = None

    def __post_init__(self) -> None:
        """Refuses contradictory fields; arrays are checked by the call."""
        _check_counts_new(self.counts_new, self.seqused, "every position is used without")


@dataclass(frozen=True, eq=False)
class PagedKV:
    """Keys and values in pages of pools.

    Position t of sequence b is position t % page of the page that is listed for it at t // page.

    Attributes:
      k_pages: layout NHD [pages, page, kv_heads, head_dim] or HND [pages, kv_heads, page,
        head_dim]; without `v_pages` both K and V: [pages, 2, ...].
      v_pages: the same for V, with v_head_dim, and the same number and size of pages.
      page_table: [batch, columns] i32 or u32, as all index arrays: the pages of each sequence in
        order; or [batch, 2, columns] with separate pages for keys and for values.
      seqused: [batch] i32: positions of each sequence; None for all in the table's pages.
      layout: `NHD` or `HND`.
      indptr, indices, last_page_len: i32, in place of `page_table` and `seqused`: sequence b has
        the pages indices[indptr[b]:indptr[b + 1]], and last_page_len[b] positions in the last one,
        which include this step's tokens. Shapes [batch + 1], [entries] and [batch].
      counts_new: as in `ContiguousKV`.
      k_scale, v_scale: as in `ContiguousKV`; those of positions are in pages of the same layout,
        [pages, page, kv_heads, groups], or [pages, page / n, ...]; without `v_pages`, `k_scale`
        [pages, 2, ...] for both.
      scale_table: [batch, columns] i32: the pages of scales of positions, if they differ from
        those of keys and values.
    """

    k_pages: Any = field(repr=False)
    v_pages: Any = field(default=None, repr=False)
    page_table: Any = None
    seqused: Any = None
    _: KW_ONLY
    layout: str = "NHD"
    indptr: Any = None
    indices: Any = None
    last_page_len: Any = None
    counts_new: bool = True
    k_scale: Any = None
    v_scale: Any = None
    scale_table: Any = None

    def __post_init__(self) -> None:
        """Refuses contradictory fields; arrays are checked by the call."""
        if not isinstance(cast(object, self.layout), str) or self.layout not in LAYOUTS:
            raise SpecError(f"layout must be NHD or HND, got {shown(self.layout, 40)}")
        rows = {name: getattr(self, name) for name in ("indptr", "indices", "last_page_len")}
        present = [name for name, value in rows.items() if value is not None]
        if self.page_table is not None:
            if present:
                raise SpecError(f"page_table and {present[0]} both list the pages: pass one")
            _check_counts_new(self.counts_new, self.seqused, "every column is used without")
            return
        missing = [name for name in rows if name not in present]
        if missing:
            first = "page_table" if not present else missing[0]
            raise SpecError(
                f"{first} is missing: pages are listed by page_table, or by indptr, indices and "
                "last_page_len"
            )
        if self.seqused is not None:
            raise SpecError("seqused and last_page_len both tell the lengths: pass one")
        if self.counts_new is not True:
            raise SpecError(
                "counts_new must be True with last_page_len, which counts this step's tokens, got "
                f"{shown(self.counts_new, 40)}"
            )

    @property
    def is_compressed(self) -> bool:
        """Whether pages are listed in compressed rows."""
        return self.page_table is None


def _check_counts_new(counts_new: object, seqused: object, otherwise: str) -> None:
    if not isinstance(counts_new, bool):
        raise SpecError(f"counts_new must be True or False, got {shown(counts_new, 40)}")
    if not counts_new and seqused is None:
        raise SpecError(f"counts_new says what seqused counts: {otherwise} it")


CACHES = (ContiguousKV, PagedKV)
