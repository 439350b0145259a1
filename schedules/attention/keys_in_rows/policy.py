"""The policy of attention past few queries whose products have keys in their rows."""

from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import WIDE, type_bits
from attn_mlir.schedules.attention.streaming.policy import streamed_order, streamed_orders
from attn_mlir.schedules.policy.attention import FewRowsPolicy
from attn_mlir.schedules.policy.base import Call, Claims, Extents
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
    KEYS_IN_ROWS_COLUMNS,
    KEYS_IN_ROWS_QUERIES,
    KEYS_IN_ROWS_TILES,
    MAX_HEAD_DIM,
    STREAM_KEYS,
    STREAM_ROWS,
    KeysInRowsTile,
    OutputChunks,
    keys_in_rows_query_tiles,
    keys_in_rows_stages,
)


class KeysInRowsPolicy(FewRowsPolicy):
    """Few queries, which are columns of products in tensor memory."""

    name: ClassVar[str] = "mha-swapped"
    suffix: ClassVar[str] = "swapped"
    by_name: ClassVar[bool] = True
    operation: ClassVar[str] = "mha"
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.TENSOR_MEMORY, Feature.COPY_ENGINE})
    claims: ClassVar[Claims] = Claims(
        types=WIDE,
        most=(MAX_HEAD_DIM, max(KEYS_IN_ROWS_COLUMNS)),
        key_tiles=(STREAM_KEYS,),
        combines=True,
        partial=True,
    )
    most_query_tiles: ClassVar[int] = max(KEYS_IN_ROWS_TILES)
    knobs: ClassVar[tuple[Knob, ...]] = attention_knobs(
        *("q_tiles", "kv_stages", "tile_order"),
        tile_m=KEYS_IN_ROWS_QUERIES,
        q_tiles=1,
        tile_n=STREAM_KEYS,
        exp2_period=0,
        tile_order="persistent",
    )

    def takes(self, facts: Facts, call: Call) -> bool:
        """Few queries, where every count of `bench/rows.py` is for it (README.md).

        From 17 rows on, and sizes that fill the rows of a product. With fewer, the busiest unit of
        the kernel that streams has less to do, and memory decides.
        """
        below, widest = KEYS_IN_ROWS_COLUMNS
        sizes = (facts.head_dim, facts.v_head_dim)
        is_free = "q_tiles" not in call.asked and call.asked.get("tile_order") != "clc"
        most = max(KEYS_IN_ROWS_TILES) * KEYS_IN_ROWS_QUERIES
        return (
            call.has_rows(facts, least=STREAM_ROWS + 1, most=most)
            and all(below < size <= widest for size in sizes)
            and is_free
            and not facts.combined
            and not facts.padded_q
        )

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy; splits of the keys are whole key tiles."""
        split_keys = multiple_of(STREAM_KEYS)
        if facts.split_size and not split_keys.allows(facts.split_size):
            return Mismatch("split_size", split_keys.text, facts.split_size)
        return super().mismatch(facts, target)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """Packs the heads of a group into a tile, and gives the rings what shared memory is left.

        Query tiles that are asked for are of 8 rows, which make one tile of the kernel.
        """
        tiles = int(asked.get("q_tiles", 0)) or _query_tiles(facts, 1)
        rows = KeysInRowsTile.of(facts.group, tiles, is_padded=facts.padded_q)
        stages = keys_in_rows_stages(
            call.target,
            facts.head_dim,
            facts.v_head_dim,
            rows,
            output_bits=type_bits(facts.out_type),
        )
        return {
            **self.defaults,
            "tile_m": rows.rows,
            "kv_stages": stages,
            "packed_heads": rows.heads,
            "tile_order": streamed_order(facts),
            **{name: value for name, value in asked.items() if name != "q_tiles"},
        }

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """Shared memory is not checked here: the planner has the buffers and names them."""
        return {
            "tile_m": one_of(*(count * KEYS_IN_ROWS_QUERIES for count in KEYS_IN_ROWS_TILES)),
            "kv_stages": at_least(2),
            "packed_heads": divisor_of(facts.group, most=int(knobs["tile_m"])),
            "tile_order": streamed_orders(facts),
        }

    def rows(self, facts: Facts, call: Call) -> tuple[int, int]:
        """Those of as many query tiles as queries fill, where none are asked for."""
        tiles = int(call.asked.get("q_tiles", 0)) or _query_tiles(facts, call.sizes["sq"])
        rows = KeysInRowsTile.of(facts.group, tiles, is_padded=facts.padded_q)
        return rows.heads, rows.positions

    def tiled(self, facts: Facts, call: Call) -> dict[str, Setting]:
        """As many query tiles as queries fill, where these are several."""
        count = _query_tiles(facts, call.sizes["sq"])
        return {**({"q_tiles": count} if count > 1 else {}), **call.asked}

    def workspace(self, facts: Facts, query_tiles: int | None) -> Extents:
        """The rows of a work tile, with O as one chunk."""
        rows = (query_tiles or _query_tiles(facts, 1)) * KEYS_IN_ROWS_QUERIES
        return OutputChunks.whole(max(KEYS_IN_ROWS_COLUMNS)).workspace(rows)


def _query_tiles(facts: Facts, sq: int) -> int:
    """The number of query tiles for so many queries."""
    return keys_in_rows_query_tiles(sq, facts.group, is_padded=facts.padded_q)


KEYS_IN_ROWS = KeysInRowsPolicy()
