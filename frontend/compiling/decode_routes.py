"""How a call of latent attention after absorption is computed: its schedule, work tiles, parts of the keys.

It depends on the machine and on sizes, never on the contents of device arrays, so that recorded launches
stay valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.splits import MAX_SPLITS, check_num_splits, chosen_splits, key_tiles
from attn_mlir.dialect.attn.latent import LATENT_COLUMNS
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.tiling import (
    HELD_DECODE,
    PAIR_DECODE,
    STREAM_ROWS,
    STREAMED_DECODE,
    TENSOR_DECODE,
    HalfTileRows,
    StreamedRows,
    is_for_pairs,
)

PARTS_PER_TILE = {HELD_DECODE: 16, STREAMED_DECODE: 1}
"""Parts that cost as much time where they are put together as a tile of 128 keys of one part does. Their sum is
least with sqrt(16 x tiles) parts where a kernel of its own combines them, 3.4 us for two blocks and 0.2 for a part
(an estimate from an H200's 58.6 us for 64 parts of 32768 keys of 128 heads, of which products take 14), and with
sqrt(tiles) where the last CTA does, 4 to 7 us for either: of 16384 entries of a list 11 parts, which take 116 to 120 us on an H200,
and 128 take 527."""


def decode_schedule(spec: MlaDecodeSpec, target: str, *, scope_count: int = 1) -> str:
    """The name of the schedule.

    Args:
      scope_count: number of pools of rows that a query attends to at once.

    Raises:
      SpecError: the target has none for it.
    """
    features = target_named(target).features
    if Feature.TENSOR_MEMORY in features:
        scaled = 0 if spec.indices or spec.form is None else spec.form.scaled_columns
        has_pairs = is_for_pairs(spec.heads, spec.kv_group, scaled_columns=scaled)
        return PAIR_DECODE if has_pairs else TENSOR_DECODE
    if scope_count > 1:
        raise SpecError(
            f"{target} has no kernel for extra_kv: schedule {STREAMED_DECODE} has no results for parts"
        )
    if spec.form is not None:
        raise SpecError(f"{target} has no kernel for kv_format {spec.kv_format!r} in decoding")
    if spec.indices and spec.heads % STREAM_ROWS:
        raise SpecError(
            f"{target} has no kernel for indices and {spec.heads} heads: schedule {STREAMED_DECODE} has one "
            f"for multiples of {STREAM_ROWS}"
        )
    has_groups = Feature.WARPGROUP_PRODUCTS in features
    return STREAMED_DECODE if spec.indices or not has_groups else HELD_DECODE


def check_scope_splits(num_splits: object, scope_count: int) -> int:
    """The number of parts of the keys of each scope as it is asked for; 0 chooses.

    Raises:
      SpecError: an invalid number of parts, or more than are combined.
    """
    count = check_num_splits(num_splits)
    if count * scope_count > MAX_SPLITS:
        raise SpecError(
            f"num_splits must be an integer from 0 to {MAX_SPLITS // scope_count} with extra_kv, got "
            f"{count}"
        )
    return count


def decode_splits(
    num_splits: object, spec: MlaDecodeSpec, sizes: Mapping[str, int], machine: Machine
) -> int:
    """The number of parts of the keys of a call.

    Args:
      num_splits: as of `mla_decode`.
      spec: the request, with its schedule.
      sizes: `batch`, and the longest `sq` and `sk`.
      machine: that the call runs on.

    Raises:
      SpecError: an invalid number of parts.
    """
    wanted = check_num_splits(num_splits)
    if 0 in sizes.values():
        return 1
    if wanted:
        return wanted
    target = machine.target or DEFAULT_TARGET
    most = machine.multiprocessors // decode_tiles(spec, sizes)
    tiles = key_tiles(spec.mask, sizes["sq"], sizes["sk"], target)
    if spec.schedule in PARTS_PER_TILE:
        most = min(most, math.isqrt(PARTS_PER_TILE[spec.schedule] * tiles))
    return chosen_splits(most, tiles)


def decode_tiles(spec: MlaDecodeSpec, sizes: Mapping[str, int]) -> int:
    """Number of work tiles of a call without a split; of CTAs, where a pair has one work tile."""
    if not spec.is_streamed:
        has_own_keys = spec.indices or spec.form is not None
        tile = HalfTileRows.of(spec.heads, is_listed=has_own_keys)
        return sizes["batch"] * (spec.heads // tile.heads) * -(-sizes["sq"] // tile.positions)
    rows = StreamedRows.of(spec.heads, 1, v_head_dim=LATENT_COLUMNS)
    return sizes["batch"] * (spec.heads // rows.heads) * -(-sizes["sq"] // rows.positions)
