"""The order in which work tiles start, where the caller does not choose one.

CTAs start in the order of the grid. Long work tiles should start early, so that none runs alone at
the end. Where later blocks of queries visit more key tiles, the last block starts first. Where they
visit fewer, as with `~causal`, the order of the grid is right already; where the numbers go up and
down, as with causal chunks, no order of blocks is better than another.

Where queries of all sequences lie one after the other, the grid has as many blocks for each
sequence as the longest one needs, and most of them may be empty. The order `ragged` leaves these
out; it begins with the last blocks, whatever the mask.
"""

import functools

from attn_mlir.dialect.attn.masks import INTS, Mask

# of the sample; counts of other block sizes grow where these do
BLOCK_ROWS, TILE_COLUMNS = 256, 128
SAMPLE_BLOCKS = 64  # a sequence of 16384 tokens
CACHED_MASKS = 256  # whose samples are remembered: each takes 0.2 ms


def tile_counts(mask: Mask) -> list[int]:
    """Number of key tiles that each block of queries visits, in a sample sequence."""
    length = SAMPLE_BLOCKS * BLOCK_ROWS
    ranges = (
        mask.tile_range(INTS, row, BLOCK_ROWS, length, length, TILE_COLUMNS)
        for row in range(0, length, BLOCK_ROWS)
    )
    return [tiles.end - tiles.begin for tiles in ranges]


def default_order(mask: Mask, *, is_ragged: bool = False) -> str:
    """The order for a mask: `last_first` if the number of key tiles grows with the position and
    never shrinks, else `single`; `ragged` for ragged queries."""
    if is_ragged:
        return "ragged"
    return "last_first" if grows(mask) else "single"


@functools.lru_cache(maxsize=CACHED_MASKS)
def grows(mask: Mask) -> bool:
    """Whether later blocks of queries meet more key tiles, and never fewer."""
    counts = tile_counts(mask)
    return counts[0] < counts[-1] and counts == sorted(counts)
