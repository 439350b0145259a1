"""One attention operation as the roles of its kernel use it: tensors, sizes, work tiles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect.attn.masks import Mask, Sight
from attn_mlir.schedules.policy.tile_order import grows

from .. import emit as b
from ..operands.position_scales import PositionScales
from ..operands.scales import OperandScales
from ..operands.sequences import KeySequences, QuerySequences, Sequence
from ..operands.widen import P_EXPONENT
from .column_tiles import ColumnTiles
from .config import FP8_BITS, Config
from .direction import ROWS_ARE_QUERIES, Direction
from .modifier import Modifier
from .offsets import OffsetArguments, Shift
from .splits import Split, Splits
from .tile_rows import TileRows

Value = Any

PRODUCT_BYTES = 32  # K of one product
PRODUCT_COLUMNS = 16  # columns of V and O are multiples: N of a product
SECTION_BYTES, BALANCED_BYTES = 8 << 20, 32 << 20
"""Bytes of K and V that a section of work tiles reads, for tiles of equal and of growing length.
A larger section orders more tiles longest first (an H200 has 50 MiB of L2; of 4, 8, 16 and 32 MiB
these were fastest, `bench/attention.py --tile-order counter`, 2026-11-23)."""
MAX_EXPONENT = 8  # P is at most 2^8, as in FlashAttention-4


class WorkTile(NamedTuple):
    """One work tile: some rows of scores, of queries or of keys.

    Attributes:
      block, head, batch: i32 each: number of the block of positions, of the first tile of rows
        along the heads, and of the sequence.
      queries, keys, results: the sequence in Q, in K and V, and in the outputs.
      split: the split of the keys; None without splits.
      column_head: the head of the columns; None if the head of the rows determines it.
      shift: the offsets of the sequence's coordinates; None without offsets.
    """

    block: Value
    head: Value
    batch: Value
    queries: Sequence
    keys: Sequence
    results: Sequence
    split: Split | None
    column_head: Value | None = None
    shift: Shift | None = None


def sizes_of(op: Any) -> dict[str, Any]:
    """The fields of a problem that its operation determines: sizes, Q's element type, the mask."""
    names = ("heads", "kv_heads", "head_dim", "v_head_dim")
    sizes = {name: getattr(op, name) for name in names}
    return {**sizes, "element": op.element_type, "mask": op.mask_rule}


@dataclass(frozen=True)
class Problem:
    """One attention operation as its roles use it.

    Attributes:
      q: memrefs [batch, sequence, heads, columns], or as their sequences are stored, whose columns
        are concatenated in a row of head_dim.
      k, v, o: memrefs likewise; k and v are the same if values are the front of the rows of keys.
      lse: [batch, heads, sq] or as O is stored, f32; None if not requested.
      splits: the splits of the keys; None without splits.
      query_sequences, key_sequences: the sequences in Q and O, and in K and V.
      scale: f32, multiplies Q K^T.
      scales: scales (descales) of Q, K and V, per sequence and head.
      position_scales: scales of K and of V per position; None without any.
      heads, kv_heads, head_dim, v_head_dim: static sizes.
      element, stored, output: element types of Q, of K and V, and of O.
      mask: the keys that each row sees, in closed form.
      modifier: changes scores, and hides more of them.
      make_column_tiles: makes the column tiles of a work tile.
      config: tile sizes, stages, registers.
      tile_counter: memref [1] of i32 that CTAs fetch work tiles from; None without.
      direction: whether rows are queries or keys; `o` is an output of the rows.
      offsets: offsets of rows, columns and heads within a longer problem; None without.
      k_rope: memref of one head, whose columns are appended to the rows of k in every head; None if
        k has all columns, or if a source of keys provides the rest.
    """

    q: tuple[Value, ...]
    k: Value
    v: Value
    o: Value
    lse: Value | None
    scale: Value
    splits: Splits | None
    query_sequences: QuerySequences
    key_sequences: KeySequences
    scales: OperandScales
    position_scales: tuple[PositionScales, PositionScales] | None
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    element: Any
    stored: Any
    output: Any
    mask: Mask
    modifier: Modifier
    make_column_tiles: Callable[["Problem", WorkTile], ColumnTiles]
    config: Config
    tile_counter: Value | None = None
    direction: Direction = ROWS_ARE_QUERIES
    offsets: OffsetArguments | None = None
    k_rope: Value | None = None

    @property
    def keys(self) -> tuple[Value, ...]:
        """The memrefs whose columns are concatenated in a row of keys."""
        return (self.k,) if self.k_rope is None else (self.k, self.k_rope)

    @property
    def shares_rows(self) -> bool:
        """Whether values are the front of the rows of keys."""
        return self.v is self.k

    @property
    def is_partial(self) -> bool:
        """Whether the kernel writes an O and LSE for each split."""
        return self.splits is not None and self.splits.stores_partials

    @property
    def product(self) -> Any:
        """Element type of the operands of both products."""
        return self.config.product(self.stored)

    @property
    def upcasts(self) -> bool:
        """Whether K and V are stored with fewer bits than the operands of the products have."""
        return self.stored != self.product

    @property
    def columns(self) -> int:
        """Columns of a tile of Q or K: the head size, rounded up to the K of one product."""
        step = PRODUCT_BYTES * 8 // ws.element_bits(self.product)
        return -(-self.head_dim // step) * step

    @property
    def v_columns(self) -> int:
        """Columns of a tile of V or O: their head size, rounded up in the same way."""
        return -(-self.v_head_dim // PRODUCT_COLUMNS) * PRODUCT_COLUMNS

    @property
    def exponent_bias(self) -> int:
        """log2 of P where a score equals the row's maximum.

        Above 0 for P of 8 bits, and of f16 with upcast K and V, which would lose small weights.
        """
        if self.upcasts:
            return P_EXPONENT - self.config.rescale_threshold
        is_fp8 = ws.element_bits(self.product) == FP8_BITS
        return MAX_EXPONENT - self.config.rescale_threshold if is_fp8 else 0

    def work_tile(self, *coordinates: Value) -> WorkTile:
        """The work tile with these coordinates of the tile space."""
        block, head, batch = coordinates
        if (alternating := self.config.alternating_heads) > 1:
            number, block = block, b.INT.floordiv(block, alternating)
            number = b.INT.sub(number, b.INT.mul(block, alternating))
            head = b.INT.add(b.INT.mul(head, alternating), number)
        head_tiles = self.rows.head_tiles
        head = b.INT.mul(head, head_tiles) if head_tiles > 1 else head
        split: Split | None = None
        if self.splits is not None:
            split, batch = self.splits.of(batch, self.query_sequences.count())
        queries = self.query_sequences.of(batch)
        keys = self.key_sequences.of_query(
            batch, queries, lambda: self.rows.first_position(block, 0)
        )
        results, _ = self.direction.ordered(queries, keys)
        if self.splits is not None and split is not None:
            results = self.splits.destination(split, queries)
        shift = None if self.offsets is None else self.offsets.of_sequence(batch)
        return WorkTile(block, head, batch, queries, keys, results, split, shift=shift)

    def tile_space(self) -> list[Value]:
        """Extents of the tile space: blocks of positions, times the heads that alternate; then the
        first heads of work tiles, or sets of such heads; then the batch, times the splits.

        CTAs start along the first axis, then the second one.
        """
        blocks, heads, batch = self.rows.tile_space()
        if self.splits is not None:
            batch = b.INT.mul(batch, self.splits.count())
        if (alternating := self.config.alternating_heads) > 1:
            blocks = b.INT.mul(blocks, alternating)
            heads = b.constant(self.rows.heads // alternating)
        return [blocks, heads, batch]

    def packing(self) -> dict[str, list[Value]]:
        """The operands of `ws.tiles` that an order needs besides the tile space."""
        if self.config.tile_order == "counter":
            return {"packing": [self.section()]}
        if self.config.tile_order != "ragged" or (packed := self.query_sequences.packed()) is None:
            return {}
        ends, rows = packed
        size = b.constant(self.rows.positions_per_work_tile)
        return {"ends": [ends], "packing": [self.query_sequences.count(), rows, size]}

    def section(self) -> Value:
        """Work tiles along heads and sequences whose keys and values stay in the L2 cache together;
        those of one key-value head at least."""
        tiles = self.group // self.config.heads_per_cta
        row = ws.element_bits(self.stored) * (self.head_dim + self.v_head_dim) // 8
        rows = b.INT.max(self.key_sequences.longest(), 1)
        most = BALANCED_BYTES if grows(self.mask) else SECTION_BYTES
        heads = b.INT.floordiv(b.constant(most // row), rows)
        _, *extents = self.tile_space()
        return b.INT.min(b.INT.mul(b.INT.max(heads, 1), tiles), b.INT.mul(*extents))

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> TileRows:
        """The position and head of each row of a tile."""
        ordered = self.direction.ordered
        tensors, _ = ordered(self.q, self.keys)
        sequences, _ = ordered(self.query_sequences, self.key_sequences)
        heads, other_heads = ordered(self.heads, self.kv_heads)
        group = max(heads // other_heads, 1)
        return TileRows(tensors, self.o, self.lse, sequences, heads, group, self.config)

    def sight(self, tile: WorkTile) -> Sight:
        """The columns that each row of a work tile's sequence sees."""
        mask = self.mask if tile.shift is None else tile.shift.mask(self.mask)
        return self.direction.sight(mask)

    def sequences(self, tile: WorkTile) -> tuple[Sequence, Sequence]:
        """The sequences of the rows and of the columns of a work tile."""
        return self.direction.ordered(tile.queries, tile.keys)

    def lengths(self, tile: WorkTile) -> tuple[Value, Value]:
        """Number of rows and of columns of S for a work tile's sequence."""
        rows, columns = self.sequences(tile)
        return rows.length, columns.length

    def score_scale(self, tile: WorkTile) -> Value:
        """The scale of a work tile's scores, with the scales of Q and K."""
        kv_head = self.rows.kv_head(tile.head)
        return self.scales.of_scores(self.scale, tile.batch, kv_head)

    def output_scale(self, tile: WorkTile) -> Value | None:
        """The scale of V, which multiplies the output of a work tile; None without one."""
        return self.scales.of_output(tile.batch, self.rows.kv_head(tile.head))

    def column_tiles(self, tile: WorkTile) -> ColumnTiles:
        """The tiles of columns that a work tile iterates over."""
        return self.make_column_tiles(self, tile)

    @property
    def column_heads(self) -> int:
        """Heads of the columns per head of the rows: those of a group if rows are keys."""
        rows, columns = self.direction.ordered(self.heads, self.kv_heads)
        return max(columns // rows, 1)

    def column_head(self, tile: WorkTile) -> Value:
        """The head of a work tile's columns."""
        if tile.column_head is not None:
            return tile.column_head
        return self.rows.kv_head(tile.head)

    def coordinates(
        self, tile: WorkTile, row0: Value, column0: Value, row: Value, column: Value
    ) -> tuple[Value, Value, Value]:
        """The head, query and key of a score of a tile of scores, as a modifier sees them.

        Args:
          row0, column0: positions of the tile's first row and column.
          row, column: of the score in the tile.
        """
        rows = self.rows
        position, column = b.INT.add(row0, rows.position(row)), b.INT.add(column0, column)
        q, k = self.direction.ordered(position, column)
        of_rows, of_columns = (lambda: rows.head(tile.head, row)), (lambda: self.column_head(tile))
        of_queries, _ = self.direction.ordered(of_rows, of_columns)
        head = of_queries()
        return (head, q, k) if tile.shift is None else tile.shift.coordinates(head, q, k)

    def over_column_heads(
        self,
        tile: WorkTile,
        state: list[Value],
        body: Callable[..., list[Value]],
    ) -> list[Value]:
        """Emits the loop over a work tile's heads of columns; no loop if there is one.

        Args:
          body: maps the work tile with one of these heads, and the state, to the next state.

        Returns:
          The final state.
        """
        if (count := self.column_heads) == 1:
            return body(tile, *state)
        first = b.INT.mul(tile.head, count)

        def with_head(number: Value, *state: Value) -> list[Value]:
            return body(tile._replace(column_head=b.INT.add(first, number)), *state)

        return b.loop(0, count, state, with_head)

    def each_column_tile(
        self, tile: WorkTile, body: Callable[[WorkTile, ColumnTiles, Value], None]
    ) -> None:
        """Emits the loop over the tiles of columns that a work tile visits, head by head.

        Args:
          body: gets the work tile with the head, its tiles, and the number of one.
        """

        def of_head(tile: WorkTile) -> list[Value]:
            tiles = self.column_tiles(tile)

            def iteration(index: Value) -> list[Value]:
                body(tile, tiles, index)
                return []

            return b.loop(0, tiles.count, [], iteration)

        self.over_column_heads(tile, [], of_head)

    def query_tile(self, tile: WorkTile, q_tile: int) -> WorkTile:
        """The work tile with the head of one of its query tiles."""
        is_other = q_tile > 0 and self.rows.head_tiles > 1
        return tile._replace(head=b.INT.add(tile.head, q_tile)) if is_other else tile

    def first_position(self, tile: WorkTile, query_tile: Value | int) -> Value:
        """Position of the first row of one of the work tile's query tiles."""
        return self.rows.first_position(tile.block, query_tile)
