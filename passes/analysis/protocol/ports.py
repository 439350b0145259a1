"""Where processes meet: the ring instances of a kernel, and each step of a process with all that it
looks at there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attn_mlir.dialect import ws

from .clocks import Clock, Tick
from .crossings import Crossings, Key, Ranks
from .places import Places
from .skeleton import Process, Step, fixed_instance, steps
from .trace import Event

ENGINES = ("tensor_core", "thread_copies", "copy_engine")  # their work has components of its own


@dataclass(eq=False)
class Side:
    """One kind of step that one process takes at a ring instance.

    Attributes:
      who: label of the process.
      ticks: of the steps so far.
      clocks: what each of them passes on, if they are handovers.
    """

    who: str
    ticks: list[Tick] = field(default_factory=list[Tick])
    clocks: list[Clock] = field(default_factory=list[Clock])


@dataclass(eq=False)
class RingInstance:
    """One instance of a ring, in all CTAs of a cluster.

    Attributes:
      key: the ring and the instance.
      stages: slots of the instance.
      is_shared: whether its slots overlap those of other rings.
      is_known_empty: whether slots are acquired without a wait for their release.
      is_in_lanes: whether each row of a slot is a lane of tensor memory, which one thread uses.
      sides: by kind of step and process.
      events: all steps so far.
    """

    key: Key
    stages: int
    is_shared: bool = False
    is_known_empty: bool = False
    is_in_lanes: bool = False
    sides: dict[tuple[str, str], Side] = field(default_factory=dict[tuple[str, str], Side])
    events: list[Event] = field(default_factory=list[Event])

    def side(self, kind: str, who: str) -> Side:
        """The steps of a process so far, which may be none."""
        if (kind, who) not in self.sides:
            self.sides[kind, who] = Side(who)
        return self.sides[kind, who]

    def begin(self) -> None:
        """Forgets what has happened."""
        self.events = []
        for side in self.sides.values():
            side.ticks.clear()
            side.clocks.clear()


Seen = tuple[
    int, tuple[Side, ...]
]  # a CTA, and the steps of a process of which one has to be known


class Neighbour(NamedTuple):
    """A ring instance over whose slots a step fills its own, in one CTA.

    Attributes:
      at: the ring instance.
      slots: for each slot of the step's ring instance, those that overlap it.
      begun: the acquires of who fills slots there.
      done: commits of these, and releases of who reads there, each with what the process may still
        do before it.
    """

    at: RingInstance
    slots: tuple[tuple[int, ...], ...]
    begun: tuple[Side, ...]
    done: tuple[tuple[str, Side], ...]

    def turns(self, slot: int) -> Iterator[int]:
        """The last turn that has begun in each slot that overlaps a slot."""
        last = max(len(side.ticks) for side in self.begun) - 1
        for other in self.slots[slot]:
            turn = last - (last - other) % self.at.stages
            if turn >= 0:
                yield turn


@dataclass(eq=False)
class Port:
    """A step of one process.

    Attributes:
      step: the step.
      at: the ring instance.
      mine: what the process has done there by such steps.
      component: of clocks, in which the step is an event.
      slot: number of its slot among those of the process.
      touched: the CTAs whose slots of the ring the process uses.
      heard: whose handovers the step waits for.
      used: in a cluster, who has to be done with what is there: with the slot's old contents before
        it is filled, with filling it before it is read.
      advanced: in a cluster, who has to have gone on to this phase of the barriers that the step
        signals.
      neighbours: the ring instances over whose slots it fills its own.
      copied: where the slot is copied to other CTAs: the slot filled there by number, and who waits
        for it.
    """

    step: Step
    at: RingInstance
    mine: Side
    component: int
    slot: int
    touched: Ranks
    heard: tuple[Side, ...] = ()
    used: tuple[Seen, ...] = ()
    advanced: tuple[Seen, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    copied: tuple[tuple[int, Seen], ...] = ()


class Ports:
    """All steps of the processes of a kernel.

    Attributes:
      instances: the ring instances.
      crossings, places: what the steps have to know besides.
      component_count: of clocks.
    """

    def __init__(self, members: Sequence[Process]):
        self.instances: dict[Key, RingInstance] = {}
        self.crossings = Crossings(members)
        self.places = Places(members, self.crossings)
        self._components: dict[object, int] = {}
        self._of: dict[str, dict[Step, Port]] = {}
        for process in members:
            slots: dict[Any, int] = {}
            of = self._of[process.label] = {}
            for step in steps(process):
                slot = slots.setdefault(step.slot, len(slots))
                of[step] = self._port(process, step, slot)
            for port in of.values():
                if port.step.kind == "release":
                    port.copied = tuple(self._copied(process, port.step, slots))

    @property
    def component_count(self) -> int:
        """How many counts a clock has."""
        return len(self._components)

    def of(self, process: Process) -> Mapping[Step, Port]:
        """The ports of a process by step."""
        return self._of[process.label]

    def at(self, key: Key) -> RingInstance:
        """A ring instance, by ring and instance."""
        if key not in self.instances:
            op, kind = key[0].owner, ws.RingType(key[0].type)
            self.instances[key] = RingInstance(
                key,
                kind.stages,
                is_shared=any(ws.overlaps(op)),
                is_known_empty=op.is_known_empty,
                is_in_lanes=kind.tile is not None and kind.tile.space == "tensor",
            )
        return self.instances[key]

    def _port(self, process: Process, step: Step, slot: int) -> Port:
        key = (step.ring, fixed_instance(process, step))
        at, label = self.at(key), process.label
        component = self._component(process, step, key)
        touched = self.crossings.touched(process, step)
        port = Port(step, at, at.side(step.kind, label), component, slot, touched)
        if step.kind == "acquire":
            names = self.crossings.releasing(key, process.rank)
            port.heard = tuple(at.side("release", who) for who in names)
            port.neighbours = tuple(self._neighbours(process, step))
            self._add_crossings(port, key, process)
        elif step.kind == "wait":
            names = self.crossings.filling(key, process.rank)
            port.heard = tuple(at.side("commit", who) for who in names)
            self._add_crossings(port, key, process)
        return port

    def _neighbours(self, process: Process, step: Step) -> Iterator[Neighbour]:
        for key, slots, fillers, readers in self.places.of(process, step):
            at = self.at(key)
            begun = tuple(at.side("acquire", who) for who in fillers)
            filled = [("fill", at.side("commit", who)) for who in fillers]
            read = [("read", at.side("release", who)) for who in readers]
            yield Neighbour(at, slots, begun, (*filled, *read))

    def _component(self, process: Process, step: Step, key: Key) -> int:
        """Threads, products and copies of threads complete in order; transfers only those of one
        ring instance that are waited for one after the other."""
        agent = step.by if step.by in ENGINES else "threads"
        where = (key, step.kind) if agent == "copy_engine" else ()
        name = (process.label, agent, *where)
        return self._components.setdefault(name, len(self._components))

    def _add_crossings(self, port: Port, key: Key, process: Process) -> None:
        crossings, at = self.crossings, port.at
        if crossings.is_alone:
            return
        if port.step.kind == "acquire":
            used = [(n, (at.side("release", x),)) for n, x in crossings.readers_of(key, process)]
            ranks = crossings.full_at(key[0], process.rank)
            advanced = [(n, (at.side("wait", x),)) for n, x in crossings.waiting_where(key, ranks)]
        else:
            used = [(n, (at.side("commit", x),)) for n, x in crossings.fillers_of(key, process)]
            ranks = () if at.is_known_empty else crossings.empty_at(key[0], process.rank)
            advanced = [  # who has committed has acquired
                (n, (at.side("acquire", x), at.side("commit", x)))
                for n, x in crossings.taking_where(key, ranks)
            ]
        port.used, port.advanced = tuple(used), tuple(advanced)

    def _copied(self, process: Process, step: Step, slots: Mapping[Any, int]) -> Any:
        for taken, to in self.crossings.copied_across(step.slot, process.rank):
            there = self.at((taken.ring, fixed_instance(process, taken)))
            for rank, who in self.crossings.waiting_where(there.key, to):
                yield slots[taken.slot], (rank, (there.side("wait", who),))
