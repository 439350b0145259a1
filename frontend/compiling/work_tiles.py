"""The work tiles of a request's kernel, computed without compiling it."""

from __future__ import annotations

from collections.abc import Mapping

from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError
from attn_mlir.schedules.policy.held_tiling import held_tiling_for
from attn_mlir.schedules.policy.refusal import NoRoom, no_kernel
from attn_mlir.schedules.policy.tiling import (
    HELD,
    STREAMED,
    SWAPPED,
    StreamedRows,
    SwappedRows,
    packed_heads,
    query_tiles_for,
    swapped_query_tiles,
    tiling_for,
)


def kernel_block(
    spec: MhaSpec, sq: int, target: str = DEFAULT_TARGET, *, listed: bool = False
) -> Block:
    """The extents of the block of scores of one work tile and one key tile of a request's kernel.

    Args:
      spec: the request.
      sq: queries of the longest sequence; if few, work tiles have one query tile by default.
      target: the chip.
      listed: whether lists name the key tiles.

    Raises:
      SpecError: there is no kernel.
      TargetError: no such chip.
    """
    machine = target_named(target)
    heads = packed_heads(machine, spec.group)
    tiles = spec.query_tiles or query_tiles_for(machine, sq, spec.group)
    order = spec.tile_order or "single"
    output_bits = 32 if spec.out_dtype == "f32" else 16
    page_size = 0 if spec.cache is None else spec.cache.page_size
    sizes = (machine, spec.head_dim, spec.v_head_dim)
    try:
        if spec.schedule == HELD:
            tiling = held_tiling_for(
                *sizes,
                tile_order=order,
                element_bits=8 if spec.is_narrow else 16,
                output_bits=output_bits,
                page_size=page_size,
                groups=0 if listed else tiles or 0,
                listed=listed,
            )
        else:
            tiling = tiling_for(
                *sizes,
                q_tiles=tiles,
                tile_order=order,
                element_bits=8 if spec.is_narrow else 16,
                output_bits=output_bits,
                page_size=page_size,
            )
    except NoRoom as error:
        raise SpecError(f"{target} {no_kernel([error.reason])}") from error
    return Block(tiling.q_tiles * machine.rows_per_product // heads, heads, tiling.tile_n)


def work_tiles(spec: MhaSpec, sizes: Mapping[str, int], target: str = DEFAULT_TARGET) -> int:
    """Number of work tiles of a call without a split, as if all sequences had the longest length.

    Args:
      spec: the request; one that streams has one query tile where it names no number.
      sizes: `batch`, and the longest `sq`.
      target: the chip.

    Raises:
      SpecError: there is no kernel.
      TargetError: no such chip.
    """
    if spec.schedule in (STREAMED, SWAPPED):
        is_padded = spec.has_padded_queries
        if spec.schedule == STREAMED:
            rows = StreamedRows.of(spec.group, spec.query_tiles or 1, is_padded=is_padded)
        else:
            tiles = swapped_query_tiles(sizes["sq"], spec.group, is_padded=is_padded)
            rows = SwappedRows.of(spec.group, spec.query_tiles or tiles, is_padded=is_padded)
        heads, positions = rows.heads, rows.positions
    else:
        block = kernel_block(spec, sizes["sq"], target, listed=spec.block is not None)
        heads, positions = block.heads, block.positions
    return sizes["batch"] * (spec.heads // heads) * -(-sizes["sq"] // positions)
