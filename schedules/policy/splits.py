"""Splits of the keys: how many parts a call is worth, by its sizes alone."""

import math
from abc import abstractmethod
from typing import ClassVar

from attn_mlir.dialect.attn.masks import INTS, Mask
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules.policy.base import Call, Policy
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.tiling import TILE_N

MAX_SPLITS = 256  # as in FlashAttention-4's combine kernel
FEW_KEY_TILES = 4  # with fewer, a split costs more than it saves (FlashAttention-4)
MAX_CHOSEN = 128  # most parts that the rule chooses (FlashAttention-4)


class SplitPolicy(Policy):
    """The policy of a schedule whose keys may be computed in parts.

    Attributes:
      splits_per_tile: parts that cost as much time where they are combined as a tile of 128 keys of
        one part does; 0 where nothing but multiprocessors limits them. The sum of both times is
        least with sqrt(splits_per_tile x tiles) parts.
    """

    splits_per_tile: ClassVar[int] = 0

    @abstractmethod
    def rows(self, facts: Facts, call: Call) -> tuple[int, int]:
        """Heads and positions of queries of a work tile of a call; of a CTA, where a pair has one
        work tile.
        """

    def work_tiles(self, facts: Facts, call: Call) -> int:
        """As of every policy, by the rows of one."""
        heads, positions = self.rows(facts, call)
        return call.sizes["batch"] * (facts.heads // heads) * -(-call.sizes["sq"] // positions)

    def most_splits(self, facts: Facts, call: Call) -> int:
        """Parts of the keys that there are multiprocessors for, or 0."""
        return call.multiprocessors // self.work_tiles(facts, call)

    def splits(self, facts: Facts, call: Call) -> int:
        """The number of parts of the keys, by the sizes of a call and its machine."""
        sizes = call.sizes
        assert facts.mask is not None
        most = self.most_splits(facts, call)
        tiles = key_tiles(facts.mask, sizes["sq"], sizes["sk"], call.target)
        if self.splits_per_tile:
            most = min(most, math.isqrt(self.splits_per_tile * tiles))
        return chosen_splits(most, tiles)


def key_tiles(mask: Mask, sq: int, sk: int, target: Target) -> int:
    """The largest number of key tiles that any query tile visits, at least 1."""
    keys, rows = max(TILE_N), target.rows_per_product
    ranges = (mask.tile_range(INTS, row, rows, sq, sk, keys) for row in range(0, sq, rows))
    return max((tiles_.end - tiles_.begin for tiles_ in ranges), default=1) or 1


def chosen_splits(most: int, key_tiles: int) -> int:
    """The number of parts where none is asked for.

    1 for at most 4 key tiles, or if there is a work tile for every multiprocessor; else as many as
    there are multiprocessors for, but at most one part per key tile and 128 (the rule of
    FlashAttention-4 for SM100). Depends on sizes only, never on the contents of device arrays.

    Args:
      most: parts of a work tile that there are multiprocessors for.
      key_tiles: that a query tile visits at most.
    """
    if key_tiles <= FEW_KEY_TILES:
        return 1
    return max(min(most, MAX_CHOSEN, key_tiles), 1)
