"""How the tensor core is told where its operands lie: matrix and instruction descriptors.

Pure functions over integers. Sources: PTX ISA, tcgen05 matrix descriptor, instruction descriptor
and canonical layouts.
"""

from dataclasses import dataclass

from .shared import SWIZZLE_BYTES, TILE_ALIGNMENT, UNIT_BYTES

MMA_K_BYTES = 32  # K of one instruction: 16 elements of kind::f16, 32 of kind::f8f6f4

DESCRIPTOR_CONSTANT = 1 << 46  # bits 46..48, sm_100
SWIZZLE_128B = 2 << 61  # bits 61..63, sm_100

# element type: kind of the instruction, code in bits 7..9 and 10..12 of its descriptor
ELEMENT_CODES = {
    "f16": ("f16", 0),
    "bf16": ("f16", 1),
    "f8E4M3FN": ("f8f6f4", 0),
    "f8E5M2": ("f8f6f4", 1),
}


def mma_k(element_bits: int) -> int:
    """K of one instruction."""
    return MMA_K_BYTES * 8 // element_bits


@dataclass(frozen=True)
class Operand:
    """How an MMA operand in shared memory is described.

    Attributes:
      descriptor: the 64-bit descriptor with a start address of 0.
      step_bytes: per K step of 32 bytes, the bytes by which the start address moves.
    """

    descriptor: int
    step_bytes: tuple[int, ...]


def _descriptor(*, leading_bytes: int, stride_bytes: int) -> int:
    fields = (leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32
    return SWIZZLE_128B | DESCRIPTOR_CONSTANT | fields


def k_major(rows: int, k_elements: int, element_bits: int) -> Operand:
    """A tile [rows, K] whose columns are K (Q and K of the scores).

    Worked: 128 x 128 of 16 bits: descriptor 0x4000404000010000, steps 0, 32, 64, 96, 16384, 16416, ...
    The leading offset is unused in this mode and written as one unit.
    """
    steps: list[int] = []
    for k_bytes in range(0, k_elements * element_bits // 8, MMA_K_BYTES):
        chunk, inner = divmod(k_bytes, SWIZZLE_BYTES)
        steps.append(chunk * rows * SWIZZLE_BYTES + inner)
    return Operand(_descriptor(leading_bytes=UNIT_BYTES, stride_bytes=TILE_ALIGNMENT), tuple(steps))


def mn_major(k_rows: int, element_bits: int) -> Operand:
    """A tile [K, N] whose rows are K (V): leading offset from one chunk of N to the next.

    Worked: 128 keys of 16 bits: descriptor 0x4000404004000000, steps 0, 2048, 4096, ...
    """
    steps = range(0, k_rows * SWIZZLE_BYTES, mma_k(element_bits) * SWIZZLE_BYTES)
    descriptor = _descriptor(leading_bytes=k_rows * SWIZZLE_BYTES, stride_bytes=TILE_ALIGNMENT)
    return Operand(descriptor, tuple(steps))


def instruction_descriptor(element: str, *, m: int, n: int, b_is_mn_major: bool) -> int:
    """The 32-bit descriptor of a product with f32 accumulator.

    Worked: bf16, M 128, N 128, both K-major: 0x08200490.
    """
    _, code = ELEMENT_CODES[element]
    f32_accumulator = 1 << 4
    return (
        f32_accumulator
        | code << 7
        | code << 10
        | int(b_is_mn_major) << 16
        | (n >> 3) << 17
        | (m >> 4) << 24
    )
