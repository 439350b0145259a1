"""Shared-memory swizzles: an XOR of absolute address bits (spec-ptx 2.5 and 7.5).

TMA writes and matrix-descriptor reads agree because both apply the XOR to the absolute offset in
the CTA's window, never to the offset from a tile's start.

    128B:  bits 6..4 ^= bits 9..7          0x0480 -> 0x0490
    64B:   bits 5..4 ^= bits 8..7
    32B:   bit  4    ^= bit  7
    128B with 32-byte atoms: bits 6..5 ^= bits 8..7; "flip8B" then also bit 3 ^= bit 7
    128B with 64-byte atoms: bit 6 ^= bit 7
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Swizzle:
    """One mode.

    Attributes:
      name: as used by tensor maps and descriptors here.
      mask: how many row-phase values there are, minus one (address bits from bit 7).
      shift: where the row phase is XORed in (bit position).
      span_bytes: pitch of one row of the pattern; 16 for "none".
      flips_8_bytes: also swap the 8-byte halves of odd 128-byte rows.
    """

    name: str
    mask: int
    shift: int
    span_bytes: int
    flips_8_bytes: bool = False

    @property
    def period_bytes(self) -> int:
        """Distance after which the pattern repeats."""
        return 128 * (self.mask + 1)


SWIZZLES = {
    s.name: s
    for s in (
        Swizzle("none", 0, 4, 16),
        Swizzle("32B", 1, 4, 32),
        Swizzle("64B", 3, 4, 64),
        Swizzle("128B", 7, 4, 128),
        Swizzle("128B_atom32B", 3, 5, 128),
        Swizzle("128B_atom32B_flip8B", 3, 5, 128, flips_8_bytes=True),
        Swizzle("128B_atom64B", 1, 6, 128),
    )
}


def xor_addresses(addresses: npt.NDArray[np.integer[Any]], name: str) -> npt.NDArray[np.int64]:
    """Where the bytes at linear `addresses` really live, for the mode `name`."""
    mode = SWIZZLES[name]
    linear = addresses.astype(np.int64)
    out = linear ^ (((linear >> 7) & mode.mask) << mode.shift)
    if mode.flips_8_bytes:
        out ^= (out >> 4) & 8
    return out


def xor_address(address: int, name: str) -> int:
    """`xor_addresses` for one address."""
    return int(xor_addresses(np.array([address]), name)[0])
