"""Vector clocks: how many events of each component have happened, packed into one integer.

Every component has a field of `FIELD_BITS` bits, whose top bit is free, so that the additions and
subtractions below carry nothing from field to field. A clock that knows of the n-th event of a
component knows of those before.
"""

import struct

FIELD_BITS = 32
COUNT = (1 << (FIELD_BITS - 1)) - 1  # what a field holds at most

Clock = int  # a count for each component
Tick = int  # names one event: the clock that knows of it, and of those before it in its component


def tick(component: int, number: int) -> Tick:
    """The name of the `number`-th event of a component, counted from 1."""
    return number << FIELD_BITS * component


def knows(clock: Clock, event: Tick) -> bool:
    """Whether a clock says that an event has happened."""
    shift = (event.bit_length() - 1) // FIELD_BITS * FIELD_BITS
    return clock >> shift & COUNT >= event >> shift


class Clocks:
    """Operations on clocks of some number of components, on all of them at once.

    Attributes:
      guards: the top bit of every field, 0 in clocks.
    """

    def __init__(self, components: int):
        self.guards = sum(1 << FIELD_BITS * (n + 1) - 1 for n in range(components))
        self._fields = struct.Struct(f"<{components}I")

    def join(self, a: Clock, b: Clock) -> Clock:
        """The larger count of every component."""
        larger = ((a | self.guards) - b) & self.guards  # the guards of fields where a >= b
        if larger == self.guards:
            return a
        return b ^ ((a ^ b) & (larger - (larger >> FIELD_BITS - 1)))

    def covers(self, a: Clock, b: Clock) -> bool:
        """Whether no count of `b` is above that of `a`."""
        return ((a | self.guards) - b) & self.guards == self.guards

    def counts(self, clock: Clock) -> tuple[int, ...]:
        """The counts, by component."""
        return self._fields.unpack(clock.to_bytes(self._fields.size, "little"))
