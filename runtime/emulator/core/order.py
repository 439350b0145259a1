"""Order and scope of strong accesses and fences, by opcode (PTX ISA, memory consistency model)."""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

CtaId = tuple[int, int]  # number of the cluster in the launch, rank of the CTA in the cluster


class Scope(IntEnum):
    """The scope of an access or a fence: the threads around the one that executes it."""

    CTA = 0
    CLUSTER = 1
    GPU = 2
    SYS = 3

    def includes(self, here: CtaId, there: CtaId) -> bool:
        """Whether a thread at `there` is in the scope of one at `here`."""
        if here == there:
            return True
        return self >= (Scope.CLUSTER if here[0] == there[0] else Scope.GPU)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a strong access or fence; relaxed if it neither acquires nor releases."""

    scope: Scope
    acquires: bool = False
    releases: bool = False


_SCOPES = {scope.name.lower(): scope for scope in Scope}
_SCOPES["gl"] = Scope.GPU


def _order(parts: tuple[str, ...], scope: Scope) -> Order:
    stated = next((_SCOPES[part] for part in parts if part in _SCOPES), scope)
    both = "acq_rel" in parts or "sc" in parts
    return Order(stated, both or "acquire" in parts, both or "release" in parts)


@lru_cache(maxsize=256)
def order_of_access(parts: tuple[str, ...]) -> Order | None:
    """The order of an ld, st, atom or red; None for a weak access.

    An atomic is relaxed with scope gpu unless it says otherwise; `.volatile` and `.mmio` are
    relaxed with scope sys.
    """
    if "volatile" in parts or "mmio" in parts:
        return Order(Scope.SYS)
    if (
        parts[0] in ("atom", "red")
        or "relaxed" in parts
        or "acquire" in parts
        or "release" in parts
    ):
        return _order(parts, Scope.GPU)
    return None


@lru_cache(maxsize=256)
def order_of_barrier(parts: tuple[str, ...], *, acquires: bool) -> Order:
    """The order of an operation on an mbarrier or on the cluster's barrier.

    It acquires (a wait) or releases (an arrival) unless it is relaxed. PTX gives mbarrier
    operations the scope of the CTA where they name none; here they then reach as far as their
    address does (docs/emulator.md, limits).
    """
    is_relaxed = "relaxed" in parts
    scope = _order(parts, Scope.CLUSTER).scope
    return Order(scope, acquires and not is_relaxed, not acquires and not is_relaxed)


@lru_cache(maxsize=256)
def order_of_fence(opcode: str) -> Order | None:
    """The order of a fence; None for those that order one proxy or one kind of operation only."""
    parts = tuple(opcode.split("."))
    if parts[0] == "membar":
        return Order(_order(parts, Scope.GPU).scope, True, True)
    if parts[0] != "fence" or "mbarrier_init" in parts:
        return None
    order = _order(parts, Scope.GPU)
    if "proxy" not in parts and not (order.acquires or order.releases):
        return Order(order.scope, True, True)  # .acq_rel is the default
    return order if order.acquires or order.releases else None
