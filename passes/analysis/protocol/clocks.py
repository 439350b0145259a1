"""Vector clocks: how many events of each component have happened, packed into one integer.

Every component has a field of `FIELD_BITS` bits, whose top bit is free, so that the additions and subtractions
below carry nothing from field to field. A clock that knows of the n-th event of a component knows of those before.
"""

FIELD_BITS = 32
COUNT = (1 << (FIELD_BITS - 1)) - 1  # what a field holds at most

Clock = int  # a count for each component
Tick = int  # names one event: the clock that knows of it, and of those before it in its component alone


def tick(component: int, number: int) -> Tick:
    """The name of the `number`-th event of a component, counted from 1."""
    return number << FIELD_BITS * component


def knows(clock: Clock, event: Tick) -> bool:
    """Whether a clock says that an event has happened."""
    shift = (event.bit_length() - 1) // FIELD_BITS * FIELD_BITS
    return clock >> shift & COUNT >= event >> shift


class Clocks:
    """What is computed with clocks of some number of components, on all of them at once.

    Attributes:
      ones: 1 in every field.
      guards: the top bit of every field, 0 in clocks.
    """

    def __init__(self, components: int):
        self.ones = sum(1 << FIELD_BITS * component for component in range(components))
        self.guards = self.ones << FIELD_BITS - 1

    def join(self, a: Clock, b: Clock) -> Clock:
        """The larger count of every component."""
        larger = ((a | self.guards) - b) & self.guards  # the guards of fields where a >= b
        if larger == self.guards:
            return a
        return b ^ ((a ^ b) & (larger - (larger >> FIELD_BITS - 1)))

    def meet(self, a: Clock, b: Clock) -> Clock:
        """The smaller count of every component."""
        return a ^ b ^ self.join(a, b)

    def covers(self, a: Clock, b: Clock) -> bool:
        """Whether no count of `b` is above that of `a`."""
        return ((a | self.guards) - b) & self.guards == self.guards

    def filled(self, clock: Clock) -> Clock:
        """All bits of the counts that are not 0."""
        guards = (clock + self.guards - self.ones) & self.guards
        return guards - (guards >> FIELD_BITS - 1)
