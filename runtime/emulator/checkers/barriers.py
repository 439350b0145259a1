"""Barriers: the knowledge they pass from arriving to waiting threads, and rules of mbarriers."""

from dataclasses import dataclass
from typing import Any

from ..ptx.kinds import WARP_LANES
from .clocks import KNOWN, Actors, Clock, WarpClocks


@dataclass(slots=True)
class Barrier:
    """A barrier of any kind.

    Attributes:
      arriving: joined clock of those that arrived in the open phase.
      done: joined clock of the arrivals of all completed phases.
      phase: number of completed phases.
    """

    arriving: Clock
    done: Clock
    phase: int = 0

    def complete(self, actors: Actors) -> None:
        """Completes a phase: waiting threads learn what its arrivals knew."""
        self.done = actors.join(self.done, self.arriving)
        self.arriving[:] = 0
        self.phase += 1


@dataclass(slots=True)
class MBarrier(Barrier):
    """An mbarrier.

    Attributes:
      actor: the actor of copies that complete on it; its steps are phases.
      init_actor, init_tick, init_line: the thread that initialised it, and when.
      init_stream, init_step: the init as a step of the actor for the thread's inits, which
        fence.mbarrier_init makes known.
      is_fenced: whether the init was made visible to engines.
      copies: the last phase in which copies completed, counted from 1; 0 for none.
    """

    actor: int = 0
    init_actor: int = 0
    init_tick: int = 0
    init_line: Any = None
    init_stream: int = 0
    init_step: int = 0
    is_fenced: bool = False
    copies: int = 0

    def is_known(self, clock: Clock) -> bool:
        """Whether a fitted clock includes the init, or at least its fence.mbarrier_init."""
        return bool(
            clock[KNOWN, self.init_actor] >= self.init_tick
            or clock[KNOWN, self.init_stream] >= self.init_step
        )

    def intended(self, known_phases: int, parity: int) -> int:
        """The phase that a thread waits for: the first of this parity that it does not know of.

        -1 stands for the phase before the first, of parity 1.
        """
        return known_phases if known_phases & 1 == parity else known_phases - 1


class Barriers:
    """All barriers of a cluster."""

    def __init__(self, actors: Actors):
        self.actors = actors
        self.table: dict[tuple[Any, ...], Barrier] = {}
        # by thread: number of its inits, and how many of them it has fenced
        self._inits: dict[int, int] = {}
        self._fenced: dict[int, int] = {}

    def named(self, key: tuple[Any, ...]) -> Barrier:
        """A named or cluster barrier, which needs no init."""
        barrier = self.table.get(key)
        if barrier is None:
            barrier = self.table[key] = Barrier(self.actors.zeros(2), self.actors.zeros(2))
        return barrier

    def mbarrier(self, key: tuple[Any, ...]) -> MBarrier | None:
        """The mbarrier of a key, or None before its init."""
        barrier = self.table.get(key)
        return barrier if isinstance(barrier, MBarrier) else None

    def initialise(self, key: tuple[Any, ...], warp: WarpClocks, lane: int, line: Any) -> None:
        """mbarrier.init by a lane."""
        tick = warp.step(line)
        actor = self.actors.engine(key)
        earlier = self.mbarrier(key)
        barrier = MBarrier(self.actors.zeros(2), self.actors.zeros(2), 0, actor)
        if earlier is not None:
            barrier.done = earlier.done
        barrier.init_actor, barrier.init_tick, barrier.init_line = warp.base + lane, tick, line
        thread = barrier.init_actor
        barrier.init_stream = self.actors.engine(("init", thread))
        barrier.init_step = self._inits[thread] = self._inits.get(thread, 0) + 1
        self.table[key] = barrier

    def fenced_inits(self, thread: int) -> tuple[int, int] | None:
        """(actor, step) of a thread's fenced inits, which a relaxed arrival passes on too."""
        step = self._fenced.get(thread)
        return None if step is None else (self.actors.engine(("init", thread)), step)

    def fence_inits(self, warp: WarpClocks, lanes: Any) -> None:
        """Lanes execute a fence that covers the inits of their mbarriers."""
        for thread, count in self._inits.items():
            if 0 <= thread - warp.base < WARP_LANES and thread - warp.base in lanes:
                self._fenced[thread] = count
        for barrier in self.table.values():
            if isinstance(barrier, MBarrier) and not barrier.is_fenced:
                lane = barrier.init_actor - warp.base
                barrier.is_fenced = 0 <= lane < WARP_LANES and lane in lanes

    def of_cta(self, rank: int) -> list[MBarrier]:
        """The mbarriers in a CTA's shared memory."""
        return [
            barrier
            for key, barrier in self.table.items()
            if isinstance(barrier, MBarrier) and key[1] == rank
        ]
