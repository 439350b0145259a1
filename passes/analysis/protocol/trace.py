"""The events of a run: the steps at each ring instance,
and which of them had happened before which.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from .clocks import Clock, Clocks, Tick, knows
from .crossings import Key, Ranks


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
        return knows(self.clock, other.tick)


@dataclass
class Trace:
    """One finished run: the events of each ring instance, in the order of the simulation.

    Attributes:
      events: by ring instance; none where nothing happened.
      clocks: what is computed with the run's clocks.
    """

    events: dict[Key, list[Event]]
    clocks: Clocks


def precedes(
    trace: Trace, first: Any, second: Any, instances: tuple[int, int] | None = None
) -> bool:
    """Whether ring `first` is no longer used when ring `second` is first acquired, in every CTA.

    Args:
      trace: a finished simulation.
      first, second: rings (SSA values).
      instances: compare one instance of `first` with one of `second`; all of them by default.
    """
    of_first, of_second = (None, None) if instances is None else instances

    def is_of(key: Key, ring: Any, instance: int | None) -> bool:
        return key[0] == ring and instance in (None, key[1])

    join, covers = trace.clocks.join, trace.clocks.covers
    before: dict[Ranks, Clock] = {}  # by the CTAs whose slots were used
    for key, events in trace.events.items():
        if is_of(key, first, of_first):
            for event in events:
                before[event.touched] = join(before.get(event.touched, 0), event.tick)

    def is_late(event: Event) -> bool:
        here = (ticks for touched, ticks in before.items() if touched & event.touched)
        return not all(covers(event.clock, ticks) for ticks in here)

    return not any(
        event.kind == "acquire" and is_late(event)
        for key, events in trace.events.items()
        if is_of(key, second, of_second)
        for event in events
    )
