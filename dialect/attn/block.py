"""A block of scores: the unit of the lists that `attn.blocks` takes. Without MLIR."""

from typing import NamedTuple

BLOCK_LISTS = ("block_counts", "block_indices")  # arguments of a kernel that walks lists
COUNTS = 2  # per block of queries: how many blocks of keys are tested, and how many there are


class Block(NamedTuple):
    """Extents of a block of scores: query positions, query heads, keys."""

    positions: int
    heads: int
    keys: int
