"""The request for sparse latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import OUT_DTYPES, dtype_name
from attn_mlir.compiling.options import MAX_PAGE
from attn_mlir.compiling.packed_rows import PackedRequest, one_of
from attn_mlir.compiling.request import option, request
from attn_mlir.dialect.attn.latent.formats import PLAIN, row_extents, row_operands
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.schedules.policy.facts import Facts

HEAD_STEP = 8
TILE_HEADS = 64  # of one CTA
MAX_HEADS = 1024
HEAD_DIMS = (576, 512)
V_DIM = 512
DTYPES = ("bf16", "f16", "e4m3")
NATIVE = "e4m3"  # `kv_format` of rows that products of 8 bits take as they are


def _heads(value: object) -> int:
    """Multiples of 8 that fit a tile, and multiples of a tile."""
    count: int = integer("heads", value, least=1, most=MAX_HEADS)
    fits = count % HEAD_STEP == 0 and (count <= TILE_HEADS or count % TILE_HEADS == 0)
    if not fits:
        raise SpecError(
            f"heads must be a multiple of {HEAD_STEP} up to {TILE_HEADS}, or of {TILE_HEADS} up to "
            f"{MAX_HEADS}, got {shown(value, 40)}"
        )
    return count


@request
class SparseMlaSpec(PackedRequest):
    """Sparse latent attention for any number of queries, rows of the cache and entries of a list.

    Args:
      heads: query heads: multiples of 8 up to 64, and multiples of 64.
      head_dim: columns of a query and of a row of the cache, 576 or 512.
      dtype: of q and of both products: `bf16`; `f16` for a cache of f16; or `e4m3` for one of
        kv_format `e4m3` without scales.
      out_dtype: of O: `bf16`, `f16` or `f32`; when left out `dtype`, or `bf16` for `e4m3`.
      topk_length: whether lists have lengths of their own.
      sinks: whether heads have sinks.
      page_size: rows of a page, where entries are positions of sequences in pages; else None.
      kv_format, kv_group, kv_page: as of `PackedRequest`.
      schedule: how the kernel is divided among warps and CTAs, a name in `policy.registry`; the
        usual one when left out.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "sparse_mla"

    heads: int = option(converter=_heads)
    head_dim: int = option(converter=partial(one_of, "head_dim", allowed=HEAD_DIMS), default=576)
    dtype: str = option(converter=partial(one_of, "dtype", allowed=DTYPES), default="bf16")
    out_dtype: str = option(
        converter=partial(dtype_name, argument="out_dtype", allowed=OUT_DTYPES), default=None
    )
    topk_length: bool = option(converter=partial(flag, "topk_length"), default=False)
    sinks: bool = option(converter=partial(flag, "sinks"), default=False)
    page_size: int | None = option(
        converter=partial(integer, "page_size", least=1, most=MAX_PAGE), default=None
    )
    schedule: str | None = option(
        converter=partial(options.schedule, "sparse_mla"),
        default=None,
    )

    def completed(self) -> Mapping[str, object]:
        """O of the dtype of q, of bf16 where that has 8 bits."""
        out = PLAIN if self.is_narrow else self.dtype
        return {**super().completed(), "out_dtype": out}

    def check_together(self) -> None:
        """As `check_format`; a table of pages is of those that the format needs."""
        if self.is_narrow and (self.kv_format != NATIVE or self.kv_group is not None):
            raise SpecError(
                f"kv_format must be {NATIVE!r} without kv_group with dtype {self.dtype!r}, got "
                f"{self.kv_format!r} and {self.kv_group}"
            )
        if self.form is not None and self.dtype != PLAIN:
            raise SpecError(
                f"dtype must be {PLAIN} with kv_format {self.kv_format!r}, got {self.dtype}"
            )
        self.check_format(self.head_dim)
        if self.kv_page is not None and self.page_size not in (None, self.kv_page):
            raise SpecError(f"page_size must be kv_page, {self.kv_page}, got {self.page_size}")

    @property
    def is_narrow(self) -> bool:
        """Whether products are of 8 bits."""
        return self.dtype == NATIVE

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Queries, cache, lists and scale; what is optional; O, LSE and the largest logits."""
        lengths = (Operand("topk_length", "i32", ("s_q",)),) if self.topk_length else ()
        sinks = (Operand("sinks", "f32", (self.heads,)),) if self.sinks else ()
        paging = (
            Operand("page_table", "i32", ("batch", "pages")),
            Operand("batch_of_query", "i32", ("s_q",)),
        )
        form = self.form
        plain = (Operand("kv", self.dtype, ("s_kv", self.head_dim)),)
        rows, *scales = plain if form is None else row_operands(form, row_extents(self.kv_page))
        return (
            Operand("q", self.dtype, ("s_q", self.heads, self.head_dim)),
            rows,
            Operand("indices", "i32", ("s_q", "topk")),
            Operand("scale", "f32", role="scalar"),
            *scales,
            *lengths,
            *sinks,
            *(paging if self.page_size else ()),
            *self._results,
        )

    @property
    def _results(self) -> tuple[Operand, ...]:
        rows = ("s_q", self.heads)
        return (
            Operand("o", self.out_dtype, (*rows, V_DIM), "out"),
            Operand("lse", "f32", rows, "out"),
            Operand("max_logits", "f32", rows, "out"),
        )

    @property
    def kernel_name(self) -> str:
        """The dtypes, the heads and their size."""
        words = [name for name in ("topk_length", "sinks") if getattr(self, name)]
        words += [f"pages{self.page_size}"] if self.page_size else []
        words += [self.schedule_word] if self.schedule is not None else []
        is_converted = self.out_dtype != (PLAIN if self.is_narrow else self.dtype)
        sizes = [f"o{self.out_dtype}"] if is_converted else []
        sizes += [f"h{self.heads}", f"d{self.head_dim}"]
        return "_".join(["attn_sparse_mla", self.dtype, *sizes, *words, *self.format_words])

    def problem(self) -> Facts:
        """The facts of attention to one head of keys, whose rows hold the values."""
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=1,
            head_dim=self.head_dim,
            v_head_dim=V_DIM,
            q_type=self.dtype,
            kv_type=self.dtype,
            out_type=self.out_dtype,
            page_size=self.page_size or 0,
            rows=self.narrow_rows,
            indexed_rows=True,
            shares_rows=True,
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.sparse_mla`."""
        from attn_mlir.dialect.attn.builder import emit_sparse_mla
        from attn_mlir.dialect.attn.mha import name_schedule

        op = emit_sparse_mla(
            arguments, results=self._results, page_size=self.page_size, form=self.form
        )
        if self.schedule is not None:
            name_schedule(op, self.schedule)
        return {"o": op.o, "lse": op.lse, "max_logits": op.max_logits}
