"""The choice of a schedule for an operation, and its configuration, by the policies that requests
ask too.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.errors import no_kernel
from attn_mlir.schedules.core.entries import CONFIG, entries_of, to_attr
from attn_mlir.schedules.core.facts import facts_of
from attn_mlir.schedules.policy.base import Call
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.schedules.policy.refusal import DoesNotFit, Mismatch
from attn_mlir.schedules.policy.registry import choose, of_operation
from attn_mlir.schedules.registry import Schedule, schedule_of

SCHEDULE = "attn.schedule"  # attribute of an operation: the name of its schedule


def schedule_for(op: Any, target: Target) -> Schedule:
    """The schedule of an operation.

    Raises:
      TargetError: no schedule applies to the target, or the one that the operation names does not;
        says what each would need.
      VerifyError: no schedule has a kernel for the operation, or it names an unknown one.
    """
    facts, named = facts_of(op), _named(op)
    known = [policy.name for policy in of_operation(facts.operation)]
    if named is not None and named not in known:
        raise op_error(op, f"expects {SCHEDULE} of {', '.join(known)}, got {named}")
    return schedule_of(choose(facts, Call(target), named, refused=partial(op_error, op)).policy)


def configure(op: Any, schedule: Schedule, target: Target, asked: Mapping[str, Any]) -> None:
    """Chooses tiles and budgets of an operation and stores them as `attn.config`.

    Entries that it already carries are kept.

    Args:
      schedule: as of `schedule_for`.
      asked: settings that `attn-configure` was given, by the names of knobs.

    Raises:
      VerifyError: an entry that is unknown or of another kind, or settings that no kernel can have.
    """
    policy = schedule.policy
    if not policy.knobs:
        return
    entries = entries_of(op, policy.defaults)
    settings = {name: int(x) if isinstance(x, bool) else x for name, x in asked.items()}
    try:
        knobs = Choice(policy, facts_of(op), Call(target, asked=settings)).set(entries)
    except DoesNotFit as error:
        raise op_error(op, no_kernel("", f"{policy.name}: {error.reason}")) from error
    if isinstance(knobs, Mismatch):
        raise op_error(op, f"expects {knobs.what} to be {knobs.domain}, got {knobs.got}")
    op.attributes[CONFIG] = to_attr(knobs)


def _named(op: Any) -> str | None:
    """The name of the schedule in the attribute of an operation; None if it names none."""
    attributes = op.operation.attributes
    return ir.StringAttr(attributes[SCHEDULE]).value if SCHEDULE in attributes else None
