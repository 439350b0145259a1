"""Policies of attention: work tiles of a call, and what its sizes decide of them.

A call counts its work tiles, and names the blocks of its lists, before there is a kernel. Knobs
that a request may set, query tiles and the order of work tiles, are in `Call.asked` by name.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from itertools import product
from typing import ClassVar

from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.schedules.policy.base import Call
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Knobs, Setting
from attn_mlir.schedules.policy.refusal import DoesNotFit, Mismatch
from attn_mlir.schedules.policy.splits import SplitPolicy
from attn_mlir.schedules.policy.tiling import (
    MAX_F32_HEAD_DIM,
    Tiling,
    packed_heads,
    query_tiles_for,
)

LAST_AXIS_CTAS = 65535  # of the last axis of a grid; CUDA programming guide
LEAST_FETCHED_TILES = 160  # work tiles: machines of the targets have a CTA for each of fewer
LONG_KEYS = 8192  # in longer sequences, a tile's begin and end count for little


class AttentionPolicy(SplitPolicy):
    """The policy of a schedule of attention."""

    @abstractmethod
    def tiled(self, facts: Facts, call: Call) -> dict[str, Setting]:
        """As of `sized`: query tiles, and the order of work tiles if it goes by their number."""

    def sized(self, facts: Facts, call: Call) -> Knobs:
        """As of `tiled`, with work tiles on the first axis of the grid where the last has no room.

        Dense sequences are the last axis; CTAs that loop over work tiles have all on the first.
        """
        knobs = self.tiled(facts, call)
        count = call.sizes["batch"] * max(call.splits, 1)
        if count <= LAST_AXIS_CTAS or facts.ragged_q or "tile_order" in knobs:
            return knobs
        loops = self.defaults["tile_order"] in LOOPING_ORDERS
        return knobs if loops else {**knobs, "tile_order": "persistent"}

    def split_refusal(self, facts: Facts) -> str:
        """Lists of blocks have no parts, whose O is f32 where another kernel combines them."""
        if facts.block is not None:
            return no_kernel("", str(Mismatch("block_mask", "left out", None)))
        if self.combines_splits or facts.v_head_dim <= MAX_F32_HEAD_DIM:
            return ""
        return (
            f"needs v_head_dim of at most {MAX_F32_HEAD_DIM}, got {facts.v_head_dim}: the parts' O "
            "is f32 and would exceed shared memory"
        )


class FewRowsPolicy(AttentionPolicy):
    """Few queries. O has few rows, which the last CTA of a work tile reads in less time than a
    second launch takes, so that the kernel combines parts of the keys by itself.
    """

    combines_splits: ClassVar[bool] = True

    def other_sizes(self, call: Call) -> Iterable[Mapping[str, int]]:
        """A batch that has a multiprocessor for each work tile, and one that has not."""
        return [{**call.sizes, "batch": batch} for batch in (1, call.multiprocessors + 1)]


class ManyRowsPolicy(AttentionPolicy):
    """Many queries. Parts of the keys are combined by a second kernel, whose CTAs share the
    work.
    """

    @abstractmethod
    def tiling(
        self, facts: Facts, call: Call, query_tiles: int | None, *, block_lists: bool
    ) -> Tiling:
        """The tiles of a kernel with this number of query tiles.

        Raises:
          DoesNotFit: no tiles fit.
        """

    def block(self, facts: Facts, call: Call, *, block_lists: bool = False) -> Block:
        """The extents of the block of scores of one work tile and one key tile.

        Args:
          call: with few queries, work tiles have one query tile where none are asked for.
          block_lists: whether lists name the key tiles.

        Raises:
          SpecError: there is no kernel.
        """
        target = call.target
        heads = packed_heads(target, facts.group)
        asked = int(call.asked.get("q_tiles", 0))
        count = asked or query_tiles_for(target, call.sizes["sq"], facts.group)
        try:
            tiling = self.tiling(facts, call, count, block_lists=block_lists)
        except DoesNotFit as error:
            raise SpecError(no_kernel(target.chip, error.reason)) from error
        return Block(tiling.q_tiles * target.rows_per_product // heads, heads, tiling.tile_n)

    def rows(self, facts: Facts, call: Call) -> tuple[int, int]:
        """Those of a block."""
        block = self.block(facts, call, block_lists=facts.block is not None)
        return block.heads, block.positions

    def tiled(self, facts: Facts, call: Call) -> dict[str, Setting]:
        """Query tiles by the number of rows, but for blocks that lists name."""
        knobs = dict(call.asked)
        if "q_tiles" in knobs:
            self.rows(facts, call)  # refuses too many
        elif facts.block is None:
            count = query_tiles_for(call.target, call.sizes["sq"], facts.group)
            knobs |= {} if count is None else {"q_tiles": count}
        return knobs

    def other_sizes(self, call: Call) -> Iterable[Mapping[str, int]]:
        """On both sides of each limit."""
        batches = call.sizes["batch"], 1, LEAST_FETCHED_TILES
        lengths = call.sizes["sk"], LONG_KEYS, LONG_KEYS + 1
        for batch, sk in product(batches, lengths):
            yield {**call.sizes, "batch": batch, "sk": sk}
