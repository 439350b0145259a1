"""How a call of latent attention after absorption is computed, as policies choose it.

It depends on the machine and on sizes, never on the contents of device arrays, so that recorded
launches stay valid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.splits import MAX_SPLITS, check_num_splits
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.base import Call
from attn_mlir.schedules.policy.registry import choose
from attn_mlir.schedules.policy.splits import SplitPolicy


def decode_schedule(spec: MlaDecodeSpec, target: str, *, scope_count: int = 1) -> str:
    """The name of the schedule.

    Args:
      scope_count: number of pools of rows that a query attends to at once; each of several has
        results for parts.

    Raises:
      SpecError: the target has none for it.
    """
    facts = dataclasses.replace(spec.facts, partial=spec.partial or scope_count > 1)
    return choose(facts, Call(target_named(target))).name


def check_scope_splits(num_splits: object, scope_count: int) -> int:
    """The number of parts of the keys of each scope as it is asked for; 0 chooses.

    Raises:
      SpecError: an invalid number of parts, or more than are combined.
    """
    count = check_num_splits(num_splits)
    if count * scope_count > MAX_SPLITS:
        raise SpecError(
            f"num_splits must be an integer from 0 to {MAX_SPLITS // scope_count} with extra_kv, "
            f"got {count}"
        )
    return count


def decode_splits(
    num_splits: object, spec: MlaDecodeSpec, sizes: Mapping[str, int], machine: Machine
) -> int:
    """The number of parts of the keys of a call.

    Args:
      num_splits: as of `mla_decode`.
      spec: the request, with its schedule.
      sizes: `batch`, and the longest `sq` and `sk`.
      machine: that the call runs on.

    Raises:
      SpecError: an invalid number of parts.
    """
    wanted = check_num_splits(num_splits)
    if 0 in sizes.values():
        return 1
    target = target_named(machine.target or DEFAULT_TARGET)
    call = Call(target, machine.multiprocessors, sizes)
    return wanted or _policy(spec, call).splits(spec.facts, call)


def decode_tiles(spec: MlaDecodeSpec, sizes: Mapping[str, int]) -> int:
    """Number of work tiles of a call without a split; of CTAs, where a pair has one work tile."""
    call = Call(target_named(DEFAULT_TARGET), sizes=sizes)
    return _policy(spec, call).work_tiles(spec.facts, call)


def _policy(spec: MlaDecodeSpec, call: Call) -> SplitPolicy:
    """The policy of the request's schedule, or of the one that it would get."""
    policy = spec.policy or choose(spec.facts, call)
    assert isinstance(policy, SplitPolicy)
    return policy
