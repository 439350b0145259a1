"""Splits of the keys: the number of parts, and the request for the kernel that computes them.

With few queries there are fewer work tiles than multiprocessors, and the keys are divided among
CTAs, each of which computes O and LSE for its part. They are combined by the last CTA of a work
tile, or by a second kernel (`attn_mlir.compiling.combination`); see `joins_parts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from attn_mlir.compiling import options
from attn_mlir.compiling.schedules import MAX_F32_HEAD_DIM
from attn_mlir.compiling.sizes import call_of
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.registry import combining, widening
from attn_mlir.schedules.policy.splits import MAX_SPLITS, SplitPolicy
from attn_mlir.schedules.policy.tiling import STREAM_KEYS


def check_num_splits(num_splits: object) -> int:
    """Checks a number of parts: 1 is no split, 0 leaves the number to the policy.

    Raises:
      SpecError: says what was got.
    """
    return integer("num_splits", num_splits, 0, MAX_SPLITS, also=" (0 chooses)")


def split_count(
    num_splits: object, spec: MhaSpec, sizes: Mapping[str, int], machine: Callable[[], Machine]
) -> int:
    """The number of parts of a call.

    Args:
      num_splits: as in `attention`.
      spec: the request without a split.
      sizes: `batch`, and the longest `sq` and `sk`.
      machine: returns the machine that the call runs on.

    Raises:
      SpecError: an invalid number of parts, or a request that cannot be split.
    """
    wanted = check_num_splits(num_splits)
    if wanted == 1:
        return 1
    fits = spec.v_head_dim <= MAX_F32_HEAD_DIM or joins_parts(spec)
    if wanted > 1 and not fits:
        raise SpecError(
            f"num_splits {wanted} needs v_head_dim of at most {MAX_F32_HEAD_DIM}, got "
            f"{spec.v_head_dim}: the parts' O is f32 and would exceed shared memory; pass 1"
        )
    if wanted > 1 and spec.block is not None:
        raise SpecError(f"num_splits {wanted} and a block_mask have no kernel: pass num_splits 1")
    if 0 in sizes.values() or not fits or spec.block is not None:
        return 1
    if wanted:
        return wanted
    policy = spec.policy
    if not isinstance(policy, SplitPolicy):
        return 1
    return policy.splits(spec.facts, call_of(spec, sizes, machine()))


def fixed_split(
    split_size: object,
    num_splits: object,
    spec: MhaSpec,
    sizes: Mapping[str, int],
    machine: Machine,
) -> tuple[int, int]:
    """For parts of a fixed size: the keys of a part, and the number of parts of a call.

    There are as many parts as the longest sequence could need with any mask. A shorter sequence has
    further parts without keys, which do not change its results, so these do not depend on the rest
    of the batch.

    Args:
      split_size, num_splits: as in `attention`.
      spec, sizes, machine: as in `split_count`.

    Raises:
      SpecError: an invalid size, or a request that cannot be split.
    """
    keys = options.split_size(split_size)
    if check_num_splits(num_splits) != 1:
        raise SpecError(f"split_size excludes num_splits, got {num_splits!r:.40}")
    if spec.block is not None:
        raise SpecError(f"split_size {keys} and a block_mask have no kernel: leave it out")
    if not joins_parts(spec):
        names = " or ".join(combining(spec.operation))
        raise SpecError(
            f"split_size {keys} needs schedule {names}, whose parts are put together in an order "
            f"of their own, got {spec.schedule or 'none'} on {machine.target or DEFAULT_TARGET}"
        )
    count = max(-(-sizes["sk"] // keys), 1)
    if count > MAX_SPLITS:
        least = -(-sizes["sk"] // (MAX_SPLITS * STREAM_KEYS)) * STREAM_KEYS
        raise SpecError(
            f"split_size {keys} makes {count} parts of {sizes['sk']} keys, allowed are "
            f"{MAX_SPLITS}: pass at least {least}"
        )
    return keys, count


def joins_parts(spec: MhaSpec) -> bool:
    """Whether the kernel for the parts combines them itself."""
    return isinstance(spec.policy, SplitPolicy) and spec.policy.combines_splits


def parts_schedule() -> str:
    """The schedule that combines parts of a fixed size, whatever the number of queries."""
    return widening(MhaSpec.operation).name


def part_spec(spec: MhaSpec) -> MhaSpec:
    """The request for the kernel that computes the parts, if another kernel combines them."""
    return dataclasses.replace(spec, partial=True, out_dtype="f32", return_lse=True)
