"""What the roles of an attention kernel share: tensors, sizes, storage, and where the keys come from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.masks import Mask, TileRange
from attn_mlir.dialect.ws.tiles import ANSWER_BYTES
from attn_mlir.passes.configure import NARROW_BITS, Config

from . import builder as b
from .factors import Factors
from .key_parts import Part, Parts
from .modifier import Modifier
from .queries import Queries
from .sequences import Sequence, Sequences

Value = Any

CLAIMS_AHEAD = 2  # work tiles that the fastest role may be ahead of the slowest, and their answers
PRODUCT_BYTES = 32  # K of one product
PRODUCT_COLUMNS = 16  # of D; tiles of V and O are multiples
MAX_EXPONENT = 8  # P stays at most 2^8; FlashAttention-4


class WorkTile(NamedTuple):
    """One work tile.

    Attributes:
      block, head, batch: block of positions, first head, number of the sequence; i32 each.
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
      parts: of the keys, if O and LSE are results for parts of them.
      query_sequences, key_sequences: where each sequence lies in Q and O, and in K and V.
      scale: f32, multiplies Q K^T.
      factors: of the elements of Q, K and V.
      heads, kv_heads, head_dim, v_head_dim: static sizes; `element` is the element type of Q, K and V,
        `output` that of O.
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
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    element: Any
    output: Any
    mask: Mask
    modifier: Modifier
    visited: "Callable[[Problem, WorkTile], VisitedTiles]"
    config: Config

    @property
    def columns(self) -> int:
        """Columns of a tile of Q or K: the head size in whole products of the tensor core."""
        step = PRODUCT_BYTES * 8 // ws.element_bits(self.element)
        return -(-self.head_dim // step) * step

    @property
    def v_columns(self) -> int:
        """Columns of a tile of V or O."""
        return -(-self.v_head_dim // PRODUCT_COLUMNS) * PRODUCT_COLUMNS

    @property
    def lift(self) -> int:
        """P is 2^lift where a score equals the row's maximum: 8-bit P would lose small ones."""
        narrow = ws.element_bits(self.element) == NARROW_BITS
        return MAX_EXPONENT - self.config.rescale_threshold if narrow else 0

    def work_tile(self, block: Value, head: Value, batch: Value) -> WorkTile:
        """The work tile with these coordinates of the tile space."""
        part: Part | None = None
        if self.parts is not None:
            part, batch = self.parts.of(batch, self.query_sequences.count())
        queries = self.query_sequences.of(batch)
        keys = self.key_sequences.of(batch, queries)
        results = queries if part is None else part.results(queries)
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

    def first_position(self, tile: WorkTile, query_tile: Value | int) -> Value:
        """Position of the first row of one of the work tile's query tiles."""
        return self.queries.first_position(tile.block, query_tile)


class Phases(NamedTuple):
    """Where the turns of a query tile change: both edges, no test, the left edge.

    Attributes:
      plain: the first turn that needs no test; those before it may have both edges.
      left: the first turn with a left edge, up to the last turn; None if the mask has no such edge.
    """

    plain: Value
    left: Value | None


class VisitedTiles(Protocol):
    """Which key tiles a work tile visits, in turns 0, 1, ...

    Attributes:
      count: number of turns, at least 0.
      keeps_everywhere: whether `attn.keep` may hide scores in turns that need no test.
    """

    count: Value
    keeps_everywhere: ClassVar[bool]

    def first_column(self, turn: Value | int) -> Value:
        """First key of the tile visited in a turn."""
        ...

    def phases(self, query_tile: Value) -> Phases:
        """How the turns of a query tile divide by what has to be tested.

        The turns are the work tile's: other query tiles may need tiles that this one sees nothing
        of, and it tests those.
        """
        ...

    def any(self) -> Value:
        """i1: whether there is a tile to visit."""
        ...


class KeyTiles:
    """Visits the key tiles in the mask's range, from the last one down.

    Attributes:
      begin, end: tile numbers; the visit order is end - 1, end - 2, ..., begin.
      count: number of tiles visited, at least 0.
    """

    keeps_everywhere: ClassVar[bool] = True

    def __init__(self, problem: Problem, tile: WorkTile):
        self._problem = problem
        self._tile = tile
        span = self._range(0, problem.queries.positions_per_work_tile)
        self.begin, self.end = span.begin, span.end
        if tile.part is not None:
            self.begin, self.end = tile.part.tiles(span.begin, span.end)
        self.count = b.INT.sub(self.end, self.begin)

    def _range(self, query_tile: Value | int, positions: int) -> TileRange[Value]:
        """The tiles of some positions, from the first of a query tile on."""
        problem = self._problem
        row0 = problem.first_position(self._tile, query_tile)
        sq, sk = self._tile.queries.length, self._tile.keys.length
        return problem.mask.tile_range(b.INT, row0, positions, sq, sk, problem.config.tile_n)

    def first_column(self, turn: Value | int) -> Value:
        """First key of the tile visited in turn 0, 1, ..."""
        last = b.INT.sub(self.end, 1)
        number = b.INT.sub(last, turn) if turn != 0 else last
        return b.INT.mul(number, self._problem.config.tile_n)

    def phases(self, query_tile: Value) -> Phases:
        """By the ranges of the work tile and of the query tile."""
        span = self._range(query_tile, self._problem.queries.positions_per_tile)
        full_end = b.INT.min(span.full_end, self.end)
        if self._tile.part is not None:
            full_end = b.INT.max(full_end, self.begin)
        if not self._problem.mask.edges.left:
            return Phases(b.INT.sub(self.end, full_end), None)
        full_end = b.INT.max(full_end, self.begin)
        full_begin = b.INT.min(b.INT.max(span.full_begin, self.begin), full_end)
        return Phases(b.INT.sub(self.end, full_end), b.INT.sub(self.end, full_begin))

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


class TensorKV:
    """Keys and values as rows of tensors, sequence by sequence; past a sequence's end reads 0."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def _load(self, source: Value, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Past the end of the sequence, and past the head size, the tile is zero."""
        head = self._problem.queries.kv_head(tile.head)
        keys = tile.keys
        row = len(keys.lead)
        coords = [*keys.lead, keys.row(first_column), head, 0]
        b.copy_in(keys.within(source, row), slot, coords, [row, row + 2])

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
    correction that O is complete. `answers` name the CTA's further work tiles, if the order of the
    tiles is to claim them.
    """

    def __init__(self, problem: Problem):
        config, element = problem.config, problem.element
        f32 = ir.F32Type.get()
        ways = config.q_tiles
        self.q = b.Ring("q", b.tile([config.tile_m, problem.columns], element, "shared"), ways=ways)
        widest = max(problem.columns, problem.v_columns)
        keys = b.tile([config.tile_n, widest], element, "shared")
        self.kv = b.Ring("kv", keys, stages=config.kv_stages)
        self.s = b.Ring("s", b.tile([config.tile_m, config.tile_n], f32, "tensor"), ways=ways)
        self.stats = b.Ring("stats", b.tile([config.tile_m], f32, "shared"), ways=ways)
        out = b.tile([config.tile_m, problem.v_columns], problem.output, "shared")
        self.out = b.Ring("out", out, ways=ways)
        self.o = b.Buffer("o", b.tile([config.tile_m, problem.v_columns], f32, "tensor"), ways=ways)
        self.answers: b.Ring | None = None
        if config.tile_order == "clc":
            words = b.tile([ANSWER_BYTES // 4], b.i32(), "shared")
            self.answers = b.Ring("answers", words, stages=CLAIMS_AHEAD)
