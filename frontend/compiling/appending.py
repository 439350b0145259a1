"""The request for the kernel that writes new tokens into a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import DTYPES, NARROW_DTYPES, WIDE_DTYPES
from attn_mlir.compiling.options import HEAD_DIM_STEP, MAX_HEADS, NARROW_HEAD_DIM_STEP, one_of
from attn_mlir.compiling.request import Request, option, request
from attn_mlir.compiling.schedules import check_scale_groups
from attn_mlir.compiling.sequences import position_scales, table
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import as_int, flag, integer
from attn_mlir.schedules.policy.facts import Facts

ANGLE_DTYPES = ("bf16", "f16", "f32")
SLOT_DTYPES = ("i32", "i64")
ROTARY_STEP = 16  # of rotary_dim: halves are whole 16-byte units of 16-bit elements

BATCH, INDICES, OFFSETS, SLOTS = "batch", "batch_indices", "cu_seqlens", "slot_mapping"
SEQUENCE_SOURCES = {
    BATCH: "by the first dimension of tokens [batch, n, ...]",
    INDICES: "by an array of sequences",
    OFFSETS: "by offsets",
    SLOTS: "by slots",
}
LENGTHS = ("seqused_k", "cache_seqlens")


def _option(name: str, allowed: Sequence[str], default: Any = dataclasses.MISSING) -> Any:
    return option(converter=lambda value: one_of(name, allowed, value), default=default)


@request
class AppendSpec(Request):
    """Writing new tokens into a cache, for any number of tokens, sequences and pages.

    Args:
      heads: heads of the cache.
      head_dim, v_head_dim: elements per head of keys and of values, in multiples of 8 up to 256; of
        16 where the cache has 8 bits.
      dtype: of the cache: a name of `DTYPES`.
      new_dtype: of the tokens: that of the cache, or bf16 or f16 for one of 8 bits.
      cache: its storage.
      sequence_source: which sequence a token belongs to: a key of `SEQUENCE_SOURCES`.
      slot_dtype: of the slots, `i32` or `i64`; None unless they are the source.
      positions: whether there is an array of positions.
      lengths: the array of lengths that gives positions otherwise, one of `LENGTHS`, if any.
      angles: dtype of cos and sin, or None where nothing is rotated.
      rotary_dim: columns of keys that are rotated, a multiple of 16.
      interleaved: whether the columns of a pair are neighbours.
      scaled: whether elements are divided by scales of a table before they are quantised. Scales
        of positions, see `cache`, are computed from the tokens and written as well.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "append"

    heads: int = option(converter=partial(integer, "heads", least=1, most=MAX_HEADS))
    head_dim: int = option(converter=options.unchecked)
    v_head_dim: int = option(converter=options.unchecked)
    dtype: str = _option("dtype", DTYPES)
    new_dtype: str = _option("new_dtype", DTYPES)
    cache: Cache = option(
        converter=options.cache,
        written=Cache.fields,
        read=lambda fields: Cache(**cast("Mapping[str, Any]", fields)),
    )
    sequence_source: str = _option("sequence_source", tuple(SEQUENCE_SOURCES))
    slot_dtype: str | None = _option("slot_dtype", SLOT_DTYPES, None)
    positions: bool = option(converter=partial(flag, "positions"), default=False)
    lengths: str | None = _option("lengths", LENGTHS, None)
    angles: str | None = _option("angles", ANGLE_DTYPES, None)
    rotary_dim: int = option(converter=options.unchecked, default=0)
    interleaved: bool = option(converter=partial(flag, "interleaved"), default=False)
    scaled: bool = option(converter=partial(flag, "scaled"), default=False)

    def check_together(self) -> None:
        """Refuses sizes, dtypes and arrays that have no kernel together.

        Raises:
          SpecError: names the option and what is allowed.
        """
        step = NARROW_HEAD_DIM_STEP if self.dtype in NARROW_DTYPES else HEAD_DIM_STEP
        for name in ("head_dim", "v_head_dim"):
            self._set(name, options.head_dim(name, getattr(self, name), step))
        allowed = (self.dtype, *(WIDE_DTYPES if self.dtype in NARROW_DTYPES else ()))
        one_of("new_dtype", allowed, self.new_dtype)
        if self.scaled and self.dtype == self.new_dtype:
            raise SpecError("scaled is for tokens that are narrowed to 8 bits")
        if self.cache.scale_dtype:
            self._check_position_scales()
        if (self.slot_dtype is not None) != (self.sequence_source == SLOTS):
            raise SpecError(f"slot_dtype is for sequence_source = {SLOTS}, got {self.slot_dtype}")
        if self.lengths is not None and (self.positions or self.sequence_source == SLOTS):
            raise SpecError(
                f"lengths are for positions that nothing else gives, got {self.lengths}"
            )
        if self.sequence_source == INDICES and not self.positions:
            raise SpecError(f"sequence_source = {INDICES} needs positions")
        self._check_angles()

    def _check_position_scales(self) -> None:
        if self.dtype == self.new_dtype or self.scaled:
            raise SpecError(
                "scales of positions are those of tokens of 16 bits, which are quantised to 8 by "
                "no others: "
                f"got new_dtype {self.new_dtype} for {self.dtype} and scaled {self.scaled}"
            )
        if (rows := self.cache.scale_rows) > 1:
            raise SpecError(
                "scales of a cache must be of single positions for new tokens, got those of "
                f"{rows} neighbouring ones: quantise whole blocks"
            )
        check_scale_groups(self.cache, {"head_dim": self.head_dim, "v_head_dim": self.v_head_dim})

    def _check_angles(self) -> None:
        columns = as_int(self.rotary_dim)
        is_right = columns is not None and columns in range(0, self.head_dim + 1, ROTARY_STEP)
        if not is_right or bool(columns) != (self.angles is not None):
            raise SpecError(
                f"rotary_dim must be a multiple of {ROTARY_STEP} up to {self.head_dim} with "
                f"angles, 0 without, got {shown(self.rotary_dim, 40)}"
            )
        if columns and self.new_dtype not in WIDE_DTYPES:
            raise SpecError(f"rotary is for tokens of bf16 or f16, got {self.new_dtype}")
        if self.interleaved and not columns:
            raise SpecError("interleaved is for rotary_dim above 0")
        if columns and self.sequence_source == SLOTS and not self.positions:
            raise SpecError("rotary needs positions beside slots")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The cache, the tokens, the slot mapping, then rotary angles and scales."""
        tokens: tuple[str, ...] = ("batch", "sq") if self.sequence_source == BATCH else ("tokens",)
        rows = self._rows
        columns = (self.head_dim, self.v_head_dim)
        operands = [
            Operand(name, self.dtype, (*rows, self.heads, width), "inout")
            for name, width in zip(CACHES, columns, strict=True)
        ]
        operands += [
            Operand(name, self.new_dtype, (*tokens, self.heads, width))
            for name, width in zip(NEW, columns, strict=True)
        ]
        if self.sequence_source == SLOTS:
            operands.append(Operand(SLOTS, cast(str, self.slot_dtype), tokens))
        if self.positions:
            operands.append(Operand("positions", "i32", tokens))
        if self.sequence_source == INDICES:
            operands.append(Operand(INDICES, "i32", tokens))
        if self.sequence_source == OFFSETS:
            operands.append(table(OFFSETS, "i32", 1))
        if self.angles is not None:
            extents = ("angles", self.rotary_dim // 2)
            operands += [Operand(name, self.angles, extents) for name in ("cos", "sin")]
        if self.sequence_source != SLOTS:
            operands += [table(name, "i32", rank) for name, rank in self.cache.arrays.items()]
        if self.lengths is not None:
            operands.append(table(self.lengths, "i32", 1))
        if self.scaled:
            operands += [table(name, "f32", 2) for name in SCALES]
        if self.cache.scale_dtype:
            groups = (self.cache.k_groups, self.cache.v_groups)
            operands += map(self._position_scale, SCALES, groups)
        return tuple(operands)

    def _position_scale(self, name: str, groups: int) -> Operand:
        """The scales of all positions."""
        rows = (f"{name}_0", self.cache.scale_page or f"{name}_1")
        return Operand(name, self.cache.scale_dtype, (*rows, self.heads, groups), "inout")

    @property
    def _rows(self) -> tuple[int | str, ...]:
        """The first two extents of the caches."""
        if self.cache.page_size:
            return "pages", self.cache.page_size
        is_batch = self.sequence_source == BATCH and not self.cache.selected
        return ("batch" if is_batch else "rows"), "sk"

    @property
    def kernel_name(self) -> str:
        """The static options."""
        words = (
            self.cache.short_name,
            {BATCH: "", INDICES: "bi", OFFSETS: "cu", SLOTS: f"slots_{self.slot_dtype}"}[
                self.sequence_source
            ],
            "pos" if self.positions else "",
            {"seqused_k": "uk", "cache_seqlens": "ck"}.get(self.lengths or "", ""),
            f"rope{self.rotary_dim}{'i' if self.interleaved else ''}_{self.angles}"
            if self.angles
            else "",
            self.dtype,
            f"of_{self.new_dtype}" if self.new_dtype != self.dtype else "",
            "scaled" if self.scaled else "",
        )
        values = f"v{self.v_head_dim}" if self.v_head_dim != self.head_dim else ""
        name = "_".join(filter(None, words))
        return f"attn_append_{name}_h{self.heads}_d{self.head_dim}{values}"

    def problem(self) -> Facts:
        """The facts of the cache and the tokens."""
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            q_type=self.new_dtype,
            kv_type=self.dtype,
            out_type=self.dtype,
            page_size=0 if self.sequence_source == SLOTS else self.cache.page_size,
            scales=position_scales(self.cache, self.head_dim, self.v_head_dim),
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.append`, which has no results."""
        from attn_mlir.dialect.attn.builder import emit_append

        cache = None if self.sequence_source == SLOTS else self.cache
        emit_append(
            arguments, cache=cache, lengths=self.lengths or "", interleaved=self.interleaved
        )
        return {}


CACHES, NEW, SCALES = ("k_cache", "v_cache"), ("k_new", "v_new"), ("k_scale", "v_scale")  # operands
