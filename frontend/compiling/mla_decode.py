"""The request for latent attention after absorption."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import WIDE_DTYPES, dtype_name
from attn_mlir.compiling.packed_rows import PackedRequest
from attn_mlir.compiling.request import option, request
from attn_mlir.compiling.sequences import SequenceRequest
from attn_mlir.compiling.spec import LSE_TERMS, workspace
from attn_mlir.dialect.attn.latent.columns import LATENT_COLUMNS, ROW_COLUMNS
from attn_mlir.dialect.attn.latent.formats import row_extents, row_operands
from attn_mlir.dialect.attn.lengths import DENSE
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import full
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.registry import combining

HEAD_STEP = 8
MAX_HEADS = 1024
HEAD_DIMS = (ROW_COLUMNS, LATENT_COLUMNS)


def _heads(value: object) -> int:
    """A multiple of 8.

    Raises:
      SpecError: another number of heads.
    """
    count: int = integer("heads", value, least=1, most=MAX_HEADS)
    if count % HEAD_STEP:
        raise SpecError(
            f"heads must be a multiple of {HEAD_STEP} up to {MAX_HEADS}, got {shown(value, 40)}"
        )
    return count


def _head_dim(value: Any) -> int:
    """The columns of a row of a latent cache.

    Raises:
      SpecError: another number of columns.
    """
    if isinstance(value, bool) or value not in HEAD_DIMS:
        allowed = " or ".join(map(str, HEAD_DIMS))
        raise SpecError(f"head_dim must be {allowed}, got {shown(value, 40)}")
    return int(value)


@request
class MlaDecodeSpec(PackedRequest, SequenceRequest):
    """Latent attention after absorption, for any batch, numbers of queries and lengths of
    sequences.

    Args:
      heads: query heads, a multiple of 8 up to 1024, which all read the one head of the cache.
      head_dim: columns of a query and of a row of the cache, 576 or 512; the first 512 are values.
      dtype: of q, the cache and o: `bf16` or `f16`, as of `MhaSpec`.
      mask: which rows of its sequence a query sees; `full()` when left out.
      indices: whether lists name the rows that each query sees; the cache is then one tensor of
        rows.
      topk_length: whether these lists have lengths of their own.
      sinks: whether heads have sinks.
      lengths: which array tells how many rows sequences have, `used_k` or `cached_k`.
      cache: how the sequences lie; None for rows of a tensor.
      schedule: how the kernel is divided among warps, a name of `policy.registry`; the target's
        usual one when left out.
      joined: whether the keys are split into parts that the kernel puts together by itself, in
        memory that it is called with.
      partial: whether O, in f32, and LSE are results for parts of the keys, which a second kernel
        puts together.
      kv_format, kv_group, kv_page: as of `PackedRequest`; `kv_page` with `indices` alone, as
        `cache` says which pages sequences have.

    Raises:
      SpecError: a value that has no kernel; the message names the option and what is allowed.
    """

    operation: ClassVar[str] = "mla_decode"

    heads: int = option(converter=_heads)
    head_dim: int = option(converter=_head_dim, default=ROW_COLUMNS)
    dtype: str = option(
        converter=partial(dtype_name, argument="dtype", allowed=WIDE_DTYPES), default="bf16"
    )
    indices: bool = option(converter=partial(flag, "indices"), default=False)
    topk_length: bool = option(converter=partial(flag, "topk_length"), default=False)
    sinks: bool = option(converter=partial(flag, "sinks"), default=False)
    schedule: str | None = option(
        converter=partial(options.schedule, "mla_decode"),
        default=None,
    )
    joined: bool = option(converter=partial(flag, "joined"), default=False)
    partial: bool = option(converter=partial(flag, "partial"), default=False)

    def check_together(self) -> None:
        """Refuses options that exclude each other.

        Raises:
          SpecError: names the option.
        """
        if self.topk_length and not self.indices:
            raise SpecError("topk_length is of the lists in indices, got none")
        if self.indices and self.mask != full():
            raise SpecError(f"mask and indices both say what a query sees, got {self.mask}")
        if self.indices and (self.cache is not None or self.lengths != DENSE):
            raise SpecError(
                "indices name rows of the whole cache: cache and lengths must be left out"
            )
        self.check_format(self.head_dim, has_page_table=not self.indices)
        if self.form is not None and self.dtype != "bf16":
            raise SpecError(
                f"dtype must be bf16 with kv_format {self.kv_format!r}, got {self.dtype}"
            )
        if self.lengths.ragged_q or self.lengths.ragged_k or self.lengths.used_q:
            raise SpecError(
                f"lengths must be those of the cache's sequences, got {self.lengths.tensors}"
            )
        if self.cache is not None and self.cache.scale_dtype:
            raise SpecError("cache must have no scales of positions")
        if self.partial and (self.joined or self.sinks):
            other = "joined parts" if self.joined else "sinks, which belong to what combines them"
            raise SpecError(f"partial results exclude {other}")
        if self.joined and not self.combines_splits:
            names = " or ".join(combining(self.operation))
            raise SpecError(
                f"joined parts of the keys need schedule {names}, got {self.schedule}: others have "
                "partial results"
            )

    @property
    def combines_splits(self) -> bool:
        """Whether the kernel combines splits itself."""
        return self.policy is not None and self.policy.combines_splits

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Queries, cache, O, LSE, the scale; then those that options add."""
        queries, columns = ("batch", "sq"), (1, self.head_dim)
        lead = ("batch", "sk") if self.cache is None else self.cache.axes
        kv: tuple[int | str, ...] = (*lead, *columns)
        extents = row_extents(self.kv_page) if self.indices else kv[:-1]
        if self.indices:
            kv = ("s_kv", self.head_dim)
        batch, terms = ("parts", (LSE_TERMS,)) if self.partial else ("batch", ())
        o = (batch, "sq", self.heads, LATENT_COLUMNS)
        plain = (Operand("kv", self.dtype, kv),)
        rows, *scales = plain if self.form is None else row_operands(self.form, extents)
        topk_length = (Operand("topk_length", "i32", queries),) if self.topk_length else ()
        return (
            Operand("q", self.dtype, (*queries, self.heads, self.head_dim)),
            rows,
            Operand("o", "f32" if self.partial else self.dtype, o, "out"),
            Operand("lse", "f32", (*terms, batch, self.heads, "sq"), "out"),
            Operand("scale", "f32", role="scalar"),
            *((Operand("indices", "i32", (*queries, "topk")),) if self.indices else ()),
            *topk_length,
            *((Operand("sinks", "f32", (self.heads,)),) if self.sinks else ()),
            *self.index_operands,
            *self._workspace(),
            *scales,
        )

    def _workspace(self) -> tuple[Operand, ...]:
        """Memory in which the schedule combines splits."""
        if not self.joined or self.policy is None:
            return ()
        return workspace(self.policy.workspace(self.facts, None))

    @property
    def kernel_name(self) -> str:
        """The static options."""
        cache = "" if self.cache is None else f"latent{self.cache.short_name}"
        names = ("indices", "topk_length", "sinks", "joined", "partial")
        words = (
            "" if self.indices else self.mask_name,
            self.schedule_word,
            *(name for name in names if getattr(self, name)),
            cache,
            self.lengths.short_name,
            self.dtype,
            f"h{self.heads}",
            f"d{self.head_dim}",
            *self.format_words,
        )
        return f"attn_mla_decode_{'_'.join(filter(None, words))}"

    def problem(self) -> Facts:
        """The facts of attention to one head of keys, whose rows hold the values."""
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=1,
            head_dim=self.head_dim,
            v_head_dim=LATENT_COLUMNS,
            q_type=self.dtype,
            kv_type=self.dtype,
            out_type="f32" if self.partial else self.dtype,
            mask=self.mask,
            page_size=0 if self.cache is None else self.cache.page_size,
            rows=self.narrow_rows,
            indexed_rows=self.indices,
            shares_rows=True,
            partial=self.partial,
            combined=self.joined,
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.mla_decode`."""
        from attn_mlir.dialect.attn.latent.mla_decode import emit_mla_decode
        from attn_mlir.dialect.attn.mha import name_schedule

        op = emit_mla_decode(
            arguments,
            mask=self.mask,
            lengths=self.lengths,
            cache=self.cache,
            listed=self.indices,
            partial=self.partial,
            form=self.form,
        )
        if self.schedule is not None:
            name_schedule(op, self.schedule)
        return {"o": op.o, "lse": op.lse}
