"""The request for latent attention before absorption."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import WIDE_DTYPES, dtype_name
from attn_mlir.compiling.options import HEAD_DIM_STEP
from attn_mlir.compiling.request import option, request
from attn_mlir.compiling.schedules import check_output, check_pins
from attn_mlir.compiling.sequences import GroupedRequest, table
from attn_mlir.dialect.attn.latent.columns import ROPE_COLUMNS, ROW_COLUMNS
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.dialect.attn.scale import DESCALES, ScaleBlock
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.runtime.call.scalars import flag
from attn_mlir.schedules.policy.facts import Facts, Rope, Scales
from attn_mlir.schedules.policy.tiling import MAX_HEAD_DIM

NOPE_STEP = 64  # a line of 128 bytes of a tile, with which its rope columns begin
ROPE_STEP = 16  # the depth of one product of the tensor core
NARROW = "e4m3"  # of all operands, or of rope under bf16
WIDE_ROPE = "bf16"  # of both operands of rope, where the others have 8 bits
NARROW_STEPS = {
    "nope_dim": 128,  # a line of 128 bytes
    "rope_dim": 32,  # the depth of one product of 8 bits
    "v_head_dim": 16,  # strides of tensor maps are multiples of 16 bytes
}
ROPE_DESCALE = "k_rope_descale"
MAX_QUERY_TILES = 2  # with which no warp is left of those of single roles

NOPE_DIM: Any = option(converter=partial(options.head_dim, "nope_dim", step=NOPE_STEP))
ROPE_DIM: Any = option(converter=partial(options.head_dim, "rope_dim", step=ROPE_STEP))
V_HEAD_DIM: Any = option(
    converter=partial(options.head_dim, "v_head_dim", step=HEAD_DIM_STEP), default=None
)
"""The sizes of latent attention, as options."""


def check_columns(nope_dim: int, rope_dim: int, *, wide_rope: str = "") -> None:
    """Refuses rows of queries and keys with too many columns.

    Args:
      nope_dim, rope_dim: numbers of columns.
      wide_rope: the dtype of rope if each of its columns counts twice, else "".

    Raises:
      SpecError: names the sizes, and the limit of their sum.
    """
    weight = 2 if wide_rope else 1
    if (columns := nope_dim + weight * rope_dim) > MAX_HEAD_DIM:
        rule = f", columns of {wide_rope} twice" if wide_rope else ""
        sizes = f"nope_dim {nope_dim} and rope_dim {rope_dim}"
        reason = f"together they may be up to {MAX_HEAD_DIM}{rule}, got {columns}"
        raise SpecError(no_kernel(sizes, reason, many=True))


@request
class MlaSpec(GroupedRequest):
    """Latent attention before absorption, for any batch and any sequence lengths.

    Options of one call of `mla` are those of its kernel and the operands.

    Args:
      heads: query heads.
      kv_heads: heads of k_nope and v; divides heads. As many when left out.
      nope_dim: columns of q_nope and k_nope, a multiple of 64, of 128 for `e4m3`.
      rope_dim: columns of q_rope and k_rope, a multiple of 16, of 32 for `e4m3`; at most 256 with
        those of nope, where each of `bf16` beside `e4m3` counts twice.
      v_head_dim: columns of v and O, a multiple of 8, of 16 for `e4m3`, up to 256; `nope_dim` when
        left out.
      dtype: of the operands: `bf16` or `f16`, as of `MhaSpec`; or `e4m3`, with scales of f32:
        `q_descale` of each position and head, `k_descale` of each position, `v_descale` of each
        sequence and head.
      rope_dtype: of k_rope: `dtype`, as when left out; or `e4m3` where that is `bf16`; or, of
        q_rope as well, `bf16` where that is `e4m3`.
      rope_factors: whether `k_rope_descale` has a scale of f32 for each position of k_rope of 8
        bits that is a tensor. Those of a cache are a property of that.
      mask: which keys a query sees; `full()` when left out.
      query_tiles, tile_order: as of `MhaSpec`.
      num_qk_stages, num_pv_stages: as of `MhaSpec`; the former divides the nope columns alone where
        rope has slots of its own.
      ordered_softmax: as of `MhaSpec`.
      out_dtype: of O: `bf16`, `f16` or `f32`; `dtype` when left out.
      return_lse: whether the kernel takes and writes LSE.
      lengths: which index arrays tell the lengths of sequences. Where there is a cache, `used_k`
        and `cached_k` are about that.
      cache: how the latent cache lies that holds k_rope; None for a tensor of its own.
      rope_alone: whether rows of that cache have the columns of rope alone, and not all 576.

    Raises:
      SpecError: a value that has no kernel; the message names the option and what is allowed.
    """

    operation: ClassVar[str] = "mla"

    nope_dim: int = NOPE_DIM
    rope_dim: int = ROPE_DIM
    v_head_dim: int = V_HEAD_DIM
    dtype: str = option(
        converter=partial(dtype_name, argument="dtype", allowed=(*WIDE_DTYPES, NARROW)),
        default="bf16",
    )

    rope_dtype: str = option(
        converter=partial(dtype_name, argument="rope_dtype", allowed=(*WIDE_DTYPES, NARROW)),
        default=None,
    )
    rope_factors: bool = option(converter=partial(flag, "rope_factors"), default=False)
    rope_alone: bool = option(converter=partial(flag, "rope_alone"), default=False)

    def completed(self) -> Mapping[str, object]:
        """The defaults: kv_heads is heads, v_head_dim is nope_dim, rope has the operands' dtype,
        and O as well, or bf16 for 8 bits."""
        out = "bf16" if self.is_narrow else self.dtype
        defaults = {"v_head_dim": self.nope_dim, "rope_dtype": self.dtype, "out_dtype": out}
        return {**super().completed(), **defaults}

    @property
    def is_narrow(self) -> bool:
        """Whether all operands have 8 bits."""
        return self.dtype == NARROW

    @property
    def has_helper(self) -> bool:
        """Whether warps of the kernel widen rope, or read scales of keys."""
        return NARROW in (self.dtype, self.rope_dtype)

    @property
    def has_wide_rope(self) -> bool:
        """Whether q_rope and k_rope have 16 bits beside operands of 8."""
        return self.is_narrow and self.rope_dtype != NARROW

    def check_together(self) -> None:
        """Refuses head counts, sizes and caches that have no kernel together.

        Raises:
          SpecError: names the option and what is allowed.
        """
        self.check_heads()
        wide_rope = self.rope_dtype if self.has_wide_rope else ""
        check_columns(self.nope_dim, self.rope_dim, wide_rope=wide_rope)
        check_output(self.out_dtype, self.v_head_dim)
        if self.tile_order == "ragged" and not self.lengths.ragged_q:
            raise SpecError("tile_order ragged needs queries by cu_seqlens_q, got none")
        self._check_rope()
        check_pins(self)
        if self.cache is None:
            if self.rope_alone:
                raise SpecError("rope_alone is of the rows of a cache, which is None")
            return
        if self.rope_dim != ROPE_COLUMNS:
            raise SpecError(
                f"rope_dim must be {ROPE_COLUMNS} where k_rope is a latent cache of "
                f"{self.cache_columns} columns, got {self.rope_dim}"
            )

    @property
    def cache_columns(self) -> int:
        """Columns of the rows of a cache; rope's are the last ones."""
        return ROPE_COLUMNS if self.rope_alone else ROW_COLUMNS

    def _check_rope(self) -> None:
        """Refuses dtypes of rope without a kernel, and scales where it has none.

        Raises:
          SpecError: names the option and what is allowed.
        """
        types = self.dtype, self.rope_dtype
        is_narrow = types == (WIDE_ROPE, NARROW)
        if self.rope_dtype != self.dtype and not is_narrow and types != (NARROW, WIDE_ROPE):
            pairs = f"the same, {NARROW} under {WIDE_ROPE} and {WIDE_ROPE} under {NARROW}"
            name, context = f"rope_dtype {self.rope_dtype}", f"under {self.dtype}"
            raise SpecError(no_kernel(name, f"supported are {pairs}", context=context))
        steps = NARROW_STEPS | ({"rope_dim": ROPE_STEP} if self.has_wide_rope else {})
        for name, step in steps.items():
            if self.is_narrow and getattr(self, name) % step:
                got, reason = f"{name} {getattr(self, name)}", f"supported are multiples of {step}"
                raise SpecError(no_kernel(got, reason, context=f"for {NARROW}"))
        has_cache = self.cache is not None
        if self.rope_factors and (has_cache or not is_narrow):
            raise SpecError(f"rope_factors must be False but for k_rope of {NARROW} as a tensor")
        if self.cache is not None and self.cache.scale_dtype:
            if not is_narrow:
                raise SpecError(f"cache of k_rope of {self.rope_dtype} must have no scales")
            if self.cache.scale_rows > 1:
                rows = self.cache.scale_rows
                raise SpecError(f"cache of k_rope must have scales of each position, got of {rows}")
            total = self.cache_columns
            columns = total // self.cache.k_groups
            if (total - ROPE_COLUMNS) // columns != (total - 1) // columns:
                raise SpecError(
                    f"cache of k_rope must have one scale for its {ROPE_COLUMNS} columns of rope, "
                    f"got {self.cache.k_groups} for {total}"
                )
        what = "q_nope" if self.has_wide_rope else "k_rope"
        if self.has_helper and self.tile_order == "clc" and self.query_tiles == MAX_QUERY_TILES:
            context = f"for {what} of {NARROW} with query_tiles {self.query_tiles}"
            raise SpecError(no_kernel("tile_order clc", "supported is 1", context=context))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K and V by their parts, O, LSE, the scale; then the index arrays."""
        rows_q, rows_k = self.rows_q, self.rows_k
        rope = (*rows_k, 1, self.rope_dim)
        if self.cache is not None:
            size = self.cache.page_size
            rope = (*(("pages", size) if size else ("rows", "positions")), 1, self.cache_columns)
        *lead, rows = rows_q
        lse = Operand("lse", "f32", (*lead, self.heads, rows), "out")
        return (
            Operand("q_nope", self.dtype, (*rows_q, self.heads, self.nope_dim)),
            Operand(
                "q_rope",
                self.rope_dtype if self.has_wide_rope else self.dtype,
                (*rows_q, self.heads, self.rope_dim),
            ),
            Operand("k_nope", self.dtype, (*rows_k, self.kv_heads, self.nope_dim)),
            Operand("k_rope", self.rope_dtype, rope),
            Operand("v", self.dtype, (*rows_k, self.kv_heads, self.v_head_dim)),
            Operand("o", self.out_dtype, (*rows_q, self.heads, self.v_head_dim), "out"),
            *((lse,) if self.return_lse else ()),
            Operand("scale", "f32", role="scalar"),
            *self._scales(rope),
            *self.index_operands,
        )

    def _scales(self, rope: tuple[int | str, ...]) -> tuple[Operand, ...]:
        """The scales of all operands, or those of k_rope, whose extents are `rope`."""
        if self.is_narrow:
            q, k, v = DESCALES
            of_q = (*self._rows_of(q, self.rows_q), self.heads, 1)
            of_k = (*self._rows_of(k, self.rows_k), 1, 1)
            return Operand(q, "f32", of_q), Operand(k, "f32", of_k), table(v, "f32", 2)
        if self.rope_factors:
            dtype, groups, page = "f32", 1, 0
        elif self.cache is not None and self.cache.scale_dtype:
            dtype, groups, page = self.cache.scale_dtype, self.cache.k_groups, self.cache.page_size
        else:
            return ()
        *lead, last = self._rows_of(ROPE_DESCALE, rope[:-2])
        rows = (*lead, page or last)
        return (Operand(ROPE_DESCALE, dtype, (*rows, 1, groups)),)

    @staticmethod
    def _rows_of(name: str, rows: Sequence[int | str]) -> tuple[str, ...]:
        """As many extents as these; each call gives their values."""
        return tuple(f"{name}_{axis}" for axis in range(len(rows)))

    @property
    def kernel_name(self) -> str:
        """The static options."""
        stored = "roperows" if self.rope_alone else "latent"
        cache = "" if self.cache is None else f"{stored}{self.cache.short_name}"
        out = f"o{self.out_dtype}" if self.out_dtype != self.dtype else ""
        heads = f"h{self.heads}k{self.kv_heads}"
        rope = f"rope{self.rope_dtype}" if self.rope_dtype != self.dtype else ""
        rope += "s" if self.rope_factors else ""
        words = (self.mask_name, cache, self.lengths.short_name, self.dtype, rope, out, heads)
        sizes = f"d{self.nope_dim}r{self.rope_dim}v{self.v_head_dim}"
        return f"attn_mla_{'_'.join(filter(None, words))}_{sizes}"

    def problem(self) -> Facts:
        """The facts of the attention; operands of 8 bits have scales of positions."""
        return dataclasses.replace(
            self.attention_facts(self.nope_dim, self.v_head_dim, self.dtype),
            out_type=self.out_dtype,
            scales=Scales(ScaleBlock(1, self.nope_dim), None) if self.is_narrow else None,
            rope=Rope(
                self.rope_dim,
                self.rope_dtype if self.has_wide_rope else self.dtype,
                self.rope_dtype,
            ),
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.mla`."""
        from attn_mlir.dialect.attn.latent.mla import emit_mla

        op = emit_mla(
            arguments,
            mask=self.mask,
            out_dtype=self.out_dtype,
            lengths=self.lengths,
            cache=self.cache,
            cache_columns=self.cache_columns,
        )
        return {"o": op.o, "lse": op.lse}
