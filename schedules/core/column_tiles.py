"""The protocol of visited tiles, and the loops over their turns."""

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol

from .. import emit as b

Value = Any


class Test(Enum):
    """Which edges of the mask the elements of a tile are tested against."""

    ALL = "all"
    LEFT_EDGE = "left"  # of an interval mask; the right edge of every row lies beyond the tile


class Phases(NamedTuple):
    """How the turns of a tile of rows divide: first both edges are tested, then none, then the left
    one.

    Attributes:
      plain: the first turn without a test.
      left: the first turn that tests the left edge; None if the mask has none.
    """

    plain: Value
    left: Value | None


class ColumnTiles(Protocol):
    """Which tiles of columns a work tile visits, in turns 0, 1, ...; of keys, or of queries where
    keys stand still.

    Attributes:
      count: number of turns, at least 0.
      masks_everywhere: whether `attn.keep` is evaluated in turns without a test, too.
    """

    count: Value
    masks_everywhere: ClassVar[bool]

    def first_column(self, index: Value | int) -> Value:
        """First column of the tile visited in a turn."""
        ...

    def phases(self, row_tile: Value) -> Phases:
        """Which turns test which edges, for one tile of rows.

        All tiles of rows of a work tile take the same turns. Some may visit tiles of which this
        one sees nothing; these are among the turns with a test.
        """
        ...

    def any(self) -> Value:
        """i1: whether there is a tile to visit."""
        ...


def loop_over_tiles(
    tiles: ColumnTiles,
    phases: Phases,
    state: list[Value],
    iteration: Callable[..., list[Value]],
    *,
    first: int = 0,
) -> list[Value]:
    """Emits the loops over all turns, one for each kind of test, and returns the final state.

    Args:
      iteration: emits one turn; from the test or None, the turn's number and the state to the next
        state.
      first: the turn to begin with; there are at least as many turns.
    """
    if first:
        left = None if phases.left is None else b.INT.max(phases.left, first)
        phases = Phases(b.INT.max(phases.plain, first), left)

    def phase(begin: Value | int, end: Value, test: Test | None) -> list[Value]:
        return b.loop(begin, end, state, lambda *args: iteration(test, *args))

    state = phase(first, phases.plain, Test.ALL)
    if phases.left is None:
        return phase(phases.plain, tiles.count, None)
    state = phase(phases.plain, phases.left, None)
    return phase(phases.left, tiles.count, Test.LEFT_EDGE)
