"""In which order work tiles should start, where the caller does not say.

CTAs start in the order of the grid. Work that is long should start early, else the machine waits
for it at the end: where later blocks of queries meet more key tiles, blocks count from the last.
Where they meet fewer, as with `~causal`, the order of the grid is right already; where the numbers
go up and down, as with causal chunks, no order of blocks is better than another.

Where queries of all sequences lie one after the other, the longest sequence says how many blocks
there may be, and most of them may not be there: the order is one that leaves them out. It begins
at the end whatever the mask.
"""

from attn_mlir.dialect.attn.masks import INTS, Mask

BLOCK_ROWS, TILE_COLUMNS = 256, 128  # of the sample; smaller blocks grow where these do
SAMPLE_BLOCKS = 64  # a sequence of 16384 tokens


def tile_counts(mask: Mask) -> list[int]:
    """Key tiles that each block of queries visits, in a long sequence."""
    length = SAMPLE_BLOCKS * BLOCK_ROWS
    ranges = (
        mask.tile_range(INTS, row, BLOCK_ROWS, length, length, TILE_COLUMNS)
        for row in range(0, length, BLOCK_ROWS)
    )
    return [tiles.end - tiles.begin for tiles in ranges]


def default_order(mask: Mask, *, is_ragged: bool = False) -> str:
    """`ragged` for queries that are; `last_first` if the number of key tiles grows with the
    position and never shrinks."""
    if is_ragged:
        return "ragged"
    counts = tile_counts(mask)
    grows = counts[0] < counts[-1] and counts == sorted(counts)
    return "last_first" if grows else "single"
