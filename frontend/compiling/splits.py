"""Split-KV: the number of splits of a call.

With few queries there are fewer work tiles than multiprocessors, and the keys are split among CTAs,
each of which computes partial O and LSE. The last CTA of a work tile or a second kernel
(`attn_mlir.compiling.combination`) combines them; see `Choice.combines_splits`.
"""

from __future__ import annotations

from attn_mlir.compiling import options
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.errors import SpecError, SplitError
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.schedules.policy.registry import combining, widening
from attn_mlir.schedules.policy.splits import MAX_SPLITS
from attn_mlir.schedules.policy.tiling import STREAM_KEYS

# options of a kernel whose partial results another kernel combines
PARTIAL: dict[str, object] = {"partial": True, "out_dtype": "f32", "return_lse": True}


def check_num_splits(num_splits: object, pool_count: int = 1) -> int:
    """Checks a number of splits: 1 is none, 0 leaves the number to the policy.

    Args:
      pool_count: number of cache pools, each with so many splits.

    Raises:
      SpecError: says what was got.
    """
    count: int = integer("num_splits", num_splits, 0, MAX_SPLITS, also=" (0 chooses)")
    if count * pool_count > MAX_SPLITS:
        raise SpecError(
            f"num_splits must be an integer from 0 to {MAX_SPLITS // pool_count} with extra_kv, "
            f"got {count}"
        )
    return count


def split_count(num_splits: object, choice: Choice) -> int:
    """The number of splits of a call.

    Args:
      num_splits: as in `attention`.
      choice: for the call without a split.

    Raises:
      SpecError: an invalid number of splits.
      SplitError: a request that cannot be split.
    """
    requested = check_num_splits(num_splits)
    if requested == 1:
        return 1
    refusal = choice.split_refusal()
    if requested and refusal:
        raise SplitError(f"num_splits {requested} {refusal}")
    if refusal or 0 in choice.call.sizes.values():
        return 1
    return requested or choice.splits()


def fixed_split(split_size: object, num_splits: object, choice: Choice) -> tuple[int, int]:
    """For splits of a fixed size: the keys of a split, and the number of splits of a call.

    There are as many splits as the longest sequence may need with any mask. Splits of a shorter
    sequence without keys do not change its results, so these do not depend on the batch.

    Args:
      split_size, num_splits: as in `attention`.
      choice: as in `split_count`.

    Raises:
      SpecError: an invalid size, or a request that cannot be split.
    """
    keys, sk = options.split_size(split_size), choice.call.sizes["sk"]
    if check_num_splits(num_splits) != 1:
        raise SpecError(f"split_size excludes num_splits, got {num_splits!r:.40}")
    if choice.facts.block is not None:
        raise SpecError(f"split_size {keys} {choice.split_refusal()}")
    if not choice.combines_splits:
        names = " or ".join(combining(choice.facts.operation))
        raise SpecError(
            f"split_size {keys} needs schedule {names}, whose parts are put together in an order "
            f"of their own, got {choice.name} on {choice.call.target.chip}"
        )
    count = max(-(-sk // keys), 1)
    if count > MAX_SPLITS:
        least = -(-sk // (MAX_SPLITS * STREAM_KEYS)) * STREAM_KEYS
        raise SpecError(
            f"split_size {keys} makes {count} parts of {sk} keys, allowed are {MAX_SPLITS}: pass "
            f"at least {least}"
        )
    return keys, count


def fixed_split_schedule() -> str:
    """The schedule that combines splits of a fixed size, for any number of queries."""
    return widening(MhaSpec.operation).name
