"""A block of scores, of which `attn.blocks` takes lists. Without MLIR."""

from typing import NamedTuple

BLOCK_LISTS = ("block_counts", "block_indices")  # names of the arguments of a kernel with lists
COUNTS = 2  # counts per block of queries: tested blocks of keys, and all listed ones


class Block(NamedTuple):
    """Extents of a block of scores: numbers of query positions, query heads and keys."""

    positions: int
    heads: int
    keys: int
