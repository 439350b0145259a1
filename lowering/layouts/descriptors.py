"""Matrix descriptors of operands in shared memory: the fields that all targets share.

Pure functions over integers. Sources: PTX ISA, canonical layouts and matrix descriptors of wgmma
and tcgen05, whose upper bits differ: each target's folder adds them.
"""

from dataclasses import dataclass

from .shared import ATOM_ROWS, SWIZZLE_BYTES, TILE_ALIGNMENT, UNIT_BYTES

MMA_K_BYTES = 32  # K of one instruction: 16 elements of kind::f16, 32 of kind::f8f6f4


def mma_k(element_bits: int) -> int:
    """K of one instruction."""
    return MMA_K_BYTES * 8 // element_bits


@dataclass(frozen=True)
class Operand:
    """The description of an MMA operand in shared memory.

    Attributes:
      descriptor: the 64-bit descriptor with a start address of 0; here without the bits from 46 on,
        which each target adds.
      step_bytes: for each K step of 32 bytes, its offset from the start address in bytes.
    """

    descriptor: int
    step_bytes: tuple[int, ...]


def _descriptor(*, leading_bytes: int, stride_bytes: int) -> int:
    return (leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32


def k_major(
    rows: int, k_elements: int, element_bits: int, line_bytes: int = SWIZZLE_BYTES
) -> Operand:
    """A tile [rows, K] whose columns are K (Q and K of the scores).

    Worked: 128 x 128 of 16 bits: fields 0x0000004000010000, steps 0, 32, 64, 96, 16384, 16416, ...;
    128 x 64 of 8 bits in lines of 64 bytes: 0x0000002000010000, steps 0, 32. The leading offset is
    unused with a swizzle, and written as one unit; of lines of 16 bytes it leads from one to the
    next.
    """
    steps: list[int] = []
    for k_bytes in range(0, k_elements * element_bits // 8, MMA_K_BYTES):
        chunk, inner = divmod(k_bytes, line_bytes)
        steps.append(chunk * rows * line_bytes + inner)
    leading = rows * line_bytes if line_bytes == UNIT_BYTES else UNIT_BYTES
    fields = _descriptor(leading_bytes=leading, stride_bytes=ATOM_ROWS * line_bytes)
    return Operand(fields, tuple(steps))


def mn_major(
    pitch: int, element_bits: int, *, is_broadcast: bool = False, k_rows: int | None = None
) -> Operand:
    """A tile [K, N] whose rows are K (V): leading offset from one chunk of N to the next.

    A leading offset of 0 (`is_broadcast`) repeats one chunk for all of N.

    Args:
      pitch: rows of a chunk.
      k_rows: rows of the operand, from its start address on; by default all rows of a chunk.

    Worked: 128 keys of 16 bits: fields 0x0000004004000000, steps 0, 2048, 4096, ...
    """
    k_rows = pitch if k_rows is None else k_rows
    steps = range(0, k_rows * SWIZZLE_BYTES, mma_k(element_bits) * SWIZZLE_BYTES)
    leading = 0 if is_broadcast else pitch * SWIZZLE_BYTES
    descriptor = _descriptor(leading_bytes=leading, stride_bytes=TILE_ALIGNMENT)
    return Operand(descriptor, tuple(steps))
