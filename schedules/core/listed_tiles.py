"""Tiles of columns from lists: those that `attn.blocks` lists for a block of rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect.attn import Block, BlocksOp
from attn_mlir.dialect.diagnostics import op_error

from .. import emit as b
from ..operands.sequences import Sequences
from .column_tiles import ColumnTiles, Phases
from .config import Config
from .problem import Problem, Value, WorkTile

TESTED, LISTED = 0, 1  # the two counts of a block of queries


@dataclass(frozen=True)
class Lists:
    """Kernel arguments: counts [batch, head blocks, row blocks, 2], indices [.., column blocks]."""

    counts: Value
    indices: Value


class IndexedTiles:
    """The listed tiles in their order: first those whose scores are tested, then the others.

    Attributes:
      count: number of listed tiles, clamped to the number of tiles of columns.
    """

    masks_everywhere: ClassVar[bool] = False

    def __init__(self, lists: Lists, problem: Problem, tile: WorkTile):
        self._lists = lists
        self._columns = problem.config.tile_n
        self._block = [tile.batch, tile.head, tile.block]
        _, columns = problem.lengths(tile)
        self._tiles = b.INT.ceildiv(columns, self._columns)
        self.count = self._clamped(self._element(lists.counts, LISTED), self._tiles)

    @staticmethod
    def of(
        op: BlocksOp,
        captured: Mapping[Value, Value],
        expected: Block,
        column_sequences: Sequences,
    ) -> Callable[[Problem, WorkTile], ColumnTiles]:
        """Returns the function that makes a work tile's tiles of columns from these lists.

        Args:
          captured: values defined outside the region -> arguments of the kernel.
          expected: the extents of the block of scores of a work tile and a tile of columns.
          column_sequences: the sequences of columns.

        Raises:
          VerifyError: blocks that are not the kernel's work tiles, lists that are no arguments of
            the function, or sequences of different lengths, whose last blocks would need another
            test.
        """
        if op.extents != expected:
            raise op_error(
                op,
                f"expects blocks of (positions, heads, keys) = {tuple(expected)}, the kernel's "
                f"work tiles, got {tuple(op.extents)}",
            )
        if column_sequences.differ:
            raise op_error(op, "expects sequences that are equally long")
        if op.counts not in captured or op.indices not in captured:
            raise op_error(op, "expects lists that are arguments of the function")
        lists = Lists(captured[op.counts], captured[op.indices])
        return lambda problem, tile: IndexedTiles(lists, problem, tile)

    def _element(self, source: Value, last: Value | int) -> Value:
        last = b.constant(last) if isinstance(last, int) else last
        return ws.ElementOp(source, [*self._block, last], b.i32()).value

    @staticmethod
    def _clamped(number: Value, end: Value) -> Value:
        return b.INT.max(b.INT.min(number, end), 0)

    def first_column(self, index: Value | int) -> Value:
        """First column of a listed tile."""
        number = self._element(self._lists.indices, index)
        inside = self._clamped(number, b.INT.sub(self._tiles, 1))
        return b.INT.mul(inside, self._columns)

    def phases(self, row_tile: Value) -> Phases:
        """The tested tiles come first; all tiles of rows of the work tile have the same phases."""
        return Phases(self._clamped(self._element(self._lists.counts, TESTED), self.count), None)

    def any(self) -> Value:
        """i1: whether a tile is listed."""
        return b.compare("sgt", self.count, 0)


def block_of(config: Config) -> Block:
    """The extents of the block of scores of one work tile and one key tile."""
    return Block(config.rows_per_cta // config.packed_heads, config.packed_heads, config.tile_n)
