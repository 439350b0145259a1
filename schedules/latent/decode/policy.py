"""The policies of latent attention after absorption: kernels, tiles, and splits of the keys.

Pairs of CTAs serve queries of 128 heads; other kernels with O in tensor memory have tiles of 64
rows, of heads and queries. With O in registers, two warpgroups compute such a tile over whole
sequences, and single warps 16 rows over indexed rows.
"""

from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import WIDE
from attn_mlir.schedules.attention.streaming.policy import STREAMING
from attn_mlir.schedules.latent.common.policy import (
    HALF_TILE_HEADS,
    PAIR_FEATURES,
    HalfTileRows,
    PairPolicy,
)
from attn_mlir.schedules.policy.base import Call, Claims, Extents
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Domain, Knob, Knobs, at_least, half_tile_knobs
from attn_mlir.schedules.policy.refusal import Mismatch
from attn_mlir.schedules.policy.splits import SplitPolicy
from attn_mlir.schedules.policy.tiling import StreamedRows

KEYS = 64  # of a tile


class DecodePolicy(SplitPolicy):
    """Tiles of 64 rows, with O in tensor memory."""

    name: ClassVar[str] = "mla-decode"
    suffix: ClassVar[str] = "tensor"
    operation: ClassVar[str] = "mla_decode"
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TENSOR_MEMORY, Feature.COPY_ENGINE, Feature.GATHER_COPIES}
    )
    claims: ClassVar[Claims] = Claims(
        types=WIDE,
        heads=HALF_TILE_HEADS,
        key_tiles=(KEYS,),
        partial=True,
        indexed_rows=True,
        rows=True,
    )
    knobs: ClassVar[tuple[Knob, ...]] = half_tile_knobs()

    def takes(self, facts: Facts, call: Call) -> bool:
        """Problems that no earlier policy takes."""
        return True

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """Packs as many heads into a tile as divide them."""
        return {**self.defaults, "packed_heads": self.rows(facts, call)[0], **asked}

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """Only stages may differ."""
        return {"kv_stages": at_least(1)}

    def rows(self, facts: Facts, call: Call) -> tuple[int, int]:
        """As many heads as divide them, and queries that share keys."""
        has_own_keys = facts.indexed_rows or facts.rows is not None
        return HalfTileRows.of(facts.heads, is_listed=has_own_keys)


class DecodePairPolicy(PairPolicy, DecodePolicy):
    """128 heads in a pair of CTAs, with O in tensor memory."""

    name: ClassVar[str] = "mla-decode-pair"
    kernel: ClassVar[str] = "kernel_pair"
    needs: ClassVar[frozenset[Feature]] = DecodePolicy.needs | PAIR_FEATURES


class DecodeWarpgroupPolicy(DecodePolicy):
    """Tiles of 64 rows, with O in the registers of two warpgroups."""

    name: ClassVar[str] = "mla-decode-registers"
    kernel: ClassVar[str] = "kernel_warpgroups"
    suffix: ClassVar[str] = "held"
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WARPGROUP_PRODUCTS, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )
    claims: ClassVar[Claims] = Claims(
        types=WIDE, heads=HALF_TILE_HEADS, key_tiles=(KEYS,), partial=True
    )
    splits_per_tile: ClassVar[int] = 16
    """A second kernel combines them: 3.4 us for two blocks and 0.2 for a split, an estimate from an
    H200's 58.6 us for 64 splits of 32768 keys of 128 heads, of which products take 14."""

    def takes(self, facts: Facts, call: Call) -> bool:
        """Whole sequences: even a tile of few rows takes less time than single warps."""
        return True


class DecodeStreamingPolicy(DecodePolicy):
    """16 rows, with accumulators in the registers of single warps; as streaming attention."""

    name: ClassVar[str] = "mla-decode-streaming"
    kernel: ClassVar[str] = "kernel_streaming"
    suffix: ClassVar[str] = "stream"
    needs: ClassVar[frozenset[Feature]] = STREAMING.needs
    knobs: ClassVar[tuple[Knob, ...]] = STREAMING.knobs
    combines_splits: ClassVar[bool] = True
    splits_per_tile: ClassVar[int] = 1
    """The last CTA combines them, which takes 4 to 7 us: for 16384 entries of a list 11 splits take
    116 to 120 us on an H200, and 128 take 527."""

    def takes(self, facts: Facts, call: Call) -> bool:
        """Problems on targets without tensor memory."""
        return Feature.TENSOR_MEMORY not in call.target.features

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of attention, without partial results."""
        if facts.rows is not None:
            return Mismatch("rows of 8 bits", "left out", None)
        if facts.partial:
            return Mismatch("results for parts of the keys", "left out", None)
        return STREAMING.mismatch(facts, target)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """As of attention."""
        return STREAMING.choose(facts, call, asked)

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """As of attention."""
        return STREAMING.domains(facts, target, knobs)

    def workspace(self, facts: Facts, query_tiles: int | None) -> Extents:
        """As of attention."""
        return STREAMING.workspace(facts, query_tiles)

    def rows(self, facts: Facts, call: Call) -> tuple[int, int]:
        """Those of one query tile."""
        rows = StreamedRows.of(facts.heads, 1, v_head_dim=facts.v_head_dim)
        return rows.heads, rows.positions


DECODE, DECODE_PAIR, DECODE_WARPGROUPS, DECODE_STREAMING = (
    DecodePolicy(),
    DecodePairPolicy(),
    DecodeWarpgroupPolicy(),
    DecodeStreamingPolicy(),
)
