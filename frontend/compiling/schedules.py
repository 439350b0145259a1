"""Checks combinations of options: those of any schedule, and those that policies know."""

from __future__ import annotations

from collections.abc import Mapping

from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.compiling.mha_options import MhaOptions
from attn_mlir.compiling.request import Request
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import DENSE
from attn_mlir.dialect.orders import ANSWERED_ORDERS
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.policy.refusal import Mismatch
from attn_mlir.schedules.policy.registry import mismatch, pins_mismatch
from attn_mlir.schedules.policy.tiling import MAX_F32_HEAD_DIM, SCALE_GROUPS, has_scale_groups


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


def check_pins(spec: Request) -> None:
    """Refuses knobs without a kernel on any target, and what the schedule that is named lacks.

    Raises:
      SpecError: names the option and what is allowed.
    """
    policy, pins = spec.policy, dict(spec.pins)
    if pins.get("tile_order") in ANSWERED_ORDERS and (policy is None or policy.claims.claims_tiles):
        del pins["tile_order"]  # the target decides
    if policy is None:
        refuse(spec.operation, pins_mismatch(spec.facts, pins))
    else:
        target = target_named(DEFAULT_TARGET)
        problem = mismatch(policy, spec.facts, target)
        refuse(f"schedule {policy.name}", problem or policy.pins_mismatch(spec.facts, target, pins))


def refuse(subject: str, problem: Mismatch | None) -> None:
    """Raises what is wrong with a request, if anything is.

    Args:
      subject: that has no kernel for it.

    Raises:
      SpecError: says what is allowed.
    """
    if problem is not None:
        raise SpecError(no_kernel(subject, str(problem)))


def check_query_tiles(spec: MhaOptions) -> None:
    """Refuses more query tiles than a schedule has.

    Raises:
      SpecError: says what is allowed.
    """
    if (spec.query_tiles or 0) > (spec.policy or Policy).most_query_tiles:
        raise SpecError(f"query_tiles must be 1, 2 or None, got {spec.query_tiles}")


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
