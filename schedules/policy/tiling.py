"""How attention is cut into work tiles: their rows, heads and keys, and how many key tiles fit.

The one place with these rules, without MLIR: schedules follow them, and a call uses them before
there is a kernel, for its block mask or to count its work tiles. Names with STREAM or `streamed`
are about the schedule for few queries; that with sums in registers has a module of its own
(`register_tiling`).
"""

import contextlib
import math
from typing import Any, NamedTuple

from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import LINE_BYTES, Target, shared_tile_bytes
from attn_mlir.errors import SpecError
from attn_mlir.schedules.policy.refusal import DoesNotFit

TILE_N = (64, 128)  # keys of a tile; S takes as many columns of tensor memory
STAGE_COUNTS = (1, 2, 4)  # stages inside a product that options may ask for
PAGE_STEP = 8  # pages fill whole swizzle patterns of 8 rows
MAX_PAGES = 8  # of a key tile; a copying thread has no registers for the numbers of 16 pages
MAX_Q_TILES = 2  # of a work tile, one softmax warpgroup each
MAX_HEAD_DIM = 256
MAX_F32_HEAD_DIM = 192  # of O in f32: it and two key tiles fill shared memory
STREAM_ROWS = 16  # of a query tile: M of a product of one warp; PTX ISA, mma.sync
STREAM_KEYS = 128  # of a key tile
WIDE_STREAM_KEYS = 64  # of a key tile where V has more than `MAX_HEAD_DIM` columns
MAX_SHARED_DIM = (576, 512)  # columns of K, and of V where it is the front of K's rows
SLICE_KEYS = 32  # keys of a tile that a warp computes: a mask word's, K of two products
STREAM_STAGES = 3  # key tiles in flight, at least, that a second query tile must leave room for
STREAM_COLUMNS = 128  # most columns of O in one warp: 64 registers of each thread
WIDE_PUBLISHED_COLUMNS = 32  # columns published at a time, of an O above `MAX_HEAD_DIM`
STREAM_STEP = 16  # columns of a warp are a multiple: two products' N of 8
SCALE_STEP = 32  # columns of K or V that share a scale are a multiple
MAX_SCALE_GROUPS = (4, 2)  # of a row up to `STREAM_COLUMNS` columns, and above; more would spill
SCALE_GROUPS = (
    f"one to a row, or up to {MAX_SCALE_GROUPS[0]} ({MAX_SCALE_GROUPS[1]} above {STREAM_COLUMNS} "
    f"columns) of a multiple of {SCALE_STEP} columns each"
)
COMBINE_WARPS = (4, 1)  # most warps that join parts: with one warpgroup that attends, with two
MOST_GROUPS = 3  # of threads, with one query tile each
KEYS_IN_ROWS_QUERIES = (
    8  # of a query tile with swapped operands: least N of a product; PTX ISA, tcgen05.mma
)
KEYS_IN_ROWS_TILES = (1, 2, 4)  # query tiles of a work tile: N is 8, 16 or 32
KEYS_IN_ROWS_COLUMNS = (64, 128)  # of a tile of V: M of a product is 128, or half of it taken twice
SPARE_ROWS = 1.05  # most computed rows per existing row; measured on an H200, `bench/attention.py`
SMEM_FOR_BARRIERS = 2048  # bytes left for barriers and row statistics
SMEM_FOR_STREAM = 4096  # the same where several warps have statistics of a row


def key_tiles_for(page_size: int) -> tuple[int, ...]:
    """Keys per tile for which a tile is part of a page, or at most `MAX_PAGES` whole pages.

    Args:
      page_size: positions of a page; 0 where there are no pages.
    """
    if page_size == 0:
        return TILE_N
    if page_size % PAGE_STEP:
        return ()
    return tuple(
        n
        for n in TILE_N
        if page_size % n == 0 or (n % page_size == 0 and n // page_size <= MAX_PAGES)
    )


def row_lines(columns: int, element_bits: int) -> int:
    """Lines of 128 bytes that a row of a tile in shared memory takes."""
    return shared_tile_bytes(1, columns, element_bits) // LINE_BYTES


class Tiling(NamedTuple):
    """Tile sizes of a kernel.

    Attributes:
      q_tiles: query tiles of a work tile.
      tile_n: keys of a key tile.
      kv_stages: key tiles that fit in shared memory beside Q and the staged O.
    """

    q_tiles: int
    tile_n: int
    kv_stages: int


def packed_heads(target: Target, group: int) -> int:
    """Query heads of a group that share a query tile: all if their number divides its rows, else 1.

    A decoded token takes 8 rows of one tile with groups of 8 heads, and a row in each of 3 tiles
    with groups of 3.
    """
    return group if target.rows_per_product % group == 0 else 1


def has_scale_groups(columns: int, groups: int) -> bool:
    """Whether some kernel takes K or V with `groups` scales per row of `columns` columns."""
    if groups == 1:
        return True
    most = MAX_SCALE_GROUPS[columns > STREAM_COLUMNS]
    fits = 1 < groups <= most and columns % groups == 0
    return fits and columns // groups % SCALE_STEP == 0


def streamed_heads(group: int, *, is_padded: bool = False, v_head_dim: int = 0) -> int:
    """Query heads of a group that share a query tile of the schedule for few queries.

    Args:
      is_padded: whether the queries of a sequence may end before its dimension does. A tensor map
        then needs a dimension for this end, and has none left for packed heads.
      v_head_dim: elements per row of V. Beside more than `MAX_HEAD_DIM` shared memory has no room
        for
        rows of queries that do not fill a tile: heads then divide its rows.
    """
    if is_padded:
        return 1
    if v_head_dim > MAX_HEAD_DIM:
        return math.gcd(group, STREAM_ROWS)
    return max(n for n in range(1, STREAM_ROWS + 1) if group % n == 0)


def query_slot_rows(packed: int, rows: int = STREAM_ROWS) -> int:
    """Rows of shared memory for a query tile of `packed` heads: whole positions, as many as fill
    it, rounded up to whole swizzle patterns."""
    loaded = -(-rows // packed) * packed
    return -(-loaded // PAGE_STEP) * PAGE_STEP


def stream_keys(v_head_dim: int) -> int:
    """Keys of a key tile of the schedule for few queries."""
    return STREAM_KEYS if v_head_dim <= MAX_HEAD_DIM else WIDE_STREAM_KEYS


class StreamedRows(NamedTuple):
    """The query rows of a work tile of the schedule for few queries, which share each key tile.

    Attributes:
      packed: heads in a query tile.
      q_tiles: query tiles of 16 rows.
      head_tiles: how many of these lie along the heads of a group; the others along positions.
    """

    packed: int
    q_tiles: int
    head_tiles: int

    @classmethod
    def of(
        cls, group: int, q_tiles: int, *, is_padded: bool = False, v_head_dim: int = 0
    ) -> "StreamedRows":
        """The rows of `q_tiles` query tiles, along the heads if the group has enough of them."""
        packed = streamed_heads(group, is_padded=is_padded, v_head_dim=v_head_dim)
        along_heads = group > packed and group // packed % q_tiles == 0 and not is_padded
        return cls(packed, q_tiles, q_tiles if along_heads else 1)

    @property
    def heads(self) -> int:
        """Heads of a work tile."""
        return self.packed * self.head_tiles

    @property
    def positions(self) -> int:
        """Positions of a work tile."""
        return STREAM_ROWS // self.packed * (self.q_tiles // self.head_tiles)


def streamed_stages(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    *,
    q_tiles: int = 1,
    packed: int = 1,
    element_bits: int = 16,
    stored_bits: int = 16,
    output_bits: int = 16,
    combines: bool = False,
) -> int:
    """Key tiles that fit in shared memory beside Q and the results that warps pass on.

    Args:
      q_tiles: query tiles of a work tile.
      packed: heads in each.
      element_bits, stored_bits, output_bits: bits of an element of Q, of K and V, and of O.
      combines: whether the kernel joins parts of the keys, and writes O from registers.
    """
    keys = stream_keys(v_head_dim)
    slot = shared_tile_bytes(keys, max(head_dim, v_head_dim), stored_bits)
    q = 2 * shared_tile_bytes(query_slot_rows(packed), head_dim, element_bits)
    key_slices, slices = keys // SLICE_KEYS, Slices.of(v_head_dim)
    accumulators = key_slices * shared_tile_bytes(STREAM_ROWS, v_head_dim, 32)
    out = shared_tile_bytes(STREAM_ROWS, v_head_dim, output_bits)
    if slices.published_columns < slices.columns:
        accumulators = (
            key_slices * slices.warps * shared_tile_bytes(STREAM_ROWS, slices.published_columns, 32)
        )
        out = 0 if combines else out
    elif combines:
        chunks, out = OutputChunks.of(v_head_dim, q_tiles), 0
        slots, columns = chunks.in_slice, chunks.columns
        if chunks.warps == 1:  # one slot has all chunks of a slice
            slots, columns = 1, slices.columns
        accumulators = (
            key_slices * slices.warps * slots * shared_tile_bytes(STREAM_ROWS, columns, 32)
        )
    return (target.smem_bytes - SMEM_FOR_STREAM - q_tiles * (q + accumulators + out)) // slot


def fit_two_query_tiles(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    *,
    packed: int,
    element_bits: int = 16,
    stored_bits: int = 16,
    output_bits: int = 16,
) -> bool:
    """Whether a work tile that streams may have two query tiles.

    Not if O takes two warps already, or if too few key tiles would fit beside a second one.

    Args:
      packed, element_bits, stored_bits, output_bits: as in `streamed_stages`.
    """
    stages = streamed_stages(
        target,
        head_dim,
        v_head_dim,
        q_tiles=MAX_Q_TILES,
        packed=packed,
        element_bits=element_bits,
        stored_bits=stored_bits,
        output_bits=output_bits,
    )
    return Slices.of(v_head_dim).warps == 1 and stages >= STREAM_STAGES


class Slices(NamedTuple):
    """How warps share the columns of O in the schedule for few queries.

    Attributes:
      warps: warps that compute the same key slice, each for other columns.
      columns: columns of each slice; together at least those of O.
    """

    warps: int
    columns: int

    @classmethod
    def of(cls, v_columns: int) -> "Slices":
        """The slices of an O of `v_columns` columns."""
        count = -(-v_columns // STREAM_COLUMNS)
        return cls(count, -(-v_columns // (count * STREAM_STEP)) * STREAM_STEP)

    @property
    def published_columns(self) -> int:
        """Columns that a warp publishes at a time: all if they fit in shared memory."""
        return self.columns if self.warps * self.columns <= MAX_HEAD_DIM else WIDE_PUBLISHED_COLUMNS


class OutputChunks(NamedTuple):
    """How warps share O when the kernel combines splits: by chunks that a warp adds up at a time.

    Attributes:
      slices: the slices of O, each cut into chunks.
      columns: columns of a chunk.
      warps: combining warps; chunk i of every slice is the work of warp i mod `warps`.
      groups: warpgroups that attend.
    """

    slices: Slices
    columns: int
    warps: int
    groups: int

    @classmethod
    def of(cls, v_head_dim: int, q_tiles: int = 1) -> "OutputChunks":
        """Chunks of 32 columns, or of 16 if 32 do not divide a slice, and the most warps that fit.

        Args:
          v_head_dim: elements per row of V and O.
          q_tiles: query tiles of a work tile, which are combined separately.
        """
        slices = Slices.of(v_head_dim)
        columns = STREAM_STEP if slices.columns % (2 * STREAM_STEP) else 2 * STREAM_STEP
        in_slice = slices.columns // columns
        groups = min(slices.warps * q_tiles, len(COMBINE_WARPS))
        most = COMBINE_WARPS[groups - 1]
        warps = max(n for n in range(1, most + 1) if in_slice % n == 0)
        return cls(slices, columns, warps, groups)

    @property
    def in_slice(self) -> int:
        """Number of chunks of a slice."""
        return self.slices.columns // self.columns

    @property
    def of_warp(self) -> int:
        """Number of chunks that a warp adds up, one after the other."""
        return self.slices.warps * self.in_slice // self.warps

    @classmethod
    def whole(cls, columns: int) -> "OutputChunks":
        """O as one chunk, of which each thread of a warpgroup owns a column."""
        return cls(Slices(1, columns), columns, 1, 1)

    def workspace(self, rows: int = STREAM_ROWS) -> tuple[tuple[int | str, ...], ...]:
        """Extents of the workspace of `attn.join`: sums, row statistics and counters.

        Args:
          rows: of a query tile.
        """
        chunks = self.slices.warps * self.in_slice
        return (
            ("splits", "tiles", chunks, rows, self.columns),
            (2, "splits", "tiles", self.warps, rows),
            ("tiles", self.warps),
        )


class KeysInRowsTile(NamedTuple):
    """The query rows of a work tile with swapped operands (`mha-swapped`): the columns of its
    products.

    Attributes:
      rows: 8, 16 or 32, the N of a product; what heads and positions do not fill is computed and
        dropped.
      heads: of one group, whose rows lie side by side: row r is position r / heads of head r mod
        heads.
    """

    rows: int
    heads: int

    @classmethod
    def of(cls, group: int, q_tiles: int, *, is_padded: bool = False) -> "KeysInRowsTile":
        """The rows of `q_tiles` query tiles, with the most heads that divide a group and fit.

        Args:
          group: query heads per key-value head.
          q_tiles: query tiles of 8 rows: 1, 2 or 4.
          is_padded: as of `streamed_heads`; then one head.
        """
        rows = q_tiles * KEYS_IN_ROWS_QUERIES
        most = 1 if is_padded else rows
        return cls(rows, max(n for n in range(1, most + 1) if group % n == 0))

    @property
    def positions(self) -> int:
        """Query positions of a work tile."""
        return self.rows // self.heads


def keys_in_rows_query_tiles(sq: int, group: int, *, is_padded: bool = False) -> int:
    """Query tiles of a work tile with swapped operands: of those numbers with which each key is
    read least often, the smallest.

    Args:
      sq: queries of the longest sequence.
      group: query heads per key-value head.
      is_padded: as of `streamed_heads`.
    """

    def readings(q_tiles: int) -> int:
        rows = KeysInRowsTile.of(group, q_tiles, is_padded=is_padded)
        return group // rows.heads * -(-sq // rows.positions)

    return min(KEYS_IN_ROWS_TILES, key=readings)


def keys_in_rows_columns(v_head_dim: int) -> int:
    """Columns of a tile of V with swapped operands: the head size rounded up to 64 or 128."""
    return next(n for n in KEYS_IN_ROWS_COLUMNS if v_head_dim <= n)


def keys_in_rows_stages(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    rows: KeysInRowsTile,
    *,
    output_bits: int = 16,
) -> int:
    """Slots of each of the rings of K and V that fit beside Q, P and O, with elements of 16 bits.

    Args:
      target: the chip.
      head_dim, v_head_dim: columns of Q and K, and of V and O.
      rows: of a work tile.
      output_bits: width of an element of O.
    """
    columns = head_dim, keys_in_rows_columns(v_head_dim)
    slots = sum(shared_tile_bytes(STREAM_KEYS, count, 16) for count in columns)
    q = 2 * shared_tile_bytes(query_slot_rows(rows.heads, rows.rows), head_dim, 16)
    p = shared_tile_bytes(STREAM_KEYS, rows.rows, 16)
    out = shared_tile_bytes(rows.rows, target.rows_per_product, output_bits)
    return (target.smem_bytes - SMEM_FOR_BARRIERS - q - p - out) // slots


def query_tiles_for(
    target: Target, sq: int, group: int, *, spare: float = SPARE_ROWS
) -> int | None:
    """1 if all rows fit one query tile; else None, which leaves the number to the head sizes.

    2 where warpgroups multiply and three query tiles would compute more than `spare` rows per
    existing row.
    """
    count, rows = sq * packed_heads(target, group), target.rows_per_product
    if count <= rows:
        return 1
    most = -(-count // (MOST_GROUPS * rows)) * MOST_GROUPS * rows
    has_groups = Feature.WARPGROUP_PRODUCTS in target.features
    return 2 if has_groups and most > count * spare else None


def tiling_for(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    *,
    q_tiles: int | None = None,
    tile_order: str = "single",
    element_bits: int = 16,
    output_bits: int = 16,
    prescribed: tuple[int, int] | None = None,
    page_size: int = 0,
) -> Tiling:
    """The largest tiles for which two key tiles fit; the K/V ring gets all shared memory that is
    left.

    For targets whose products leave their sums in tensor memory.

    Args:
      target: its shared and tensor memory are the limits.
      head_dim: elements per row of Q and K.
      v_head_dim: of V and O.
      q_tiles: query tiles per work tile; None for as many as fit, of wide heads one.
      tile_order: the order of work tiles. A CTA that may compute several of them needs Q and the
        staged O side by side; otherwise O is staged where Q was.
      element_bits: width of an element of Q, K and V.
      output_bits: width of an element of O.
      prescribed: the query tiles and keys per tile to use; None for the first choice that fits.
      page_size: positions of a page of keys and values, one that `key_tiles_for` has tiles for; 0
        without pages.

    Raises:
      DoesNotFit: no tiles fit.
    """
    rows = target.rows_per_product
    q_bytes = shared_tile_bytes(rows, head_dim, element_bits)
    o_bytes = shared_tile_bytes(rows, v_head_dim, output_bits)
    row_bytes = q_bytes + o_bytes if tile_order in LOOPING_ORDERS else max(q_bytes, o_bytes)
    left_bytes = target.smem_bytes - SMEM_FOR_BARRIERS
    allowed = key_tiles_for(page_size)
    choices = ((MAX_Q_TILES, max(allowed)), (1, max(allowed)), (1, min(allowed)))
    choices = [choice for choice in choices if q_tiles in (None, choice[0])]
    for count, tile_n in choices if prescribed is None else (prescribed,):
        slot_bytes = shared_tile_bytes(tile_n, max(head_dim, v_head_dim), element_bits)
        stages = (left_bytes - count * row_bytes) // slot_bytes
        columns = count * (max(TILE_N) + v_head_dim)  # S and O of each query tile
        if stages >= 2 and columns <= target.tensor_columns:
            return Tiling(count, tile_n, stages)
    count, tile_n = (q_tiles, 0) if prescribed is None else prescribed
    keys = f" of {tile_n} keys" if tile_n else ""
    tiles = f" for {count} query tiles" if (count or 1) > 1 or tile_n else ""
    raise DoesNotFit(
        f"two key tiles{keys} of head_dim {head_dim} and v_head_dim {v_head_dim} and what is "
        f"staged of Q and O of {output_bits} bits{tiles} exceed shared memory, or S and O the "
        f"tensor memory of {target.chip}"
    )


def has_tiling(target: Target, head_dim: int, v_head_dim: int, **options: Any) -> bool:
    """Whether there are tiles; arguments as `tiling_for`."""
    with contextlib.suppress(SpecError):
        tiling_for(target, head_dim, v_head_dim, **options)
        return True
    return False


def goes_with_pages(tile_n: int, page_size: int) -> bool:
    """Whether a key tile of `tile_n` keys is part of a page, or at most `MAX_PAGES` whole pages."""
    if page_size == 0:
        return True
    if page_size % PAGE_STEP:
        return False
    return page_size % tile_n == 0 or (tile_n % page_size == 0 and tile_n // page_size <= MAX_PAGES)
