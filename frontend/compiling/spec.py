"""`mha(...)`: attention as a user asks for it, checked."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from attn_mlir.compiling.request import Request, option, request
from attn_mlir.dialect.attn.block import BLOCK_LISTS, COUNTS
from attn_mlir.dialect.attn.cache import PAGE_LISTS, Cache
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.dialect.attn.scale import DESCALES
from attn_mlir.dialect.attn.workspace import WORKSPACE
from attn_mlir.dialect.orders import TILE_ORDERS
from attn_mlir.errors import SpecError, TargetError, shown
from attn_mlir.masks import Mask, full
from attn_mlir.masks.text import parse_mask
from attn_mlir.passes.target.limits import DEFAULT_TARGET, TARGETS, target_named
from attn_mlir.passes.target.tiling import (
    MAX_HEAD_DIM,
    MAX_PAGES,
    MAX_Q_TILES,
    PAGE_SIZES,
    SCALE_GROUPS,
    SCHEDULES,
    STREAM_KEYS,
    STREAM_SUMS,
    STREAMED,
    TILE_N,
    TILED,
    Pieces,
    has_scale_groups,
    key_tiles_for,
)
from attn_mlir.runtime.scalars import as_int, flag, integer

if TYPE_CHECKING:
    from attn_mlir.dialect.attn.program import Program
    from attn_mlir.trace import MaskMod, ScoreMod

HEAD_DIM_STEP = 8
NARROW_HEAD_DIM_STEP = 16
DTYPES = ("bf16", "f16", "e4m3", "e5m2")
NARROW_DTYPES = ("e4m3", "e5m2")  # of 8 bits
SCALE_DTYPES = ("f32", "f16", "bf16")  # of factors that every position of a cache has of its own
OUT_DTYPES = ("bf16", "f16", "f32")
MAX_F32_HEAD_DIM = 192  # of O in f32: it and two key tiles fill shared memory
TILE_ROWS = target_named(DEFAULT_TARGET).rows_per_product  # of a query tile
BLOCK_ROWS, BLOCK_KEYS = (TILE_ROWS, MAX_Q_TILES * TILE_ROWS), TILE_N
MAX_HEADS = 1 << 16  # far above any model; a typing error should not compile
LSE_TERMS = 2  # of parts: two numbers whose sum is the LSE
MAX_MASK_NAME = 64  # characters of a kernel's name that go to the mask

_DTYPE_NAMES = {
    "bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16",
    "f16": "f16", "fp16": "f16", "float16": "f16", "half": "f16", "torch.float16": "f16",
    "e4m3": "e4m3", "float8_e4m3fn": "e4m3", "torch.float8_e4m3fn": "e4m3",
    "e5m2": "e5m2", "float8_e5m2": "e5m2", "torch.float8_e5m2": "e5m2",
    "f32": "f32", "fp32": "f32", "float32": "f32", "float": "f32", "torch.float32": "f32",
}  # fmt: skip
_LENGTH_FLAGS = {
    "cu_seqlens_q": "ragged_q",
    "cu_seqlens_k": "ragged_k",
    "seqused_q": "used_q",
    "seqused_k": "used_k",
    "cache_seqlens": "cached_k",
}  # index array -> field of `Lengths`


def _unchecked(value: int | None) -> Any:
    """Converter of a head size, whose steps depend on the dtype: `check_together` has the check."""
    return value


def _dtype(value: object) -> Any:
    return dtype_name(value, "dtype", DTYPES)


def _kv_dtype(value: object) -> Any:
    return dtype_name(value, "kv_dtype", DTYPES)


def _out_dtype(value: object) -> Any:
    return dtype_name(value, "out_dtype", OUT_DTYPES)


def _query_tiles(value: int | None) -> Any:
    tiles = as_int(value)
    if tiles not in (1, 2):
        raise SpecError(f"query_tiles must be 1, 2 or None, got {shown(value, 40)}")
    return tiles


def _tile_order(value: str | None) -> Any:
    if not _is_one_of(TILE_ORDERS, value):
        raise SpecError(
            f"tile_order must be one of {', '.join(TILE_ORDERS)} or None, got {shown(value, 40)}"
        )
    return value


def check_split_size(value: object) -> int:
    """Keys of a part.

    Raises:
      SpecError: no whole key tiles.
    """
    keys = as_int(value)
    if keys is None or keys < 1 or keys % STREAM_KEYS:
        raise SpecError(
            f"split_size must be a multiple of {STREAM_KEYS} keys or None, got {shown(value, 40)}"
        )
    return keys


def _split_size(value: int | None) -> Any:
    return check_split_size(value)


def _schedule(value: str | None) -> Any:
    if not _is_one_of(tuple(SCHEDULES), value):
        allowed = ", ".join(SCHEDULES)
        raise SpecError(f"schedule must be {allowed} or None, got {shown(value, 40)}")
    return value


def _lengths(value: Lengths) -> Any:
    if not isinstance(cast(object, value), Lengths):
        raise SpecError(
            f"lengths must be a Lengths of attn_mlir.dialect.attn.lengths, got {shown(value)}"
        )
    return value


def _lengths_of(names: list[str]) -> Lengths:
    """The lengths that these index arrays and numbers tell."""
    return Lengths(**{_LENGTH_FLAGS[name]: True for name in names if name in _LENGTH_FLAGS})


def _cache(value: Cache | None) -> Any:
    if not isinstance(cast(object, value), Cache):
        raise SpecError(
            f"cache must be a Cache of attn_mlir.dialect.attn.cache or None, got {shown(value)}"
        )
    assert value is not None
    if bool(value.page_size) != (value.pages in PAGE_LISTS):
        raise SpecError(
            f"cache with a page_size, and no other, must list pages by one of {', '.join(PAGE_LISTS)}, "
            f"got page_size {shown(value.page_size, 40)} and pages {shown(value.pages, 40)}"
        )
    if value.page_size:
        check_page_size("page_size", value.page_size)
        if value.selected or value.padded:
            raise SpecError("a cache with pages has neither batch_idx nor leftpad")
    if value.scale_dtype not in ("", *SCALE_DTYPES):
        raise SpecError(
            f"scale_dtype of a cache must be one of {', '.join(SCALE_DTYPES)}, got "
            f"{shown(value.scale_dtype, 40)}"
        )
    if value.own_scale_table and not (value.scale_dtype and value.page_size):
        raise SpecError("scale_table of a cache is for factors of positions in pages")
    return value


def check_page_size(name: str, size: object) -> int:
    """The page size itself.

    Raises:
      SpecError: one whose pages and key tiles do not divide each other.
    """
    found = as_int(size)
    if found is not None and found > 0 and key_tiles_for(found):
        return found
    raise SpecError(f"{name} {shown(size, 40)} has no kernel: supported are {PAGE_SIZES}")


def _mask(value: Mask | None) -> Any:
    if not isinstance(cast(object, value), Mask):
        raise SpecError(
            f"mask {shown(value)} has no kernel: supported are full(), causal(), "
            "sliding_window(), chunked(), prefix_lm() and what &, | and ~ make of them"
        )
    return value


def _modifier(value: Program | None) -> Any:
    if not callable(getattr(value, "canonical", None)):
        raise SpecError(
            "modifier must be what attn_mlir.trace.trace returns or None, got "
            f"{shown(value)}: functions are the score_mod and mask_mod of mha(...)"
        )
    return value


def _modifier_of(text: object) -> Program:
    """The modifier whose canonical text this is."""
    from attn_mlir.compiling.modifier_text import read_modifier  # needs numpy

    return read_modifier(text)


def _canonical(modifier: Program) -> str:
    return modifier.canonical()


def _extents(value: tuple[int, int, int] | None) -> Any:
    """Converter of a block, whose heads depend on other options: `check_together` has the check."""
    return value


@request
class MhaSpec(Request):
    """Multi-head attention for any batch and any sequence lengths.

    Options of one call of `attention` are those of its kernel and the operands.

    Args:
      heads: query heads.
      head_dim: elements per head of Q and K, a multiple of 8 up to 256; of 16 where they have 8
        bits.
      v_head_dim: elements per head of V and O; `head_dim` when left out.
      kv_heads: key and value heads; each serves heads / kv_heads query heads. As many as `heads`
        when left out.
      dtype: of Q, K and V: `bf16`, `f16`, `e4m3` or `e5m2`, also as `bfloat16`, `float16`,
        `float8_e4m3fn`, `float8_e5m2`, or a dtype of numpy or torch. Kernels for the last two take
        the tensors `q_descale`, `k_descale` and `v_descale`, f32 [1 or batch, 1 or kv_heads].
      kv_dtype: of K and V where they are of 8 bits under a Q of 16; `dtype` when left out. Such
        kernels stream, and take `k_descale` and `v_descale`.
      mask: which keys a query sees, in closed form, see `masks`; `full()` when left out.
      score_mod: `score_mod(score, b, h, q, k)` returns the modified score; see `trace`.
      mask_mod: `mask_mod(b, h, q, k)` says which scores count, beyond the mask.
      sinks: an array [heads] as of `attention`; its dtype matters here.
      modifier: what becomes of each score, traced: what `score_mod`, `mask_mod` and `sinks` make,
        which are only read to make it. Its tensors are passed with every call.
      query_tiles: tiles of 128 rows that a CTA works on, 1 or 2; what head sizes allow when left
        out. Of the schedule `mha-streaming`: of 16 rows, 1 when left out; a call takes 2 where the
        queries fill more than one and two fit.
      tile_order: how tiles are given to CTAs: `single`, `last_first`, `persistent`, `clc` (cluster
        launch control) or, for queries by `cu_seqlens_q`, `ragged`; goes by lengths and mask when
        left out. All give the same bits.
      schedule: how the kernel is divided among warps: `mha`, for many queries, of which tiles stay
        in tensor memory, or `mha-streaming`, for few: 16 or 32 rows of a group's heads, past which
        keys and values stream. The first where the target has tensor memory, when left out.
      out_dtype: of O: `bf16`, `f16` or `f32`, in any spelling; when left out `dtype`, and bf16 where
        that has 8 bits.
      return_lse: whether the kernel takes and writes LSE.
      lengths: which index arrays tell the lengths of sequences; they are passed with every call.
      cache: how k and v lie where they are a cache; None for tensors of their own.
      block: positions, heads and keys of the blocks of scores that lists name, as
        `work_tiles.kernel_block` says; None for a kernel without lists.
      partial: whether O, in f32, and LSE are results for parts of the keys, which a second kernel
        combines; see `splits`.
      joined: whether the keys are split into parts that the kernel puts together by itself, in
        memory that it is called with.
      split_size: keys of each of these parts, a multiple of 128; equal shares when left out.

    Raises:
      SpecError: a value that has no kernel, or a function that cannot be traced; the message names
        the option and what is allowed.
    """

    operation: ClassVar[str] = "mha"

    heads: int = option(converter=partial(integer, "heads", least=1, most=MAX_HEADS))
    head_dim: int = option(converter=_unchecked)
    v_head_dim: int = option(converter=_unchecked, default=None)
    kv_heads: int = option(
        converter=partial(integer, "kv_heads", least=1, most=MAX_HEADS), default=None
    )
    dtype: str = option(converter=_dtype, default="bf16")
    kv_dtype: str = option(converter=_kv_dtype, default=None)
    mask: Mask = option(converter=_mask, default=None, written=str, read=parse_mask)
    score_mod: InitVar[ScoreMod | None] = None
    mask_mod: InitVar[MaskMod | None] = None
    sinks: InitVar[object | None] = None
    modifier: Program | None = option(
        converter=_modifier, default=None, written=_canonical, read=_modifier_of
    )
    query_tiles: int | None = option(converter=_query_tiles, default=None)
    tile_order: str | None = option(converter=_tile_order, default=None)
    schedule: str | None = option(converter=_schedule, default=None)
    out_dtype: str = option(converter=_out_dtype, default=None)
    return_lse: bool = option(converter=partial(flag, "return_lse"), default=True)
    lengths: Lengths = option(
        converter=_lengths,
        default=DENSE,
        written=lambda lengths: [*lengths.tensors, *lengths.scalars],
        read=_lengths_of,
    )
    cache: Cache | None = option(
        converter=_cache,
        default=None,
        written=dataclasses.asdict,
        read=lambda fields: Cache(**cast("Mapping[str, Any]", fields)),
    )
    block: tuple[int, int, int] | None = option(
        converter=_extents, default=None, written=list, read=tuple
    )
    joined: bool = option(converter=partial(flag, "joined"), default=False)
    split_size: int | None = option(converter=_split_size, default=None)
    partial: bool = option(converter=partial(flag, "partial"), default=False)

    def __post_init__(
        self, score_mod: ScoreMod | None, mask_mod: MaskMod | None, sinks: object | None
    ) -> None:
        """Traces what becomes of scores, then checks and completes the options."""
        if score_mod is not None or mask_mod is not None or sinks is not None:
            if self.modifier is not None:
                raise SpecError(
                    "modifier excludes score_mod, mask_mod and sinks: it is made of them"
                )
            from attn_mlir.trace import trace  # numpy comes with it

            self._set("modifier", trace(score_mod, mask_mod, sinks)[0])
        super().__post_init__()

    def completed(self) -> Mapping[str, object]:
        """As many key heads as query heads, values of the size of keys, O of the dtype of Q."""
        kv_dtype = self.kv_dtype or self.dtype
        return {
            "kv_dtype": kv_dtype,
            "schedule": STREAMED if kv_dtype != self.dtype or self._has_position_scales else None,
            "kv_heads": self.heads,
            "v_head_dim": self.head_dim,
            "mask": full(),
            "out_dtype": "bf16" if self.dtype in NARROW_DTYPES else self.dtype,
        }

    def check_together(self) -> None:
        """Refuses head counts, sizes, blocks and outputs that have no kernel together.

        Raises:
          SpecError: names the option and what is allowed.
        """
        if self.heads % self.kv_heads:
            raise SpecError(
                f"kv_heads must divide heads, got heads = {self.heads} and kv_heads = "
                f"{self.kv_heads}"
            )
        self._check_kv_dtype()
        self._check_scales()
        step = NARROW_HEAD_DIM_STEP if self.kv_dtype in NARROW_DTYPES else HEAD_DIM_STEP
        for name in ("head_dim", "v_head_dim"):
            self._set(name, check_head_dim(name, getattr(self, name), step))
        if self.schedule == STREAMED:
            check_streamed(self)
        if self.tile_order == "ragged" and not self.lengths.ragged_q:
            raise SpecError("tile_order ragged needs queries by cu_seqlens_q, got none")
        if self.out_dtype == "f32" and self.v_head_dim > MAX_F32_HEAD_DIM:
            raise SpecError(
                f"out_dtype f32 needs v_head_dim of at most {MAX_F32_HEAD_DIM}, got "
                f"{self.v_head_dim}: O and two key tiles would exceed shared memory"
            )
        if self.partial and (self.out_dtype != "f32" or not self.return_lse):
            raise SpecError("partial results need out_dtype f32 and return_lse")
        if self.partial and self.modifier is not None and self.modifier.sink is not None:
            raise SpecError("sinks of partial results belong to the kernel that combines them")
        if self.joined and (self.partial or self.block is not None):
            other = "partial results" if self.partial else "lists of blocks"
            raise SpecError(f"joined parts of the keys exclude {other}")
        if self.split_size is not None and not self.joined:
            raise SpecError("split_size of a kernel is that of joined parts of the keys")
        if self.cache is not None and self.lengths.ragged_k:
            raise SpecError("cu_seqlens_k is for keys in rows of one tensor, not for a cache")
        if self.block is not None:
            self._set("block", _block(self.block, self.group))
            if self.cache is not None:
                raise SpecError("lists of blocks are for sequences of one length, got a cache")
            if self.lengths != DENSE:
                told = ", ".join(self.lengths.tensors)
                raise SpecError(f"lists of blocks are for sequences of one length, got {told}")

    def _check_kv_dtype(self) -> None:
        if self.kv_dtype == self.dtype:
            return
        if self.kv_dtype not in NARROW_DTYPES or self.dtype in NARROW_DTYPES:
            raise SpecError(
                f"kv_dtype must be {self.dtype}, as dtype, or one of 8 bits under 16, got "
                f"{self.kv_dtype}"
            )
        if self.schedule != STREAMED:
            raise SpecError(
                f"schedule {self.schedule} has no kernel for kv_dtype {self.kv_dtype} under "
                f"{self.dtype}: {STREAMED} has"
            )

    @property
    def _has_position_scales(self) -> bool:
        """Whether every position of the cache has factors of its own."""
        return self.cache is not None and bool(self.cache.scale_dtype)

    def _check_scales(self) -> None:
        if self.cache is None or not self.cache.scale_dtype:
            return
        if self.kv_dtype not in NARROW_DTYPES:
            raise SpecError(f"factors of positions are for keys of 8 bits, got {self.kv_dtype}")
        if self.schedule != STREAMED:
            raise SpecError(
                f"schedule {self.schedule} has no kernel for factors of positions: {STREAMED} has"
            )
        sides = (("k_groups", "head_dim"), ("v_groups", "v_head_dim"))
        for name, size in sides:
            groups, columns = getattr(self.cache, name), getattr(self, size) or self.head_dim
            if not has_scale_groups(columns, groups):
                raise SpecError(
                    f"{name} {groups} has no kernel for {size} {columns}: factors of a row are "
                    f"{SCALE_GROUPS}"
                )

    @property
    def group(self) -> int:
        """Query heads per key and value head."""
        return self.heads // self.kv_heads

    @property
    def has_padded_queries(self) -> bool:
        """Whether the queries of a sequence end before its dimension does."""
        return self.lengths.used_q and not self.lengths.ragged_q

    @property
    def is_narrow(self) -> bool:
        """Whether q, k and v have 8 bits."""
        return self.dtype in NARROW_DTYPES

    @property
    def descales(self) -> tuple[str, ...]:
        """Names of the factors of operands of 8 bits."""
        if self.kv_dtype not in NARROW_DTYPES:
            return ()
        return DESCALES if self.is_narrow else DESCALES[1:]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K, V, O, LSE, the scale; then what the options bring along."""
        rows_q = ("total_q",) if self.lengths.ragged_q else ("batch", "sq")
        rows_k = ("total_k",) if self.lengths.ragged_k else ("batch", "sk")
        rows_k = rows_k if self.cache is None else self.cache.axes
        found_by = {} if self.cache is None else self.cache.arrays
        names = {"batch": "parts", "total_q": "part_rows"} if self.partial else {}
        *lead, rows = (names.get(name, name) for name in rows_q)
        terms = (LSE_TERMS,) if self.partial else ()
        lse = Operand("lse", "f32", (*terms, *lead, self.heads, rows), "out")
        return (
            Operand("q", self.dtype, (*rows_q, self.heads, self.head_dim)),
            Operand("k", self.kv_dtype, (*rows_k, self.kv_heads, self.head_dim)),
            Operand("v", self.kv_dtype, (*rows_k, self.kv_heads, self.v_head_dim)),
            Operand("o", self.out_dtype, (*lead, rows, self.heads, self.v_head_dim), "out"),
            *((lse,) if self.return_lse else ()),
            Operand("scale", "f32", role="scalar", default=1.0 / math.sqrt(self.head_dim)),
            *(table(name, "i32", rank) for name, rank in found_by.items()),
            *(table(name, "i32", 1) for name in self.lengths.tensors),
            *(Operand(name, "i32", role="scalar") for name in self.lengths.scalars),
            *(self._descale(name) for name in self.descales),
            *(() if self.block is None else _lists()),
            *(
                table(x.name, x.dtype, x.rank)
                for x in (self.modifier.tensors if self.modifier else ())
            ),
            *(_workspace(self.v_head_dim, self.query_tiles or 1) if self.joined else ()),
        )

    def _descale(self, name: str) -> Operand:
        """The factors of one operand: a table, or those of positions."""
        q, k, _ = DESCALES
        if self.cache is None or not self.cache.scale_dtype or name == q:
            return table(name, "f32", 2)
        rows = (f"{name}_0", self.cache.page_size or f"{name}_1")
        groups = self.cache.k_groups if name == k else self.cache.v_groups
        return Operand(name, self.cache.scale_dtype, (*rows, self.kv_heads, groups))

    @property
    def schedule_options(self) -> Mapping[str, int | str]:
        """The query tiles and their order, where they are asked for."""
        options = {"q-tiles": self.query_tiles, "tile-order": self.tile_order}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def kernel_name(self) -> str:
        """What is static; a mask of many parts by its digest."""
        mask = self.mask.name
        if len(mask) > MAX_MASK_NAME:
            mask = f"mask_{hashlib.sha256(mask.encode()).hexdigest()[:12]}"
        words = (
            mask,
            "part" if self.partial else "",
            "joined" if self.joined else "",
            f"by{self.split_size}" if self.split_size is not None else "",
            SCHEDULES[self.schedule] if self.schedule is not None else "",
            "mod" if self.modifier is not None else "",
            "blocks" if self.block is not None else "",
            "" if self.cache is None else self.cache.short_name,
            self.lengths.short_name,
            self.dtype,
            f"kv{self.kv_dtype}" if self.kv_dtype != self.dtype else "",
            f"o{self.out_dtype}" if self.out_dtype != self.dtype else "",
            f"h{self.heads}k{self.kv_heads}",
        )
        values = f"v{self.v_head_dim}" if self.v_head_dim != self.head_dim else ""
        return f"attn_mha_{'_'.join(filter(None, words))}_d{self.head_dim}{values}"

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


def table(name: str, dtype: str, rank: int) -> Operand:
    """A tensor whose extents each call tells."""
    return Operand(name, dtype, tuple(f"{name}_{axis}" for axis in range(rank)))


def _lists() -> tuple[Operand, ...]:
    """The lists of blocks: numbers of blocks, and which."""
    counts, indices = (table(name, "i32", 4) for name in BLOCK_LISTS)
    return Operand(counts.name, "i32", (*counts.extents[:-1], COUNTS)), indices


def _workspace(v_head_dim: int, query_tiles: int) -> tuple[Operand, ...]:
    """Memory that parts of the keys are put together in, for query tiles rather than work tiles."""
    extents = Pieces.of(v_head_dim, query_tiles).workspace()
    dtypes = ("f32", "f32", "i32")
    return tuple(
        Operand(name, dtype, shape, "inout")
        for name, dtype, shape in zip(WORKSPACE, dtypes, extents, strict=True)
    )


def dtype_name(dtype: object, argument: str, allowed: Sequence[str]) -> str:
    """Our name of a dtype.

    Args:
      dtype: a name, or a dtype of numpy or torch.
      argument: what it was passed as.
      allowed: names that have a kernel.

    Raises:
      SpecError: not one of these.
    """
    spellings = [dtype] if isinstance(dtype, str) else [getattr(dtype, "name", None)]
    spellings += [getattr(dtype, "__name__", None), shown(dtype)]
    for text in spellings:
        if isinstance(text, str) and _DTYPE_NAMES.get(text) in allowed:
            return _DTYPE_NAMES[text]
    raise SpecError(f"{argument} {shown(dtype)} has no kernel: supported are {', '.join(allowed)}")


def check_registers(spec: MhaSpec, target: str) -> None:
    """Refuses what no kernel of a target whose products leave their sums in registers computes.

    Raises:
      SpecError: names the option.
    """
    if spec.schedule == TILED:
        raise SpecError(f"{target} has no schedule {TILED}: it has no tensor memory")
    if spec.block is not None:
        raise SpecError(f"{target} has no kernel for a block_mask: pass mask and mask_mod")
    if spec.tile_order == "clc":
        raise SpecError(f"{target} has no kernel for tile_order clc")


def check_streamed(spec: MhaSpec) -> None:
    """Refuses what a kernel that streams keys past few queries does not compute.

    Raises:
      SpecError: names the option.
    """
    where = f"schedule {STREAMED}"
    if spec.block is not None:
        raise SpecError(f"{where} has no kernel for a block_mask: pass mask and mask_mod")
    page = 0 if spec.cache is None else spec.cache.page_size
    if STREAM_KEYS not in key_tiles_for(page):
        raise SpecError(
            f"{where} has no kernel for pages of {page}: supported are those that divide "
            f"{STREAM_KEYS}, from {STREAM_KEYS // MAX_PAGES} on, and multiples of it"
        )
    if spec.query_tiles == MAX_Q_TILES and spec.v_head_dim > STREAM_SUMS:
        raise SpecError(
            f"{where} has no kernel for query_tiles {MAX_Q_TILES} with a v_head_dim above "
            f"{STREAM_SUMS}, got {spec.v_head_dim}: pass 1"
        )
    if spec.tile_order == "clc":
        raise SpecError(f"{where} has no kernel for tile_order clc")


def check_target(target: str) -> str:
    """The target itself.

    Raises:
      TargetError: no chip that we know. Whether a kernel has a schedule for it is found out when
        it is compiled.
    """
    if not _is_one_of(tuple(TARGETS), target):
        raise TargetError(
            f"target {shown(target, 40)} is not known: supported are {', '.join(TARGETS)}"
        )
    return target


def _is_one_of(names: Sequence[str], value: object) -> bool:
    """Whether a value is one of these texts; arrays may be asked as well."""
    return isinstance(value, str) and value in names


def _block(block: object, group: int) -> tuple[int, int, int]:
    """The block, or a refusal of one that is no work tile: 1 or 2 tiles of 128 rows, times 64 or 128 keys."""
    sizes = cast("Sequence[object]", block) if isinstance(block, Sequence) else ()
    extents = [as_int(extent) or 0 for extent in sizes]
    if len(extents) == 3 and min(extents) > 0:
        positions, heads, keys = extents
        if positions * heads in BLOCK_ROWS and keys in BLOCK_KEYS and group % heads == 0:
            return positions, heads, keys
    raise SpecError(
        f"block {shown(cast(object, block), 40)} has no kernel: it must be (positions, heads, keys) with "
        f"positions x heads of {BLOCK_ROWS}, heads that divide {group} and keys of {BLOCK_KEYS}"
    )


def check_head_dim(name: str, size: object, step: int) -> int:
    """The head size itself.

    Raises:
      SpecError: one that has no kernel: no multiple of `step`, or too large.
    """
    found = as_int(size)
    if found is not None and not found % step and 0 < found <= MAX_HEAD_DIM:
        return found
    above = 0 if found is None else -(-found // step) * step
    hint = f" (pad to {above}?)" if 0 < above <= MAX_HEAD_DIM else ""
    raise SpecError(
        f"{name} {shown(size, 40)} has no kernel: supported are multiples of {step} up to "
        f"{MAX_HEAD_DIM}{hint}"
    )
