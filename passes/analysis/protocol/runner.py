"""One process of a network while it runs: what its steps wait for, what they make known, what they
have to know.

Happens-before is tracked with vector clocks (`clocks`). Each role has a component. So have the
products and the thread copies that a role issues, which complete in order (a commit of copies waits
for all before it). Transfers of the copy engine complete in any order, but who waits for those of
one ring instance has waited for the earlier ones: these have a component for each ring instance.
The work of one thread of a role says nothing about the role's other threads, until a handover by
all of them has come back from another role.

In a cluster it is checked what one CTA does to another (`crossings`). Where slots overlap those of
other rings it is checked who may still use these (`places`). Slots that are known to be empty are
acquired without a wait, and it is checked that they are.

A step is also known to its own process, before all threads know of it, where rows are lanes of
tensor memory: one thread uses a lane alone. The tensor core works in order for the thread that
issues, so that this thread may have it fill a slot before its earlier products are known to be
complete.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from attn_mlir.dialect.diagnostics import op_error

from .clocks import Clock, Clocks, Tick, knows, tick
from .ports import ENGINES, Neighbour, Port, Ports, Seen, Side
from .program import Program, Repeat
from .skeleton import Process, Step
from .trace import Event


class Frame:
    """A place in a program.

    Attributes:
      body: what is repeated, or the program itself.
      at: number of the next item.
      left: turns after this one.
    """

    __slots__ = ("at", "body", "left")

    def __init__(self, body: Program, left: int):
        self.body = body
        self.at = 0
        self.left = left


class Runner:
    """The state of one process while it runs through its program.

    Args:
      process: the process.
      ports: of the network.
      clocks: what is computed with its clocks.
      counts: events so far by component of clocks, of all processes; its own are added.

    Attributes:
      frames: where it is, from the outside in; empty behind the end.
      blocked_on: the step that it cannot take yet.
      clock: what its threads know, their own steps included.
      heard: what it has learned from handovers by others.
      engines: what is known when the last work of an engine has completed.
      slots: the turn of each slot by its number, -1 before it is taken.
    """

    def __init__(self, process: Process, ports: Ports, clocks: Clocks, counts: list[int]):
        self.process = process
        self._ports = ports
        self._counts = counts
        self._of = ports.of(process)
        self._join = clocks.join
        self._is_alone = ports.crossings.is_alone
        self._kinds: Mapping[str, Callable[[Port], bool]] = {
            "acquire": self._acquire,
            "wait": self._wait,
            "commit": self._commit,
            "release": self._release,
        }
        self.begin(())

    def begin(self, body: Program) -> None:
        """Goes to the begin of a program."""
        self.frames = [Frame(body, 0)]
        self.blocked_on: Port | None = None
        self.clock: Clock = 0
        self.heard: Clock = 0
        self.engines: dict[str, Clock] = {"tensor_core": 0, "thread_copies": 0}
        self.slots = [-1] * len(self._of)

    def ports(self) -> list[Port]:
        """All steps of its program, which it has not begun."""
        return [self._of[step] for step in dict.fromkeys(_steps(self.frames[0].body))]

    def clocks(self) -> tuple[Clock, ...]:
        """All that it knows; nothing behind its end."""
        return (self.clock, self.heard, *self.engines.values()) if self.frames else ()

    def run(self) -> bool:
        """Goes on until a step blocks or the process ends; returns whether anything happened."""
        moved = False
        while (port := self.blocked_on or self._next()) is not None:
            if not self._kinds[port.step.kind](port):
                self.blocked_on = port
                return moved
            self.blocked_on = None
            moved = True
        return moved

    def _next(self) -> Port | None:
        """The next step, None behind the last one."""
        frames = self.frames
        while frames:
            frame = frames[-1]
            if frame.at < len(frame.body):
                item = frame.body[frame.at]
                frame.at += 1
                if isinstance(item, Step):
                    return self._of[item]
                if isinstance(item, Repeat):
                    frames.append(Frame(item.body, item.turns - 1))
                else:
                    self.heard = self._join(self.heard, self.clock)
            elif frame.left:
                frame.left -= 1
                frame.at = 0
            else:
                frames.pop()
        return None

    def _acquire(self, port: Port) -> bool:
        turn = len(port.mine.ticks)
        reused = turn - port.at.stages
        if reused >= 0 and not port.at.is_known_empty and not self._hear(port, reused):
            return False
        for neighbour in port.neighbours:
            self._check_place(port, turn, neighbour)
        if reused >= 0 and port.at.is_known_empty and self._is_alone:
            self._check_released(port, reused)
        self._mark(port, turn)
        if reused >= 0 and not self._is_alone:
            self._check_filled(port, reused)
        return True

    def _wait(self, port: Port) -> bool:
        turn = len(port.mine.ticks)
        if not self._hear(port, turn):
            return False
        self._mark(port, turn)
        if not self._is_alone:
            self._check_read(port, turn)
        return True

    def _hear(self, port: Port, turn: int) -> bool:
        """Adds the clocks of a slot's handovers,
        if all processes that take part have made theirs.
        """
        for side in port.heard:
            if len(side.clocks) <= turn:
                return False
        for side in port.heard:
            news = side.clocks[turn]
            self.clock = self._join(self.clock, news)
            self.heard = self._join(self.heard, news)
        return bool(port.heard)

    def _mark(self, port: Port, turn: int) -> None:
        self.slots[port.slot] = turn
        event = self._tick(port)
        self.clock = self._join(self.clock, event)
        self._note(port, self._known, event)

    def _tick(self, port: Port) -> Tick:
        """The next tick of the role's threads, or of an engine that works for them."""
        self._counts[port.component] += 1
        return tick(port.component, self._counts[port.component])

    def _note(self, port: Port, clock: Clock, event: Tick) -> None:
        label = self.process.label
        port.at.events.append(Event(port.step.kind, label, clock, event, port.touched))
        port.mine.ticks.append(event)

    @property
    def _known(self) -> Clock:
        """The events that every thread of the process knows of."""
        return self.clock if self.process.threads == 1 else self.heard

    def _knows(self, side: Side, turn: int) -> bool:
        return turn < len(side.ticks) and knows(self._known, side.ticks[turn])

    def _missed(
        self, seen: Sequence[Seen], turn: int, knows: Callable[[Side, int], bool] | None = None
    ) -> tuple[int, str] | None:
        """The first CTA and process of those given of whose step in a turn this process does not
        know.
        """
        knows = knows or self._knows
        for rank, sides in seen:
            if not any(knows(side, turn) for side in sides):
                return rank, sides[0].who
        return None

    def _check_filled(self, port: Port, reused: int) -> None:
        """Checks that nobody uses the old contents of a slot that this process fills, in any CTA.

        At each full barrier where the commit will arrive, its last phase has to have been waited
        for.
        """
        in_order = partial(self._knows_in_order, port)
        if missed := self._missed(port.used, reused, in_order):
            what = f"fills a slot{_of(port, missed[0])} that role {missed[1]} may still read"
            raise self._misses(port, what)
        if missed := self._missed(port.advanced, reused):
            slot = _of(port, missed[0])
            what = f"commits a slot{slot} that role {missed[1]} may not have waited for"
            raise self._misses(port, what)

    def _check_read(self, port: Port, turn: int) -> None:
        """Checks that a slot is full in every CTA where it is read, and that its release comes in
        time.

        At each empty barrier where the release will arrive, its last phase has to have been
        acquired.
        """
        if missed := self._missed(port.used, turn):
            what = f"reads a slot{_of(port, missed[0])} that role {missed[1]} may not have filled"
            raise self._misses(port, what)
        if missed := self._missed(port.advanced, turn):
            what = (
                f"releases a slot{_of(port, missed[0])} that role {missed[1]} may not have acquired"
            )
            raise self._misses(port, what)

    def _check_released(self, port: Port, reused: int) -> None:
        """Checks that a slot is known to be released, since acquiring it waits for nothing."""
        for side in port.heard:
            if not self._knows_in_order(port, side, reused):
                ring, instance = port.at.key
                raise self._misses(
                    port,
                    f"takes a slot of ring {ring.owner.label}[{instance}], which has no empty "
                    f"barriers, that role {side.who} may not have released",
                )

    def _check_place(self, port: Port, turn: int, neighbour: Neighbour) -> None:
        """Checks that slots which overlap the one that is to be filled are not in use."""
        mine, theirs = (
            f"{ring.owner.label}[{instance}]" for ring, instance in (port.at.key, neighbour.at.key)
        )
        for last in neighbour.turns(turn % port.at.stages):
            for use, side in neighbour.done:
                if not self._knows_in_order(port, side, last):
                    step = "commit" if use == "fill" else "release"
                    raise op_error(
                        port.step.op,
                        f"in role {self.process.label} takes turn {turn} of ring {mine} in the "
                        f"place of turn {last} of ring {theirs}, which role {side.who} may still "
                        f"{use}: a wait for what follows that {step} is missing before this "
                        "acquire",
                    )

    def _knows_in_order(self, port: Port, side: Side, turn: int) -> bool:
        """Whether a step is known to come before what fills a slot; see the module."""
        if self._knows(side, turn):
            return True
        if not port.at.is_in_lanes or side.who != self.process.label or turn >= len(side.ticks):
            return False
        done = [self.clock]
        if self._ports.places.is_filled_in_order(port.step.slot):
            done.append(self.engines["tensor_core"])
        return any(knows(clock, side.ticks[turn]) for clock in done)

    def _check_copied(self, port: Port) -> None:
        """Checks that copies from this slot to other CTAs have arrived before the slot is
        released.
        """
        for slot, (rank, (side,)) in port.copied:
            turn = self.slots[slot]
            if turn >= 0 and not self._knows(side, turn):  # else not taken in this run
                raise self._misses(
                    port,
                    f"releases a slot{_of(port, self.process.rank)} that is copied to CTA {rank}, "
                    f"where role {side.who} may not have waited for it",
                )

    def _misses(self, port: Port, what: str) -> Exception:
        message = f"in role {self.process.label} {what}: no signal says so"
        return op_error(port.step.op, message)

    def _commit(self, port: Port) -> bool:
        self._hand_over(port)
        return True

    def _release(self, port: Port) -> bool:
        self._check_copied(port)
        self._hand_over(port)
        return True

    def _hand_over(self, port: Port) -> None:
        turn, got = len(port.mine.clocks), self.slots[port.slot]
        if got != turn:
            state = "already handed over" if 0 <= got < turn else "out of turn"
            raise op_error(
                port.step.op,
                f"in role {self.process.label} hands over a slot of ring "
                f"{port.step.ring.owner.label} that is {state}: "
                f"its turn is {got if got >= 0 else None}, the ring's next is {turn}",
            )
        port.mine.clocks.append(self._complete(port))

    def _complete(self, port: Port) -> Clock:
        """The clock that a handover passes on to who waits for it."""
        by, event, join = port.step.by, self._tick(port), self._join
        if by not in ENGINES:
            known = self.clock = join(self.clock, event)
        elif by == "copy_engine":
            known = join(self.clock, event)
            if port.step.kind == "release" and (port.at.is_shared or port.at.is_known_empty):
                self.clock = known  # the thread has waited until its copies have read the slot
        else:  # its asynchronous arrival says nothing of the thread's other steps
            before = self.heard if by == "thread_copies" else self.clock
            known = self.engines[by] = join(join(self.engines[by], before), event)
        self._note(port, known, event)
        return known


def _steps(body: Program) -> Iterator[Step]:
    for item in body:
        if isinstance(item, Repeat):
            yield from _steps(item.body)
        elif isinstance(item, Step):
            yield item


def _of(port: Port, rank: int) -> str:
    ring, instance = port.at.key
    return f" of ring {ring.owner.label}[{instance}] in CTA {rank}"
