"""One sparse latent attention as the roles of its kernel see it: tensors, sizes, work tiles, rings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attn_mlir.dialect.ws.compute import WORD_BITS

from . import builder as b
from .absorbed import AbsorbedStorage
from .config import Config
from .latent_source import Source

Value = Any

BLOCKS_AHEAD = 4  # of entries that have been read before their keys have a place


class Query(NamedTuple):
    """A work tile: one query and, where there are more than fit a tile, some of its heads; i32 each.

    Attributes:
      number: of the query.
      head: the first of the heads.
      entries: how many entries of its list count.
      blocks: of entries, at least 1, so that every role has a turn.
    """

    number: Value
    head: Value
    entries: Value
    blocks: Value


@dataclass(frozen=True)
class SparseProblem:
    """One operation; attributes without a comment are the operands and results of `attn.sparse_mla`.

    Attributes:
      source: where the rows of kv come from.
      topk_length, sinks, page_table, batch_of_query: None where the operation has none.
      page_size: rows of a page; 0 without a table.
      heads, head_dim: static sizes.
      element, output: types of q and tiles of keys, and of o.
      config: tile sizes and stages; a tile of keys is a block of entries.
      ctas: CTAs that work on a query together, each for its own heads.
    """

    q: Value
    source: Source
    indices: Value
    scale: Value
    o: Value
    lse: Value
    max_logits: Value
    topk_length: Value | None
    sinks: Value | None
    page_table: Value | None
    batch_of_query: Value | None
    page_size: int
    heads: int
    head_dim: int
    element: Any
    output: Any
    config: Config
    ctas: int = 1

    @property
    def columns(self) -> int:
        """Columns of a tile of Q or keys."""
        return self.head_dim

    @property
    def loaded_rows(self) -> int:
        """Rows that Q is loaded to: those of a tile."""
        return self.config.tile_m

    @property
    def words(self) -> int:
        """Words of a bit per entry of a block."""
        return self.config.tile_n // WORD_BITS

    @property
    def tile_heads(self) -> int:
        """Heads of a CTA in a work tile."""
        return min(self.heads, self.config.tile_m)

    def sink(self, query: Query, row: Value) -> Value:
        """The logit of the sink of a row's head, where there are sinks; of several rows a head has."""
        head = row
        if self.ctas > 1:
            head = b.INT.sub(row, b.INT.mul(b.INT.floordiv(row, self.tile_heads), self.tile_heads))
        return b.element(self.sinks, [b.INT.add(query.head, head)])

    def every_query(self, body: Callable[[Query], None]) -> None:
        """Runs the part of a role in the CTA's work tile; those of a query are neighbours."""
        heads = self.tile_heads * self.ctas
        tiles = self.heads // heads
        with b.tiles([b.INT.mul(b.extent(self.q, 0), tiles)], "single") as (tile,):
            number = b.INT.floordiv(tile, tiles)
            head = b.INT.mul(b.INT.sub(tile, b.INT.mul(number, tiles)), heads)
            if self.ctas > 1:
                head = b.INT.add(head, b.INT.mul(b.rank(), self.tile_heads))
            entries = b.extent(self.indices, 1)
            if self.topk_length is not None:
                length = b.element(self.topk_length, [number])
                entries = b.INT.max(b.INT.min(length, entries), 0)
            blocks = b.INT.max(b.INT.ceildiv(entries, self.config.tile_n), 1)
            body(Query(number, head, entries, blocks))


class SparseStorage(AbsorbedStorage):
    """The rings and buffers of the kernel, with those by which keys are found.

    ```
    find --rows--> load0..3 --q,keys--> score ...
      '--------------seen----------------^----------> softmax, sum_up
    ```
    Where rows are of 8 bits, `widen` fills the tiles of keys, and `score` copies Q and O.

    `rows` of the cache are -1 where an entry does not count, and `seen` says which do, a bit for each: to
    softmax, and whether there are any to the roles that gather and issue.
    """

    def __init__(self, problem: SparseProblem):
        entries, words = (
            b.tile([count], b.i32(), "shared") for count in (problem.config.tile_n, problem.words)
        )
        self.rows = b.Ring("rows", entries, stages=BLOCKS_AHEAD)
        self.seen = b.Ring("seen", words, stages=BLOCKS_AHEAD)
        super().__init__(problem, loaders=problem.source.loaders)

    def tell(self, words: Value) -> None:
        """Says which entries of a block count, given a bit for each."""
        slot = self.seen.acquire()
        b.store(words, slot)
        b.commit(slot, "threads")

    def word(self, row: Value, place: Value) -> Value:
        """Which word of a block has the bits of a row's 32 scores at a place."""
        del row
        return place
