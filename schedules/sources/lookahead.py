"""The loop of a role that copies tiles of keys, with page entries prefetched two tiles ahead.

An entry may come from memory, which takes longer than the wait for a slot.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from .. import emit as b
from ..core.column_tiles import ColumnTiles
from ..core.problem import Value


class Fill(Protocol):
    """Copies the tile of an iteration."""

    def __call__(self, index: Value | int, entries: Sequence[Value], *, is_whole: bool) -> None:
        """Copies tile `index` by its entries; `is_whole` if all of its keys exist."""
        ...


def each_iteration(
    tiles: ColumnTiles,
    read_entries: Callable[[Value | int], list[Value]] | None,
    fill: Fill,
    begin: Callable[[], None],
) -> None:
    """Emits the iterations of a work tile; one thread.

    The last key tile comes first, so only the first iteration checks the end of the sequence.

    Args:
      read_entries: reads the entries of a tile; None if there are none. It is called for tiles past
        the last one too, but only if there is a tile.
      begin: emits the copies before the first tile.
    """
    if read_entries is None:

        def plain(index: Value) -> list[Value]:
            fill(index, [], is_whole=False)
            return []

        begin()
        b.loop(0, tiles.count, [], plain)
        return

    def iteration(index: Value, *queue: Value) -> list[Value]:
        count = len(queue) // 2
        fill(index, queue[:count], is_whole=True)
        return [*queue[count:], *read_entries(b.INT.add(index, 2))]

    with b.either(tiles.any()) as (some, none):
        with some:
            entries, prefetched = (read_entries(b.constant(index)) for index in range(2))
            begin()
            fill(0, entries, is_whole=False)
            b.loop(1, tiles.count, [*prefetched, *read_entries(b.constant(2))], iteration)
        with none:  # no entry is read
            begin()
