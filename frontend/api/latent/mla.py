"""`mla`: latent attention before absorption, checked and planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from attn_mlir.api.attention import check_scale, out_dtype_of
from attn_mlir.api.caches import Cached
from attn_mlir.api.latent.packed_rows import rope_cached
from attn_mlir.api.latent.scales import rope_scales, row_scales
from attn_mlir.api.lengths import LengthArguments, SequenceLengths, sequence_lengths
from attn_mlir.api.plan import Plan, PlanView, Step, named_extents, results_of
from attn_mlir.api.planners import declared_by, only_planned
from attn_mlir.caches import CACHES
from attn_mlir.compiling.dtypes import WIDE_DTYPES, refused_dtype
from attn_mlir.compiling.latent import NARROW, WIDE_ROPE, MlaSpec
from attn_mlir.compiling.routes import choice_of, chosen
from attn_mlir.compiling.schedules import refuse
from attn_mlir.dialect.attn.cache import CSR, Cache
from attn_mlir.dialect.attn.latent.columns import ROPE_COLUMNS
from attn_mlir.dialect.attn.latent.formats import PLAIN
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice, machine_of
from attn_mlir.schedules.policy.registry import pins_mismatch

CALLED = {"q": "q_nope", "k": "k_nope"}  # names of queries and keys in messages about lengths


@dataclass(frozen=True, eq=False)
class _MlaOperands:
    """The arguments of `mla` before the lengths: fields follow the bases, the last first."""

    q_nope: Any
    q_rope: Any
    k_nope: Any
    k_rope: Any
    v: Any
    _: KW_ONLY
    mask: Mask | None = None
    scale: float
    return_lse: bool = False
    out_dtype: object = None


@dataclass(frozen=True, eq=False, kw_only=True)
class MlaCall(LengthArguments, _MlaOperands):
    """The arguments of `mla`, which says what they are."""

    q_descale: Any = None
    k_descale: Any = None
    v_descale: Any = None
    k_rope_descale: Any = None
    kv_format: str = PLAIN
    query_tiles: int | None = None
    tile_order: str | None = None
    num_qk_stages: int | None = None
    num_pv_stages: int | None = None
    ordered_softmax: bool = False
    sm_margin: int = 0
    out: Any = None
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(MlaCall)
def mla(call: MlaCall) -> Plan:
    """Latent attention whose keys and values are projected for each head, as in prefill.

    softmax(scale * (q_nope k_nope^T + q_rope k_rope^T), masked) v for every batch entry and head;
    the rope columns of a key are those of all heads.

    Args:
      q_nope: [batch, sq, heads, nope], bf16 or f16, as all operands; nope is a multiple of 64. Or
        e4m3, on targets with tensor memory; then nope is a multiple of 128.
      q_rope: [batch, sq, heads, rope], a multiple of 16, or 32 of e4m3; at most 256 with nope.
        Beside e4m3 it
        may be bf16, as k_rope then is: each of its columns counts twice.
      k_nope: [batch, sk, kv_heads, nope]; kv_heads divides heads, as a rule it is as many.
      k_rope: [batch, sk, 1, rope]; or a latent cache, `PagedKV` or `ContiguousKV` without values,
        of rows of 576 columns, the last 64 of which are rope, or of rope's 64 alone. A sequence of
        k_nope then has at most as many positions as the cache; where k_nope has a dimension for the
        sequence, the cache's `seqused` says how many of them there are.
        Where the other operands are bf16, it may be of e4m3: it is widened to bf16 on the way, on
        targets with tensor memory. A cache may then have scales of its positions, `k_scale`, of
        which that of rope's columns counts.
      v: [batch, sk, kv_heads, v_head_dim].
      mask: see `masks`; `full()` when left out.
      scale: of the scores, finite and greater than 0: the model's, which no head size tells.
      return_lse, out_dtype: as of `attention`.
      cu_seqlens_q, max_seqlen_q, seqused_q: lengths of q_nope and q_rope, as of `attention`.
      cu_seqlens_k, max_seqlen_k: lengths of k_nope, v and, where it is a tensor, k_rope.
      seqused_k, cache_seqlens, cache_counts_new: of these as well; refused next to a cache, which
        has `seqused`.
      q_descale, k_descale, v_descale: f32, scales of operands that are all of e4m3, which need
        them: of each row of q_nope and q_rope, [batch, sq] or [batch, sq, heads], or [total] or
          [total, heads];
        of each position of k_nope and k_rope, [batch, sk] or [total]; of v as of `attention`. Rope
        of bf16 is multiplied by them as well.
      k_rope_descale: scales of the positions of k_rope of e4m3 that is a tensor, f32 [batch, sk],
        or [total] with `cu_seqlens_k`; 1 when left out. Elements times their scales are rounded to
        bf16.
      kv_format: how the rows of the cache in k_rope are stored, as of `sparse_mla`: `bf16` for rows
        of these columns, also of f16 and e4m3; or `v32`, `model1` or `e4m3_rope16`, with bytes in
        the place of columns, of which rope, bf16, is read and nothing else.
      num_qk_stages, num_pv_stages, ordered_softmax: see `MlaSpec`; on targets with tensor memory.
      query_tiles, tile_order, sm_margin, out, device, stream: as of `attention`.

    Returns:
      O as [batch, sq, heads, v_head_dim], or [total, heads, v_head_dim] with `cu_seqlens_q`, in
      q_nope's kind of array; with `return_lse` also LSE in float32, [batch, heads, sq] or
      [heads, total], natural logarithm. A row that sees no key has O of 0 and an LSE of -inf.

    Raises:
      SpecError: an operand or an option is wrong; nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    cache, k_rope = None, call.k_rope
    if isinstance(k_rope, CACHES):
        cache = rope_cached(call.kv_format, k_rope)
        k_rope = cache.operands["k"]
        _check_replaced(call)
    elif call.kv_format != PLAIN:
        raise SpecError(
            f"kv_format is for k_rope in a cache, got {shown(call.kv_format, 40)} for a tensor"
        )
    sources = {name: getattr(call, name) for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v")}
    sources["k_rope"] = k_rope
    operands = {name: view(value, name) for name, value in sources.items()}
    _check_dtypes(operands, cache)
    attended = {"q": operands["q_nope"], "k": operands["k_nope"], "v": operands["v"]}
    lengths = sequence_lengths(attended, call, called=CALLED)
    if cache is not None:
        rows = {"q": attended["q"], **cache.operands}
        lengths_of_rows = sequence_lengths(rows, call.of_queries(), cache=cache, called=CALLED)
        lengths = _both(lengths, lengths_of_rows, cache)
    check_shapes(operands, cache)
    scales = rope_scales(operands, call.k_rope_descale, cache)
    descales = {name: getattr(call, name) for name in ("q_descale", "k_descale", "v_descale")}
    scales |= row_scales(operands, lengths.sizes["batch"], descales)
    machine = machine_of(call.device, operands["q_nope"]).without(call.sm_margin)
    target = machine.target or DEFAULT_TARGET
    option_names = ("mask", "return_lse", "num_qk_stages", "num_pv_stages", "ordered_softmax")
    options: dict[str, Any] = {name: getattr(call, name) for name in option_names}
    options |= {
        "out_dtype": out_dtype_of(call.out, call.out_dtype),
        "rope_factors": call.k_rope_descale is not None,
    }
    spec = _spec_of(operands, lengths, options)
    chip = target_named(target)
    pins = {x: y for x in ("query_tiles", "tile_order") if (y := getattr(call, x)) is not None}
    claimed = {name: order for name, order in pins.items() if order == "clc"}
    refuse(target, pins_mismatch(spec.facts, {**spec.pins, **claimed}, chip))
    if Feature.TENSOR_MEMORY not in chip.features and spec.has_helper:
        allowed = ", ".join(WIDE_DTYPES)
        name, dtype = ("q_nope", spec.dtype) if spec.has_wide_rope else ("k_rope", spec.rope_dtype)
        raise SpecError(f"{name} is {dtype}: on {target} it must be {allowed}")
    spec = dataclasses.replace(spec, **pins) if pins else spec
    spec = chosen(spec, choice_of(spec, lengths.sizes, machine))
    arguments = {**operands, **scales, **lengths.arrays, **lengths.scalars}
    arguments["scale"] = model_scale(call.scale)
    results = results_of(spec, named_extents(spec, operands), call.out, operands)
    arguments |= {x.name: PlanView(x.name, x.shape) for x in results}
    names = {} if cache is None else {"k_rope": cache.names.get("k", "k")}
    step = Step(spec, arguments, names)
    plan = Plan.of([step], results, call, call.q_nope, operands["q_nope"])
    return dataclasses.replace(plan, sm_margin=machine.sm_margin)


plan = only_planned(mla)


def model_scale(scale: object) -> float:
    """The scale of a call of latent attention.

    Raises:
      SpecError: none, or no scale.
    """
    if scale is None:
        raise SpecError("scale must be a number: it is the model's, and no head size tells it")
    return check_scale(scale)


def _both(tensors: SequenceLengths, rows: SequenceLengths, cache: Cached) -> SequenceLengths:
    """The lengths of one call, from those of k_nope and of a latent cache.

    Raises:
      SpecError: a sequence has different lengths in the two.
    """
    tensor_keys, cached_keys = tensors.key_lengths, rows.key_lengths
    if tensor_keys is not None and cached_keys is not None:
        has_lengths = bool(cache.lengths) or (cache.kind is not None and cache.kind.pages == CSR)
        for number, (keys, positions) in enumerate(
            zip(tensor_keys.tolist(), cached_keys.tolist(), strict=True)
        ):
            is_bound = has_lengths and not tensors.kinds.ragged_k  # k_nope has room for some more
            if positions > keys if is_bound else positions < keys:
                room = " room for" if is_bound else ""
                raise SpecError(
                    f"k_rope has {positions} positions of sequence {number}: k_nope has{room} "
                    f"{keys}"
                )
    kinds = dataclasses.replace(
        tensors.kinds, used_k=rows.kinds.used_k, cached_k=rows.kinds.cached_k
    )
    sizes = {**tensors.sizes, "sk": min(tensors.sizes["sk"], rows.sizes["sk"])}
    return dataclasses.replace(
        tensors,
        kinds=kinds,
        arrays={**rows.arrays, **tensors.arrays},
        sizes=sizes,
        cache=rows.cache or Cache(),
    )


def _check_replaced(call: MlaCall) -> None:
    """Refuses arguments that the fields of a cache in place of `k_rope` replace.

    Raises:
      SpecError: names the argument.
    """
    for name in ("seqused_k", "cache_seqlens", "cache_counts_new"):
        value = getattr(call, name)
        if value is not None and value is not False:
            raise SpecError(f"{name} is for k_rope as a tensor: the cache has seqused")
    if call.k_rope_descale is not None:
        raise SpecError("k_rope_descale is for k_rope as a tensor: the cache has k_scale")


def _check_dtypes(operands: Mapping[str, TensorView], cache: Cached | None) -> None:
    """Refuses operands without a kernel, or of different ones.

    Raises:
      SpecError: names the operand and its dtype.
    """
    q = operands["q_nope"]
    for name, operand in operands.items():
        called = name if cache is None or name != "k_rope" else cache.names.get("k", "k")
        may_narrow, may_widen = name == "k_rope", name in ("q_rope", "k_rope")
        allowed = (*WIDE_DTYPES, NARROW)
        if operand.dtype not in allowed:
            raise refused_dtype(called, operand.dtype, allowed)
        is_narrow = may_narrow and (operand.dtype, q.dtype) == (NARROW, WIDE_ROPE)
        is_wide = may_widen and (operand.dtype, q.dtype) == (WIDE_ROPE, NARROW)
        if operand.dtype != q.dtype and not is_narrow and not is_wide:
            exceptions = f", or {NARROW} under {WIDE_ROPE}" if may_narrow else ""
            exceptions += f", or {WIDE_ROPE} under {NARROW}" if may_widen else ""
            raise SpecError(
                f"{called} is {operand.dtype}, q_nope is {q.dtype}: all must be the "
                f"same{exceptions}"
            )
    ropes = [operands[name].dtype for name in ("q_rope", "k_rope")]
    if q.dtype == NARROW and ropes[0] != ropes[1]:
        raise SpecError(
            f"k_rope is {ropes[1]}, q_rope is {ropes[0]}: beside q_nope of {NARROW} both must be "
            "the same"
        )


def check_shapes(operands: Mapping[str, TensorView], cache: Cached | None) -> None:
    """Refuses operands that do not belong together; q_nope, k_nope and v have the right ranks.

    Raises:
      SpecError: names two of them and their shapes.
    """
    shapes = {name: list(operand.shape) for name, operand in operands.items()}

    def agree(name: str, other: str, expected: list[int], what: str) -> None:
        if shapes[name] != expected:
            raise SpecError(
                f"{name} must agree with {other} {what}, got {shapes[name]} and {shapes[other]}"
            )

    rope = shapes["q_rope"][-1:]
    agree("q_rope", "q_nope", [*shapes["q_nope"][:-1], *rope], "but for its columns")
    columns = [*shapes["k_nope"][:-1], *shapes["q_nope"][-1:]]
    agree("k_nope", "q_nope", columns, "in its columns")
    agree("v", "k_nope", [*shapes["k_nope"][:-1], *shapes["v"][-1:]], "but for its columns")
    if cache is None:
        expected = [*shapes["k_nope"][:-2], 1, *rope]
        if shapes["k_rope"] != expected:
            raise SpecError(
                f"k_rope must be {expected}, one head of the positions of k_nope and the columns "
                f"of q_rope, got {shapes['k_rope']}"
            )
    for name in ("q_nope", "k_nope"):
        if shapes[name][-2] == 0:
            raise SpecError(f"{name} has 0 heads: shape {shapes[name]}")


def sizes_of(operands: Mapping[str, TensorView]) -> dict[str, Any]:
    """The options of a request that operands of right shapes say: sizes and their dtype."""
    q, rope, k, v = (operands[name] for name in ("q_nope", "q_rope", "k_nope", "v"))
    return {
        "heads": int(q.shape[-2]),
        "kv_heads": int(k.shape[-2]),
        "nope_dim": int(q.shape[-1]),
        "rope_dim": int(rope.shape[-1]),
        "v_head_dim": int(v.shape[-1]),
        "dtype": q.dtype,
    }


def _spec_of(
    operands: Mapping[str, TensorView], lengths: SequenceLengths, options: Mapping[str, Any]
) -> MlaSpec:
    """The request that these operands make, with further options; errors as of `MlaSpec`."""
    return MlaSpec(
        **sizes_of(operands),
        rope_dtype=operands["k_rope"].dtype,
        rope_alone=lengths.cache is not None and int(operands["k_rope"].shape[-1]) == ROPE_COLUMNS,
        lengths=lengths.kinds,
        cache=lengths.cache,
        **options,
    )
