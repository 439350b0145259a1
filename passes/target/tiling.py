"""How attention is cut into work tiles: rows, heads and keys of each, and what shared memory holds.

The one place with these rules: schedules follow them, and a call asks them before there is a
kernel, for its blocks of scores or the number of its work tiles. Hence without MLIR. They are those
of targets whose products leave their sums in tensor memory.
"""

from typing import NamedTuple

from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.errors import SpecError
from attn_mlir.passes.target.limits import Target, shared_tile_bytes

TILE_N = (64, 128)  # keys of a tile: S fills as many tensor-memory columns
PAGE_STEP = 8  # rows of a part of a tile: those of a swizzle pattern
MAX_PAGES = 8  # of a tile; a thread that copies 16 has no registers for what names them
PAGE_SIZES = "8, 16, 32, and multiples of 64"
MAX_Q_TILES = 2  # of a work tile, one softmax warpgroup each
MAX_HEAD_DIM = 256
TILED, STREAMED = "mha", "mha-streaming"  # schedules of attention: many queries, few queries
HELD = "mha-registers"  # many queries, with sums in registers
SCHEDULES = {TILED: "", STREAMED: "stream", HELD: "held"}  # of attention, and their part of a name
STREAM_ROWS = 16  # of a work tile of the second: M of a product of one warp; PTX ISA, mma.sync
STREAM_KEYS = 128  # of its key tiles
STRIP_KEYS = 32  # of a key tile, a warp's: a word of a mask, and two products' K of 16 bits
STREAM_STAGES = 3  # tiles in flight that a second query tile leaves room for, at least
STREAM_SUMS = 128  # columns of O in one of its warps: 64 registers of each thread
STREAM_STEP = 16  # columns that a warp has are multiples: two blocks of a product, of 8 each
SCALE_STEP = 32  # columns of a part of K and V that has one factor are multiples
MAX_SCALE_GROUPS = (4, 2)  # of a row, with up to `STREAM_SUMS` columns and more: more would spill
SCALE_GROUPS = (
    f"one to a row, or up to {MAX_SCALE_GROUPS[0]} ({MAX_SCALE_GROUPS[1]} above {STREAM_SUMS} columns) "
    f"of a multiple of {SCALE_STEP} columns each"
)
JOIN_WARPS = (4, 1)  # that put parts together, at most: beside one warpgroup that attends, and two
MOST_GROUPS = 3  # of the third schedule, one query tile each
SPARE_ROWS = 1.05  # of the rows that there are; measured on an H200, `bench/attention.py`
HELD_KEYS = tuple(range(128, 0, -16))  # of the key tiles of the third: K of a product of 16 bits
FEWEST_HELD_KEYS = 80  # with three groups; fewer wait for shared memory (measured, bare loops)
HELD_FOR_REST = 32  # registers beside S, P and O: maxima, sums, factors, descriptors, masks
MOST_HELD = 240  # FlashAttention-3's, and what a thread can name with room for the assembler's own
HELD_FOR_PAGES = 8  # more, where the loops of those that copy are long
OTHERS, OTHERS_IN_TURNS, OTHERS_OF_PAGES = 24, 40, 56  # registers of those that copy, at least
MOST_OF_OTHERS = 72
MOST_HELD_STAGES = 4  # of K and of V; two are enough where both come from the cache
SMEM_FOR_BARRIERS = 2048  # bytes kept for barriers and row statistics
SMEM_FOR_STREAM = 4096  # the same, where a row has statistics of several warps


def key_tiles_for(page_size: int) -> tuple[int, ...]:
    """The keys per tile that go with pages: few whole ones of whole swizzle patterns, or part of one.

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


class Tiling(NamedTuple):
    """Tiles of a kernel.

    Attributes:
      q_tiles: query tiles of a work tile.
      tile_n: keys of a key tile.
      kv_stages: key tiles that shared memory has room for beside what is staged of Q and O.
    """

    q_tiles: int
    tile_n: int
    kv_stages: int


def packed_heads(target: Target, group: int) -> int:
    """Query heads of a group whose rows share a query tile: all if their number divides its rows.

    A decoded token of 8 heads takes 8 rows, one of 3 heads a row in each of 3 tiles.
    """
    return group if target.rows_per_product % group == 0 else 1


def has_scale_groups(columns: int, groups: int) -> bool:
    """Whether a kernel takes so many factors for a row of so many columns of K or V."""
    if groups == 1:
        return True
    most = MAX_SCALE_GROUPS[columns > STREAM_SUMS]
    fits = 1 < groups <= most and columns % groups == 0
    return fits and columns // groups % SCALE_STEP == 0


def streamed_heads(group: int, *, is_padded: bool = False) -> int:
    """Query heads of a group whose rows share a work tile of a kernel that streams.

    Args:
      is_padded: whether the queries of a sequence end before its dimension does. A tensor map of
        those has a dimension for that, and none is left for packed heads.
    """
    return 1 if is_padded else max(n for n in range(1, STREAM_ROWS + 1) if group % n == 0)


def query_slot_rows(packed: int) -> int:
    """Rows of shared memory for a query tile: those of the whole positions that fill it, in whole
    swizzle patterns."""
    loaded = -(-STREAM_ROWS // packed) * packed
    return -(-loaded // PAGE_STEP) * PAGE_STEP


class StreamedRows(NamedTuple):
    """The query rows of a work tile of a kernel that streams, which share each key tile.

    Attributes:
      packed: heads of a query tile.
      q_tiles: query tiles of 16 rows.
      head_tiles: how many of these lie along the heads of a group; the others along positions.
    """

    packed: int
    q_tiles: int
    head_tiles: int

    @classmethod
    def of(cls, group: int, q_tiles: int, *, is_padded: bool = False) -> "StreamedRows":
        """Of so many query tiles: along the heads where a group has further ones for all of them."""
        packed = streamed_heads(group, is_padded=is_padded)
        along_heads = group > packed and group // packed % q_tiles == 0 and not is_padded
        return cls(packed, q_tiles, q_tiles if along_heads else 1)

    @property
    def heads(self) -> int:
        """Of a work tile."""
        return self.packed * self.head_tiles

    @property
    def positions(self) -> int:
        """Of a work tile."""
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
    is_joined: bool = False,
) -> int:
    """Key tiles that shared memory has room for beside Q, and what warps hand over.

    Args:
      q_tiles: of a work tile; packed: heads of each.
      element_bits, stored_bits, output_bits: of Q, of K and V, and of O.
      is_joined: whether the kernel puts parts of the keys together, and O goes from registers.
    """
    slot = shared_tile_bytes(STREAM_KEYS, max(head_dim, v_head_dim), stored_bits)
    q = 2 * shared_tile_bytes(query_slot_rows(packed), head_dim, element_bits)
    strips = STREAM_KEYS // STRIP_KEYS
    sums = strips * shared_tile_bytes(STREAM_ROWS, v_head_dim, 32)
    out = shared_tile_bytes(STREAM_ROWS, v_head_dim, output_bits)
    if is_joined:
        pieces = Pieces.of(v_head_dim, q_tiles)
        piece, out = shared_tile_bytes(STREAM_ROWS, pieces.columns, 32), 0
        sums = strips * pieces.slices.warps * pieces.in_slice * piece
    return (target.smem_bytes - SMEM_FOR_STREAM - q_tiles * (q + sums + out)) // slot


def streamed_query_tiles(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    *,
    sq: int,
    group: int,
    is_padded: bool = False,
    element_bits: int = 16,
    stored_bits: int = 16,
    output_bits: int = 16,
) -> int:
    """Query tiles of a work tile: two where the rows of `sq` queries fill more than one.

    One, where O takes two warps already, or shared memory has room for too few key tiles beside a
    second.

    Args:
      sq: queries of the longest sequence.
      group: query heads per key-value head.
      is_padded: as of `streamed_heads`; bits as of `streamed_stages`.
    """
    rows = StreamedRows.of(group, MAX_Q_TILES, is_padded=is_padded)
    if rows.head_tiles == 1 and sq * rows.packed <= STREAM_ROWS // rows.packed * rows.packed:
        return 1
    stages = streamed_stages(
        target,
        head_dim,
        v_head_dim,
        q_tiles=MAX_Q_TILES,
        packed=rows.packed,
        element_bits=element_bits,
        stored_bits=stored_bits,
        output_bits=output_bits,
    )
    fits = Slices.of(v_head_dim).warps == 1 and stages >= STREAM_STAGES
    return MAX_Q_TILES if fits else 1


class Slices(NamedTuple):
    """O of a work tile of a kernel that streams, by columns: shared among warps where it is wide.

    Attributes:
      warps: that a strip of keys is shared by.
      columns: of each of them; together at least O's.
    """

    warps: int
    columns: int

    @classmethod
    def of(cls, v_columns: int) -> "Slices":
        """Of so many columns."""
        count = -(-v_columns // STREAM_SUMS)
        return cls(count, -(-v_columns // (count * STREAM_STEP)) * STREAM_STEP)


class Pieces(NamedTuple):
    """The same by what a warp adds up at a time where parts of the keys are put together.

    Attributes:
      slices: of O.
      columns: of a piece.
      warps: that add up; piece i is the work of warp i mod `warps`, in every slice.
      groups: warpgroups that attend.
    """

    slices: Slices
    columns: int
    warps: int
    groups: int

    @classmethod
    def of(cls, v_head_dim: int, q_tiles: int = 1) -> "Pieces":
        """Of values of this size: pieces of 32 columns or 16, and as many warps as divide them.

        Args:
          q_tiles: query tiles of a work tile, each put together for itself.
        """
        slices = Slices.of(v_head_dim)
        columns = STREAM_STEP if slices.columns % (2 * STREAM_STEP) else 2 * STREAM_STEP
        in_slice = slices.columns // columns
        groups = slices.warps * q_tiles
        most = JOIN_WARPS[groups - 1]
        warps = max(n for n in range(1, most + 1) if in_slice % n == 0)
        return cls(slices, columns, warps, groups)

    @property
    def in_slice(self) -> int:
        """Pieces of a slice."""
        return self.slices.columns // self.columns

    @property
    def of_warp(self) -> int:
        """Pieces that a warp adds up, one after the other."""
        return self.slices.warps * self.in_slice // self.warps

    def workspace(self) -> tuple[tuple[int | str, ...], ...]:
        """The extents of what `attn.join` has, and the schedule of a kernel that streams makes of it."""
        pieces = self.slices.warps * self.in_slice
        return (
            ("splits", "tiles", pieces, STREAM_ROWS, self.columns),
            (2, "splits", "tiles", self.warps, STREAM_ROWS),
            ("tiles", self.warps),
        )


def query_tiles_for(target: Target, sq: int, group: int) -> int | None:
    """One query tile where all rows fit one; else None, as many as head sizes allow.

    Two where products leave their sums in registers and three tiles would have many rows too many.
    """
    count, rows = sq * packed_heads(target, group), target.rows_per_product
    if count <= rows:
        return 1
    most = -(-count // (MOST_GROUPS * rows)) * MOST_GROUPS * rows
    return 2 if target.accumulator == "registers" and most > count * SPARE_ROWS else None


def tiling_for(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    *,
    q_tiles: int = MAX_Q_TILES,
    tile_order: str = "single",
    element_bits: int = 16,
    output_bits: int = 16,
    tile: tuple[int, int] | None = None,
    page_size: int = 0,
) -> Tiling:
    """The largest tiles with room for two key tiles; the ring takes what shared memory is left.

    Args:
      target: what shared and tensor memory hold.
      head_dim: elements per row of Q and K.
      v_head_dim: of V and O.
      q_tiles: query tiles per work tile that are wanted; wide heads have room for one.
      tile_order: of the work tiles. A CTA that may work on several needs Q and the staged O side by
        side, others stage O where Q was.
      element_bits: width of an element of Q, K and V.
      output_bits: width of an element of O.
      tile: query tiles and keys per tile that it has to be; the first that fits when absent.
      page_size: of the pages that keys and values lie in, which `key_tiles_for` has tiles for; 0
        without.

    Raises:
      SpecError: no tiles fit.
    """
    rows = target.rows_per_product
    q_bytes = shared_tile_bytes(rows, head_dim, element_bits)
    o_bytes = shared_tile_bytes(rows, v_head_dim, output_bits)
    row_bytes = q_bytes + o_bytes if tile_order in LOOPING_ORDERS else max(q_bytes, o_bytes)
    left_bytes = target.smem_bytes - SMEM_FOR_BARRIERS
    keys = key_tiles_for(page_size)
    fallbacks = ((q_tiles, max(keys)), (1, max(keys)), (1, min(keys)))
    for tiles, tile_n in fallbacks if tile is None else (tile,):
        slot_bytes = shared_tile_bytes(tile_n, max(head_dim, v_head_dim), element_bits)
        stages = (left_bytes - tiles * row_bytes) // slot_bytes
        columns = tiles * (max(TILE_N) + v_head_dim)  # S and O of each query tile
        if stages >= 2 and columns <= target.tensor_columns:
            return Tiling(tiles, tile_n, stages)
    wanted = "" if tile is None else f" with {tile[0]} query tiles and key tiles of {tile[1]}"
    raise SpecError(
        f"head_dim {head_dim} with v_head_dim {v_head_dim} and an output of {output_bits} bits has "
        f"no kernel{wanted}: two key tiles and what is staged of Q and O exceed shared memory, or S "
        f"and O the tensor memory of {target.chip}"
    )


def held_registers(
    target: Target, groups: int, tile_order: str = "single", page_size: int = 0
) -> tuple[int, int]:
    """Registers of each thread of the groups that hold S, P and O, and of those behind them.

    The last ones copy, and take what the others leave of equal shares: more where a CTA works on
    several tiles, or a key tile is of several pages, whose entries are read ahead.
    """
    pool, step = target.register_pool(groups + 1), target.register_step
    least = OTHERS_IN_TURNS if tile_order in LOOPING_ORDERS else OTHERS
    if 0 < page_size < max(HELD_KEYS):
        least = OTHERS_OF_PAGES
    attending = (pool - least) // groups // step * step
    attending = min(attending, MOST_HELD)
    return attending, min(pool - groups * attending, MOST_OF_OTHERS)


def held_tiling_for(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    *,
    tile_order: str = "single",
    output_bits: int = 16,
    page_size: int = 0,
    groups: int = 0,
    tile_n: int = 0,
) -> Tiling:
    """The tiles of a kernel whose groups hold S, P and O of 16 bits in registers.

    As many groups as leave each thread registers for a key tile of 80, and then the largest key
    tile that registers and shared memory have room for twice: three groups keep the tensor core
    busy, and each more reads K and V from the cache once less.

    Args:
      target: what a CTA may have.
      head_dim: elements per row of Q and K.
      v_head_dim: of V and O.
      tile_order: of the work tiles. A CTA that works on one alone stages O where Q was, if they are
        of one size.
      output_bits: width of an element of O.
      page_size: of the pages that keys and values lie in; 0 without.
      groups, tile_n: what they have to be, where it is not 0.

    Raises:
      SpecError: no tiles fit.
    """
    rows = target.rows_per_product
    q_bytes = shared_tile_bytes(rows, head_dim, 16)
    o_bytes = shared_tile_bytes(rows, v_head_dim, output_bits)
    shares = tile_order not in LOOPING_ORDERS and q_bytes == o_bytes
    row_bytes = q_bytes if shares else q_bytes + o_bytes
    left_bytes = target.smem_bytes - SMEM_FOR_BARRIERS
    allowed = [tile_n] if tile_n else [n for n in HELD_KEYS if _goes_with_pages(n, page_size)]
    for count, least in ((3, FEWEST_HELD_KEYS), (2, 0), (1, 0)):
        if groups not in (0, count):
            continue
        attending, _ = held_registers(target, count, tile_order, page_size)
        rest = HELD_FOR_REST + (HELD_FOR_PAGES if page_size else 0)
        budget = attending - rest - -(-v_head_dim // 16) * 8
        for keys in allowed:
            stage = sum(shared_tile_bytes(keys, size, 16) for size in (head_dim, v_head_dim))
            stages = (left_bytes - count * row_bytes) // stage
            fits = tile_n or (keys >= least and 3 * keys <= 4 * budget)
            if fits and stages >= 2:
                return Tiling(count, keys, min(stages, MOST_HELD_STAGES))
    raise SpecError(
        f"head_dim {head_dim} with v_head_dim {v_head_dim} and an output of {output_bits} bits has "
        f"no kernel: two key tiles and what is staged of Q and O exceed shared memory, or S, P and "
        f"O the registers of {target.chip}"
    )


def _goes_with_pages(tile_n: int, page_size: int) -> bool:
    """Whether a key tile is part of a page, or made of a few whole ones."""
    if page_size == 0:
        return True
    if page_size % PAGE_STEP:
        return False
    return page_size % tile_n == 0 or (tile_n % page_size == 0 and tile_n // page_size <= MAX_PAGES)
