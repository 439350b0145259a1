"""Queries, keys and registers of a kernel that keeps S, P and O in registers.

As `tiling`, for the schedule `mha-registers` alone; names with HELD or `s_and_p` are about what
threads hold.
"""

import itertools

from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.dialect.targets.limits import Target, shared_tile_bytes
from attn_mlir.schedules.policy.refusal import DoesNotFit
from attn_mlir.schedules.policy.tiling import (
    MOST_GROUPS,
    SMEM_FOR_BARRIERS,
    Tiling,
    goes_with_pages,
)

KEY_TILES = {16: tuple(range(128, 0, -16)), 8: tuple(range(128, 0, -32))}
"""Allowed keys of a tile, by bits of an element: multiples of a product's K. What sums of 8 bits
lose grows with the square of the keys: 0.9 thousandths with 192, 0.2 with 96 (values of one
sign)."""
FEWEST_KEYS = 80  # with three groups; smaller tiles wait for shared memory (measured)
REGISTERS_FOR_ROWS = 32  # registers beside S, P and O: row maxima and sums, descriptors, masks
MAX_REGISTERS = 240  # per thread, as in FlashAttention-3; leaves some of 255 to the assembler
REGISTERS_FOR_PAGES = 8  # more beside S, P and O where keys are in pages
REGISTERS_FOR_READS = 16  # the same where each score needs elements of tensors
REGISTERS_FOR_GATHERS = 16  # and where these have addresses of their own
REGISTERS_FOR_WIDE, WIDE_HEAD_DIM = 8, 128
"""The same where work tiles with more columns of Q are drawn, with 8 bits one group has several in
turn, or with 16 bits each score needs several elements."""
PRODUCER_REGISTERS, FETCHING_REGISTERS, LOOPING_REGISTERS, PAGING_REGISTERS = 24, 32, 40, 56
"""Least registers of threads that copy."""
TRANSPOSING_REGISTERS = (72, 56, 40)
"""Least registers of threads that transpose values: the first with which key tiles are as large as
with the last."""
MAX_PRODUCER_REGISTERS = 72
MAX_WHOLE_COLUMNS, MAX_PRODUCT_COLUMNS, PRODUCT_COLUMNS_OF_THREE = 96, 64, 32
"""With operands of 8 bits a key tile has sums beside those of O: of all columns up to so many, of
64, and of 32 with three groups. Wider sums leave room for fewer keys: head size 128, an H200,
TFLOP/s of 4096 keys: 128 columns and 96 keys 716, 64 and 128 keys 751
(`bench/attention.py --dtype e4m3`, 2026-11-23)."""
COLUMN_STEP = 8  # columns of a product, and rows of the transposed values that it reads
INDEXED_ROWS = INDEXED_KEYS = 128
"""Rows of a work tile of this schedule where lists name key tiles, and a multiple of their keys, as
PyTorch's do.
"""
MAX_STAGES = 4  # of K and of V; two are enough while the L2 cache holds both


def product_columns(v_columns: int, groups: int) -> list[range]:
    """The columns of each of the products by which a key tile of 8 bits is added to O.

    Their sums take registers beside those of O, one after the other the same ones. For that they
    have equally many columns; where those of O cannot be divided so, the last begins within the one
    before, and both compute what they share. Worked: 176 columns are 0-63, 64-127 and 112-175.

    Args:
      v_columns: of O, a multiple of 16.
      groups: of a CTA.
    """
    whole = v_columns if v_columns <= MAX_WHOLE_COLUMNS else MAX_PRODUCT_COLUMNS
    most = PRODUCT_COLUMNS_OF_THREE if groups == MOST_GROUPS else whole
    count = -(-v_columns // most)
    width = -(-v_columns // count // COLUMN_STEP) * COLUMN_STEP
    firsts = (min(number * width, v_columns - width) for number in range(count))
    return [range(first, first + width) for first in firsts]


def thread_registers(
    target: Target,
    groups: int,
    tile_order: str = "single",
    page_size: int = 0,
    *,
    block_lists: bool = False,
    transposing: int = 0,
) -> tuple[int, int]:
    """Registers of each thread in the groups that hold S, P and O, and in the warpgroup that
    copies.

    All threads are launched with equal shares, and those that copy keep what the others do not
    take. They need more where a CTA works on several tiles, lists name the key tiles, a key tile
    has several pages, whose numbers are read ahead, or some of them transpose values, which take
    `transposing`.
    """
    pool, step = target.register_pool(groups + 1), target.register_step
    least = LOOPING_REGISTERS if tile_order in LOOPING_ORDERS else PRODUCER_REGISTERS
    if tile_order == "counter":
        least = FETCHING_REGISTERS
    if block_lists:
        least = LOOPING_REGISTERS
    if 0 < page_size < max(KEY_TILES[16]):
        least = PAGING_REGISTERS
    least = max(least, transposing)
    attending = (pool - least) // groups // step * step
    attending = min(attending, MAX_REGISTERS)
    return attending, min(pool - groups * attending, MAX_PRODUCER_REGISTERS)


def register_tiling_for(
    target: Target,
    head_dim: int,
    v_head_dim: int,
    *,
    tile_order: str = "single",
    element_bits: int = 16,
    output_bits: int = 16,
    page_size: int = 0,
    groups: int = 0,
    tile_n: int = 0,
    block_lists: bool = False,
    reads: int = 0,
    gathers: bool = False,
    transposing: int = TRANSPOSING_REGISTERS[-1],
) -> Tiling:
    """The tiles of a kernel whose groups of threads hold S, P and O in registers.

    Three groups if each thread then has registers for a tile of at least 80 keys, else fewer; then
    the largest key tile that registers allow and that fits twice in shared memory. Three groups
    keep the tensor core busy, and K and V are read from the L2 cache once for all groups of a CTA.
    With operands of 8 bits, values are there twice: as they are loaded, and transposed.

    Args:
      target: its registers and shared memory are the limits.
      head_dim: elements per row of Q and K.
      v_head_dim: of V and O.
      tile_order: the order of work tiles. A CTA that computes only one stages O where Q was, if
        both have the same size.
      element_bits, output_bits: width of an element of Q, K and V, and of O.
      page_size: positions of a page of keys and values; 0 without pages.
      groups, tile_n: prescribed numbers of groups and of keys per tile; 0 to choose.
      block_lists: whether lists name the key tiles: work tiles and key tiles then have the sizes of
        users' blocks, or divide these.
      reads: how many elements of tensors each score needs, for which registers are spared where a
        tile has any left, and in any case for one at a distance beside others.
      gathers: whether these lie at distances of query and key.
      transposing: registers of threads that transpose values of 8 bits.

    Raises:
      DoesNotFit: no tiles fit.
    """
    rows, is_fp8 = target.rows_per_product, element_bits == 8
    q_bytes = shared_tile_bytes(rows, head_dim, element_bits)
    o_bytes = shared_tile_bytes(rows, v_head_dim, output_bits)
    shares = tile_order not in LOOPING_ORDERS and q_bytes == o_bytes
    row_bytes = q_bytes if shares else q_bytes + o_bytes
    left_bytes = target.smem_bytes - SMEM_FOR_BARRIERS
    allowed = [tile_n] if tile_n else _keys_for(element_bits, page_size)
    if block_lists:
        groups = groups or INDEXED_ROWS // rows
        allowed = [n for n in allowed if INDEXED_KEYS % n == 0]
    counts = (3, FEWEST_KEYS), (2, 0), (1, 0)
    more = REGISTERS_FOR_GATHERS if gathers else 0
    # a kernel that spills a little before none
    least_spared = REGISTERS_FOR_READS if gathers and reads > 1 else 0
    spared = (REGISTERS_FOR_READS + more, least_spared, 0) if reads else (0,)
    for for_reads, (count, least) in itertools.product(spared, counts):
        if groups not in (0, count):
            continue
        attending, _ = thread_registers(
            target,
            count,
            tile_order,
            page_size,
            block_lists=block_lists,
            transposing=transposing if is_fp8 else 0,
        )
        reserved = REGISTERS_FOR_ROWS + (REGISTERS_FOR_PAGES if page_size else 0)
        reserved += for_reads
        loops_alone = is_fp8 and count == 1 and tile_order in LOOPING_ORDERS
        if head_dim > WIDE_HEAD_DIM:
            is_looped = tile_order == "counter" or loops_alone
            has_reads = for_reads and reads > 1 and not is_fp8
            reserved += REGISTERS_FOR_WIDE * (int(is_looped) + int(bool(has_reads)))
        v_columns = -(-v_head_dim // 16) * 16
        column_ranges = product_columns(v_columns, count) if is_fp8 else [range(v_columns)]
        partial_registers = len(column_ranges[0]) // 2 if is_fp8 else 0
        o_registers = sum(map(len, column_ranges)) // 2
        budget = attending - reserved - partial_registers - o_registers
        for columns in allowed:
            sizes = (head_dim, v_head_dim)
            stage = sum(shared_tile_bytes(columns, size, element_bits) for size in sizes)
            stage += shared_tile_bytes(v_head_dim, columns, element_bits) if is_fp8 else 0
            stages = (left_bytes - count * row_bytes) // stage
            s_and_p = columns * (32 + element_bits) // 64  # registers of S and P
            fits = tile_n or (columns >= least and s_and_p <= budget)
            if fits and stages >= 2:
                return Tiling(count, columns, min(stages, MAX_STAGES))
    raise DoesNotFit(
        f"two key tiles of head_dim {head_dim} and v_head_dim {v_head_dim} and what is staged of Q "
        "and O of "
        f"{output_bits} bits exceed shared memory, or S, P and O the registers of {target.chip}"
    )


def _keys_for(element_bits: int, page_size: int) -> list[int]:
    """Allowed keys of a tile, most first."""
    return [n for n in KEY_TILES[element_bits] if goes_with_pages(n, page_size)]
