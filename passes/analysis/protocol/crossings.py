"""Arrivals and slot accesses between the CTAs of a cluster.

Within a CTA a handover is sound by itself: an acquire hears of every release, a wait of every
commit. Across CTAs the kernel says who signals whom, and may say too little. In every run, then:

1. who fills a slot knows that all who read it have released its last contents;
2. who reads a slot knows that all who fill it have committed;
3. who releases a slot that it has copied to another CTA knows that the copy has been waited for;
4. an arrival at a barrier comes after the wait for its last phase, as barriers tell one phase from
   the next and no further.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from attn_mlir.dialect import ws

from .skeleton import Process, Step, fixed_instance, steps

Value = Any
Key = tuple[Any, int]  # ring (SSA value) and instance
Ranks = frozenset[int]

_ALONE: Ranks = frozenset({0})


class Crossings:
    """The signals and slots of a kernel's rings, over all CTAs of a cluster."""

    def __init__(self, members: Sequence[Process]):
        self.is_alone = not members or ws.cta_count(members[0].role) == 1
        self._fillers: dict[Key, dict[str, Process]] = {}
        self._takers: dict[Key, dict[str, Process]] = {}
        self._readers: dict[Key, dict[str, Process]] = {}
        self._touched: dict[tuple[str, str, Value], Ranks] = {}
        self._lists: dict[tuple[Value, str], ws.Targets] = {}
        self._copies: dict[Value, list[tuple[Step, ws.Targets]]] = {}  # by slot that is read
        for process in members:
            for step in steps(process):
                found = {"commit": self._fillers, "acquire": self._takers, "wait": self._readers}
                if step.kind in found:
                    key = (step.ring, fixed_instance(process, step))
                    found[step.kind].setdefault(key, {})[process.label] = process
                if not self.is_alone and step.kind in ("acquire", "wait"):
                    touched = (process.label, step.kind, step.ring)
                    mine = _touched(step.slot, process.rank)
                    if step.kind == "acquire":
                        self._note_copies(step)
                    self._touched[touched] = self._touched.get(touched, frozenset()) | mine

    def _note_copies(self, step: Step) -> None:
        for user in ws.users(step.slot):
            if isinstance(user, ws.CopyAcrossOp) and user.target == step.slot:
                found = self._copies.setdefault(user.source, [])
                if all(step is not other for other, _ in found):
                    found.append((step, user.to))

    def copied_across(self, slot: Value, rank: int) -> Iterator[tuple[Step, tuple[int, ...]]]:
        """The acquires of the slots that a slot is copied to, each with the CTAs of those."""
        return ((step, to[rank]) for step, to in self._copies.get(slot, ()))

    def full_at(self, ring: Value, rank: int) -> tuple[int, ...]:
        """The CTAs at whose full barriers the commits of CTA `rank` arrive."""
        return self._list(ring, "full_at")[rank]

    def empty_at(self, ring: Value, rank: int) -> tuple[int, ...]:
        """The CTAs at whose empty barriers the releases of CTA `rank` arrive."""
        return self._list(ring, "empty_at")[rank]

    def _list(self, ring: Value, name: str) -> ws.Targets:
        if (ring, name) not in self._lists:
            self._lists[ring, name] = getattr(ring.owner, name)
        return self._lists[ring, name]

    def filling(self, key: Key, rank: int) -> list[str]:
        """The processes whose commits arrive at the full barriers of CTA `rank`."""
        found = self._fillers.get(key, {}).values()
        return [p.label for p in found if rank in self.full_at(key[0], p.rank)]

    def releasing(self, key: Key, rank: int) -> list[str]:
        """The processes whose releases arrive at the empty barriers of CTA `rank`."""
        found = self._readers.get(key, {}).values()
        return [p.label for p in found if rank in self.empty_at(key[0], p.rank)]

    def readers_of(self, key: Key, process: Process) -> Iterator[tuple[int, str]]:
        """The readers of the slots that a process fills: pairs of the slot's CTA and a process."""
        mine = self._touched[process.label, "acquire", key[0]]
        for other in self._readers.get(key, {}).values():
            for rank in mine & self._touched[other.label, "wait", key[0]]:
                yield rank, other.label

    def fillers_of(self, key: Key, process: Process) -> Iterator[tuple[int, str]]:
        """Producers of the slots that a process reads: pairs of the slot's CTA and a process."""
        mine = self._touched[process.label, "wait", key[0]]
        for other in self._takers.get(key, {}).values():
            for rank in mine & self._touched[other.label, "acquire", key[0]]:
                yield rank, other.label

    def touched(self, process: Process, step: Step) -> Ranks:
        """The CTAs whose slots of a step's ring a process fills or reads, whichever the step
        belongs to.
        """
        if self.is_alone:
            return _ALONE
        side = "acquire" if step.kind in ("acquire", "commit") else "wait"
        return self._touched[process.label, side, step.ring]

    def waiting_where(self, key: Key, ranks: Sequence[int]) -> Iterator[tuple[int, str]]:
        """The processes that wait at the full barriers of any of these CTAs."""
        for other in self._readers.get(key, {}).values():
            if other.rank in ranks:
                yield other.rank, other.label

    def taking_where(self, key: Key, ranks: Sequence[int]) -> Iterator[tuple[int, str]]:
        """The processes that acquire slots by the empty barriers of any of these CTAs."""
        for other in self._takers.get(key, {}).values():
            if other.rank in ranks:
                yield other.rank, other.label


def _touched(slot: Value, rank: int) -> Ranks:
    """The CTAs whose memory a process of CTA `rank` touches through a slot;
    a token has no memory.
    """
    found: set[int] = set()
    for user in ws.users(slot):
        if isinstance(user, ws.CopyInOp):
            found.update(user.receivers[rank])
        elif isinstance(user, ws.CopyAcrossOp) and user.target == slot:
            found.update(user.to[rank])
        elif isinstance(user, ws.MmaOp) and user.cta_count == ws.PAIR:
            found.update(ws.pair_of(rank))
        elif not isinstance(user, ws.CommitOp | ws.ReleaseOp):
            found.add(rank)
    if not found and isinstance(slot.type, ws.TileType):
        found.add(rank)
    return frozenset(found)
