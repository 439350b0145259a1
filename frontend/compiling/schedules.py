"""Checks combinations of options: under any schedule, under one, or on one target.

A schedule assigns the work of a kernel to warps; its policy says which problems it supports.
"""

from __future__ import annotations

from collections.abc import Mapping

from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.compiling.mha_options import MhaOptions
from attn_mlir.compiling.sequences import GroupedRequest
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import DENSE
from attn_mlir.dialect.orders import ANSWERED_ORDERS
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, Target, target_named
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.schedules.policy.base import first_mismatch
from attn_mlir.schedules.policy.registry import mismatch
from attn_mlir.schedules.policy.tiling import (
    MAX_F32_HEAD_DIM,
    SCALE_GROUPS,
    has_scale_groups,
    row_lines,
)


def check_stored(spec: MhaOptions) -> None:
    """Refuses keys and values of a dtype, or with scales, that no kernel reads.

    Raises:
      SpecError: names the option.
    """
    is_widened = spec.kv_dtype in NARROW_DTYPES and spec.dtype not in NARROW_DTYPES
    if spec.kv_dtype != spec.dtype and not is_widened:
        raise SpecError(
            f"kv_dtype must be {spec.dtype}, as dtype, or one of 8 bits under 16, got "
            f"{spec.kv_dtype}"
        )
    if spec.cache is None or not spec.cache.scale_dtype:
        return
    if spec.kv_dtype not in NARROW_DTYPES:
        raise SpecError(f"scales of positions are for keys of 8 bits, got {spec.kv_dtype}")
    v_head_dim = spec.v_head_dim or spec.head_dim
    check_scale_groups(spec.cache, {"head_dim": spec.head_dim, "v_head_dim": v_head_dim})


def check_scale_groups(cache: Cache, columns: Mapping[str, int]) -> None:
    """Refuses scales of positions in groups that no kernel reads.

    Args:
      columns: of keys and of values, under the names of these options.

    Raises:
      SpecError: names the option.
    """
    operands = zip(("k_groups", "v_groups"), columns.items(), strict=True)
    for name, (size, count) in operands:
        groups = getattr(cache, name)
        if not has_scale_groups(count, groups):
            reason = f"scales of a row are {SCALE_GROUPS}"
            raise SpecError(no_kernel(f"{name} {groups}", reason, context=f"for {size} {count}"))


def check_results(spec: MhaOptions) -> None:
    """Refuses outputs and splits that no kernel computes.

    Raises:
      SpecError: names the option.
    """
    check_output(spec.out_dtype, spec.v_head_dim)
    if spec.partial and (spec.out_dtype != "f32" or not spec.return_lse):
        raise SpecError("partial results need out_dtype f32 and return_lse")
    if spec.partial and spec.modifier is not None and spec.modifier.sink is not None:
        raise SpecError("sinks of partial results belong to the kernel that combines them")
    if spec.joined and (spec.partial or spec.block is not None):
        other = "partial results" if spec.partial else "lists of blocks"
        raise SpecError(f"joined parts of the keys exclude {other}")
    if spec.split_size is not None and not spec.joined:
        raise SpecError("split_size of a kernel is that of joined parts of the keys")


def check_lengths(spec: MhaOptions) -> None:
    """Refuses lengths, caches and lists of blocks that exclude each other.

    Raises:
      SpecError: names the option.
    """
    if spec.tile_order == "ragged" and not spec.lengths.ragged_q:
        raise SpecError("tile_order ragged needs queries by cu_seqlens_q, got none")
    if spec.cache is not None and spec.lengths.ragged_k:
        raise SpecError("cu_seqlens_k is for keys in rows of one tensor, not for a cache")
    if spec.block is not None:
        if spec.cache is not None:
            raise SpecError("lists of blocks are for sequences of one length, got a cache")
        if spec.lengths != DENSE:
            arrays = ", ".join(spec.lengths.tensors)
            raise SpecError(f"lists of blocks are for sequences of one length, got {arrays}")


def check_schedule(spec: MhaOptions) -> None:
    """Refuses options without a kernel under the requested schedule, on any target.

    Raises:
      SpecError: names the option and what is allowed.
    """
    if spec.schedule is None:
        return
    policy, target = spec.policy, target_named(DEFAULT_TARGET)
    problem = mismatch(policy, spec.facts, target)
    if problem is None and spec.knobs:
        knobs = dict(spec.knobs)
        if policy.claims.claims_tiles and spec.tile_order in ANSWERED_ORDERS:
            del knobs["tile_order"]  # the target decides
        domains = policy.domains(spec.facts, target, {**policy.defaults, **knobs})
        problem = first_mismatch((n, knobs[n], domains[n]) for n in knobs if n in domains)
    if problem is not None:
        raise SpecError(no_kernel(f"schedule {spec.schedule}", str(problem)))


def check_stages(spec: MhaOptions) -> None:
    """Refuses stages inside products that a schedule does not have.

    Raises:
      SpecError: names the option.
    """
    for name in _requested_stages(spec):
        if name not in {knob.name for knob in spec.policy.options}:
            raise SpecError(f"schedule {spec.schedule} has no {name}: leave it out")
    check_order(spec)
    check_qk_stages(spec.num_qk_stages, spec.dtype, {"head_dim": spec.head_dim})


def check_qk_stages(count: int | None, dtype: str, sizes: Mapping[str, int]) -> None:
    """Refuses stages of Q K^T that are no whole lines of 128 bytes.

    Args:
      count: of stages.
      dtype: of keys.
      sizes: the columns that may be divided, by name.

    Raises:
      SpecError: none of them can be.
    """
    if count is None:
        return
    bits = 8 if dtype in NARROW_DTYPES else 16
    lines = {name: row_lines(columns, bits) for name, columns in sizes.items()}
    if all(n % count for n in lines.values()):
        got = " and ".join(f"{name} {sizes[name]} with {n}" for name, n in lines.items())
        raise SpecError(
            f"num_qk_stages must divide the lines of 128 bytes of a row of keys, got {count} for "
            f"{got}"
        )


def check_query_tiles(spec: MhaOptions) -> None:
    """Refuses more query tiles than a schedule has.

    Raises:
      SpecError: says what is allowed.
    """
    if (spec.query_tiles or 0) > spec.policy.most_query_tiles:
        raise SpecError(f"query_tiles must be 1, 2 or None, got {spec.query_tiles}")


def check_target(spec: GroupedRequest, target: Target, tile_order: str | None) -> None:
    """Refuses options that kernels with accumulators in registers do not have.

    Args:
      spec: the request.
      target: the chip.
      tile_order: the requested one.

    Raises:
      SpecError: names the option.
    """
    if Feature.TENSOR_MEMORY in target.features:
        return
    if tile_order == "clc":
        raise SpecError(no_kernel(target.chip, "leave it out", context="for tile_order clc"))
    for name in _requested_stages(spec):
        raise SpecError(no_kernel(target.chip, "leave it out", context=f"with {name}"))


def _requested_stages(spec: GroupedRequest) -> list[str]:
    """The requested options about stages of products and the order of softmax."""
    stages = [x for x in ("num_qk_stages", "num_pv_stages") if getattr(spec, x) is not None]
    return [*stages, *(["ordered_softmax"] if spec.ordered_softmax else [])]


def check_order(spec: GroupedRequest) -> None:
    """Refuses an order of softmax groups where there is one group.

    Raises:
      SpecError: names the option.
    """
    if spec.ordered_softmax and spec.query_tiles == 1:
        raise SpecError("ordered_softmax is for two query tiles, got query_tiles 1")


def check_output(out_dtype: str, v_head_dim: int) -> None:
    """Refuses an O that does not fit shared memory.

    Raises:
      SpecError: names the option.
    """
    if out_dtype == "f32" and v_head_dim > MAX_F32_HEAD_DIM:
        raise SpecError(
            f"out_dtype f32 needs v_head_dim of at most {MAX_F32_HEAD_DIM}, got {v_head_dim}: O "
            "and two key tiles would exceed shared memory"
        )
