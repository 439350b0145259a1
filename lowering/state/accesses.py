"""A role's accesses to tensor memory at a point of emission, and the fences they still need.

A fence is emitted where it is needed, which may be in a branch: iterations of a role that do not
access tensor memory need none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Value = Any


@dataclass
class Accesses:
    """The state at a point of a role.

    Attributes:
      stored: the kernel's tiles in tensor memory written since the last `tcgen05.wait::st`.
      is_ordered: whether a `tcgen05.fence` after a wait orders accesses from here on.
      is_accessing: whether there has been an access since the last `tcgen05.fence` before a commit
        or release.
    """

    stored: list[Value] = field(default_factory=list[Value])
    is_ordered: bool = False
    is_accessing: bool = False

    def copy(self) -> "Accesses":
        """The state at the beginning of a branch."""
        return replace(self, stored=list(self.stored))

    @staticmethod
    def merged(branches: Sequence["Accesses"]) -> "Accesses":
        """The state after branches that end in these states."""
        stored: list[Value] = []
        for branch in branches:
            stored += [tile for tile in branch.stored if tile not in stored]
        return Accesses(
            stored,
            all(branch.is_ordered for branch in branches),
            any(branch.is_accessing for branch in branches),
        )
