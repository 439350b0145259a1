"""`mha(...)`: attention as a user asks for it, checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.compiling.mha_options import MhaOptions
from attn_mlir.compiling.options import HEAD_DIM_STEP, NARROW_HEAD_DIM_STEP
from attn_mlir.compiling.request import request
from attn_mlir.compiling.schedules import (
    check_lengths,
    check_pins,
    check_query_tiles,
    check_results,
    check_stored,
)
from attn_mlir.compiling.sequences import position_scales, table
from attn_mlir.dialect.attn.block import BLOCK_LISTS, COUNTS, Block
from attn_mlir.dialect.attn.masks.shifted import shifted
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.dialect.attn.scale import DESCALES
from attn_mlir.dialect.attn.workspace import TILE_COUNTER, WORKSPACE
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError
from attn_mlir.schedules.policy.base import Call
from attn_mlir.schedules.policy.facts import Facts, Modifier
from attn_mlir.schedules.policy.registry import (
    choose,
    widening,
)

if TYPE_CHECKING:
    from attn_mlir.trace import MaskMod, ScoreMod

LSE_TERMS = 2  # of parts: two numbers whose sum is the LSE


@request
class MhaSpec(MhaOptions):
    """Multi-head attention for any batch and any sequence lengths.

    Options of one call of `attention` are those of its kernel and the operands.

    Args:
      heads: query heads.
      head_dim: elements per head of Q and K, a multiple of 8 up to 256; of 16 where they have 8
        bits.
      v_head_dim: elements per head of V and O; `head_dim` when left out.
      kv_heads: key and value heads; each serves heads / kv_heads query heads. As many as `heads`
        when left out.
      dtype: of Q, K and V: a name of `DTYPES`, of numpy or of torch, or a dtype of theirs. Kernels
        for 8 bits take
        the tensors `q_descale`, `k_descale` and `v_descale`, f32 [1 or batch, 1 or kv_heads].
      kv_dtype: of K and V where they are of 8 bits under a Q of 16; `dtype` when left out. Such
        kernels stream, and take `k_descale` and `v_descale`.
      mask: which keys a query sees, in closed form, see `masks`; `full()` when left out.
      score_mod: `score_mod(score, b, h, q, k)` returns the modified score; see `trace`.
      mask_mod: `mask_mod(b, h, q, k)` says which scores count, beyond the mask.
      sinks: an array [heads] as of `attention`; its dtype matters here.
      modifier: the traced program of `score_mod`, `mask_mod` and `sinks`, which are only read to
        make it. Its tensors are passed with every call.
      query_tiles: tiles of 128 rows that a CTA works on, 1 or 2; what head sizes allow when left
        out. For the schedule `mha-streaming` tiles of 16 rows, 1 when left out; a call takes 2
        where its policy says. For `mha-swapped` 1, 2 or 4 tiles of 8 rows; when left out as many
        as a group's heads fill, or in a call as its queries fill.
      tile_order: how tiles are given to CTAs: `single`, `last_first`, `persistent`, `clc` (cluster
        launch control), `counter` (drawn from a counter in memory that the kernel is called with)
        or, for queries by `cu_seqlens_q`, `ragged`; goes by lengths and mask when left out. All
        give the same bits.
      num_qk_stages: parts of a tile of keys, by columns, that Q K^T awaits one after the other: 1,
        2 or 4, a divisor of the lines of 128 bytes of a row of keys; 1 when left out. For the
        schedule `mha` on targets with tensor memory.
      num_pv_stages: likewise parts of a tile of probabilities, of 32 columns at least, that P V
        awaits.
      ordered_softmax: likewise whether the softmax groups of two query tiles weigh their scores one
        after the other, so that the tensor core works on one tile meanwhile.
      schedule: how the kernel is divided among warps: `mha`, for many queries, of which tiles stay
        in tensor memory, or `mha-streaming`, for few: 16 or 32 rows of a group's heads, past which
        keys and values stream; `mha-swapped`, for 8 to 32 rows, which are columns of products in
        tensor memory. The first where the target has tensor memory, when left out.
      out_dtype: of O: `bf16`, `f16` or `f32`, in any spelling; when left out `dtype`, and bf16
        where that has 8 bits.
      return_lse: whether the kernel takes and writes LSE.
      lengths: which index arrays tell the lengths of sequences; they are passed with every call.
      cache: how k and v lie where they are a cache; None for tensors of their own.
      offsets: which offsets of coordinates a call gives; their values are passed with it.
      block: positions, heads and keys of the blocks of scores that lists name, as
        `Choice.block` says; None for a kernel without lists.
      partial: whether O, in f32, and LSE are results of splits, which a second kernel combines;
        see `splits`.
      joined: whether the kernel combines the splits itself, in memory that it is called with.
      split_size: keys of each split, a multiple of 128; equal shares when left out.

    Raises:
      SpecError: a value that has no kernel, or a function that cannot be traced; the message names
        the option and what is allowed.
    """

    operation: ClassVar[str] = "mha"

    score_mod: InitVar[ScoreMod | None] = None
    mask_mod: InitVar[MaskMod | None] = None
    sinks: InitVar[object | None] = None

    def __post_init__(
        self, score_mod: ScoreMod | None, mask_mod: MaskMod | None, sinks: object | None
    ) -> None:
        """Traces the score modifiers, then checks and completes the options."""
        if score_mod is not None or mask_mod is not None or sinks is not None:
            if self.modifier is not None:
                raise SpecError(
                    "modifier excludes score_mod, mask_mod and sinks: it is made of them"
                )
            from attn_mlir.trace import trace  # numpy comes with it

            self._set("modifier", trace(score_mod, mask_mod, sinks)[0])
        super().__post_init__()

    def completed(self) -> Mapping[str, object]:
        """The defaults: kv_heads is heads, v_head_dim is head_dim, O has the dtype of Q."""
        kv_dtype = self.kv_dtype or self.dtype
        widens = kv_dtype != self.dtype or self._has_position_scales
        return {
            **super().completed(),
            "kv_dtype": kv_dtype,
            "schedule": widening(self.operation).name if widens else None,
            "v_head_dim": self.head_dim,
            "out_dtype": "bf16" if self.dtype in NARROW_DTYPES else self.dtype,
        }

    def check_together(self) -> None:
        """Refuses head counts, sizes, blocks and outputs that have no kernel together.

        Raises:
          SpecError: names the option and what is allowed.
        """
        self.check_heads()
        check_stored(self)
        step = NARROW_HEAD_DIM_STEP if self.kv_dtype in NARROW_DTYPES else HEAD_DIM_STEP
        for name in ("head_dim", "v_head_dim"):
            self._set(name, options.head_dim(name, getattr(self, name), step))
        if self.block is not None:
            self._set("block", options.block(self.block, self.group))
        check_query_tiles(self)
        check_lengths(self)
        if self.offsets.are_positions:
            shifted(self.mask, 0, 0)
        check_pins(self)
        check_results(self)

    @property
    def _has_position_scales(self) -> bool:
        """Whether every position of the cache has scales of its own."""
        return self.cache is not None and bool(self.cache.scale_dtype)

    @property
    def is_narrow(self) -> bool:
        """Whether q, k and v have 8 bits."""
        return self.dtype in NARROW_DTYPES

    @property
    def descales(self) -> tuple[str, ...]:
        """Names of the scales of operands of 8 bits."""
        if self.kv_dtype not in NARROW_DTYPES:
            return ()
        return DESCALES if self.is_narrow else DESCALES[1:]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K, V, O, LSE, the scale; then those that options add."""
        rows_k = self.rows_k if self.cache is None else self.cache.axes
        names = {"batch": "parts", "total_q": "part_rows"} if self.partial else {}
        *lead, rows = (names.get(name, name) for name in self.rows_q)
        terms = (LSE_TERMS,) if self.partial else ()
        lse = Operand("lse", "f32", (*terms, *lead, self.heads, rows), "out")
        return (
            Operand("q", self.dtype, (*self.rows_q, self.heads, self.head_dim)),
            Operand("k", self.kv_dtype, (*rows_k, self.kv_heads, self.head_dim)),
            Operand("v", self.kv_dtype, (*rows_k, self.kv_heads, self.v_head_dim)),
            Operand("o", self.out_dtype, (*lead, rows, self.heads, self.v_head_dim), "out"),
            *((lse,) if self.return_lse else ()),
            Operand("scale", "f32", role="scalar", default=1.0 / math.sqrt(self.head_dim)),
            *self.index_operands,
            *(Operand(name, "i32", role="scalar") for name in self.offsets.numbers),
            *(table(name, "i32", 1) for name in self.offsets.arrays),
            *(self._descale(name) for name in self.descales),
            *(() if self.block is None else block_lists()),
            *(
                table(x.name, x.dtype, x.rank)
                for x in (self.modifier.tensors if self.modifier else ())
            ),
            *(self._workspace() if self.joined else ()),
            *(
                (Operand(TILE_COUNTER, "i32", (1,), "inout"),)
                if self.tile_order == "counter"
                else ()
            ),
        )

    def _workspace(self) -> tuple[Operand, ...]:
        """Memory in which the kernel combines splits."""
        call = Call(target_named(DEFAULT_TARGET))
        policy = self.policy or choose(self.facts, call).policy
        return workspace(policy.workspace(self.facts, self.query_tiles))

    def _descale(self, name: str) -> Operand:
        """The scales of one operand: a table, or those of positions."""
        q, k, _ = DESCALES
        if self.cache is None or not self.cache.scale_dtype or name == q:
            return table(name, "f32", 2)
        rows = (f"{name}_0", self.cache.scale_page or f"{name}_1")
        groups = self.cache.k_groups if name == k else self.cache.v_groups
        return Operand(name, self.cache.scale_dtype, (*rows, self.kv_heads, groups))

    @property
    def kernel_name(self) -> str:
        """The static options; a long mask by its digest."""
        words = (
            self.mask_name,
            "part" if self.partial else "",
            "joined" if self.joined else "",
            f"by{self.split_size}" if self.split_size is not None else "",
            self.schedule_word,
            "mod" if self.modifier is not None else "",
            "blocks" if self.block is not None else "",
            "" if self.cache is None else self.cache.short_name,
            self.lengths.short_name,
            self.offsets.short_name,
            self.dtype,
            f"kv{self.kv_dtype}" if self.kv_dtype != self.dtype else "",
            f"o{self.out_dtype}" if self.out_dtype != self.dtype else "",
            f"h{self.heads}k{self.kv_heads}",
        )
        values = f"v{self.v_head_dim}" if self.v_head_dim != self.head_dim else ""
        return f"attn_mha_{'_'.join(filter(None, words))}_d{self.head_dim}{values}"

    def problem(self) -> Facts:
        """The facts of the attention; the policy answers with schedule, query tiles and order."""
        return dataclasses.replace(
            self.attention_facts(self.head_dim, self.v_head_dim, self.dtype),
            kv_type=self.kv_dtype,
            out_type=self.out_dtype,
            scales=position_scales(self.cache, self.head_dim, self.v_head_dim),
            block=None if self.block is None else Block(*self.block),
            modifier=Modifier.of(self.modifier),
            partial=self.partial,
            combined=self.joined,
            split_size=self.split_size or 0,
            has_tile_counter=self.tile_order == "counter",
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.mha`."""
        from attn_mlir.dialect.attn.builder import emit_mha
        from attn_mlir.dialect.attn.mha import name_schedule

        op = emit_mha(
            arguments,
            mask=self.mask,
            out_dtype=self.out_dtype,
            lengths=self.lengths,
            cache=self.cache,
            partial=self.partial,
            part_keys=self.split_size,
            modifier=self.modifier,
            block=self.block,
        )
        if self.schedule is not None:
            name_schedule(op, self.schedule)
        return {"o": op.o, "lse": op.lse}


mha = MhaSpec


def workspace(extents: Iterable[tuple[int | str, ...]]) -> tuple[Operand, ...]:
    """The memory in which a kernel combines splits, of these extents."""
    dtypes = ("f32", "f32", "i32")
    return tuple(
        Operand(name, dtype, shape, "inout")
        for name, dtype, shape in zip(WORKSPACE, dtypes, extents, strict=True)
    )


def block_lists() -> tuple[Operand, ...]:
    """The lists of blocks: numbers of blocks, and which."""
    counts, indices = (table(name, "i32", 4) for name in BLOCK_LISTS)
    return Operand(counts.name, "i32", (*counts.extents[:-1], COUNTS)), indices
