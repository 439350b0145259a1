"""The turns of a role that copies tiles of keys, with what tells where they lie read two turns
ahead.

What a table says may come from memory, which takes longer than a slot is waited for.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from .. import emit as b
from ..core.problem import Value
from ..core.visited_tiles import VisitedTiles


class Fill(Protocol):
    """Copies the tile of a turn."""

    def __call__(self, turn: Value | int, found: Sequence[Value], *, is_whole: bool) -> None:
        """Given what was found for the turn, and whether all of its keys are known to exist."""
        ...


def each_turn(
    visited: VisitedTiles,
    find: Callable[[Value | int], list[Value]] | None,
    fill: Fill,
    begin: Callable[[], None],
) -> None:
    """Emits the turns of a work tile; one thread.

    Keys are visited from the last tile down: only the first turn has to mind the end of the
    sequence.

    Args:
      find: emits what has to be read to find the tile of a turn; None where nothing has to be. It
        may be asked for turns that do not come, but only where there is a tile.
      begin: emits what is copied before the first tile.
    """
    if find is None:

        def plain(turn: Value) -> list[Value]:
            fill(turn, [], is_whole=False)
            return []

        begin()
        b.loop(0, visited.count, [], plain)
        return

    def turn_of(turn: Value, *both: Value) -> list[Value]:
        count = len(both) // 2
        fill(turn, both[:count], is_whole=True)
        return [*both[count:], *find(b.INT.add(turn, 2))]

    with b.either(visited.any()) as (some, none):
        with some:
            found, ahead = (find(b.constant(turn)) for turn in range(2))
            begin()
            fill(0, found, is_whole=False)
            b.loop(1, visited.count, [*ahead, *find(b.constant(2))], turn_of)
        with none:  # nor anything to be read
            begin()
