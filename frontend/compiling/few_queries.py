"""How `mha-streaming` divides a call: query tiles of a work tile, and parts of the keys.

More rows than a query tile has are either work tiles of one query tile, which read the same keys,
or work tiles of two, which share each key tile. One is taken as long as each work tile, or each of
its parts, has a multiprocessor of its own:

- Its second reader costs little. Both walk the same keys at the same time, so that memory is read
  once: what all slots of all CTAs hold, 132 x 160 KiB on an H200, is less than half of its L2
  cache.
- Twice as many CTAs read, and attend with one warpgroup each: an SM that would else idle is used.
- Parts are put together by four warps with one query tile, each with 256 columns of 16 rows on
  their way: 8 parts of 128 columns in one turn. With two, registers are left for one warp with 64
  columns: 8 parts of 2 x 128 columns in 32 turns, one after the other.

Work tiles of two query tiles are taken where there are more work tiles of one than
multiprocessors: a CTA then has several in turn, and two reach the L2 cache half as often. There,
keys are not split.

The parts: as many as multiprocessors stream keys at the speed of memory (`STREAM_SHARE`), divided
by the ranges of keys that differ, a sequence's of one head each; and no more than there are
multiprocessors for. docs/lab/performance.md#decoding has what was measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.compiling.work_tiles import work_tiles
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.tiling import (
    MAX_Q_TILES,
    SWAPPED,
    StreamedRows,
    fit_two_query_tiles,
    swapped_query_tiles,
)

STREAM_SHARE = 2  # one multiprocessor in two is enough to stream keys at the speed of memory
"""A CTA has copies in flight into all its shared memory. On an H200, 2026-11-22, `bench/decode.py`:
8 sequences of 4096 keys take 36.9 us with 64 CTAs, 40.3 us with 128; one of 4096 keys takes 14.2 us
with 64, 16.3 us with 128. All of them are taken where keys of 8 bits have to be widened."""


def with_query_tiles(
    spec: MhaSpec, sizes: Mapping[str, int], machine: Machine, *, in_parts: bool = False
) -> MhaSpec:
    """The request with its query tiles where the call takes more than one; what it says itself
    stays.

    Args:
      spec: a request for a schedule for few queries.
      sizes: `batch`, and the longest `sq`.
      machine: that the call runs on.
      in_parts: whether the keys are computed in parts.
    """
    if spec.query_tiles is not None:
        return spec
    if spec.schedule == SWAPPED:
        count = swapped_query_tiles(sizes["sq"], spec.group, is_padded=spec.has_padded_queries)
    else:
        count = 1 if in_parts else _streamed_query_tiles(spec, sizes, machine)
    return dataclasses.replace(spec, query_tiles=count) if count > 1 else spec


def for_any_batch(spec: MhaSpec, sizes: Mapping[str, int], machine: Machine) -> list[MhaSpec]:
    """What `with_query_tiles` gives for as many queries and any batch; arguments as there."""
    batches = 1, machine.multiprocessors + 1
    found = [with_query_tiles(spec, {**sizes, "batch": count}, machine) for count in batches]
    return list(dict.fromkeys(found))


def streamed_parts(spec: MhaSpec, sizes: Mapping[str, int], machine: Machine) -> int:
    """Parts of the keys of a request that streams which there are multiprocessors for, or 0.

    Arguments as `with_query_tiles`.
    """
    ranges = sizes["batch"] * spec.kv_heads
    reading = machine.multiprocessors // (1 if spec.descales else STREAM_SHARE)
    tiles = work_tiles(spec, sizes, machine.target or DEFAULT_TARGET)
    return min(reading // ranges, machine.multiprocessors // tiles)


def _streamed_query_tiles(spec: MhaSpec, sizes: Mapping[str, int], machine: Machine) -> int:
    """Query tiles of a work tile that streams, where there are no parts."""
    target = machine.target or DEFAULT_TARGET
    rows = StreamedRows.of(spec.group, MAX_Q_TILES, is_padded=spec.has_padded_queries)
    fit = fit_two_query_tiles(
        target_named(target),
        spec.head_dim,
        spec.v_head_dim,
        packed=rows.packed,
        element_bits=8 if spec.is_narrow else 16,
        stored_bits=8 if spec.descales else 16,
        output_bits=32 if spec.out_dtype == "f32" else 16,
    )
    tiles = work_tiles(spec, sizes, target)
    if not fit or tiles <= machine.multiprocessors:
        return 1
    shared = work_tiles(dataclasses.replace(spec, query_tiles=MAX_Q_TILES), sizes, target)
    return MAX_Q_TILES if shared < tiles else 1
