"""Copies and answers whose bytes the full barrier of a slot counts, and when it expects them."""

from typing import Any

from .cluster import CopyAcrossOp, crossing
from .memory import CopyInOp, users
from .ring import AcquireOp
from .rows import GatherInOp
from .tiles import ClaimOp

LOADS = (CopyInOp, GatherInOp, ClaimOp)  # operations that report bytes to a full barrier


def loads_into(slot: Any) -> list[Any]:
    """The operations that fill a slot and whose bytes are reported to its full barrier."""
    slot_users = list(users(slot))
    across = [user for user in slot_users if isinstance(user, CopyAcrossOp) and user.target == slot]
    return across + [user for user in slot_users if isinstance(user, LOADS)]


def announces_at_once(acquire: AcquireOp) -> bool:
    """Whether all copies into the slot stand beside its acquire, so that each runs once in its
    turn.

    Then one arrival announces all bytes, in the CTA where they arrive. If branches or
    loops decide over copies, each copy announces its own bytes, and every commit arrives. A barrier
    counts as many arrivals in every turn: where commits arrive in other CTAs, all acquires of the
    ring announce at once, or none.
    """
    acquires = [acquire]
    if any(crossing(acquire.ring.owner.full_at)):
        owners = (use.owner for use in acquire.ring.uses)
        acquires = [owner for owner in owners if isinstance(owner, AcquireOp)]
    return all(map(_has_loads_beside, acquires))


def _has_loads_beside(acquire: AcquireOp) -> bool:
    block = acquire.operation.block
    return all(load.operation.block == block for load in loads_into(acquire.slot))
