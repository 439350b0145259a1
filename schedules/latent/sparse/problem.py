"""The problem of a sparse latent attention: tensors, sizes, work tiles and rings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith
from attn_mlir.dialect.ws.compute import WORD_BITS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.splits import Splits
from attn_mlir.schedules.softmax.row import Row

from ..common.absorbed import AbsorbedStorage
from ..common.rows import Source

Value = Any

PREFETCHED_BLOCKS = 4  # blocks of entries that are loaded before their keys have a slot
NOWHERE = -1  # a row that no cache has


class Query(NamedTuple):
    """A work tile: one query and as many of its heads as fit a tile; i32 each.

    Attributes:
      q_coords: its coordinates in Q and in the lists, before heads and entries.
      o_coords: its coordinates in O, before the heads.
      head: the first of the heads.
      entries: length of its list.
      first: the first block of entries of the work tile.
      blocks: number of blocks, at least 1, so that every role has an iteration.
    """

    q_coords: tuple[Value, ...]
    o_coords: tuple[Value, ...]
    head: Value
    entries: Value
    first: Value
    blocks: Value


@dataclass(frozen=True)
class SparseProblem:
    """One operation; attributes without a comment are operands and results of `attn.sparse_mla`.

    Attributes:
      source: of the rows of kv.
      max_logits, topk_length, sinks, page_table, batch_of_query: None where the operation has none.
      page_size: rows of a page; 0 without a table.
      heads, head_dim: static sizes.
      element, output: types of q and tiles of keys, and of o.
      config: tile sizes and stages; a tile of keys is a block of entries.
      ctas: CTAs per query, each for its own heads.
      overlaps: whether launches overlap.
    """

    q: Value
    source: Source
    indices: Value
    scale: Value
    o: Value
    lse: Value
    max_logits: Value | None
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
    ctas: int
    overlaps: ClassVar[bool] = False

    @property
    def columns(self) -> int:
        """Columns of a tile of Q or keys."""
        return self.head_dim

    @property
    def words(self) -> int:
        """Words of a bit per entry of a block."""
        return self.config.tile_n // WORD_BITS

    @property
    def tile_heads(self) -> int:
        """Heads of a CTA in a work tile."""
        return min(self.heads, self.config.tile_m)

    def sink(self, query: Query, row: Value) -> Value:
        """The sink logit of a row's head, of which there may be several rows."""
        head = row
        if self.ctas > 1:
            head = b.INT.sub(row, b.INT.mul(b.INT.floordiv(row, self.tile_heads), self.tile_heads))
        return b.element(self.sinks, [b.INT.add(query.head, head)])

    def every_query(self, body: Callable[[Query], None]) -> None:
        """Runs a role's body in the CTA's work tile; those of a query are adjacent."""
        heads = self.tile_heads * self.ctas
        tiles = self.heads // heads
        with b.tiles([b.INT.mul(b.extent(self.q, 0), tiles)], "single") as (tile,):
            number = b.INT.floordiv(tile, tiles)
            head = self.first_head(b.INT.mul(b.INT.sub(tile, b.INT.mul(number, tiles)), heads))
            entries = self.entries_of((number,))
            blocks = b.INT.max(b.INT.ceildiv(entries, self.config.tile_n), 1)
            body(Query((number,), (number,), head, entries, b.constant(0), blocks))

    def first_head(self, head: Value) -> Value:
        """The first head of this CTA in a work tile, given that of the first CTA."""
        if self.ctas == 1:
            return head
        return b.INT.add(head, b.INT.mul(b.rank(), self.tile_heads))

    def entries_of(self, coords: tuple[Value, ...]) -> Value:
        """The length of a query's list."""
        entries = b.extent(self.indices, len(coords))
        if self.topk_length is None:
            return entries
        return b.INT.max(b.INT.min(b.element(self.topk_length, coords), entries), 0)

    def rows_of(self, query: Query) -> Callable[[Value], Value]:
        """A function that emits the rows of a block, given its first entry: [tile_n] of i32,
        `NOWHERE` for hidden entries.
        """
        count, lists = self.config.tile_n, len(query.q_coords)
        row_of = self._row_of(query)

        def rows_from(first: Value) -> Value:
            def visible_row(entry: Value, offset: Value) -> Value:
                row, exists = row_of(entry)
                counts = b.compare("slt", b.INT.add(first, offset), query.entries)
                return b.select(b.INT.both(exists, counts), row, b.constant(NOWHERE))

            entries = b.load_global(self.indices, [count], [*query.q_coords, first], [lists])
            return b.map_rows(visible_row, entries)

        return rows_from

    def _row_of(self, query: Query) -> Callable[[Value], tuple[Value, Value]]:
        """A function from an entry, any i32, to its cache row, and i1 whether that exists."""
        rows, table = self.source.count(), self.page_table
        if table is None:
            return lambda entry: (entry, is_below(entry, rows))
        page = self.page_size
        sequence = b.element(self.batch_of_query, query.q_coords)
        is_sequence = is_below(sequence, b.extent(table, 0))
        pages = b.INT.floordiv(rows, page)

        def row_of(position: Value) -> tuple[Value, Value]:
            column = arith.DivUIOp(position, b.constant(page)).result
            number = b.element(table, [sequence, column])
            inside = b.INT.both(is_below(column, b.extent(table, 1)), is_below(number, pages))
            exists = b.INT.both(b.compare("sge", position, 0), b.INT.both(is_sequence, inside))
            offset = b.INT.sub(position, b.INT.mul(column, page))
            return b.INT.add(b.INT.mul(number, page), offset), exists

        return row_of

    def store_statistics(
        self, query: Query, row: Row, maximum: Value, total: Value, largest: Value | None
    ) -> None:
        """Stores the LSE and the largest logit of each head."""
        coords, lines = [*query.o_coords, query.head], [self.lse, self.max_logits]
        if self.ctas > 1:  # of the rows of both the first ones are this CTA's
            end = b.INT.add(query.head, self.tile_heads)
            lines = [b.limit(line, end, 1) for line in lines]
        logits = b.map_elements(lambda s: b.fmul(s, self.scale), largest)
        for line, values in zip(
            lines, (b.map_elements(row.lse, maximum, total), logits), strict=True
        ):
            b.store_global(values, line, coords, [1])


@dataclass(frozen=True)
class SparseDecode(SparseProblem):
    """An `attn.mla_decode` with lists: queries have two coordinates, and lists may be split.

    Attributes:
      parts: splits of the entries, or None.
    """

    parts: Splits | None
    overlaps: ClassVar[bool] = True

    @property
    def tile_heads(self) -> int:
        """Heads of a CTA in a work tile."""
        return self.config.packed_heads

    def every_query(self, body: Callable[[Query], None]) -> None:
        """Runs a role's body in the CTA's work tile, after the kernels before this one.

        There is a work tile per split of a list.
        """
        b.grid_dependency_wait()
        batch, count, heads = b.extent(self.q, 0), b.extent(self.q, 1), self.tile_heads * self.ctas
        tiles = self.heads // heads
        sequences = batch if self.parts is None else b.INT.mul(batch, self.parts.count())
        with b.tiles([b.constant(tiles), count, sequences], "single") as (tile, position, number):
            part, sequence = (None, number) if self.parts is None else self.parts.of(number, batch)
            coords = (sequence, position)
            entries, first, end = self.range_of(coords)
            if part is not None:
                first, end = part.tiles(first, end)
                entries = b.INT.min(entries, b.INT.mul(end, self.config.tile_n))
            head = self.first_head(b.INT.mul(tile, heads))
            blocks = b.INT.max(b.INT.sub(end, first), 1)
            body(Query(coords, (number, position), head, entries, first, blocks))

    def range_of(self, coords: tuple[Value, ...]) -> tuple[Value, Value, Value]:
        """The length of a query's list, and the begin and end of its range of blocks."""
        entries = self.entries_of(coords)
        return entries, b.constant(0), b.INT.ceildiv(entries, self.config.tile_n)

    def store_statistics(
        self, query: Query, row: Row, maximum: Value, total: Value, largest: Value | None
    ) -> None:
        """Stores the LSE, of a split as two terms."""
        sequence, position = query.o_coords
        formulas = [row.lse] if self.parts is None else [row.lse_high, row.lse_low]
        heads = len(formulas)  # dimension of LSE: after the terms, if any, and the sequences
        end = b.INT.add(query.head, self.tile_heads)
        is_whole = self.tile_heads == self.config.tile_m and self.ctas == 1
        lines = self.lse if is_whole else b.limit(self.lse, end, heads)
        for number, formula in enumerate(formulas):
            coords = [*([] if self.parts is None else [number]), sequence, query.head, position]
            lse = b.map_elements(formula, maximum, total)
            b.store_global(lse, lines, coords, [heads])


def is_below(number: Value, end: Value) -> Value:
    """Whether a number lies from 0 to before an end, which is not negative."""
    return b.compare("ult", number, end)


def send(ring: b.Ring, words: Value) -> None:
    """Stores the bits of a block to a slot of a ring."""
    slot = ring.acquire()
    b.store(words, slot)
    b.commit(slot, "threads")


def numbers(count: int) -> ws.TileType:
    """The tile of `count` i32 in shared memory."""
    return b.tile([count], b.i32(), "shared")


def index_rings(problem: SparseProblem, stages: int) -> tuple[b.Ring, b.Ring]:
    """`rows` and `seen` of a kernel's storage, one ring if both are of the same blocks."""
    count, words = problem.config.tile_n, problem.words
    if problem.source.prefetched:
        rows = b.Ring("rows", numbers(count), stages=stages)
        return rows, b.Ring("seen", numbers(words), stages=stages)
    both = b.Ring("rows", numbers(count + words), stages=stages)
    return both, both


class SparseStorage(AbsorbedStorage):
    """The rings and buffers of the kernel, including those of indices.

    ```
    find --rows--> load0..3 --q,keys--> score ...
      '---rows or seen-------------------^----------> softmax, sum_up
    ```
    With rows of 8 bits, `widen` fills the tiles of keys, and `score` copies Q and O.

    `rows` has the cache rows of a block, -1 for hidden entries; `seen` has a bit per entry, for the
    mask of the softmax, and for roles that skip blocks without a visible entry. The bits of a block
    follow its rows in the same slot, unless the readers of rows are a block ahead.
    """

    def __init__(self, problem: SparseProblem):
        self.rows, self.seen = index_rings(problem, PREFETCHED_BLOCKS)
        super().__init__(problem, loaders=problem.source.loaders)

    def signal_visible(self, words: Value) -> None:
        """Sends the bits of a block's visible entries, if they have a separate ring."""
        if self.seen is not self.rows:
            send(self.seen, words)

    def word(self, row: Value, number: Value) -> Value:
        """The word of a block that has the bits of the row's scores 32 `number` .. + 31."""
        del row
        return number
