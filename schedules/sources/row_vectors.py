"""Numbers of the columns of a work tile, one per column: in slots [tile_n] of f32.

One warp loads them for each tile and stores them in a slot, from which all threads read them. So
they may begin at any address, unlike copies of the copy engine, and each is converted once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attn_mlir.dialect._mlir import ir

from .. import emit as b
from ..core.column_tiles import ColumnTiles
from ..core.problem import Problem, Value, WorkTile
from ..operands.sequences import Sequence as StoredSequence

SLOTS = 2  # one group of threads may be a tile ahead of another


class FilledVector(NamedTuple):
    """A ring of tiles [tile_n], and the function that loads a tile from its first column on."""

    ring: b.Ring
    load: Callable[[WorkTile, Value], Value]


def vector_ring(name: str, tile_n: int) -> b.Ring:
    """A ring of tiles [tile_n] of f32."""
    return b.Ring(name, b.tile([tile_n], ir.F32Type.get(), "shared"), stages=SLOTS)


def fill_vectors(problem: Problem, vectors: Sequence[FilledVector], tile: WorkTile) -> None:
    """Fills the rings of vectors for each tile of a work tile; one warp."""

    def of_tile(tile: WorkTile, tiles: ColumnTiles, index: Value) -> None:
        column = tiles.first_column(index)
        for vector in vectors:
            numbers = vector.load(tile, column)
            slot = vector.ring.acquire()
            b.store(numbers, slot)
            b.commit(slot, "warps")

    problem.each_column_tile(tile, of_tile)


@dataclass(frozen=True)
class StoredVector:
    """Numbers of the rows of a tensor: f32 [batch, heads, rows], or [heads, total] of ragged ones.

    Attributes:
      problem: whose rows or columns they are of.
      tensor: the memref.
      beyond: the number of rows past the end of their sequence.
      made: emits what becomes of a number that exists.
    """

    problem: Problem
    tensor: Value
    beyond: float
    made: Callable[[Value], Value]

    def of_columns(self, tile: WorkTile, first_column: Value) -> Value:
        """The numbers of a tile of columns [tile_n], as `FilledVector` asks for them."""
        _, sequence = self.problem.sequences(tile)
        head = self.problem.column_head(tile)
        return self._numbers(sequence, head, first_column, self.problem.config.tile_n)

    def of_rows(self, tile: WorkTile, row0: Value) -> Value:
        """The numbers of a tile of rows [tile_m], each a position, from that of the first on."""
        sequence, _ = self.problem.sequences(tile)
        return self._numbers(sequence, tile.head, row0, self.problem.config.tile_m)

    def _numbers(self, sequence: StoredSequence, head: Value, first: Value, count: int) -> Value:
        def number(row: Value) -> Value:
            position = b.INT.add(first, row)
            numbers = self.made(
                b.element(self.tensor, [*sequence.lead, head, sequence.row(position)])
            )
            exists = b.compare("slt", position, sequence.length)
            return b.select(exists, numbers, b.f32_constant(self.beyond))

        return b.generate(number, [count], ir.F32Type.get())
