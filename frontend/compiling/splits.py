"""Splits of the keys: how many parts, and the request for the kernel that computes them.

With few queries there are fewer work tiles than multiprocessors, and the keys are divided among
CTAs: each computes O and LSE for its part. `joins_parts` says who combines them: the last CTA of a
work tile, or a second kernel (`attn_mlir.compiling.combination`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from attn_mlir.compiling import options
from attn_mlir.compiling.schedules import MAX_F32_HEAD_DIM
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.compiling.work_tiles import work_tiles
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.passes.target.limits import DEFAULT_TARGET, target_named
from attn_mlir.passes.target.tiling import STREAM_KEYS, STREAMED, TILE_N
from attn_mlir.runtime.kernel import Machine
from attn_mlir.runtime.scalars import integer

MAX_SPLITS = 256  # as FlashAttention-4's combine kernel
FEW_KEY_TILES = 4  # below, a split costs more than it gives (FlashAttention-4)
MAX_CHOSEN = 128  # parts that the rule takes at most (FlashAttention-4)
STREAM_SHARE = 2  # of so many multiprocessors one is enough to stream keys at the speed of memory
"""A CTA that streams has all its shared memory in flight. On an H200, 2026-11-22, `bench/decode.py`:
8 sequences of 4096 keys take 36.9 us with 64 CTAs, 40.3 us with 128; one of 4096 keys takes 14.2 us
with 64, 16.3 us with 128."""


def check_num_splits(num_splits: object) -> int:
    """A number of parts: 1 is no split, 0 leaves it to `chosen_splits`.

    Raises:
      SpecError: says what was got.
    """
    return integer("num_splits", num_splits, 0, MAX_SPLITS, also=" (0 chooses)")


def split_count(
    num_splits: object, spec: MhaSpec, sizes: Mapping[str, int], machine: Callable[[], Machine]
) -> int:
    """The number of parts of a call.

    Args:
      num_splits: as of `attention`.
      spec: the request without a split.
      sizes: `batch`, and the longest `sq` and `sk`.
      machine: says what the call runs on.

    Raises:
      SpecError: no number of parts, or no kernel for parts of this request.
    """
    wanted = check_num_splits(num_splits)
    if wanted == 1:
        return 1
    fits = spec.v_head_dim <= MAX_F32_HEAD_DIM or joins_parts(spec)
    if wanted > 1 and not fits:
        raise SpecError(
            f"num_splits {wanted} needs v_head_dim of at most {MAX_F32_HEAD_DIM}, got "
            f"{spec.v_head_dim}: the parts' O is f32 and would exceed shared memory; pass 1"
        )
    if wanted > 1 and spec.block is not None:
        raise SpecError(f"num_splits {wanted} and a block_mask have no kernel: pass num_splits 1")
    if 0 in sizes.values() or not fits or spec.block is not None:
        return 1
    if wanted:
        return wanted
    found = machine()
    target = found.target or DEFAULT_TARGET
    streams = spec.schedule == STREAMED
    return chosen_splits(
        work_tiles=work_tiles(spec, sizes, target),
        key_tiles=key_tiles(spec.mask, sizes["sq"], sizes["sk"], target),
        multiprocessors=found.multiprocessors
        // (STREAM_SHARE if streams and not spec.descales else 1),
    )


def fixed_split(
    split_size: object,
    num_splits: object,
    spec: MhaSpec,
    sizes: Mapping[str, int],
    machine: Machine,
) -> tuple[int, int]:
    """The keys of a part and the number of parts of a call with parts of a fixed size.

    There are as many as the longest sequence could need, whatever mask it has; a shorter one has
    parts without keys behind its own, which change no bit. So a sequence's results do not depend on
    the others of its batch.

    Args:
      split_size, num_splits: as of `attention`; the others as of `split_count`.

    Raises:
      SpecError: no size, or no kernel for parts of this request.
    """
    keys = options.split_size(split_size)
    if check_num_splits(num_splits) != 1:
        raise SpecError(f"split_size excludes num_splits, got {num_splits!r:.40}")
    if spec.block is not None:
        raise SpecError(f"split_size {keys} and a block_mask have no kernel: leave it out")
    if not joins_parts(spec):
        raise SpecError(
            f"split_size {keys} needs schedule {STREAMED}, whose parts are put together in an order "
            f"of their own, got {spec.schedule or 'none'} on {machine.target or DEFAULT_TARGET}"
        )
    count = max(-(-sizes["sk"] // keys), 1)
    if count > MAX_SPLITS:
        least = -(-sizes["sk"] // (MAX_SPLITS * STREAM_KEYS)) * STREAM_KEYS
        raise SpecError(
            f"split_size {keys} makes {count} parts of {sizes['sk']} keys, allowed are "
            f"{MAX_SPLITS}: pass at least {least}"
        )
    return keys, count


def joins_parts(spec: MhaSpec) -> bool:
    """Whether the kernel of the parts combines them itself.

    The kernel that streams keys does: its O is of few rows, which the last CTA of a work tile reads
    in less time than a second launch takes. The parts of many queries are combined by a kernel whose
    CTAs share that work.
    """
    return spec.schedule == STREAMED


def part_spec(spec: MhaSpec) -> MhaSpec:
    """The request for the kernel of the parts, which another one combines."""
    return dataclasses.replace(spec, partial=True, out_dtype="f32", return_lse=True)


def key_tiles(mask: Mask, sq: int, sk: int, target: str = DEFAULT_TARGET) -> int:
    """The most key tiles that some query's tile visits, at least 1."""
    from attn_mlir.dialect.attn.masks import INTS

    keys, rows = max(TILE_N), target_named(target).rows_per_product
    ranges = (mask.tile_range(INTS, row, rows, sq, sk, keys) for row in range(0, sq, rows))
    return max((found.end - found.begin for found in ranges), default=1) or 1


def chosen_splits(*, work_tiles: int, key_tiles: int, multiprocessors: int) -> int:
    """The number of parts for `num_splits=0`.

    One where there are at most 4 key tiles or work for every multiprocessor already; else as many
    as multiprocessors per work tile, at most one per key tile and 128 (the rule of
    FlashAttention-4 for SM100). Depends on sizes only, never on what a device array holds.
    """
    if key_tiles <= FEW_KEY_TILES:
        return 1
    return max(min(multiprocessors // max(work_tiles, 1), MAX_CHOSEN, key_tiles), 1)
