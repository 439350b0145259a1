"""Memory that several rings share: when a slot of one is filled, nobody uses the others' contents.

A lender and its borrowers (`ws.alloc_inside`) use a place in any order that handovers enforce, one
after the other. In every run, whoever acquires a slot that it fills knows of each slot that lies
over it, in every CTA where it fills,

1. that all who fill that slot have committed the last turn that has begun there;
2. that all who read that turn have released it.

Two turns at a place are compared where the later of them begins in the run. Earlier turns of a ring
are done if its last one has begun, as its own ring says. So no two turns are ever live at once: if
neither knows of the other, the one that is simulated last is refused.

A role that takes a slot without using it (one that fills another field of what the slot stands for)
neither reads nor fills anything.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from attn_mlir.dialect import ws

from .crossings import Crossings, Key
from .skeleton import Process, Step, fixed_instance, steps

Value = Any


class Overlap(NamedTuple):
    """A ring instance that overlaps another one, in one CTA.

    Attributes:
      key: the ring and the instance.
      slots: for each slot of the other ring instance, the slots that overlap it.
      fillers, readers: the processes that use slots of the ring instance there.
    """

    key: Key
    slots: tuple[tuple[int, ...], ...]
    fillers: tuple[str, ...]
    readers: tuple[str, ...]


class Places:
    """The processes of a kernel that use slots which overlap others."""

    def __init__(self, members: Sequence[Process], crossings: Crossings):
        self._crossings = crossings
        self._users: dict[Value, list[Any]] = {}
        self._taken: dict[tuple[Key, str], dict[str, tuple[Process, Step]]] = {}
        for process in members:
            for step in steps(process):
                if step.kind in ("acquire", "wait") and self.uses(step.slot):
                    key = (step.ring, fixed_instance(process, step))
                    found = self._taken.setdefault((key, step.kind), {})
                    found.setdefault(process.label, (process, step))

    def of(self, process: Process, step: Step) -> Iterator[Overlap]:
        """The events that a process has to know of when it acquires a slot; none without a use."""
        if step.kind != "acquire" or not self.uses(step.slot):
            return
        instance = fixed_instance(process, step)
        for other, slots in ws.overlaps(step.ring.owner):
            key = (other.ring, instance)
            for rank in sorted(self._crossings.touched(process, step)):
                fillers, readers = (self._in(rank, key, kind) for kind in ("acquire", "wait"))
                if fillers:
                    yield Overlap(key, slots, fillers, readers)

    def _in(self, rank: int, key: Key, kind: str) -> tuple[str, ...]:
        """The processes that use slots of a ring instance in the memory of a CTA."""
        taken = self._taken.get((key, kind), {})
        touched = self._crossings.touched
        return tuple(label for label, found in taken.items() if rank in touched(*found))

    def is_filled_in_order(self, slot: Value) -> bool:
        """Whether a slot is filled by products alone, which the thread that acquired it issues."""
        users = self._users[slot]
        return bool(users) and all(isinstance(user, ws.MmaOp) for user in users)

    def uses(self, slot: Value) -> bool:
        """Whether anything uses a slot, apart from its commit or release."""
        if slot not in self._users:
            handover = ws.CommitOp | ws.ReleaseOp
            self._users[slot] = [x for x in ws.users(slot) if not isinstance(x, handover)]
        return bool(self._users[slot])
