"""Memory that two rings share: when a slot of one is filled, nobody uses the other's contents.

A lender and its borrower (`ws.alloc_inside`) take turns at each place: turn t of the lender comes
first, turn t of the borrower next, and then turn t + n of the lender, where n is the number of its
stages. Where k slots of the borrower lie in one of the lender, its turn is k handovers, k t to k t
+ k - 1. No barrier says that a place is free. Instead a role that waits for slots of one ring has
to commit slots of the other, which says that it is done; and in every run, whoever acquires a slot

1. has waited for the turn of the other ring that comes before it, all of it, if it uses the slot;
2. knows, where it fills the slot, that all who read that turn have released it;
3. knows that all who waited for the last turn of its own ring in this slot have released it, as
   barriers tell one phase from the next and no further.

A thread knows what it has done itself. It need not hear of the threads next to it: row r of both
rings is the same lane of tensor memory, which one thread uses alone. The tensor core works in order
for the thread that issues, so that this thread may have it fill a slot before its earlier products
are known to be complete. A role that takes a slot without using it (one that fills another field of
what the slot stands for) neither reads nor fills anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error

from .skeleton import Process, fixed_way, steps

Value = Any
Key = tuple[Any, int]  # ring (SSA value) and way


@dataclass(frozen=True)
class Place:
    """The other ring at a ring's place.

    Attributes:
      other: the other ring.
      is_lender: whether this ring lends and the other borrows.
      stages: slots per way of this ring.
      parts: slots of the borrower in one of the lender.
    """

    other: Value
    is_lender: bool
    stages: int
    parts: int

    @property
    def unit(self) -> int:
        """Handovers of this ring in one turn at a place."""
        return 1 if self.is_lender else self.parts

    def before(self, turn: int) -> range:
        """The handovers of the other ring that come before a handover of this one; below 0 there
        are none.
        """
        if self.is_lender:
            first = (turn - self.stages) * self.parts
            return range(first, first + self.parts)
        return range(turn // self.parts, turn // self.parts + 1)


class Places:
    """The shared places of a kernel's rings, and the processes that read them."""

    def __init__(self, members: Sequence[Process]):
        self._places: dict[Value, Place | None] = {}
        self._users: dict[Value, list[Any]] = {}
        self._readers: dict[Key, dict[str, None]] = {}
        for process in members:
            for step in steps(process):
                if step.kind == "wait" and self.of(step.ring) and self._users_of(step.slot):
                    key = (step.ring, fixed_way(process, step))
                    self._readers.setdefault(key, {})[process.label] = None

    def of(self, ring: Value) -> Place | None:
        """The other ring at a ring's place; None where the ring does not share."""
        if ring not in self._places:
            other = ring.owner.partner
            self._places[ring] = None if other is None else _place(ring.owner, other)
        return self._places[ring]

    def missing(
        self,
        slot: Value,
        key: Key,
        turn: int,
        *,
        waited: int,
        consumers: Sequence[str],
        knows: Callable[[Key, str, int], bool],
    ) -> str:
        """What a process that acquires a slot ought to know and does not, for a message; else
        empty.

        Args:
          slot: of the acquire.
          key, turn: the ring way of a shared place, and which of its turns begins.
          waited: turns of the other ring that the process has waited for.
          consumers: the processes that release slots of this ring way.
          knows: whether the release of a ring way by a process, in a turn, comes before what
            fills the slot.
        """
        place = self.of(key[0])
        assert place is not None
        other, reused = (place.other, key[1]), turn - place.stages
        before = place.before(turn) if self._users_of(slot) else range(0)
        for theirs in before:
            if waited <= theirs:
                names = _names(key, other)
                return (
                    f"takes turn {turn} of ring {names}, without having waited for turn {theirs} "
                    "there"
                )
            for who in self._readers.get(other, ()) if theirs >= 0 else ():
                if not knows(other, who, theirs):
                    names = _names(key, other)
                    return f"fills a slot of ring {names}, that role {who} may still read there"
        if reused >= 0:
            for who in consumers:
                if not knows(key, who, reused):
                    names = _names(key, other)
                    return f"takes a slot of ring {names}, that role {who} may not have released"
        return ""

    def is_filled_in_order(self, slot: Value) -> bool:
        """Whether a slot is filled by products alone, which the thread that acquired it issues."""
        users = self._users_of(slot)
        return bool(users) and all(isinstance(user, ws.MmaOp) for user in users)

    def _users_of(self, slot: Value) -> list[Any]:
        """The operations that use a slot, apart from its commit or release."""
        if slot not in self._users:
            handover = ws.CommitOp | ws.ReleaseOp
            self._users[slot] = [x for x in ws.users(slot) if not isinstance(x, handover)]
        return self._users[slot]


def _place(ring: ws.AllocRingOp, other: ws.AllocRingOp) -> Place:
    """The place that a ring shares with another one."""
    is_lender = not isinstance(ring, ws.AllocInsideOp)
    borrower = other if is_lender else ring
    assert isinstance(borrower, ws.AllocInsideOp)
    return Place(other.ring, is_lender, ws.RingType(ring.ring.type).stages, borrower.parts)


def _names(key: Key, other: Key) -> str:
    mine, theirs = (f"{ring.owner.label}[{way}]" for ring, way in (key, other))
    return f"{mine}, which shares its place with ring {theirs}"


def check_places(members: Sequence[Process]) -> None:
    """Checks that a role which waits for slots of one ring of a place commits those of the other.

    Raises:
      VerifyError: a role only waits, so that nobody learns when it is done; on the wait.
    """
    for process in members:
        written = reversed(list(steps(process)))
        found = [(step, fixed_way(process, step)) for step in written]
        filled = {(step.ring, way) for step, way in found if step.kind == "commit"}
        for step, way in found:
            other = step.ring.owner.partner if step.kind == "wait" else None
            if other is not None and (other.ring, way) not in filled:
                mine = step.ring.owner.label
                raise op_error(
                    step.op,
                    f"in role {process.label} waits for ring {mine}[{way}], but does not fill ring "
                    f"{other.label}[{way}], which shares its place: nobody hears when it is done",
                )
