"""The query side of a kernel: which position and head each row of a query tile holds.

With `packed` query heads of one group in a tile, row r of a tile that starts at position p is the
query at p + r / packed of head `packed` x (the tile's head) + r mod packed. Packing fills a tile
where there are few positions, as in decoding, and reads K and V once for the whole group.
"""

from dataclasses import dataclass
from typing import Any

from attn_mlir.passes.configure import Config

from . import builder as b

Value = Any


@dataclass(frozen=True)
class Queries:
    """Layout of the query rows.

    Attributes:
      q, o: memrefs [batch, sq, heads, head_dim]; lse: [batch, heads, sq], or None.
      heads: query heads.
      group: query heads per key-value head.
      config: tile sizes, and how many heads a tile packs.
    """

    q: Value
    o: Value
    lse: Value | None
    heads: int
    group: int
    config: Config

    @property
    def packed(self) -> int:
        """Query heads in a tile."""
        return self.config.packed_heads

    @property
    def positions_per_tile(self) -> int:
        """Query positions in a tile."""
        return self.config.tile_m // self.packed

    @property
    def positions_per_work_tile(self) -> int:
        """Query positions in a work tile."""
        return self.positions_per_tile * self.config.q_tiles

    def tile_space(self) -> list[Value]:
        """Extents of the tile space: blocks of positions, heads that tiles start at, batch."""
        blocks = b.INT.ceildiv(b.extent(self.q, 1), self.positions_per_work_tile)
        return [blocks, b.constant(self.heads // self.packed), b.extent(self.q, 0)]

    def first_position(self, block: Value, way: Value | int) -> Value:
        """Position of the first row of a query tile."""
        base = b.INT.mul(block, self.positions_per_work_tile)
        if isinstance(way, int) and way == 0:
            return base
        return b.INT.add(base, b.INT.mul(way, self.positions_per_tile))

    def position(self, row: Value) -> Value:
        """Position of a row, relative to the tile's first."""
        return b.INT.floordiv(row, self.packed) if self.packed > 1 else row

    def head(self, tile_head: Value, row: Value) -> Value:
        """Query head of a row."""
        if self.packed == 1:
            return tile_head
        inner = b.INT.sub(row, b.INT.mul(self.position(row), self.packed))
        return b.INT.add(b.INT.mul(tile_head, self.packed), inner)

    def kv_head(self, tile_head: Value) -> Value:
        """Key-value head of a tile."""
        tiles_per_group = self.group // self.packed
        return b.INT.floordiv(tile_head, tiles_per_group) if tiles_per_group > 1 else tile_head

    def load(self, slot: Value, batch: Value, head: Value, position: Value) -> None:
        """Fills a shared tile with query rows; past the end reads 0."""
        if self.packed == 1:
            b.tma_load(self.q, slot, [batch, position, head, 0], [1, 3])
        else:
            view = b.expand(self.q, 2, self.packed)
            b.tma_load(view, slot, [batch, position, head, 0, 0], [1, 3, 4])

    def store(self, slot: Value, batch: Value, head: Value, position: Value) -> None:
        """Writes a shared tile to O; rows past the end are dropped."""
        if self.packed == 1:
            b.tma_store(slot, self.o, [batch, position, head, 0], [1, 3])
        else:
            view = b.expand(self.o, 2, self.packed)
            b.tma_store(slot, view, [batch, position, head, 0, 0], [1, 3, 4])

    def store_lse(self, rows: Value, batch: Value, head: Value, position: Value) -> None:
        """Writes one value per row to LSE; rows past the end are dropped."""
        assert self.lse is not None
        if self.packed == 1:
            b.store_global(rows, self.lse, [batch, head, position], [2])
        else:
            view = b.expand(self.lse, 1, self.packed)
            b.store_global(rows, view, [batch, head, 0, position], [3, 2])
