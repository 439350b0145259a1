"""The request for latent attention before absorption."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import WIDE_DTYPES, dtype_name
from attn_mlir.compiling.options import HEAD_DIM_STEP
from attn_mlir.compiling.request import option, request
from attn_mlir.compiling.schedules import check_output
from attn_mlir.compiling.sequences import GroupedRequest
from attn_mlir.dialect.attn.latent import ROPE_COLUMNS, ROW_COLUMNS
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError
from attn_mlir.passes.target.tiling import MAX_HEAD_DIM

NOPE_STEP = 64  # a line of 128 bytes of a tile, with which its rope columns begin
ROPE_STEP = 16  # the depth of one product of the tensor core


@request
class MlaSpec(GroupedRequest):
    """Latent attention before absorption, for any batch and any sequence lengths.

    Options of one call of `mla` are those of its kernel and the operands.

    Args:
      heads: query heads.
      kv_heads: heads of k_nope and v; divides heads. As many when left out.
      nope_dim: columns of q_nope and k_nope, a multiple of 64.
      rope_dim: columns of q_rope and k_rope, a multiple of 16; at most 256 with those of nope.
      v_head_dim: columns of v and O, a multiple of 8 up to 256; `nope_dim` when left out.
      dtype: of the operands: `bf16` or `f16`, as of `MhaSpec`.
      mask: which keys a query sees; `full()` when left out.
      query_tiles, tile_order: as of `MhaSpec`.
      out_dtype: of O: `bf16`, `f16` or `f32`; `dtype` when left out.
      return_lse: whether the kernel takes and writes LSE.
      lengths: which index arrays tell the lengths of sequences. Where there is a cache, `used_k` and
        `cached_k` are about that.
      cache: how the latent cache lies that holds k_rope; None for a tensor of its own.

    Raises:
      SpecError: a value that has no kernel; the message names the option and what is allowed.
    """

    operation: ClassVar[str] = "mla"

    nope_dim: int = option(converter=partial(options.head_dim, "nope_dim", step=NOPE_STEP))
    rope_dim: int = option(converter=partial(options.head_dim, "rope_dim", step=ROPE_STEP))
    v_head_dim: int = option(
        converter=partial(options.head_dim, "v_head_dim", step=HEAD_DIM_STEP), default=None
    )
    dtype: str = option(
        converter=partial(dtype_name, argument="dtype", allowed=WIDE_DTYPES), default="bf16"
    )

    def completed(self) -> Mapping[str, object]:
        """As many heads of keys as query heads, values of the size of nope, O of the operands' dtype."""
        return {**super().completed(), "v_head_dim": self.nope_dim, "out_dtype": self.dtype}

    def check_together(self) -> None:
        """Refuses head counts, sizes and caches that have no kernel together.

        Raises:
          SpecError: names the option and what is allowed.
        """
        self.check_heads()
        if (columns := self.nope_dim + self.rope_dim) > MAX_HEAD_DIM:
            raise SpecError(
                f"nope_dim {self.nope_dim} and rope_dim {self.rope_dim} have no kernel: together "
                f"they may be up to {MAX_HEAD_DIM}, got {columns}"
            )
        check_output(self.out_dtype, self.v_head_dim)
        if self.tile_order == "ragged" and not self.lengths.ragged_q:
            raise SpecError("tile_order ragged needs queries by cu_seqlens_q, got none")
        if self.cache is None:
            return
        if self.rope_dim != ROPE_COLUMNS:
            raise SpecError(
                f"rope_dim must be {ROPE_COLUMNS} where k_rope is a latent cache of {ROW_COLUMNS} "
                f"columns, got {self.rope_dim}"
            )
        if self.cache.scale_dtype:
            raise SpecError("cache of k_rope must have no factors of positions")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K and V by their parts, O, LSE, the scale; then the index arrays."""
        rows_q, rows_k = self.rows_q, self.rows_k
        rope = (*rows_k, 1, self.rope_dim)
        if self.cache is not None:
            size = self.cache.page_size
            rope = (*(("pages", size) if size else ("rows", "positions")), 1, ROW_COLUMNS)
        *lead, rows = rows_q
        lse = Operand("lse", "f32", (*lead, self.heads, rows), "out")
        return (
            Operand("q_nope", self.dtype, (*rows_q, self.heads, self.nope_dim)),
            Operand("q_rope", self.dtype, (*rows_q, self.heads, self.rope_dim)),
            Operand("k_nope", self.dtype, (*rows_k, self.kv_heads, self.nope_dim)),
            Operand("k_rope", self.dtype, rope),
            Operand("v", self.dtype, (*rows_k, self.kv_heads, self.v_head_dim)),
            Operand("o", self.out_dtype, (*rows_q, self.heads, self.v_head_dim), "out"),
            *((lse,) if self.return_lse else ()),
            Operand("scale", "f32", role="scalar"),
            *self.index_operands,
        )

    @property
    def kernel_name(self) -> str:
        """What is static."""
        cache = "" if self.cache is None else f"latent{self.cache.short_name}"
        out = f"o{self.out_dtype}" if self.out_dtype != self.dtype else ""
        heads = f"h{self.heads}k{self.kv_heads}"
        words = (self.mask_name, cache, self.lengths.short_name, self.dtype, out, heads)
        sizes = f"d{self.nope_dim}r{self.rope_dim}v{self.v_head_dim}"
        return f"attn_mla_{'_'.join(filter(None, words))}_{sizes}"

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.mla`."""
        from attn_mlir.dialect.attn.mla import emit_mla

        op = emit_mla(
            arguments,
            mask=self.mask,
            out_dtype=self.out_dtype,
            lengths=self.lengths,
            cache=self.cache,
        )
        return {"o": op.o, "lse": op.lse}
