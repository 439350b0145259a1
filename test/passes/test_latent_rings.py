"""The rings of dense latent attention: one of keys and values, one of either, or rope apart, by what fits."""

from __future__ import annotations

import pytest

from attn_mlir.passes.schedule.parts.latent_storage import RingSlots
from attn_mlir.passes.target.limits import target_named

TARGET = target_named("sm_100a")
LEFT = TARGET.smem_bytes - 2048  # beside what is staged


def chosen(sizes: tuple[int, int, int], staged: int, whole: int, **options: int) -> RingSlots:
    return RingSlots.of(TARGET, sizes, whole=whole, tile_n=128, staged_bytes=staged, **options)


@pytest.mark.parametrize(
    ("staged", "whole", "bits", "found"),
    [
        (2 * 49152, 2, 16, RingSlots(3, 2)),  # two query tiles: 3 x 32768 + 2 x 16384
        (49152, 3, 16, RingSlots(2, 0, 2)),  # 2 x (49152 + 32768) in place of 3 x 49152
        (2 * 32768, 5, 8, RingSlots(3, 0, 3)),  # 3 x (32768 + 16384) in place of 5 x 32768
        (32768, 6, 8, RingSlots(4, 0, 4)),
        (LEFT - 3 * 49152, 3, 16, RingSlots(3, 0)),  # an odd number: keys and values share a ring
        (LEFT - 2 * 81920, 3, 16, RingSlots(2, 0, 2)),  # an even one
        (LEFT - 2 * 81920 + 1, 3, 16, RingSlots(3, 0)),
    ],
)
def test_what_has_more_slots_is_taken(staged: int, whole: int, bits: int, found: RingSlots) -> None:
    """Of 128 columns of nope, 64 of rope and 128 of values."""
    assert chosen((128, 64, 128), staged, whole, bits=bits) == found


def test_values_as_wide_as_keys_have_no_ring_of_their_own() -> None:
    assert chosen((64, 64, 128), LEFT - 6 * 32768, 6) == RingSlots(6, 0)
