"""The turns of a role that copies tiles of keys, with what tells where they lie read two turns
ahead.

What a table says may come from memory, which takes longer than a slot is waited for.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from .. import emit as b
from ..core.column_tiles import ColumnTiles
from ..core.problem import Value


class Fill(Protocol):
    """Copies the tile of a turn."""

    def __call__(self, index: Value | int, entries: Sequence[Value], *, is_whole: bool) -> None:
        """Given what was found for the turn, and whether all of its keys are known to exist."""
        ...


def each_iteration(
    tiles: ColumnTiles,
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

        def plain(index: Value) -> list[Value]:
            fill(index, [], is_whole=False)
            return []

        begin()
        b.loop(0, tiles.count, [], plain)
        return

    def iteration(index: Value, *queue: Value) -> list[Value]:
        count = len(queue) // 2
        fill(index, queue[:count], is_whole=True)
        return [*queue[count:], *find(b.INT.add(index, 2))]

    with b.either(tiles.any()) as (some, none):
        with some:
            entries, prefetched = (find(b.constant(index)) for index in range(2))
            begin()
            fill(0, entries, is_whole=False)
            b.loop(1, tiles.count, [*prefetched, *find(b.constant(2))], iteration)
        with none:  # nor anything to be read
            begin()
