"""The memory that gradients of queries are added to, in any order or by turns.

Blocks of keys start in the order of their numbers and visit tiles of queries from the last one
down. With turns block n adds to a tile when block n - 1 has: so each sum has one order of
additions, and the same bits in every run. Who visits a tile is an interval of blocks, as the ends
of what rows see never decrease; the first of them waits for nobody, and the last one clears the
cell:

```text
blocks 2, 3, 4 visit:   cell 0 -> 2 adds, sets 3 -> 3 adds, sets 4 -> 4 adds, sets 0
```
Blocks of one head that start together are soon one addition apart, and wait no more.
"""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.mask_tiles import MaskTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile


@dataclass(frozen=True)
class Accumulators:
    """Sums of f32 in memory, for each query.

    Attributes:
      problem: the attention, whose rows are keys.
      sums: memref as of queries.
      turns: memref [batch, heads, tiles] of i32; None to add in any order.
    """

    problem: Problem
    sums: Value
    turns: Value | None

    def add(self, tile: WorkTile, first: Value, product: Value, column: int) -> None:
        """Adds a shared tile to the sums of queries from `first` on; rows past the end are dropped.

        Args:
          column: the first column of the sums.
        """
        _, queries = self.problem.sequences(tile)
        head, row = self.problem.column_head(tile), len(queries.lead)
        coords = [*queries.lead, queries.row(first), head, column]
        b.reduce_out(product, queries.within(self.sums, row), coords, [row, row + 2])

    def in_turn(self, tile: WorkTile, body: Callable[[WorkTile, Value], None]) -> None:
        """Emits the loop over the tiles of queries that a work tile visits. One thread.

        Args:
          body: adds to a tile of queries, given the work tile with their head, and the first one.
        """
        neighbours = None if self.turns is None else _Neighbours(self.problem, tile)

        def of_tile(tile: WorkTile, tiles: ColumnTiles, index: Value) -> None:
            first = tiles.first_column(index)
            if self.turns is None or neighbours is None:
                body(tile, first)
                return
            number = b.INT.floordiv(first, b.constant(self.problem.config.tile_n))
            cell = [tile.batch, self.problem.column_head(tile), number]
            with b.when(neighbours.visited_before(number)):
                b.await_turn(self.turns, cell, tile.block)
            body(tile, first)
            after = b.INT.add(tile.block, 1)
            following = b.select(neighbours.visited_after(number), after, b.constant(0))
            b.set_turn(self.turns, cell, following)

        self.problem.each_column_tile(tile, of_tile)


class _Neighbours:
    """Which tiles of queries the blocks of keys before and after a work tile's visit."""

    def __init__(self, problem: Problem, tile: WorkTile):
        before = tile._replace(block=b.INT.sub(tile.block, 1))
        after = tile._replace(block=b.INT.add(tile.block, 1))
        length, _ = problem.lengths(tile)
        self._has_before = b.compare("sgt", tile.block, 0)
        self._has_after = b.compare("sgt", length, problem.first_position(after, 0))
        self._before, self._after = MaskTiles(problem, before), MaskTiles(problem, after)

    def visited_before(self, number: Value) -> Value:
        """i1: whether the block before visits a tile of queries."""
        return b.INT.both(self._has_before, _is_inside(self._before, number))

    def visited_after(self, number: Value) -> Value:
        """i1: whether the block after visits a tile of queries."""
        return b.INT.both(self._has_after, _is_inside(self._after, number))


def _is_inside(tiles: MaskTiles, number: Value) -> Value:
    """i1: whether a tile is one of these."""
    above = b.compare("sge", number, tiles.begin)
    return b.INT.both(above, b.compare("slt", number, tiles.end))
