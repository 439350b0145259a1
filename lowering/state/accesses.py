"""What a role's threads have done in tensor memory, as far as code is emitted: which fences are
still owed.

A fence stands where it is needed, which may be in a branch: a role that looks at tensor memory in
few turns owes nothing in the others.
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
      is_ordered: whether a `tcgen05.fence` behind a wait orders accesses from here on.
      is_touching: whether there has been an access since the last `tcgen05.fence` before a
        handover.
    """

    stored: list[Value] = field(default_factory=list[Value])
    is_ordered: bool = False
    is_touching: bool = False

    def copy(self) -> "Accesses":
        """The state at the begin of a branch."""
        return replace(self, stored=list(self.stored))

    @staticmethod
    def joined(ends: Sequence["Accesses"]) -> "Accesses":
        """The state behind branches that end so."""
        stored: list[Value] = []
        for end in ends:
            stored += [tile for tile in end.stored if tile not in stored]
        return Accesses(
            stored, all(end.is_ordered for end in ends), any(end.is_touching for end in ends)
        )
