"""Whether the roles of a kernel take the steps of each ring equally often, for all sizes.

It compares a formula per process, ring instance and kind of step (`counts`). In a cluster it
is compared at the barriers of each CTA: with who signals them, from whatever CTA.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import op_error

from .counts import Counting
from .skeleton import Process, Sizes, named_sizes, steps, tally
from .sums import Sum, text

Calls = Iterator[tuple[Sizes, Sequence[Sizes]]]


def check_counts(
    kernel: ws.KernelOp, members: Sequence[Process], calls: Callable[[], Calls]
) -> None:
    """Compares how often all processes take each step, per ring instance and CTA of a cluster.

    Args:
      kernel: the kernel.
      members: its processes.
      calls: sizes and work tiles to look for a counterexample in, where formulas differ.

    Raises:
      VerifyError: on the ring, with the roles.
    """
    counts = [(process, Counting(kernel, process).steps()) for process in members]
    instances: dict[tuple[Any, int], None] = {}
    for _, counted in counts:
        instances.update({(ring, instance): None for ring, instance, _ in counted})
    for ring, instance in instances:
        _check_instances(ring, instance)
        found = _Counts(ring, instance, counts)
        for rank in range(ws.cta_count(kernel)):
            found.check_ends(rank)
        for process in members:
            _check_agents(ring, instance, process)
        for rank in range(ws.cta_count(kernel)):
            found.check_numbers(rank, calls)


@dataclass(frozen=True)
class _Counts:
    """The formulas of one ring instance: how often each process takes each kind of step."""

    ring: Any
    instance: int
    counts: Sequence[tuple[Process, dict[tuple[Any, int, str], Sum]]]

    def of(self, kind: str) -> list[tuple[Process, Sum]]:
        """The processes of all CTAs that take a kind of step.

        In a cluster, a process whose formula is 0 for its own rank is left out.
        """
        key = (self.ring, self.instance, kind)
        found = [(process, steps[key]) for process, steps in self.counts if key in steps]
        is_alone = ws.cta_count(self.ring.owner) == 1
        return [(process, total) for process, total in found if total or is_alone]

    def _in(self, kind: str, rank: int) -> list[tuple[Process, Sum]]:
        """The processes of one CTA that take a kind of step."""
        return [(process, total) for process, total in self.of(kind) if process.rank == rank]

    def _filling(self, rank: int) -> list[tuple[Process, Sum]]:
        """Processes, of any CTA, whose commits arrive at this CTA's full barriers."""
        targets = self.ring.owner.full_at
        return [(process, n) for process, n in self.of("commit") if rank in targets[process.rank]]

    def _freeing(self, rank: int) -> list[tuple[Process, Sum]]:
        """Processes, of any CTA, whose releases arrive at this CTA's empty barriers."""
        targets = self.ring.owner.empty_at
        return [(process, n) for process, n in self.of("release") if rank in targets[process.rank]]

    def check_ends(self, rank: int) -> None:
        """Checks that slots which a CTA waits for are filled,
        and that filled slots are waited for.
        """
        ring, instance = self.ring, self.instance
        label = f"{ring.owner.label}[{instance}]" + _where(ring, rank)
        committed, waited = self._filling(rank), self._in("wait", rank)
        is_read = bool(self.of("wait"))
        if waited or committed or not is_read:
            _check_producers(ring, label, instance, [process for process, _ in committed])
            if not waited:
                raise op_error(
                    ring.owner, f"needs a role that reads slots of ring {label}, got none"
                )
        takers = [process.group_name for process, _ in self._in("acquire", rank)]
        names = [process.group_name for process, _ in self._in("commit", rank)]
        if takers != names:
            fills = "which it fills" if len(names) == 1 else "which they fill"
            only = f"role {names[0]} alone" if len(names) == 1 else f"roles {' and '.join(names)}"
            raise op_error(
                ring.owner,
                f"needs {only if names else 'nobody'} to acquire slots of ring {label}, {fills}, "
                f"got {', '.join(takers)}",
            )

    def check_numbers(self, rank: int, calls: Callable[[], Calls]) -> None:
        """Checks that every step is taken as often as commits arrive at a CTA's barriers."""
        ring, instance = self.ring, self.instance
        committed, waited = self._filling(rank), self._in("wait", rank)
        released = self._in("release", rank)
        keepers = [p.label for p, _ in waited if p not in [q for q, _ in released]]
        if keepers:
            raise op_error(
                ring.owner,
                f"needs a release of ring {ring.owner.label}[{instance}] by role "
                f"{', '.join(keepers)}, which waits for its slots",
            )
        filling = [process for process, _ in committed]
        acquired = [(process, n) for process, n in self.of("acquire") if process in filling]
        taken, freed = self._in("acquire", rank), self._freeing(rank)
        kept = {"commit": committed, "acquire": acquired, "wait": waited, "release": released}
        for start, steps_of in ((committed, kept), (taken, {"acquire": taken, "release": freed})):
            for kind, found in steps_of.items():
                for process, total in found:
                    if start and total != start[0][1]:
                        raise _Mismatch(ring, instance, kind, *start[0], process, total).error(
                            calls()
                        )


def _where(ring: Any, rank: int) -> str:
    """The words ` in CTA n` for messages, empty where the kernel has no cluster."""
    return f" in CTA {rank}" if ws.cta_count(ring.owner) > 1 else ""


def _check_producers(ring: Any, label: str, instance: int, committing: Sequence[Process]) -> None:
    """Checks that one role fills the slots of an instance,
    or exactly the producers that the ring states.
    """
    stated = ring.owner.producers
    by_name = {process.group_name: process for process in committing}
    names = ", ".join(by_name) or "none"
    if stated is None:
        if len(by_name) != 1:
            raise op_error(
                ring.owner,
                f"needs one role that fills slots of ring {label}, or to state its producers, "
                f"got {names}",
            )
        return
    agents = [a for process in by_name.values() for a in _agents(ring, instance, process, "commit")]
    if sorted(agents) != sorted(stated):
        found = ", ".join(agents) or "none"
        raise op_error(
            ring.owner,
            f"states that {', '.join(stated)} fill slots of ring {label} together, got {found} "
            f"of {names}",
        )


def _check_agents(ring: Any, instance: int, process: Process) -> None:
    """Checks that a process always hands over by the same agent, as barriers expect one count."""
    for kind in ("commit", "release"):
        agents = _agents(ring, instance, process, kind)
        if len(agents) > 1:
            raise op_error(
                ring.owner,
                f"expects role {process.label} to {kind} slots of ring "
                f"{ring.owner.label}[{instance}] by one agent, got {', '.join(agents)}",
            )


def _agents(ring: Any, instance: int, process: Process, kind: str) -> list[str]:
    """The agents by which a process commits or releases slots of a ring instance."""
    mine = (s for s in steps(process) if s.ring == ring and s.kind == kind)
    return sorted({step.by for step in mine if step.instance.of(process.place) == instance})


_NEEDED = {
    "commit": ("a commit", "commits"),
    "acquire": ("an acquire", "acquires"),
    "wait": ("a wait", "waits for"),
    "release": ("a release", "releases"),
}
"""The needs of every commit of a slot: as a noun, and as what a role does."""


@dataclass(frozen=True)
class _Mismatch:
    """A role that takes a step of a ring instance more or less often than commits fill slots."""

    ring: Any
    instance: int
    kind: str
    producer: Process
    filled: Sum
    process: Process
    total: Sum

    def error(self, calls: Calls) -> Exception:
        """The error: counts of one call where the formulas differ, with the formulas as notes."""
        step, verb = _NEEDED[self.kind]
        filler, name = self.producer.label, self.process.label
        label = f"{self.ring.owner.label}[{self.instance}]"
        needs = f"needs {step} by role {name} for each commit of ring {label} by role {filler}"
        if not {*self.filled, *self.total} - {()}:
            return op_error(
                self.ring.owner,
                f"{needs}: {name} {verb} {text(self.total)} slots of {text(self.filled)}",
            )
        notes = (
            f"role {name} {verb} {text(self.total)} slots",
            f"role {filler} commits {text(self.filled)} slots",
        )
        for sizes, tiles in calls:
            for tile in tiles:
                here = {**sizes, **tile}
                total = self._count(self.process, self.kind, here)
                filled = self._count(self.producer, "commit", here)
                if total != filled:
                    where = named_sizes([self.process, self.producer], here)
                    message = f"{needs}: with {where}, {name} {verb} {total} slots of {filled}"
                    return op_error(self.ring.owner, message, notes=notes)
        return op_error(self.ring.owner, f"{needs}, for all sizes", notes=notes)

    def _count(self, process: Process, kind: str, sizes: Sizes) -> int:
        found = tally(process.body, {**sizes, **process.place})
        return found[kind, self.ring, self.instance]


def _check_instances(ring: Any, instance: int) -> None:
    instances = ws.RingType(ring.type).instances
    if not 0 <= instance < instances:
        label = ring.owner.label
        raise op_error(
            ring.owner,
            f"ring {label} has instances 0..{instances - 1}, a role uses instance {instance}",
        )
