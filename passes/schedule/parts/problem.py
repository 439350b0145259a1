"""One attention operation as the roles of its kernel see it: tensors, sizes, work tiles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect.attn.masks import Mask

from . import builder as b
from .config import NARROW_BITS, Config
from .factors import Factors
from .key_parts import Part, Parts
from .modifier import Modifier
from .position_factors import PositionFactors
from .queries import Queries
from .sequences import Sequence, Sequences
from .widening import LIFT

if TYPE_CHECKING:
    from .visited import VisitedTiles

Value = Any

PRODUCT_BYTES = 32  # K of one product
PRODUCT_COLUMNS = 16  # of D; tiles of V and O are multiples
MAX_EXPONENT = 8  # P stays at most 2^8; FlashAttention-4


class WorkTile(NamedTuple):
    """One work tile.

    Attributes:
      block, head, batch: block of positions, number of its first query tile among those along the
        heads, number of the sequence; i32 each.
      queries, keys, results: the sequence in Q, in K and V, and in O and LSE.
      part: the part of the keys, where they are split.
    """

    block: Value
    head: Value
    batch: Value
    queries: Sequence
    keys: Sequence
    results: Sequence
    part: Part | None


@dataclass(frozen=True)
class Problem:
    """One attention operation as its roles see it.

    Attributes:
      q, k, v, o: memrefs [batch, sequence, heads, head_dim], or as their sequences are stored.
      lse: [batch, heads, sq] or as O is stored, f32; None when nobody asks for it.
      parts: of the keys, if they are split.
      query_sequences, key_sequences: where each sequence lies in Q and O, and in K and V.
      scale: f32, multiplies Q K^T.
      factors: of the elements of Q, K and V.
      position_factors: of K and of V, where every position has its own.
      heads, kv_heads, head_dim, v_head_dim: static sizes.
      element, stored, output: element types of Q, of K and V, and of O.
      mask: which keys each row sees, in closed form.
      modifier: what becomes of a score, and which further ones are hidden.
      visited: which key tiles a work tile visits.
      config: tile sizes, stages, registers.
    """

    q: Value
    k: Value
    v: Value
    o: Value
    lse: Value | None
    scale: Value
    parts: Parts | None
    query_sequences: Sequences
    key_sequences: Sequences
    factors: Factors
    position_factors: tuple[PositionFactors, PositionFactors] | None
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    element: Any
    stored: Any
    output: Any
    mask: Mask
    modifier: Modifier
    visited: "Callable[[Problem, WorkTile], VisitedTiles]"
    config: Config

    @property
    def is_partial(self) -> bool:
        """Whether O and LSE are results for parts of the keys."""
        return self.parts is not None and self.parts.are_results

    @property
    def product(self) -> Any:
        """Element type of the operands of both products."""
        return self.config.product(self.stored)

    @property
    def widens(self) -> bool:
        """Whether K and V have fewer bits than what products take."""
        return self.stored != self.product

    @property
    def columns(self) -> int:
        """Columns of a tile of Q or K: the head size in whole products of the tensor core."""
        step = PRODUCT_BYTES * 8 // ws.element_bits(self.product)
        return -(-self.head_dim // step) * step

    @property
    def v_columns(self) -> int:
        """Columns of a tile of V or O."""
        return -(-self.v_head_dim // PRODUCT_COLUMNS) * PRODUCT_COLUMNS

    @property
    def lift(self) -> int:
        """P is 2^lift where a score equals the row's maximum: 8-bit P would lose small ones, and f16
        in the place of bf16."""
        if self.widens:
            return LIFT - self.config.rescale_threshold
        narrow = ws.element_bits(self.product) == NARROW_BITS
        return MAX_EXPONENT - self.config.rescale_threshold if narrow else 0

    def work_tile(self, block: Value, head: Value, batch: Value) -> WorkTile:
        """The work tile with these coordinates of the tile space."""
        head_tiles = self.queries.head_tiles
        head = b.INT.mul(head, head_tiles) if head_tiles > 1 else head
        part: Part | None = None
        if self.parts is not None:
            part, batch = self.parts.of(batch, self.query_sequences.count())
        queries = self.query_sequences.of(batch)
        keys = self.key_sequences.of(batch, queries)
        results = queries
        if self.parts is not None and part is not None:
            results = self.parts.results_of(part, queries)
        return WorkTile(block, head, batch, queries, keys, results, part)

    def tile_space(self) -> list[Value]:
        """Extents of the tile space: blocks of positions, heads that tiles start at, batch; that
        of every part."""
        *space, batch = self.queries.tile_space()
        return [*space, batch if self.parts is None else b.INT.mul(batch, self.parts.count())]

    def packing(self) -> dict[str, list[Value]]:
        """Further operands of `ws.tiles`, where the order goes by more than the tile space."""
        if self.config.tile_order != "ragged":
            return {}
        ends, rows = self.query_sequences.packed()
        size = b.constant(self.queries.positions_per_work_tile)
        return {"ends": [ends], "packing": [self.query_sequences.count(), rows, size]}

    @property
    def queries(self) -> Queries:
        """Which position and head each query row holds."""
        group = self.heads // self.kv_heads
        tensors = (self.q, self.o, self.lse, self.query_sequences)
        return Queries(*tensors, self.heads, group, self.config)

    def score_scale(self, tile: WorkTile) -> Value:
        """What multiplies the scores of a work tile."""
        kv_head = self.queries.kv_head(tile.head)
        return self.factors.of_scores(self.scale, tile.batch, kv_head)

    def output_factor(self, tile: WorkTile) -> Value | None:
        """What multiplies the output of a work tile, if anything."""
        return self.factors.of_output(tile.batch, self.queries.kv_head(tile.head))

    def keys(self, tile: WorkTile) -> "VisitedTiles":
        """Which key tiles a work tile visits."""
        return self.visited(self, tile)

    def query_tile(self, tile: WorkTile, way: int) -> WorkTile:
        """A work tile as one of its query tiles sees it: with that one's head."""
        is_other = way > 0 and self.queries.head_tiles > 1
        return tile._replace(head=b.INT.add(tile.head, way)) if is_other else tile

    def first_position(self, tile: WorkTile, query_tile: Value | int) -> Value:
        """Position of the first row of one of the work tile's query tiles."""
        return self.queries.first_position(tile.block, query_tile)
