"""In which order the work tiles of a call start, and how large they are, where sizes decide.

Tiles drawn from a counter begin while the one before them ends, and the longest ones first. It
costs a place of its own for O, hence smaller key tiles at wide heads, and a counter per launch. On
an H200 (`bench/attention.py`, 2026-11-23, 2048 // D heads, 16384 tokens) that was, in times the
speed of a CTA per tile:

| head size | full 1024 | 4096 | 16384 | causal 1024 | 4096 | 16384 |
| --- | --- | --- | --- | --- | --- | --- |
| 64 | 1.06, with three groups 1.14 | 1.04 | 0.99 | 1.23 | 1.06 | 1.02 |
| 128 | 1.06 | 1.02 | 0.98 | 1.13 | 1.06 | 1.02 |
| 256 | 0.98 | 0.97 | 0.94 | 1.09 | 1.05 | 0.95 |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.compiling.work_tiles import kernel_block, work_tiles
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.binding import GRID_LIMITS
from attn_mlir.schedules.policy.held_tiling import held_tiling_for
from attn_mlir.schedules.policy.tile_order import grows
from attn_mlir.schedules.policy.tiling import HELD, query_tiles_for

LEAST_COUNTED = 160  # work tiles: machines of the targets have a CTA for each of fewer
LONG_KEYS = 8192  # in longer sequences, a tile's begin and end count for little
NARROW, DRAWN_SPARE = 96, 1.15  # columns of V up to which a third group is worth so many spare rows


def with_tiles(spec: MhaSpec, sizes: Mapping[str, int], target: str, *, split: bool) -> MhaSpec:
    """The request with its query tiles and, of a kernel in registers, the order of work tiles.

    What the request says stays; None leaves it to the schedule.

    Args:
      spec: a request with its schedule, of a kernel that does not stream.
      sizes: `batch` and the longest `sq` and `sk`.
      target: the chip.
      split: whether the keys are computed in parts.

    Raises:
      SpecError: the request names more query tiles than there is a kernel for.
    """
    tiles, is_free = spec.query_tiles, spec.query_tiles is None and spec.block is None
    chip = target_named(target)
    if is_free:
        tiles = query_tiles_for(chip, sizes["sq"], spec.group)
    kernel = dataclasses.replace(spec, query_tiles=tiles)
    if spec.query_tiles is not None:
        kernel_block(spec, sizes["sq"], target, listed=spec.block is not None)  # refuses too many
    if spec.tile_order is not None or split or not _is_drawn(kernel, sizes, target):
        return kernel
    if is_free and spec.v_head_dim <= NARROW and not grows(spec.mask):
        tiles = query_tiles_for(chip, sizes["sq"], spec.group, spare=DRAWN_SPARE)
    return dataclasses.replace(kernel, query_tiles=tiles, tile_order="counter")


def folded(spec: MhaSpec, sizes: Mapping[str, int], *, parts: int = 1) -> MhaSpec:
    """The request with work tiles on one axis of the grid, where its batch is larger than another
    has room for.

    Dense sequences are the grid's last axis, which ends at 65,535. CTAs that loop over work tiles
    have them all on the first. An order that is asked for stays.

    Args:
      spec: a request with its schedule.
      sizes: `batch`.
      parts: of the keys, which have a work tile each.
    """
    is_free = spec.tile_order is None and not spec.lengths.ragged_q
    if not is_free or sizes["batch"] * parts <= GRID_LIMITS[-1]:
        return spec
    return dataclasses.replace(spec, tile_order="persistent")


def for_all_sizes(
    spec: MhaSpec, sizes: Mapping[str, int], target: str, *, split: bool
) -> list[MhaSpec]:
    """What `with_tiles` gives for as many queries and any batch and number of keys.

    Arguments as `with_tiles`.
    """
    found: list[MhaSpec] = []
    for batch in (sizes["batch"], 1, LEAST_COUNTED):
        for sk in (sizes["sk"], LONG_KEYS, LONG_KEYS + 1):
            one = with_tiles(spec, {**sizes, "batch": batch, "sk": sk}, target, split=split)
            if one not in found:
                found.append(one)
    return found


def _is_drawn(spec: MhaSpec, sizes: Mapping[str, int], target: str) -> bool:
    """Whether work tiles are drawn from a counter: where that is faster."""
    if spec.schedule != HELD or spec.cache is not None or spec.lengths.ragged_q:
        return False
    is_long, differ = sizes["sk"] > LONG_KEYS, grows(spec.mask)
    if (is_long and not differ and not spec.is_narrow) or work_tiles(
        spec, sizes, target
    ) < LEAST_COUNTED:
        return False
    costs = _tiles(spec, "counter", target) != _tiles(spec, "single", target)
    return not costs or (differ and not is_long and spec.block is None and not spec.is_narrow)


def _tiles(spec: MhaSpec, order: str, target: str) -> tuple[int, int] | None:
    """Groups and keys of the tiles of a kernel with this order; None where it has none."""
    try:
        return held_tiling_for(
            target_named(target),
            spec.head_dim,
            spec.v_head_dim,
            tile_order=order,
            element_bits=8 if spec.is_narrow else 16,
            output_bits=32 if spec.out_dtype == "f32" else 16,
            groups=spec.query_tiles or 0,
            listed=spec.block is not None,
        )[:2]
    except SpecError:
        return None
