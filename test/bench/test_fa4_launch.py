"""Recorded launches of FlashAttention's kernel, with the addresses of other tensors."""

from __future__ import annotations

import struct

from attn_mlir.bench.peers.fa4_launch import placed

Q, O = 0x7F00_1000_0000, 0x7F00_4000_0000  # noqa: E741


def test_addresses_are_replaced_wherever_a_word_is_one() -> None:
    """A number, a tensor map that begins with its address, and a structure with a pointer first."""
    map_of = struct.Struct("<Q15Q")
    recorded = [
        struct.pack("<f", 0.125).hex(),
        map_of.pack(Q, *range(15)).hex(),
        struct.pack("<QiiQ7s", O, 3, 4, 5, b"seven b").hex(),
        "00",
    ]
    found = placed(recorded, {Q: 0x1000, O: 0x2000})
    assert found == [
        struct.pack("<f", 0.125),
        map_of.pack(0x1000, *range(15)),
        struct.pack("<QiiQ7s", 0x2000, 3, 4, 5, b"seven b"),
        b"\0",
    ]
    assert placed(recorded, {})[1] == map_of.pack(Q, *range(15))
