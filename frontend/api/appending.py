"""`append_kv`: check a cache and new tokens, and plan the launch that writes these into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

from attn_mlir.api.appending_checks import check_positions
from attn_mlir.api.array_checks import checked_array, dense_array, index_array
from attn_mlir.api.caches import Cached, cached
from attn_mlir.api.descales import scale_tables
from attn_mlir.api.lengths import contents_of
from attn_mlir.api.plan import Plan, Step
from attn_mlir.api.planners import declared_by
from attn_mlir.arrays import as_i32
from attn_mlir.caches import CACHES, ContiguousKV, PagedKV
from attn_mlir.compiling.appending import (
    ANGLE_DTYPES,
    BATCH,
    INDICES,
    LENGTHS,
    NEW,
    OFFSETS,
    SCALES,
    SLOT_DTYPES,
    SLOTS,
    AppendSpec,
)
from attn_mlir.compiling.dtypes import DTYPES, NARROW_DTYPES, WIDE_DTYPES, refused_dtype
from attn_mlir.dialect.attn.cache import TABLE, Cache
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import MAX_I32, flag
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice

ROTARY = "rotary must be (cos, sin, interleaved)"
TOKEN_SHAPES = {3: "[tokens, heads, head_dim]", 4: "[batch, n, heads, head_dim]"}


@dataclass(frozen=True, eq=False)
class AppendCall:
    """The arguments of `append_kv`, which says what they are."""

    cache: ContiguousKV | PagedKV
    k_new: Any
    v_new: Any
    positions: Any = None
    _: KW_ONLY
    batch_indices: Any = None
    cu_seqlens: Any = None
    slot_mapping: Any = None
    rotary: tuple[Any, Any, bool] | None = None
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(AppendCall)
def append_kv(call: AppendCall) -> Plan:
    """Writes the keys and values of new tokens into a cache, in place and in one launch.

    One of three sources gives the slot of a token:

    - `slot_mapping`: slot page x page_size + offset, or row x positions + position in a cache
      without pages. The cache's tables and lengths are not read.
    - `positions`: that position of its sequence; `leftpad` shifts it.
    - the cache's lengths, if neither is given: the n new tokens are the last ones of sequence b.
      With `counts_new=True` `seqused[b]` includes them, and they go to positions seqused[b] - n
      and after. The same holds for compressed rows, whose `last_page_len` includes them, and
      without `seqused`, where sequences fill their rows. With `counts_new=False` they go to
      positions seqused[b] and after, as with FlashAttention's `cache_seqlens`. `seqused` includes
      `leftpad`.

    Lengths and all other slots stay unchanged. A token without a slot, such as one past the end of
    its sequence's memory, is not written. Two tokens for one slot are refused if the arrays are in
    host memory; otherwise each 16 bytes of the slot come from one of the two.

    Args:
      cache: as of `attention`; of bf16, f16 or a `float8` of 8 bits.
      k_new: [batch, n, kv_heads, head_dim], n tokens of each sequence; or [tokens, kv_heads,
        head_dim] with `slot_mapping`, with `positions` and `batch_indices`, or with `cu_seqlens`.
        The cache's dtype; or bf16 or f16 for a cache of 8 bits, which gets them divided by
        `k_scale` and saturated. Scales of positions are written as well: for each group of columns
        the largest element over the largest 8-bit number.
      v_new: the same for values, with v_head_dim.
      positions: [tokens] or [batch, n], i32 or u32, as all index arrays.
      batch_indices: [tokens] i32, the sequence of each token. A negative one is ignored.
      cu_seqlens: [batch + 1] i32: sequence b has the tokens from cu_seqlens[b] to before
        cu_seqlens[b + 1]; others are ignored.
      slot_mapping: [tokens] i32 or i64. A negative one is ignored.
      rotary: (cos, sin, interleaved), with cos and sin [positions, C]: the first 2 x C columns of
        the key at position p are rotated by row p; 2 x C is a multiple of 16. Pairs are the columns
        i and i + C, or 2 i and 2 i + 1 if `interleaved`. With `slot_mapping` it needs `positions`
        as well. q is not rotated.
      device, stream: as of `attention`.

    Raises:
      SpecError: an argument is wrong, or the contents of one in host memory: tokens past the end of
        their sequence's memory, two for one slot, table entries out of range. Nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    if not isinstance(cast(object, call.cache), CACHES):
        raise SpecError(f"cache must be a PagedKV or a ContiguousKV, got {shown(call.cache)}")
    cache = cached(call.cache)
    tensors = _Tensors(cache, view(call.k_new, "k_new"), view(call.v_new, "v_new"))
    tensors.check()
    slots = _slots_of(call, tensors)
    angles, interleaved = _angles(call.rotary, tensors)
    kind = cache.kind or Cache()
    is_slots, has_positions = slots.kind == SLOTS, call.positions is not None
    lengths = {} if is_slots or has_positions else dict(cache.lengths)
    is_measured = bool(kind.scale_dtype)  # scales are computed from the tokens
    is_quantized = tensors.dtype in NARROW_DTYPES and tensors.new_dtype != tensors.dtype
    scaled = is_quantized and not is_measured
    if is_measured:
        _check_measured(tensors, kind, is_slots=is_slots)
    spec = AppendSpec(
        heads=int(tensors.k.shape[2]),
        head_dim=int(tensors.k.shape[3]),
        v_head_dim=int(tensors.v.shape[3]),
        dtype=tensors.dtype,
        new_dtype=tensors.new_dtype,
        cache=_without_lists(kind) if is_slots else kind,
        sequence_source=slots.kind,
        slot_dtype=view(slots.arrays[SLOTS], SLOTS).dtype if is_slots else None,
        positions=has_positions,
        lengths=next((name for name in LENGTHS if name in lengths), None),
        angles=angles["cos"].dtype if angles else None,
        rotary_dim=2 * int(angles["cos"].shape[1]) if angles else 0,
        interleaved=interleaved,
        scaled=scaled,
    )
    batch = cache.batch
    lengths = {
        name: index_array("seqused", value, (batch,), label=f"[batch] = [{batch}]", all_count=True)
        for name, value in lengths.items()
    }
    indices = {} if is_slots else dict(cache.arrays)
    scales: dict[str, TensorView] = {}
    if scaled:
        scales = scale_tables(cache.scales, tensors.dtype, batch, spec.heads)
        if is_slots and any(table.shape[0] > 1 for table in scales.values()):
            raise SpecError("k_scale and v_scale per sequence need positions, got slot_mapping")
    if is_measured:
        scales = dict(zip(SCALES, cast("tuple[TensorView, ...]", cache.scales), strict=True))
    arrays = {**slots.arrays, **indices, **lengths}
    check_positions(
        cache,
        slots.kind,
        tensors.k_new.shape[:-2],
        contents_of(arrays, cache.names),
        has_positions=has_positions,
        angle_count=angles["cos"].shape[0] if angles else None,
    )
    for name, pool in cache.operands.items():
        if pool.read_only:
            raise SpecError(
                f"{cache.names.get(name, name)} is written, but its memory is read-only"
            )
    arguments = {"k_cache": tensors.k, "v_cache": tensors.v}
    arguments |= {"k_new": call.k_new, "v_new": call.v_new}
    names = {"k_cache": _name(cache, "k"), "v_cache": _name(cache, "v")}
    step = Step(spec, {**arguments, **arrays, **angles, **scales}, names)
    return Plan.of([step], [], call, call.k_new, tensors.k_new)


@dataclass(frozen=True)
class _Tensors:
    """The tensors of a call."""

    cache: Cached
    k_new: TensorView
    v_new: TensorView

    @property
    def k(self) -> TensorView:
        """Keys of the cache, [pages or rows, positions, heads, head_dim]."""
        return self.cache.operands["k"]

    @property
    def v(self) -> TensorView:
        """Values of the cache, as `k` with v_head_dim."""
        return self.cache.operands["v"]

    @property
    def dtype(self) -> str:
        """The cache's dtype."""
        return self.k.dtype

    @property
    def new_dtype(self) -> str:
        """The tokens' dtype."""
        return self.k_new.dtype

    def check(self) -> None:
        """Refuses tensors that do not belong together.

        Raises:
          SpecError: names the tensor.
        """
        names = {"k": _name(self.cache, "k"), "v": _name(self.cache, "v")}
        if self.dtype not in DTYPES:
            raise refused_dtype(names["k"], self.dtype, DTYPES)
        if self.v.dtype != self.dtype:
            raise SpecError(f"{names['v']} is {self.v.dtype}, {names['k']} is {self.dtype}")
        if self.k.shape[:-1] != self.v.shape[:-1]:
            raise SpecError(
                f"{names['k']} and {names['v']} must agree but for head_dim, got "
                f"{list(self.k.shape)} and {list(self.v.shape)}"
            )
        rows = self.k.shape[0] * self.k.shape[1]
        if rows > MAX_I32:
            raise SpecError(f"{names['k']} has {rows} positions, allowed are up to {MAX_I32}")
        allowed = (self.dtype, *(WIDE_DTYPES if self.dtype in NARROW_DTYPES else ()))
        for new, name, of in zip((self.k_new, self.v_new), NEW, (self.k, self.v), strict=True):
            shape = list(new.shape)
            if len(shape) not in TOKEN_SHAPES:
                raise SpecError(f"{name} must be {' or '.join(TOKEN_SHAPES.values())}, got {shape}")
            if new.dtype not in allowed:
                raise SpecError(
                    f"{name} is {new.dtype}, {names[name[0]]} is {of.dtype}: allowed are "
                    f"{', '.join(allowed)}"
                )
            for axis, what in ((-2, "heads"), (-1, "elements per head")):
                if shape[axis] != of.shape[axis]:
                    raise SpecError(
                        f"{name} has {shape[axis]} {what}, {names[name[0]]} has {of.shape[axis]}"
                    )
        if self.k_new.shape[:-1] != self.v_new.shape[:-1] or self.v_new.dtype != self.new_dtype:
            raise SpecError(
                f"k_new and v_new must agree but for head_dim, got {list(self.k_new.shape)} of "
                f"{self.new_dtype} and {list(self.v_new.shape)} of {self.v_new.dtype}"
            )
        if len(self.k_new.shape) == 4 and self.k_new.shape[0] != self.cache.batch:
            raise SpecError(
                f"k_new has batch {self.k_new.shape[0]}, "
                f"{_name(self.cache, self.cache.batch_source)} has {self.cache.batch}"
            )


@dataclass(frozen=True)
class _Slots:
    """The argument that assigns slots to tokens, and the arrays for it by name."""

    kind: str
    arrays: Mapping[str, object]


def _slots_of(call: AppendCall, tensors: _Tensors) -> _Slots:
    """The arrays that assign slots to tokens, checked but for their contents.

    Raises:
      SpecError: arrays that are missing, too many or of a wrong kind.
    """
    tokens, positions = tensors.k_new.shape[:-2], call.positions
    sources = {name: getattr(call, name) for name in (SLOTS, "positions", INDICES, OFFSETS)}
    sources = {name: value for name, value in sources.items() if value is not None}
    kinds = [name for name in (SLOTS, INDICES, OFFSETS) if name in sources]
    if len(kinds) > 1:
        raise SpecError(f"{kinds[0]} and {kinds[1]} both tell where tokens go: pass one")
    if len(tokens) == 2 and kinds:
        raise SpecError(
            f"{kinds[0]} is for k_new {TOKEN_SHAPES[3]}, got {list(tensors.k_new.shape)}"
        )
    if len(tokens) == 1 and not kinds:
        raise SpecError(
            f"k_new {TOKEN_SHAPES[3]} needs {SLOTS}, {OFFSETS}, or positions and {INDICES}"
        )
    if INDICES in sources and positions is None:
        raise SpecError(f"positions are missing: {INDICES} alone does not tell where tokens go")
    if SLOTS in sources and (positions is not None) != (call.rotary is not None):
        raise SpecError(
            "positions and slot_mapping both tell where tokens go: pass one"
            if positions is not None
            else "positions are missing: rotary needs them beside slot_mapping"
        )
    shape = "[tokens]" if len(tokens) == 1 else "[batch, n]"
    arrays = dict[str, object]()
    for name, value in sources.items():
        extents = (tensors.cache.batch + 1,) if name == OFFSETS else tokens
        label = f"{'[batch + 1]' if name == OFFSETS else shape} = {list(extents)}"
        dtypes = SLOT_DTYPES if name == SLOTS else ("i32",)
        arrays[name] = dense_array(name, as_i32(value, name), extents, *dtypes, label=label)
    return _Slots(kinds[0] if kinds else BATCH, arrays)


def _angles(rotary: object, tensors: _Tensors) -> tuple[dict[str, TensorView], bool]:
    """cos and sin by name, if there are any, and whether pairs are neighbours.

    Raises:
      SpecError: they are no angles of these keys.
    """
    if rotary is None:
        return {}, False
    items = cast("tuple[Any, ...]", rotary if isinstance(rotary, (tuple, list)) else ())
    if len(items) != 3:
        raise SpecError(f"{ROTARY}, got {shown(cast(object, rotary))}")
    if tensors.new_dtype not in WIDE_DTYPES:
        allowed = " or ".join(WIDE_DTYPES)
        raise SpecError(f"rotary is for k_new of {allowed}, got {tensors.new_dtype}")
    axes = ("positions", "rotary_dim / 2")
    cos, sin = (
        checked_array(f"rotary's {name}", array, axes, *ANGLE_DTYPES)
        for name, array in zip(("cos", "sin"), items[:2], strict=True)
    )
    if (cos.shape, cos.dtype) != (sin.shape, sin.dtype):
        raise SpecError(
            f"rotary's cos and sin must agree, got {list(cos.shape)} of {cos.dtype} and "
            f"{list(sin.shape)} of {sin.dtype}"
        )
    return {"cos": cos, "sin": sin}, flag("rotary's interleaved", items[2])


def _check_measured(tensors: _Tensors, kind: Cache, *, is_slots: bool) -> None:
    """Refuses tokens whose scales no kernel computes, or has no slot for.

    Raises:
      SpecError: names the argument and what would do.
    """
    if tensors.new_dtype not in WIDE_DTYPES:
        raise SpecError(
            f"k_new is {tensors.new_dtype}, k_scale has scales of positions, which are found from "
            f"tokens of 16 bits: pass {' or '.join(WIDE_DTYPES)}"
        )
    if is_slots and kind.own_scale_table:
        raise SpecError("scale_table needs positions, got slot_mapping")


def _without_lists(kind: Cache) -> Cache:
    """The storage of a cache that slots index: one kernel serves all lists of its pages."""
    pages = TABLE if kind.page_size else ""
    return dataclasses.replace(kind, pages=pages, selected=False, padded=False)


def _name(cache: Cached, argument: str) -> str:
    """The caller's name of an argument."""
    return cache.names.get(argument, argument)
