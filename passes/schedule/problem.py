"""What the roles of an attention kernel share: tensors, sizes, storage, and where the keys come from."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.passes.configure import Config

from . import builder as b
from .modifier import Modifier

Value = Any


class WorkTile(NamedTuple):
    """Coordinates of one work tile: block of query rows, query head, sequence; i32 each."""

    block: Value
    head: Value
    batch: Value


@dataclass(frozen=True)
class Problem:
    """One attention operation as its roles see it.

    Attributes:
      q, k, v, o: memrefs [batch, sequence, heads, head_dim]; lse: [batch, heads, sq], f32.
      scale: f32, multiplies Q K^T.
      heads, kv_heads, head_dim: static sizes; `element` is the operands' element type.
      mask: which keys each row sees, in closed form.
      modifier: what becomes of a score, and which further ones are hidden.
      config: tile sizes, stages, registers.
    """

    q: Value
    k: Value
    v: Value
    o: Value
    lse: Value
    scale: Value
    heads: int
    kv_heads: int
    head_dim: int
    element: Any
    mask: Mask
    modifier: Modifier
    config: Config

    def lengths(self) -> tuple[Value, Value]:
        """Run-time query and key counts."""
        return b.extent(self.q, 1), b.extent(self.k, 1)

    def tile_space(self) -> list[Value]:
        """Extents of the tile space: blocks of query rows, heads, batch."""
        blocks = b.INT.ceildiv(b.extent(self.q, 1), self.config.rows_per_cta)
        return [blocks, b.constant(self.heads), b.extent(self.q, 0)]

    def first_row(self, tile: WorkTile, query_tile: Value | int) -> Value:
        """First query row of one of the work tile's query tiles."""
        base = b.INT.mul(tile.block, self.config.rows_per_cta)
        return b.INT.add(base, b.INT.mul(query_tile, self.config.tile_m)) if query_tile else base


class KeyTiles:
    """Which key tiles a work tile visits, from the last one down.

    Attributes:
      begin, end: tile numbers; the visit order is end - 1, end - 2, ..., begin.
      count: number of tiles visited, at least 0.
    """

    def __init__(self, problem: Problem, tile: WorkTile):
        self._problem = problem
        self._tile = tile
        row0 = problem.first_row(tile, 0)
        sq, sk = problem.lengths()
        span = problem.mask.tile_range(
            b.INT, row0, problem.config.rows_per_cta, sq, sk, problem.config.tile_n
        )
        self.begin, self.end = span.begin, span.end
        self.count = b.INT.sub(self.end, self.begin)

    def first_column(self, turn: Value | int) -> Value:
        """First key of the tile visited in turn 0, 1, ..."""
        last = b.INT.sub(self.end, 1)
        number = b.INT.sub(last, turn) if turn != 0 else last
        return b.INT.mul(number, self._problem.config.tile_n)

    def masked_turns(self, query_tile: Value) -> Value:
        """Number of turns, from turn 0 on, in which a query tile must test each element."""
        problem = self._problem
        row0 = problem.first_row(self._tile, query_tile)
        sq, sk = problem.lengths()
        rows, width = problem.config.tile_m, problem.config.tile_n
        full = problem.mask.tile_range(b.INT, row0, rows, sq, sk, width).full_end
        return b.INT.sub(self.end, b.INT.min(full, self.end))

    def any(self) -> Value:
        """i1: whether there is a tile to visit."""
        return b.compare("sgt", self.count, 0)


class KVSource(Protocol):
    """Where keys and values come from."""

    def load_keys(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Fills a ring slot [tile_n, head_dim] with the keys from `first_column` on."""
        ...

    def load_values(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Fills a ring slot [tile_n, head_dim] with the values from `first_column` on."""
        ...


class DenseKV:
    """Keys and values as dense tensors [batch, sk, kv_heads, head_dim]; past the end reads 0."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def _load(self, source: Value, slot: Value, tile: WorkTile, first_column: Value) -> None:
        group = self._problem.heads // self._problem.kv_heads
        head = b.INT.floordiv(tile.head, group) if group > 1 else tile.head
        b.tma_load(source, slot, [tile.batch, first_column, head, 0], [1, 3])

    def load_keys(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Copies a box of K."""
        self._load(self._problem.k, slot, tile, first_column)

    def load_values(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Copies a box of V."""
        self._load(self._problem.v, slot, tile, first_column)


class Storage:
    """The rings and buffers of the kernel; `ways` are its query tiles.

    ```
    load --q,kv--> mma <--s--> softmax --stats--> correction --out--> epilogue
                    '---s----------------------------^
    ```
    A slot of `s` first carries the scores S to softmax, which puts the probabilities P in their
    place and releases it; correction releases it when O fits the new row maximum. What mma then
    acquires is P, with O ready to be accumulated to. The last turn carries no scores: it tells
    correction that O is complete.
    """

    def __init__(self, problem: Problem):
        config, dim, element = problem.config, problem.head_dim, problem.element
        f32 = ir.F32Type.get()
        ways = config.q_tiles
        query = b.tile([config.tile_m, dim], element, "shared")
        self.q = b.Ring("q", query, ways=ways)
        keys = b.tile([config.tile_n, dim], element, "shared")
        self.kv = b.Ring("kv", keys, stages=config.kv_stages)
        self.s = b.Ring("s", b.tile([config.tile_m, config.tile_n], f32, "tensor"), ways=ways)
        self.stats = b.Ring("stats", b.tile([config.tile_m], f32, "shared"), ways=ways)
        self.out = b.Ring("out", query, ways=ways)
        self.o = b.Buffer("o", b.tile([config.tile_m, dim], f32, "tensor"), ways=ways)
