"""What a user asks a kernel for, checked: the input of `compile` and the key of its cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.orders import TILE_ORDERS
from attn_mlir.errors import SpecError, TargetError, shown
from attn_mlir.masks import Mask, full
from attn_mlir.passes.target.limits import DEFAULT_TARGET, TARGETS, target_named
from attn_mlir.passes.target.tiling import MAX_HEAD_DIM, MAX_Q_TILES, TILE_N
from attn_mlir.runtime.scalars import as_int, flag, integer

if TYPE_CHECKING:
    from attn_mlir.dialect.attn.program import Program
    from attn_mlir.trace import MaskMod, ScoreMod

HEAD_DIM_STEP = 8
NARROW_HEAD_DIM_STEP = 16
DTYPES = ("bf16", "f16", "e4m3", "e5m2")
NARROW_DTYPES = ("e4m3", "e5m2")  # of 8 bits
DESCALES = ("q_descale", "k_descale", "v_descale")  # tensors that kernels of these take
OUT_DTYPES = ("bf16", "f16", "f32")
MAX_F32_HEAD_DIM = 192  # of O in f32: it and two key tiles fill shared memory
TILE_ROWS = target_named(DEFAULT_TARGET).rows_per_product  # of a query tile
BLOCK_ROWS, BLOCK_KEYS = (TILE_ROWS, MAX_Q_TILES * TILE_ROWS), TILE_N
MAX_HEADS = 1 << 16  # far above any model; a typing error should not compile

_DTYPE_NAMES = {
    "bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16",
    "f16": "f16", "fp16": "f16", "float16": "f16", "half": "f16", "torch.float16": "f16",
    "e4m3": "e4m3", "float8_e4m3fn": "e4m3", "torch.float8_e4m3fn": "e4m3",
    "e5m2": "e5m2", "float8_e5m2": "e5m2", "torch.float8_e5m2": "e5m2",
    "f32": "f32", "fp32": "f32", "float32": "f32", "float": "f32", "torch.float32": "f32",
}  # fmt: skip


@dataclass(frozen=True)
class MhaSpec:
    """Multi-head attention for any batch and any sequence lengths.

    Attributes:
      heads: query heads.
      kv_heads: key and value heads; each serves heads / kv_heads query heads.
      head_dim: elements per head of Q and K, a multiple of 8 up to 256; of 16 where they have 8
        bits.
      dtype: of Q, K and V: `bf16`, `f16`, `e4m3` or `e5m2`. Kernels for the last two take the
        tensors `q_descale`, `k_descale` and `v_descale`, f32 [1 or batch, 1 or kv_heads].
      mask: which keys a query sees, in closed form.
      v_head_dim: elements per head of V and O; `head_dim` when None.
      modifier: what becomes of each score, traced; its tensors are passed with every call.
      query_tiles: tiles of 128 rows that a CTA works on, 1 or 2; None takes what head sizes allow.
      tile_order: how tiles are given to CTAs: `single`, `last_first`, `persistent`, `clc` (cluster
        launch control) or, for queries by `cu_seqlens_q`, `ragged`; None goes by lengths and mask.
        All give the same bits.
      out_dtype: of O: `bf16`, `f16` or `f32`; None takes `dtype`, and bf16 where that has 8 bits.
      return_lse: whether the kernel takes and writes LSE.
      lengths: which index arrays tell the lengths of sequences; they are passed with every call.
      block: positions, heads and keys of the blocks of scores that lists name, as
        `work_tiles.kernel_block` says; None for a kernel without lists.
      partial: whether O, in f32, and LSE are results for parts of the keys, which a second kernel
        combines; see `splits`.

    Raises:
      SpecError: a value that has no kernel; the message names it and what is allowed.
    """

    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    mask: Mask
    modifier: Program | None = None
    v_head_dim: int | None = None
    query_tiles: int | None = None
    tile_order: str | None = None
    out_dtype: str | None = None
    return_lse: bool = True
    lengths: Lengths = DENSE
    block: tuple[int, int, int] | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        """Checks every field, and makes Python's own numbers of integers of other libraries."""
        _set(self, "heads", integer("heads", self.heads, 1, MAX_HEADS))
        _set(self, "kv_heads", integer("kv_heads", self.kv_heads, 1, MAX_HEADS))
        if self.heads % self.kv_heads:
            raise SpecError(
                f"kv_heads must divide heads, got heads = {self.heads} and kv_heads = "
                f"{self.kv_heads}"
            )
        if not _is_one_of(DTYPES, self.dtype):
            raise SpecError(
                f"dtype {shown(self.dtype, 40)} has no kernel: supported are {', '.join(DTYPES)}"
            )
        step = NARROW_HEAD_DIM_STEP if self.dtype in NARROW_DTYPES else HEAD_DIM_STEP
        _set(self, "head_dim", check_head_dim("head_dim", self.head_dim, step))
        if self.v_head_dim is not None:
            _set(self, "v_head_dim", check_head_dim("v_head_dim", self.v_head_dim, step))
        self._check_schedule()
        self._check_output()
        self._check_parts()

    def _check_schedule(self) -> None:
        if self.query_tiles is not None:
            tiles = as_int(self.query_tiles)
            if tiles not in (1, 2):
                raise SpecError(
                    f"query_tiles must be 1, 2 or None, got {shown(self.query_tiles, 40)}"
                )
            _set(self, "query_tiles", tiles)
        if self.tile_order is not None and not _is_one_of(TILE_ORDERS, self.tile_order):
            allowed = ", ".join(TILE_ORDERS)
            raise SpecError(
                f"tile_order must be one of {allowed} or None, got {shown(self.tile_order, 40)}"
            )
        if not isinstance(cast(object, self.lengths), Lengths):
            raise SpecError(
                "lengths must be a Lengths of attn_mlir.dialect.attn.lengths, got "
                f"{shown(self.lengths)}"
            )
        if self.tile_order == "ragged" and not self.lengths.ragged_q:
            raise SpecError("tile_order ragged needs queries by cu_seqlens_q, got none")

    def _check_output(self) -> None:
        if not _is_one_of(OUT_DTYPES, self.output_dtype):
            raise SpecError(
                f"out_dtype {shown(self.out_dtype, 40)} has no kernel: supported are "
                f"{', '.join(OUT_DTYPES)} and None"
            )
        if self.output_dtype == "f32" and self.values_dim > MAX_F32_HEAD_DIM:
            raise SpecError(
                f"out_dtype f32 needs v_head_dim of at most {MAX_F32_HEAD_DIM}, got "
                f"{self.values_dim}: O and two key tiles would exceed shared memory"
            )
        for name in ("return_lse", "partial"):
            _set(self, name, flag(name, getattr(self, name)))
        if self.partial and (self.output_dtype != "f32" or not self.return_lse):
            raise SpecError("partial results need out_dtype f32 and return_lse")
        if self.partial and self.modifier is not None and self.modifier.sink is not None:
            raise SpecError("sinks of partial results belong to the kernel that combines them")

    def _check_parts(self) -> None:
        if self.modifier is not None and not callable(getattr(self.modifier, "canonical", None)):
            raise SpecError(
                "modifier must be what attn_mlir.trace.trace returns or None, got "
                f"{shown(self.modifier)}: functions are the score_mod and mask_mod of mha(...)"
            )
        if self.block is not None:
            _set(self, "block", _block(self.block, self.group))
            if self.lengths != DENSE:
                told = ", ".join(self.lengths.tensors)
                raise SpecError(f"lists of blocks are for sequences of one length, got {told}")
        if not isinstance(cast(object, self.mask), Mask):
            raise SpecError(
                f"mask {shown(self.mask)} has no kernel: supported are full(), causal(), "
                "sliding_window(), chunked(), prefix_lm() and what &, | and ~ make of them"
            )

    @property
    def values_dim(self) -> int:
        """Elements per head of V and O."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def output_dtype(self) -> str:
        """Of O."""
        if self.out_dtype is not None:
            return self.out_dtype
        return "bf16" if self.dtype in NARROW_DTYPES else self.dtype

    @property
    def group(self) -> int:
        """Query heads per key and value head."""
        return self.heads // self.kv_heads

    def canonical_json(self) -> str:
        """The same text for the same request, whoever wrote it."""
        fields = {
            "op": "mha",
            "partial": self.partial,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "v_head_dim": self.values_dim,
            "dtype": self.dtype,
            "mask": str(self.mask),
            "query_tiles": self.query_tiles,
            "tile_order": self.tile_order,
            "out_dtype": self.output_dtype,
            "return_lse": self.return_lse,
            "lengths": [*self.lengths.tensors, *self.lengths.scalars],
            "block": None if self.block is None else list(self.block),
            "modifier": None if self.modifier is None else self.modifier.canonical(),
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def mha(
    *,
    heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    kv_heads: int | None = None,
    dtype: object = "bf16",
    mask: Mask | None = None,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    sinks: object | None = None,
    query_tiles: int | None = None,
    tile_order: str | None = None,
    out_dtype: object = None,
    return_lse: bool = True,
    lengths: Lengths = DENSE,
    block: tuple[int, int, int] | None = None,
) -> MhaSpec:
    """Ask for multi-head attention.

    Args:
      heads: query heads.
      head_dim: elements per head of Q and K, a multiple of 8 up to 256.
      v_head_dim: of V and O; `head_dim` when left out.
      kv_heads: key and value heads; as many as `heads` when left out.
      dtype: `bf16`, `f16`, `e4m3` or `e5m2`, also as `bfloat16`, `float16`, `float8_e4m3fn`,
        `float8_e5m2`, or a dtype of numpy or torch.
      mask: see `masks`; `full()` when left out.
      score_mod: `score_mod(score, b, h, q, k)` returns the modified score; see `trace`.
      mask_mod: `mask_mod(b, h, q, k)` says which scores count, beyond the mask.
      sinks: an array [heads] as of `attention`; its dtype matters here.
      query_tiles, tile_order, return_lse, lengths, block: see `MhaSpec`.
      out_dtype: of O: `bf16`, `f16` or `f32`, in any spelling; see `MhaSpec`.

    Raises:
      SpecError: a value that has no kernel, or a function that cannot be traced.
    """
    modifier: Program | None = None
    if score_mod is not None or mask_mod is not None or sinks is not None:
        from attn_mlir.trace import trace  # numpy comes with it

        modifier, _ = trace(score_mod, mask_mod, sinks)
    return MhaSpec(
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype=dtype_name(dtype, "dtype", DTYPES),
        mask=full() if mask is None else mask,
        modifier=modifier,
        query_tiles=query_tiles,
        tile_order=tile_order,
        out_dtype=None if out_dtype is None else dtype_name(out_dtype, "out_dtype", OUT_DTYPES),
        return_lse=return_lse,
        lengths=lengths,
        block=block,
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


def _set(spec: MhaSpec, name: str, value: object) -> None:
    """A field of a request that is being made."""
    object.__setattr__(spec, name, value)


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
