"""Asynchronous work as the checkers see it: a ticket from its issue to its completion."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .clocks import KNOWN, PROXY, Actors, Clock
from .spaces import Actor

NEVER = np.iinfo(np.int32).max


@dataclass(slots=True)
class Ticket:
    """One piece of asynchronous work.

    Attributes:
      cta: the issuing CTA. lane: the issuing thread's lane, -1 for a whole warp.
      engine: "load", "store" or "tensor". line, who: for reports.
      clock: what the issuer knew. own: its actor.
      actor, step: the stream that the work completes in; actor 0 until its mbarrier is known.
      version: of the warp's clocks at the issue.
      pending: accesses that wait for the mbarrier to be known.
    """

    cta: Any
    lane: int
    engine: str
    line: Any
    who: str
    clock: Clock
    own: int
    actor: int
    step: int
    version: int
    is_commit: bool = False
    pending: list[Any] = field(default_factory=list[Any])

    def accessor(self, actors: Actors, row: int = KNOWN, *, fenced: bool = True) -> Actor:
        """The work as an accessor of memory.

        Args:
          row: of the clock that orders it. fenced: writes of threads count once fenced.
        """
        self.clock = actors.fit(self.clock)
        reads = self.clock[row].copy()
        reads[self.actor] = NEVER if self.engine == "tensor" else reads[self.actor]
        writes = reads
        if fenced:
            writes = reads.copy()
            threads = slice(1, actors.first_engine)
            writes[threads] = self.clock[PROXY, threads]
        return Actor(self.actor, self.step, writes, reads)

    def released(self, actors: Actors) -> Clock:
        """What an arrival on behalf of this work carries: the stream up to here.

        It carries what the issuing thread had learnt, but nothing that the thread did itself.
        """
        clock = actors.fit(self.clock)[:2].copy()
        clock[:, self.own] = 0
        clock[KNOWN, self.actor] = max(clock[KNOWN, self.actor], self.step)
        return clock
