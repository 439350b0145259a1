"""The 128 bytes of a tensor map, written from the description of its bits."""

from __future__ import annotations

import math
import struct

from attn_mlir.validation.differential.case import MapSpec, Program

# CUtensorMapDataType -> (hardware code, bytes); tf32 is f32 with a flag
ELEMENTS = {
    0: (0, 1), 1: (1, 2), 2: (2, 4), 3: (3, 4), 4: (4, 8), 5: (5, 8), 6: (6, 2), 7: (7, 4),
    8: (9, 8), 9: (10, 2), 10: (8, 4), 11: (7, 4), 12: (8, 4),
}  # fmt: skip
TF32 = (11, 12)


def encode(spec: MapSpec, address: int) -> bytes:
    """As `cuTensorMapEncodeTiled` would."""
    code, size = ELEMENTS[spec.element]
    words = [0] * 32
    words[0], words[1] = address & 0xFFFFFFFF, address >> 32
    words[2] = (
        (len(spec.dims) - 1) << 4
        | code << 7
        | spec.interleave << 11
        | min(spec.swizzle, 3) << 13
        | spec.fill << 15
        | (spec.element in TF32) << 16
        | spec.promotion << 17
        | max(spec.swizzle - 3, 0) << 19
    )
    for index, stride in enumerate(spec.strides):
        words[3 + index] = (stride >> 4) & 0xFFFFFFFF
        words[7] |= (stride >> 36) << (4 * index)
    for index, extent in enumerate(spec.dims):
        words[8 + index] = extent - 1
    for index, step in enumerate(spec.steps):
        words[13] |= (step - 1) << (3 * index)
    words[13] |= (spec.box[0] - 1) << 24
    for index, box in enumerate(spec.box[1:]):
        words[14] |= (box - 1) << (8 * index)
    words[16] = size * math.prod(b // s for b, s in zip(spec.box, spec.steps, strict=True))
    words[18] = {0: 0x10, 1: 0x100, 2: 0x200}.get(spec.swizzle, 0x400)
    return struct.pack("<32I", *words)


def relocated(program: Program, index: int, address: int) -> bytes:
    """A program's map for a tensor at another address."""
    if program.map_bytes:
        return struct.pack("<Q", address) + program.map_bytes[index][8:]
    return encode(program.maps[index], address)
