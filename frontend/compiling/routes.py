"""Chooses the schedule of an attention call that names none.

It depends on the machine and on the number of rows that share keys (heads of a group times queries
of the longest sequence), never on the contents of device arrays, so that recorded launches stay
valid.
"""

from __future__ import annotations

import dataclasses

from attn_mlir.compiling.schedules import check_registers, check_tensor
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.tiling import (
    HELD,
    MAX_Q_TILES,
    STREAM_KEYS,
    STREAM_ROWS,
    STREAMED,
    SWAPPED,
    SWAPPED_COLUMNS,
    SWAPPED_ROWS,
    SWAPPED_TILES,
    key_tiles_for,
)


def routed(
    spec: MhaSpec, sq: int, machine: Machine, *, in_parts: bool = False, listed: bool = False
) -> MhaSpec:
    """The request with its schedule.

    Args:
      spec: the request; a schedule that it names is kept. None is kept where sums lie in tensor
        memory and the tiled kernel is taken.
      sq: queries of the longest sequence.
      machine: the machine that the call runs on.
      in_parts: whether the keys are split into parts of a fixed size, which only schedules for few
        queries put together in an order of their own.
      listed: whether lists name the key tiles, which that schedule does not support.

    Raises:
      SpecError: an option that no schedule of the machine supports.
    """
    target = target_named(machine.target or DEFAULT_TARGET)
    if Feature.TENSOR_MEMORY in target.features:
        check_tensor(spec, target.chip)
        if spec.schedule is not None or listed or spec.block is not None:
            return spec
        if _swaps(spec, sq):
            return dataclasses.replace(spec, schedule=SWAPPED)
        return dataclasses.replace(spec, schedule=STREAMED) if in_parts else spec
    check_registers(spec, target.chip)
    if spec.schedule is not None:
        return spec
    listed = listed or spec.block is not None
    has_scales = spec.cache is not None and bool(spec.cache.scale_dtype)
    few = sq * spec.group <= MAX_Q_TILES * STREAM_ROWS and spec.query_tiles is None
    page = 0 if spec.cache is None else spec.cache.page_size
    fits = STREAM_KEYS in key_tiles_for(page)
    streams = (few and fits and not listed) or in_parts or has_scales
    streams = streams or Feature.WARPGROUP_PRODUCTS not in target.features
    return dataclasses.replace(spec, schedule=STREAMED if streams else HELD)


def _swaps(spec: MhaSpec, sq: int) -> bool:
    """Whether a target with tensor memory computes few queries as columns of products.

    Where every count of `bench/rows.py` is for it (schedules/attention/keys_in_rows/README.md): from 17 rows on, and sizes that fill
    the rows of a product. With fewer, the busiest unit of the kernel that streams has less to do, and
    memory decides.
    """
    rows, most = sq * spec.group, max(SWAPPED_TILES) * SWAPPED_ROWS
    half, full = SWAPPED_COLUMNS
    sizes = (spec.head_dim, spec.v_head_dim)
    page = 0 if spec.cache is None else spec.cache.page_size
    return (
        STREAM_ROWS < rows <= most
        and all(half < size <= full for size in sizes)
        and spec.query_tiles is None
        and spec.tile_order != "clc"
        and spec.block is None
        and not spec.joined
        and not spec.descales
        and not spec.has_padded_queries
        and STREAM_KEYS in key_tiles_for(page)
    )
