"""The tiles of columns that a mask leaves, and the iterations that test their scores."""

from typing import ClassVar

from attn_mlir.dialect.attn.masks import TileRange

from .. import emit as b
from .column_tiles import Phases
from .problem import Problem, Value, WorkTile


class MaskTiles:
    """The tiles of columns that the mask does not hide entirely, from the last one down.

    Attributes:
      begin, end: tile numbers; the order is end - 1, end - 2, ..., begin.
      count: number of tiles, at least 0.
    """

    masks_everywhere: ClassVar[bool] = True

    def __init__(self, problem: Problem, tile: WorkTile):
        self._problem = problem
        self._tile = tile
        self._sight = problem.sight(tile)
        span = self._range(0, problem.rows.positions_per_work_tile)
        self.begin, self.end = span.begin, span.end
        if tile.split is not None:
            self.begin, self.end = tile.split.tiles(span.begin, span.end)
        self.count = b.INT.sub(self.end, self.begin)

    def _range(self, row_tile: Value | int, positions: int) -> TileRange[Value]:
        """The mask's tile range for `positions` positions from the first one of a tile of rows."""
        problem = self._problem
        row0 = problem.first_position(self._tile, row_tile)
        rows, columns = problem.lengths(self._tile)
        return self._sight.tile_range(b.INT, row0, positions, rows, columns, problem.config.tile_n)

    def first_column(self, index: Value | int) -> Value:
        """First column of the tile of iteration 0, 1, ..."""
        last = b.INT.sub(self.end, 1)
        number = b.INT.sub(last, index) if index != 0 else last
        return b.INT.mul(number, self._problem.config.tile_n)

    def phases(self, row_tile: Value) -> Phases:
        """The iterations; those whose tile is not fully visible to the tile of rows are tested."""
        span = self._range(row_tile, self._problem.rows.positions_per_tile)
        full_end = b.INT.min(span.full_end, self.end)
        if self._tile.split is not None:
            full_end = b.INT.max(full_end, self.begin)
        if not self._sight.edges.left:
            return Phases(b.INT.sub(self.end, full_end), None)
        full_end = b.INT.max(full_end, self.begin)
        full_begin = b.INT.min(b.INT.max(span.full_begin, self.begin), full_end)
        return Phases(b.INT.sub(self.end, full_end), b.INT.sub(self.end, full_begin))

    def any(self) -> Value:
        """i1: whether there is any tile."""
        return b.compare("sgt", self.count, 0)
