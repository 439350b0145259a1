"""The rings of dense latent attention: one of keys and values, one of either, or rope apart, by what fits."""

from __future__ import annotations

import pytest

from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.schedules.latent.prefill.policy import RingSlots

TARGET = target_named("sm_100a")
LEFT = TARGET.smem_bytes - 2048  # beside what is staged


def chosen(sizes: tuple[int, int, int], staged: int, whole: int, **options: int) -> RingSlots:
    return RingSlots.of(TARGET, sizes, whole=whole, tile_n=128, staged_bytes=staged, **options)


@pytest.mark.parametrize(
    ("staged", "whole", "bits", "found"),
    [
        (2 * 49152, 2, 16, RingSlots(3, 2)),  # two query tiles: 3 x 32768 + 2 x 16384
        (49152, 3, 16, RingSlots(2, 0, 2)),  # 2 x (49152 + 32768) in place of 3 x 49152
        (2 * 32768, 5, 8, RingSlots(8, 4)),  # 8 x 16384 + 4 x 8192 in place of 3 x (32768 + 16384)
        (32768, 6, 8, RingSlots(9, 5)),
        (LEFT - 3 * 49152, 3, 16, RingSlots(3, 0)),  # an odd number: keys and values share a ring
        (LEFT - 2 * 81920, 3, 16, RingSlots(2, 0, 2)),  # an even one
        (LEFT - 2 * 81920 + 1, 3, 16, RingSlots(3, 0)),
    ],
)
def test_what_has_more_slots_is_taken(staged: int, whole: int, bits: int, found: RingSlots) -> None:
    """Of 128 columns of nope, 64 of rope and 128 of values."""
    assert chosen((128, 64, 128), staged, whole, bits=bits) == found


@pytest.mark.parametrize(
    ("sizes", "bits", "found"),
    [
        ((128, 64, 128), 8, RingSlots(5, 3)),  # lines of 64 bytes: 8192 of a slot of rope
        ((128, 32, 128), 8, RingSlots(5, 3)),  # of 32
        ((128, 128, 128), 8, RingSlots(2, 0, 2)),  # of 128, and nothing is padded
        ((128, 64, 256), 8, RingSlots(3, 0)),  # values take the room of nope and rope
        ((64, 32, 64), 16, RingSlots(5, 3)),
    ],
)
def test_rope_is_apart_where_its_lines_are_shorter(
    sizes: tuple[int, int, int], bits: int, found: RingSlots
) -> None:
    """106496 bytes for slots: three of 32768, two of these and two of 16384, or five of 16384 and three of 8192."""
    assert chosen(sizes, LEFT - 106496, 3, bits=bits) == found


def test_rope_that_warps_write_is_in_lines_of_128_bytes() -> None:
    """Of 64 columns of 8 bits: slots of 16384 in place of 8192."""
    options = {"tile_n": 128, "staged_bytes": LEFT - 106496, "bits": 8, "whole": 3}
    assert RingSlots.of(TARGET, (128, 64, 128), is_apart=True, **options) == RingSlots(4, 2)


def test_values_as_wide_as_keys_have_no_ring_of_their_own() -> None:
    assert chosen((64, 64, 128), LEFT - 6 * 32768, 6) == RingSlots(6, 0)
