"""Iterators over the KV tiles, or query tiles, of a work tile, and the loops over them."""

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
    """The iterations of a tile of rows: first with both edges tested, then none, then the left.

    Attributes:
      plain: the first iteration without a test.
      left: the first iteration that tests the left edge; None if the mask has none.
    """

    plain: Value
    left: Value | None


class ColumnTiles(Protocol):
    """The tiles of columns of S that a work tile iterates over.

    The columns are keys, or queries in kernels whose rows are keys.

    Attributes:
      count: number of iterations, at least 0.
      masks_everywhere: whether iterations without a test evaluate `attn.keep` too.
    """

    count: Value
    masks_everywhere: ClassVar[bool]

    def first_column(self, index: Value | int) -> Value:
        """First column of the tile of an iteration."""
        ...

    def phases(self, row_tile: Value) -> Phases:
        """The iterations that test each edge, for one tile of rows.

        All tiles of rows of a work tile have the same iterations. A tile of columns that is hidden
        from this tile of rows is among the tested ones.
        """
        ...

    def any(self) -> Value:
        """i1: whether there is any tile."""
        ...


def loop_over_tiles(
    tiles: ColumnTiles,
    phases: Phases,
    state: list[Value],
    iteration: Callable[..., list[Value]],
    *,
    first: int = 0,
) -> list[Value]:
    """Emits the loops over all tiles, one loop for each test, and returns the final state.

    Args:
      iteration: emits one iteration: maps the test or None, the index and the state to the next
        state.
      first: index of the first iteration, at most `tiles.count`.
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
