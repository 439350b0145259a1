"""The table of policies, and the choice of one for a problem.

A new schedule has a line here. Those of an operation stand in the order in which they are
asked whether they take a problem.
"""

import functools
from collections.abc import Callable

from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, Target, target_named
from attn_mlir.errors import SpecError, TargetError, no_kernel
from attn_mlir.schedules.append.policy import APPEND
from attn_mlir.schedules.attention.keys_in_rows.policy import KEYS_IN_ROWS
from attn_mlir.schedules.attention.streaming.policy import STREAMING
from attn_mlir.schedules.attention.tensor_memory.policy import TENSOR_MEMORY
from attn_mlir.schedules.attention.warpgroups.policy import WARPGROUPS
from attn_mlir.schedules.backward.latent.policy import (
    LATENT_KV_GRADIENTS,
    LATENT_Q_GRADIENTS,
    LATENT_TENSOR_KV_GRADIENTS,
    LATENT_TENSOR_Q_GRADIENTS,
)
from attn_mlir.schedules.backward.policy import (
    DELTA,
    DIVIDED_KV_GRADIENTS,
    GRADIENTS,
    KV_GRADIENTS,
    Q_GRADIENTS,
    ROUND_ROWS,
    SINK_DELTA,
    SUM_PARTS,
    SUM_ROWS,
    ZERO_ROWS,
)
from attn_mlir.schedules.backward.tensor_memory.policy import (
    TENSOR_KV_GRADIENTS,
    TENSOR_Q_GRADIENTS,
)
from attn_mlir.schedules.combine.policy import COMBINE
from attn_mlir.schedules.latent.decode.policy import (
    DECODE,
    DECODE_PAIR,
    DECODE_STREAMING,
    DECODE_WARPGROUPS,
)
from attn_mlir.schedules.latent.prefill.policy import LATENT, LATENT_WARPGROUPS
from attn_mlir.schedules.latent.sparse.policy import SPARSE, SPARSE_PAIR, SPARSE_PAIR_THREADS
from attn_mlir.schedules.policy.base import Call, Policy
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Knobs
from attn_mlir.schedules.policy.refusal import Mismatch

CACHED_MISMATCHES = 1024  # problems whose mismatches are remembered, each with a schedule

POLICIES: list[Policy] = [
    KEYS_IN_ROWS,
    STREAMING,
    TENSOR_MEMORY,
    WARPGROUPS,
    LATENT,
    LATENT_WARPGROUPS,
    DECODE_PAIR,
    DECODE,
    DECODE_WARPGROUPS,
    DECODE_STREAMING,
    SPARSE_PAIR,
    SPARSE_PAIR_THREADS,
    SPARSE,
    APPEND,
    COMBINE,
    DELTA,
    ROUND_ROWS,
    SINK_DELTA,
    SUM_PARTS,
    SUM_ROWS,
    ZERO_ROWS,
    GRADIENTS,
    KV_GRADIENTS,
    DIVIDED_KV_GRADIENTS,
    Q_GRADIENTS,
    TENSOR_KV_GRADIENTS,
    TENSOR_Q_GRADIENTS,
    LATENT_KV_GRADIENTS,
    LATENT_Q_GRADIENTS,
    LATENT_TENSOR_KV_GRADIENTS,
    LATENT_TENSOR_Q_GRADIENTS,
]


def of_operation(operation: str) -> tuple[Policy, ...]:
    """The policies for an operation."""
    return tuple(_by_name(operation, tuple(POLICIES)).values())


@functools.cache
def _by_name(operation: str, policies: tuple[Policy, ...]) -> dict[str, Policy]:
    """Those of these policies that are for an operation, by the names of their schedules."""
    return {policy.name: policy for policy in policies if policy.operation == operation}


def named(operation: str, name: str) -> Policy:
    """The policy of an operation by the name of its schedule.

    Raises:
      SpecError: there is none by this name.
    """
    policies = _by_name(operation, tuple(POLICIES))
    if name not in policies:
        raise SpecError(f"schedule must be one of {', '.join(policies)}, got {name}")
    return policies[name]


def unnamed(operation: str) -> Policy:
    """The policy of an operation whose schedule adds no word to the name of a kernel: requests that
    get it may name none.
    """
    return next(policy for policy in of_operation(operation) if not policy.suffix)


def widening(operation: str) -> Policy:
    """The policy of an operation whose kernels widen keys of 8 bits.

    They take any number of queries, and combine parts of the keys of a fixed size.
    """
    return next(policy for policy in of_operation(operation) if policy.claims.kv_types)


def combining(operation: str) -> list[str]:
    """The names of an operation's schedules whose kernels combine parts of the keys."""
    policies = of_operation(operation)
    return sorted(x.name for x in policies if x.combines_splits)


def names_of(operation: str) -> tuple[str, ...]:
    """The names of an operation's schedules."""
    return tuple(_by_name(operation, tuple(POLICIES)))


@functools.lru_cache(maxsize=CACHED_MISMATCHES)
def mismatch(policy: Policy, facts: Facts, target: Target) -> Mismatch | None:
    """Why a schedule has no kernel for a problem, kept for calls of the same problem."""
    return policy.mismatch(facts, target)


def pins_mismatch(facts: Facts, pins: Knobs, target: Target | None = None) -> Mismatch | None:
    """Why no schedule of an operation has a kernel with these settings; None where one has.

    Args:
      pins: settings of knobs that a request asks for.
      target: the chip; None for any.
    """
    if not pins:
        return None
    policies = sorted(of_operation(facts.operation), key=lambda policy: policy.suffix)
    if target is not None:
        policies = [policy for policy in policies if policy.needs <= target.features]
    chip = target or target_named(DEFAULT_TARGET)
    found = [policy.pins_mismatch(facts, chip, pins) for policy in policies]
    return None if None in found or not found else found[0]


def choose(
    facts: Facts,
    call: Call,
    asked: str | None = None,
    *,
    refused: Callable[[str], Exception] | None = None,
) -> Choice:
    """The schedule for a problem: the one that is asked for, the first that takes it, or one that
    can.

    Args:
      asked: the name of a schedule of the operation.
      refused: makes the error of what has no kernel, in place of a SpecError about the chip.

    Raises:
      TargetError: no schedule applies to the target, or the one that is asked for does not.
      SpecError: a schedule is asked for that there is not, or none has a kernel for the problem;
        says why none has.
    """
    target, candidates = call.target, of_operation(facts.operation)
    if asked is not None:
        candidates = (named(facts.operation, asked),)
    applying = [policy for policy in candidates if policy.needs <= target.features]
    if not applying:
        lacking = (f"{x.name} needs {target.missing(x.needs)}" for x in candidates)
        raise TargetError(
            f"no schedule of attn.{facts.operation} applies to {target.chip}: {'; '.join(lacking)}"
        )
    reasons: list[str] = []
    able: list[Policy] = []
    for policy in applying:
        if (reason := mismatch(policy, facts, target)) is not None:
            reasons.append(f"{policy.name}: {reason}")
        elif asked is not None or policy.takes(facts, call):
            return Choice(policy, facts, call)
        else:
            able.append(policy)
    for policy in able:
        if not policy.by_name:
            return Choice(policy, facts, call)
    reasons += [f"{policy.name}: it must be asked for by name" for policy in able]
    if refused is not None:
        raise refused(no_kernel("", *reasons))
    raise SpecError(no_kernel(target.chip, *reasons))
