"""The request for sparse latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling.request import Request, option, request
from attn_mlir.dialect.attn.latent_formats import (
    FORMATS,
    GROUPS,
    PLAIN,
    LatentFormat,
    row_operands,
)
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.scalars import flag, integer

HEAD_STEP = 8
TILE_HEADS = 64  # of one CTA
MAX_HEADS = 1024
HEAD_DIMS = (576, 512)
V_DIM = 512
MAX_PAGE = 1 << 20  # rows; far above any cache
DTYPES = ("bf16", "e4m3")
NATIVE = "e4m3"  # `kv_format` of rows that products of 8 bits take as they are
O_DTYPE = "bf16"
KV_FORMATS = (PLAIN, *FORMATS)


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


def _one_of(name: str, value: Any, *, allowed: tuple[Any, ...]) -> Any:
    """The value itself.

    Raises:
      SpecError: none of these.
    """
    if isinstance(value, bool) or value not in allowed:
        names = " or ".join(map(str, allowed))
        raise SpecError(f"{name} must be {names}, got {shown(value, 40)}")
    return value


@request
class SparseMlaSpec(Request):
    """Sparse latent attention for any number of queries, rows of the cache and entries of a list.

    Args:
      heads: query heads: multiples of 8 up to 64, and multiples of 64.
      head_dim: columns of a query and of a row of the cache, 576 or 512.
      dtype: of q and of both products, `bf16`; or `e4m3` for a cache of kv_format `e4m3` without
        factors. O is bf16.
      topk_length: whether lists have lengths of their own.
      sinks: whether heads have sinks.
      page_size: rows of a page, where entries are positions of sequences in pages; else None.
      kv_format: how rows of the cache are stored, see `attn_mlir.dialect.attn.latent_formats`.
      kv_group: columns that share a factor, where these have a tensor of their own; None without.
      kv_page: rows of a page of the cache, where the format needs it; else None.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "sparse_mla"

    heads: int = option(converter=_heads)
    head_dim: int = option(converter=partial(_one_of, "head_dim", allowed=HEAD_DIMS), default=576)
    dtype: str = option(converter=partial(_one_of, "dtype", allowed=DTYPES), default="bf16")
    topk_length: bool = option(converter=partial(flag, "topk_length"), default=False)
    sinks: bool = option(converter=partial(flag, "sinks"), default=False)
    page_size: int | None = option(
        converter=partial(integer, "page_size", least=1, most=MAX_PAGE), default=None
    )
    kv_format: str = option(
        converter=partial(_one_of, "kv_format", allowed=KV_FORMATS), default=PLAIN
    )
    kv_group: int | None = option(
        converter=partial(_one_of, "kv_group", allowed=GROUPS), default=None
    )
    kv_page: int | None = option(
        converter=partial(integer, "kv_page", least=1, most=MAX_PAGE), default=None
    )

    def check_together(self) -> None:
        """A row has the columns of a query; factors and pages are told where the format leaves them open."""
        stored = FORMATS.get(self.kv_format)
        if self.is_narrow and (self.kv_format != NATIVE or self.kv_group is not None):
            raise SpecError(
                f"kv_format must be {NATIVE!r} without kv_group with dtype {self.dtype!r}, got "
                f"{self.kv_format!r} and {self.kv_group}"
            )
        if stored is not None and stored.columns != self.head_dim:
            raise SpecError(
                f"head_dim must be {stored.columns} with kv_format {self.kv_format!r}, got "
                f"{self.head_dim}"
            )
        may_group = stored is not None and stored.factors.place == "outside"
        if self.kv_group is not None and not may_group:
            raise SpecError(
                f"kv_group must be None with kv_format {self.kv_format!r}, got {self.kv_group}"
            )
        if (self.kv_page is not None) != (stored is not None and stored.is_in_pages):
            raise SpecError(
                f"kv_page must be {'None' if self.kv_page else 'the rows of a page'} with kv_format "
                f"{self.kv_format!r}, got {self.kv_page}"
            )
        if self.kv_page is not None and self.page_size not in (None, self.kv_page):
            raise SpecError(f"page_size must be kv_page, {self.kv_page}, got {self.page_size}")

    @property
    def is_narrow(self) -> bool:
        """Whether products are of 8 bits."""
        return self.dtype == NATIVE

    @property
    def form(self) -> LatentFormat | None:
        """How rows are stored that are widened, with the group of their factors; None for others."""
        stored = None if self.is_narrow else FORMATS.get(self.kv_format)
        if stored is None or self.kv_group is None:
            return stored
        return stored.with_factors(self.kv_group)

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
        rows, *others = plain if form is None else row_operands(form, self.kv_page)
        return (
            Operand("q", self.dtype, ("s_q", self.heads, self.head_dim)),
            rows,
            Operand("indices", "i32", ("s_q", "topk")),
            Operand("scale", "f32", role="scalar"),
            *others,
            *lengths,
            *sinks,
            *(paging if self.page_size else ()),
            *self._results,
        )

    @property
    def _results(self) -> tuple[Operand, ...]:
        rows = ("s_q", self.heads)
        return (
            Operand("o", O_DTYPE, (*rows, V_DIM), "out"),
            Operand("lse", "f32", rows, "out"),
            Operand("max_logits", "f32", rows, "out"),
        )

    @property
    def kernel_name(self) -> str:
        """The dtype, the heads and their size."""
        options = [name for name in ("topk_length", "sinks") if getattr(self, name)]
        options += [f"pages{self.page_size}"] if self.page_size else []
        if self.kv_format != PLAIN and not self.is_narrow:
            options.append(self.kv_format)
            options += [f"by{self.kv_group}"] if self.kv_group else []
            options += [f"page{self.kv_page}"] if self.kv_page else []
        return "_".join(
            ["attn_sparse_mla", self.dtype, f"h{self.heads}", f"d{self.head_dim}", *options]
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.sparse_mla`."""
        from attn_mlir.dialect.attn.builder import emit_sparse_mla

        op = emit_sparse_mla(
            arguments, results=self._results, page_size=self.page_size, form=self.form
        )
        return {"o": op.o, "lse": op.lse, "max_logits": op.max_logits}
