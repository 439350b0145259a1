"""The policy of attention past few queries: keys and values stream past 16 or 32 rows of a group's
heads.

More rows than a query tile has are either work tiles of one query tile, which read the same keys,
or work tiles of two, which share each key tile. One is taken as long as each work tile, or each of
its parts, has a multiprocessor of its own:

- Its second reader costs little. Both walk the same keys at the same time, so that memory is read
  once: what all slots of all CTAs hold, 132 x 160 KiB on an H200, is less than half of its L2
  cache.
- Twice as many CTAs read, and attend with one warpgroup each: an SM that would else idle is used.
- With one query tile, four warps combine splits, each with 256 columns of 16 rows in flight: 8
  splits of 128 columns take one iteration. With two query tiles, registers are left for one warp
  with 64 columns in flight: 8 splits of 2 x 128 columns take 32 iterations.

Work tiles of two query tiles are taken where there are more work tiles of one than
multiprocessors: a CTA then has several in turn, and two reach the L2 cache half as often. There,
keys are not split.

The number of splits is the multiprocessors that stream keys at the speed of memory
(`STREAM_SHARE`), divided by the distinct key ranges, one per sequence and head; at most as many as
there are multiprocessors for. docs/lab/performance.md#decoding has the measurements.
"""

import dataclasses
from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import NARROW, type_bits
from attn_mlir.schedules.policy.attention import FewRowsPolicy
from attn_mlir.schedules.policy.base import Call, Claims, Extents, first_mismatch
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import (
    Domain,
    Knob,
    Knobs,
    Setting,
    at_least,
    attention_knobs,
    divisor_of,
    multiple_of,
    one_of,
)
from attn_mlir.schedules.policy.refusal import Mismatch
from attn_mlir.schedules.policy.tiling import (
    MAX_HEAD_DIM,
    MAX_Q_TILES,
    MAX_SHARED_DIM,
    SCALE_GROUPS,
    STREAM_COLUMNS,
    STREAM_KEYS,
    STREAM_ROWS,
    OutputChunks,
    Slices,
    StreamedRows,
    fit_two_query_tiles,
    goes_with_pages,
    has_scale_groups,
    stream_keys,
    streamed_stages,
)

ORDERS = ("single", "last_first", "persistent")
STREAM_SHARE = 2  # one multiprocessor in two is enough to stream keys at the speed of memory
"""A CTA has copies in flight into all its shared memory. On an H200, 2026-11-22, `bench/decode.py`:
8 sequences of 4096 keys take 36.9 us with 64 CTAs, 40.3 us with 128; one of 4096 keys takes 14.2 us
with 64, 16.3 us with 128. All of them are taken where keys of 8 bits have to be widened."""
SHARING_POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Neighbouring positions that may share a scale: the number of a block is found by a shift."""


class StreamingPolicy(FewRowsPolicy):
    """Few queries, with sums in the registers of single warps."""

    name: ClassVar[str] = "mha-streaming"
    suffix: ClassVar[str] = "stream"
    operation: ClassVar[str] = "mha"
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.WARP_PRODUCTS, Feature.COPY_ENGINE})
    claims: ClassVar[Claims] = Claims(
        kv_types=NARROW,
        most=(MAX_HEAD_DIM, MAX_HEAD_DIM),
        scales=SHARING_POSITIONS,
        combines=True,
        partial=True,
        indexed_rows=True,
    )
    knobs: ClassVar[tuple[Knob, ...]] = (
        *attention_knobs(
            *("q_tiles", "kv_stages", "tile_order"),
            tile_m=STREAM_ROWS,
            q_tiles=1,
            tile_n=STREAM_KEYS,
            exp2_period=0,
            rescale_threshold=0,
            tile_order="persistent",
        ),
        Knob("head_tiles", 1, "query tiles that follow one another along the heads of a group."),
    )

    def takes(self, facts: Facts, call: Call) -> bool:
        """Parts of a fixed size, which it combines in an order of their own; and few queries, where
        there is no kernel with fewer instructions for them."""
        if facts.split_size:
            return True
        is_few = call.has_rows(facts, most=MAX_Q_TILES * STREAM_ROWS)
        is_free = "q_tiles" not in call.asked
        is_free &= goes_with_pages(stream_keys(facts.v_head_dim), facts.page_size)
        return is_few and is_free and Feature.TENSOR_MEMORY not in call.target.features

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy, with wider heads where values are the front of the rows of keys."""
        most = MAX_SHARED_DIM if facts.shares_rows else (MAX_HEAD_DIM, MAX_HEAD_DIM)
        claims = dataclasses.replace(self.claims, most=most)
        checks: list[tuple[str, object, Domain]] = []
        if facts.combined:
            split_keys = facts.split_size or STREAM_KEYS
            checks.append(("split_size", split_keys, multiple_of(STREAM_KEYS)))
        if facts.scales is not None:
            checks.append(("k's element type", facts.kv_type, one_of(*NARROW)))
            sides = ("k_groups", facts.head_dim), ("v_groups", facts.v_head_dim)
            for (name, columns), block in zip(sides, facts.scales, strict=True):
                groups = 0 if block is None else columns // block.columns
                domain = Domain(SCALE_GROUPS, lambda n, c=columns: has_scale_groups(c, n))
                checks.append((name, groups, domain))
        knobs = claims.mismatch(facts) or first_mismatch(checks)
        return knobs or (_shared_mismatch(facts) if facts.shares_rows else None)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """Packs the heads of a group into a tile, and gives the ring what shared memory is left."""
        q_tiles = int(asked.get("q_tiles", 1))
        rows = self.query_rows(facts, q_tiles)
        stages = streamed_stages(
            call.target,
            facts.head_dim,
            facts.v_head_dim,
            q_tiles=q_tiles,
            packed=rows.packed,
            element_bits=type_bits(facts.q_type),
            stored_bits=type_bits(facts.kv_type),
            output_bits=type_bits(facts.out_type),
            combines=facts.combined,
        )
        return {
            **self.defaults,
            "tile_n": stream_keys(facts.v_head_dim),
            "kv_stages": stages,
            "packed_heads": rows.packed,
            "head_tiles": rows.head_tiles,
            "tile_order": streamed_order(facts),
            **asked,
        }

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """Shared memory is not checked here: the planner has the buffers and names them."""
        q_tiles, packed = int(knobs["q_tiles"]), int(knobs["packed_heads"])
        left = facts.group // packed if packed else 0
        along_heads = q_tiles > 0 and left % q_tiles == 0
        is_wide = Slices.of(facts.v_head_dim).warps > 1
        tiles = Domain(f"1 with v_head_dim above {STREAM_COLUMNS}", lambda count: count == 1)
        return {
            "q_tiles": tiles if is_wide else one_of(1, MAX_Q_TILES),
            "kv_stages": at_least(1),  # K leaves a slot before V is awaited
            "packed_heads": divisor_of(facts.group, most=STREAM_ROWS),
            "head_tiles": one_of(*({1: 1, q_tiles: 1} if along_heads else (1,))),
            "tile_order": streamed_orders(facts),
        }

    def rows(self, facts: Facts, call: Call) -> tuple[int, int]:
        """Those of one query tile where none are asked for."""
        rows = self.query_rows(facts, int(call.asked.get("q_tiles", 1)))
        return rows.heads, rows.positions

    def tiled(self, facts: Facts, call: Call) -> dict[str, Setting]:
        """Two query tiles where that leaves fewer work tiles, of which there are more than
        multiprocessors.
        """
        knobs = dict(call.asked)
        if "q_tiles" in knobs or call.splits:
            return knobs
        rows = self.query_rows(facts, MAX_Q_TILES)
        fit = fit_two_query_tiles(
            call.target,
            facts.head_dim,
            facts.v_head_dim,
            packed=rows.packed,
            element_bits=type_bits(facts.q_type),
            stored_bits=type_bits(facts.kv_type),
            output_bits=type_bits(facts.out_type),
        )
        tiles = self.work_tiles(facts, call)
        if not fit or tiles <= call.multiprocessors:
            return knobs
        two = {**knobs, "q_tiles": MAX_Q_TILES}
        return two if self.work_tiles(facts, call._replace(asked=two)) < tiles else knobs

    def most_splits(self, facts: Facts, call: Call) -> int:
        """As many as stream keys at the speed of memory, divided by the ranges of keys that differ,
        a sequence's of one head each; and no more than there are multiprocessors for.
        """
        ranges = call.sizes["batch"] * facts.kv_heads
        reading = call.multiprocessors // (1 if facts.kv_type in NARROW else STREAM_SHARE)
        return min(reading // ranges, super().most_splits(facts, call))

    def workspace(self, facts: Facts, query_tiles: int | None) -> Extents:
        """That of `attn.join`, for query tiles rather than work tiles."""
        return OutputChunks.of(facts.v_head_dim, query_tiles or 1).workspace()

    def combined_tiles(self, facts: Facts, call: Call) -> int:
        """Query tiles."""
        return self.work_tiles(facts, call) * int(call.asked.get("q_tiles", 1))

    @staticmethod
    def query_rows(facts: Facts, q_tiles: int) -> StreamedRows:
        """The query rows of a work tile."""
        return StreamedRows.of(
            facts.group, q_tiles, is_padded=facts.padded_q, v_head_dim=facts.v_head_dim
        )


def streamed_order(facts: Facts) -> str:
    """The order of work tiles where none is asked for."""
    return "ragged" if facts.ragged_q else "persistent"


def streamed_orders(facts: Facts) -> Domain:
    """The orders of work tiles that kernels for few queries have."""
    return one_of(*ORDERS, *(("ragged",) if facts.ragged_q else ()))


def _shared_mismatch(facts: Facts) -> Mismatch | None:
    """Why there is no kernel where values are the front of the rows of keys."""
    is_wide, slices = facts.head_dim > MAX_HEAD_DIM, Slices.of(facts.v_head_dim)
    columns = slices.warps * slices.columns
    checks: list[tuple[str, object, Domain]] = []
    if is_wide:
        checks.append(("v_head_dim", facts.v_head_dim, at_least(MAX_HEAD_DIM + 1)))
    if facts.kv_type in NARROW:
        return Mismatch("values in rows of keys of 8 bits", "left out", None)
    if facts.indexed_rows:
        checks.append(("heads", facts.heads, multiple_of(STREAM_ROWS)))
    checks.append(("head_dim", facts.head_dim, at_least(columns)))
    return first_mismatch(checks)


STREAMING = StreamingPolicy()
