"""Runs the process network of a kernel for given sizes: order, deadlock, and what precedes what.

Happens-before is tracked with vector clocks whose components are sets: the n-th bit of a component
says that its n-th event has happened. A clock is one integer, in which the components take turns:
with two of them, bits 0, 2, 4, ... are the first one's, bits 1, 3, 5, ... the second one's.

Each role has a component. So have the products and the thread copies that a role issues, which
complete in order (a commit of copies waits for all before it): a bit of these is set only with all
bits below it. Transfers of the copy engine complete in any order, so a later one may be set without
an earlier one. What one thread of a role has done says nothing about the role's other threads, until
a handover by all of them has come back from another role.

In a cluster the roles of all CTAs run, and what one CTA does to another is checked (`crossings`).
Rings that share a place are acquired without a wait, and it is checked who may still use the place
(`places`).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.passes.infrastructure.diagnostics import op_error

from .crossings import Crossings, Key, Ranks
from .places import Place, Places
from .skeleton import Branch, Loop, Meeting, Node, Process, Sizes, Step, Tiles, named_sizes, steps

Clock = int  # a set of events, each a bit
Tick = int  # names one event: its bit in clocks
ENGINES = ("tensor_core", "thread_copies", "copy_engine")  # their work has components of its own


class Event(NamedTuple):
    """A step that happened.

    Attributes:
      kind: acquire, commit, wait or release.
      who: label of the process that took it.
      clock: the earlier events that every thread taking the step knows of.
      tick: names the step in clocks.
      touched: the CTAs whose slots the process uses.
    """

    kind: str
    who: str
    clock: Clock
    tick: Tick
    touched: Ranks

    def knows(self, other: "Event") -> bool:
        """Whether the other event had happened before this one, as far as its threads know."""
        return _has(self.clock, other.tick)


@dataclass
class Trace:
    """One finished run: the events of each ring way, in the order of the simulation."""

    events: dict[Key, list[Event]]


@dataclass
class _Handover:
    """The state of a ring way: commits so far of each producer and releases of each consumer, as clocks.

    `ticks` has the tick of each of these events, by kind of step and process.
    """

    events: list[Event] = field(default_factory=list[Event])
    acquired: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    commits: dict[str, list[Clock]] = field(default_factory=lambda: defaultdict(list))
    waited: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    releases: dict[str, list[Clock]] = field(default_factory=lambda: defaultdict(list))
    ticks: dict[tuple[str, str], list[Tick]] = field(default_factory=lambda: defaultdict(list))


def _has(clock: Clock, tick: Tick) -> bool:
    """Whether a clock says that an event has happened."""
    return bool(clock >> tick & 1)


class _Runner:
    """The state of one process while it runs through its skeleton."""

    def __init__(self, process: Process, sizes: Sizes, network: "Network"):
        self.process = process
        self.sizes = {**sizes, **process.place}
        self.network = network
        self.clock: Clock = 0  # what its threads know, their own steps included
        self.heard: Clock = 0  # what it has learned from handovers by others
        self.engines: dict[str, Clock] = {"tensor_core": 0, "thread_copies": 0}
        self.slots: dict[Any, int] = {}
        self.blocked_on: Step | None = None
        self._ways: dict[tuple[int, int], tuple[Key, _Handover]] = {}  # by step and way
        self.steps = self._walk(process.body)
        self._kinds = {
            "acquire": self._acquire,
            "wait": self._wait,
            "commit": self._commit,
            "release": self._release,
        }
        self._next_ticks: dict[str, Tick] = {}  # of what completes its steps

    def _walk(self, nodes: Sequence[Node]) -> Iterator[Step]:
        for node in nodes:
            match node:
                case Step():
                    yield node
                case Meeting():
                    self.heard |= self.clock
                case Tiles(body=body):
                    for tile in self.network.tiles:
                        self.sizes.update(tile)
                        yield from self._walk(body)
                case Branch(condition=condition, then=then, otherwise=otherwise):
                    yield from self._walk(then if condition.of(self.sizes) else otherwise)
                case Loop(index=index, body=body) as loop:
                    for number in loop.turns(self.sizes):
                        self.sizes[index] = number
                        yield from self._walk(body)

    def run(self) -> bool:
        """Goes on until a step blocks or the process ends; returns whether anything happened."""
        moved = False
        while True:
            step = self.blocked_on or next(self.steps, None)
            if step is None:
                return moved
            self.blocked_on = None if self._try(step) else step
            if self.blocked_on is not None:
                return moved
            moved = True

    def _try(self, step: Step) -> bool:
        way = step.way.of(self.sizes)
        found = self._ways.get((id(step), way))
        if found is None:
            key = (step.ring, way)
            found = self._ways[id(step), way] = (key, self.network.handovers[key])
        key, state = found
        return self._kinds[step.kind](step, key, state)

    def _acquire(self, step: Step, key: Key, state: _Handover) -> bool:
        turn = state.acquired[self.process.label]
        reused = turn - self.network.stages(step.ring)
        others = self.network.consumers(key, self.process.rank)
        place = self.network.places.of(step.ring)
        if place is not None:
            self._check_place(step, key, place, turn)
        elif reused >= 0 and not self._hear_all(state.releases, others, reused):
            return False
        state.acquired[self.process.label] += 1
        self._mark(step, state, turn)
        self._check_filled(step, key, reused)
        return True

    def _wait(self, step: Step, key: Key, state: _Handover) -> bool:
        turn = state.waited[self.process.label]
        others = self.network.producers(key, self.process.rank)
        if not self._hear_all(state.commits, others, turn):
            return False
        state.waited[self.process.label] += 1
        self._mark(step, state, turn)
        self._check_read(step, key, turn)
        return True

    def _hear_all(self, done: dict[str, list[Clock]], others: Sequence[str], turn: int) -> bool:
        """Adds the clocks of a slot's handovers, if all processes that take part have made theirs."""
        if not others or any(len(done[name]) <= turn for name in others):
            return False
        for name in others:
            self.clock |= done[name][turn]
            self.heard |= done[name][turn]
        return True

    def _mark(self, step: Step, state: _Handover, turn: int) -> None:
        self.slots[step.slot] = turn
        tick = self._tick("threads")
        self.clock |= 1 << tick
        self._note(step, state, self._known, tick)

    def _tick(self, agent: str) -> Tick:
        """The next tick of the role's threads, or of an engine that works for them."""
        if agent not in self._next_ticks:
            self._next_ticks[agent] = self.network.components[self.process.label, agent]
        tick = self._next_ticks[agent]
        self._next_ticks[agent] += len(self.network.components)
        return tick

    def _note(self, step: Step, state: _Handover, clock: Clock, tick: Tick) -> None:
        label = self.process.label
        touched = self.network.crossings.touched(self.process, step)
        state.events.append(Event(step.kind, label, clock, tick, touched))
        state.ticks[step.kind, label].append(tick)

    @property
    def _known(self) -> Clock:
        """The events that every thread of the process knows of."""
        return self.clock if self.process.threads == 1 else self.heard

    def _knows(self, key: Key, kind: str, who: str, turn: int) -> bool:
        ticks = self.network.handovers[key].ticks[kind, who]
        return turn < len(ticks) and _has(self._known, ticks[turn])

    def _check_filled(self, step: Step, key: Key, reused: int) -> None:
        """Checks that nobody uses the old contents of a slot that this process fills, in any CTA.

        At each full barrier where the commit will arrive, its last phase has to have been waited for.
        """
        crossings = self.network.crossings
        if crossings.is_alone or reused < 0:
            return
        for rank, who in crossings.readers_of(key, self.process):
            if not self._knows(key, "release", who, reused):
                raise self._misses(
                    step, f"fills a slot{_of(key, rank)} that role {who} may still read"
                )
        told = crossings.full_at(key[0], self.process.rank)
        for rank, who in crossings.waiting_where(key, told):
            if not self._knows(key, "wait", who, reused):
                raise self._misses(
                    step, f"commits a slot{_of(key, rank)} that role {who} may not have waited for"
                )

    def _check_read(self, step: Step, key: Key, turn: int) -> None:
        """Checks that a slot is full in every CTA where it is read, and that its release comes in time.

        At each empty barrier where the release will arrive, its last phase has to have been acquired.
        """
        crossings = self.network.crossings
        if crossings.is_alone:
            return
        for rank, who in crossings.fillers_of(key, self.process):
            if not self._knows(key, "commit", who, turn):
                raise self._misses(
                    step, f"reads a slot{_of(key, rank)} that role {who} may not have filled"
                )
        told = crossings.empty_at(key[0], self.process.rank)
        for rank, who in crossings.taking_where(key, told):
            is_taken = any(self._knows(key, kind, who, turn) for kind in ("acquire", "commit"))
            if not is_taken:  # who has committed has acquired
                raise self._misses(
                    step, f"releases a slot{_of(key, rank)} that role {who} may not have acquired"
                )

    def _check_place(self, step: Step, key: Key, place: Place, turn: int) -> None:
        """Checks that the shared place of a slot is free, since acquiring it waits for nothing."""
        missing = self.network.places.missing(
            step.slot,
            key,
            turn,
            waited=self.network.handovers[place.other, key[1]].waited[self.process.label],
            consumers=self.network.consumers(key, self.process.rank),
            knows=lambda key, who, turn: self._knows_in_order(step, key, who, turn),
        )
        if missing:
            raise op_error(step.op, f"in role {self.process.label} {missing}")

    def _knows_in_order(self, step: Step, key: Key, who: str, turn: int) -> bool:
        """Whether a release is known to come before what is about to fill a slot."""
        if self._knows(key, "release", who, turn):
            return True
        if who != self.process.label:
            return False
        ticks = self.network.handovers[key].ticks["release", who]
        done = [self.clock]
        if self.network.places.is_filled_in_order(step.slot):
            done.append(self.engines["tensor_core"])
        return turn < len(ticks) and any(_has(clock, ticks[turn]) for clock in done)

    def _check_copied(self, step: Step, key: Key) -> None:
        """Checks that copies from this slot to other CTAs have arrived before the slot is released."""
        crossings = self.network.crossings
        for taken, to in crossings.copied_across(step.slot, self.process.rank):
            turn = self.slots.get(taken.slot)
            if turn is None:
                continue  # not taken in this run
            there = taken.ring, taken.way.of(self.sizes)
            for rank, who in crossings.waiting_where(there, to):
                if not self._knows(there, "wait", who, turn):
                    raise self._misses(
                        step,
                        f"releases a slot{_of(key, self.process.rank)} that is copied to CTA {rank}, "
                        f"where role {who} may not have waited for it",
                    )

    def _misses(self, step: Step, what: str) -> Exception:
        return op_error(step.op, f"in role {self.process.label} {what}: no signal says so")

    def _commit(self, step: Step, key: Key, state: _Handover) -> bool:
        return self._hand_over(step, state, state.commits[self.process.label])

    def _release(self, step: Step, key: Key, state: _Handover) -> bool:
        self._check_copied(step, key)
        return self._hand_over(step, state, state.releases[self.process.label])

    def _hand_over(self, step: Step, state: _Handover, done: list[Clock]) -> bool:
        self._in_order(step, len(done))
        done.append(self._complete(step, state))
        return True

    def _in_order(self, step: Step, turn: int) -> None:
        got = self.slots.get(step.slot)
        if got != turn:
            state = "already handed over" if got is not None and got < turn else "out of turn"
            raise op_error(
                step.op,
                f"in role {self.process.label} hands over a slot of ring "
                f"{_ring_label(step.ring)} that is {state}: "
                f"its turn is {got}, the ring's next is {turn}",
            )

    def _complete(self, step: Step, state: _Handover) -> Clock:
        """The clock that a handover passes on to who waits for it."""
        if step.by not in ENGINES:
            tick = self._tick("threads")
            self.clock |= 1 << tick
            known = self.clock
        elif step.by == "copy_engine":
            tick = self._tick(step.by)
            known = self.clock | 1 << tick
        else:  # its asynchronous arrival says nothing of the thread's other steps
            tick = self._tick(step.by)
            before = self.heard if step.by == "thread_copies" else self.clock
            known = self.engines[step.by] = self.engines[step.by] | before | 1 << tick
        self._note(step, state, known, tick)
        return known


class Network:
    """All processes of a kernel, for given sizes and work tiles of a CTA (`tile0`, ... of each)."""

    def __init__(self, members: Sequence[Process], sizes: Sizes, tiles: Sequence[Sizes] = ({},)):
        self.tiles = tiles
        self.handovers: dict[Key, _Handover] = defaultdict(_Handover)
        self._sizes = sizes
        self.crossings = Crossings(members, sizes)
        self.places = Places(members)
        self._consumers: dict[tuple[Key, int], list[str]] = {}
        self._producers: dict[tuple[Key, int], list[str]] = {}
        self._stages: dict[Any, int] = {}
        agents = {(p.label, s.by) for p in members for s in steps(p) if s.by in ENGINES}
        of_threads = ((process.label, "threads") for process in members)
        # by process and agent: which component of clocks is theirs
        self.components = {who: at for at, who in enumerate((*of_threads, *sorted(agents)))}
        self._runners = [_Runner(process, sizes, self) for process in members]

    def stages(self, ring: Any) -> int:
        """Slots of one way of a ring."""
        if ring not in self._stages:
            self._stages[ring] = ws.RingType(ring.type).stages
        return self._stages[ring]

    def consumers(self, key: Key, rank: int) -> list[str]:
        """The processes that release slots of a ring way to a CTA."""
        if (key, rank) not in self._consumers:
            self._consumers[key, rank] = self.crossings.releasing(key, rank)
        return self._consumers[key, rank]

    def producers(self, key: Key, rank: int) -> list[str]:
        """The processes that commit slots of a ring way to a CTA."""
        if (key, rank) not in self._producers:
            self._producers[key, rank] = self.crossings.filling(key, rank)
        return self._producers[key, rank]

    def run(self) -> Trace:
        """Runs to the end.

        Raises:
          VerifyError: processes wait for one another, or hand slots over out of turn.
        """
        moved = True
        while moved:
            moved = sum(runner.run() for runner in self._runners) > 0
        stuck = [runner for runner in self._runners if runner.blocked_on is not None]
        if stuck:
            lines = [self._explain(runner) for runner in stuck]
            first = stuck[0].blocked_on
            assert first is not None
            members = [runner.process for runner in self._runners]
            call = [{**self._sizes, **tile} for tile in self.tiles]
            where = " and ".join(filter(None, (named_sizes(members, sizes) for sizes in call)))
            place = f" with {where}" if where else ""
            raise op_error(first.op, f"never returns{place}: {'; '.join(lines)}")
        happened = {key: found.events for key, found in self.handovers.items() if found.events}
        return Trace(defaultdict(list, happened))

    def _explain(self, runner: _Runner) -> str:
        """What a role waits for, and from whom."""
        step = runner.blocked_on
        assert step is not None
        key = (step.ring, step.way.of(runner.sizes))
        label = f"{_ring_label(step.ring)}[{key[1]}]"
        if step.kind == "acquire":
            need, others, verb = "an empty", self.consumers, "releases"
        else:
            need, others, verb = "a full", self.producers, "commits"
        who = " and ".join(others(key, runner.process.rank) or ["nobody"])
        return f"role {runner.process.label} needs {need} slot of ring {label}, which {who} {verb}"


def _of(key: Key, rank: int) -> str:
    return f" of ring {_ring_label(key[0])}[{key[1]}] in CTA {rank}"


def _ring_label(ring: Any) -> str:
    return ring.owner.label


def precedes(trace: Trace, first: Any, second: Any, ways: tuple[int, int] | None = None) -> bool:
    """Whether ring `first` is no longer used when ring `second` is first acquired, in every CTA.

    Args:
      trace: a finished simulation.
      first, second: rings (SSA values).
      ways: compare one way of `first` with one of `second`; all of them by default.
    """
    of_first, of_second = (None, None) if ways is None else ways

    def is_of(key: Key, ring: Any, way: int | None) -> bool:
        return key[0] == ring and way in (None, key[1])

    before: dict[Ranks, Clock] = {}  # by the CTAs whose slots were used
    for key, events in trace.events.items():
        if is_of(key, first, of_first):
            for event in events:
                before[event.touched] = before.get(event.touched, 0) | 1 << event.tick

    def is_late(event: Event) -> bool:
        here = (ticks for touched, ticks in before.items() if touched & event.touched)
        return any(ticks & ~event.clock for ticks in here)

    return not any(
        event.kind == "acquire" and is_late(event)
        for key, events in trace.events.items()
        if is_of(key, second, of_second)
        for event in events
    )
