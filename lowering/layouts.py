"""Where the elements of a tile lie, and the descriptors that tell the tensor core.

Pure functions over integers. Sources: PTX ISA, tcgen05 matrix descriptor, instruction descriptor
and canonical layouts.

A shared tile [rows, columns] of 16-bit elements is stored as the copy engine writes it with the
128-byte swizzle: column chunks of 64 elements one after the other, each chunk `rows` lines of 128
bytes, the 16-byte units of line r permuted by XOR with r mod 8.

    offset(r, c) = (c / 64) rows 128 + r 128 + (((c % 64) / 8) ^ (r % 8)) 16 + (c % 8) 2

A tensor-memory tile has row r in lane r; 32-bit elements take a column each, 16-bit elements share
one, the even element in the low half.
"""

from dataclasses import dataclass

SWIZZLE_BYTES = 128  # one line of a swizzled chunk
CHUNK_ELEMENTS = 64  # 16-bit elements per line
ATOM_ROWS = 8  # lines after which the swizzle pattern repeats
TILE_ALIGNMENT = ATOM_ROWS * SWIZZLE_BYTES  # the XOR uses absolute address bits 7..9
MMA_K_ELEMENTS = 16  # K of one kind::f16 instruction: 32 bytes
UNIT_BYTES = 16

DESCRIPTOR_CONSTANT = 1 << 46  # bits 46..48, sm_100
SWIZZLE_128B = 2 << 61  # bits 61..63, sm_100

ELEMENT_CODES = {"f16": 0, "bf16": 1}  # instruction descriptor, kind::f16, bits 7..9 and 10..12


def chunk_count(columns: int) -> int:
    """Column chunks of a swizzled 16-bit tile; the last one may be partly filled."""
    return -(-columns // CHUNK_ELEMENTS)


def swizzled_offset(row: int, column: int, *, rows: int) -> int:
    """Byte offset of a 16-bit element in a swizzled tile; the definition in the module's text."""
    chunk, inner = divmod(column, CHUNK_ELEMENTS)
    unit, element = divmod(inner, UNIT_BYTES // 2)
    line = chunk * rows * SWIZZLE_BYTES + row * SWIZZLE_BYTES
    return line + (unit ^ row % ATOM_ROWS) * UNIT_BYTES + element * 2


@dataclass(frozen=True)
class Operand:
    """How an MMA operand in shared memory is described.

    Attributes:
      descriptor: the 64-bit descriptor with a start address of 0.
      step_bytes: per K step of 16 elements, the bytes by which the start address moves.
    """

    descriptor: int
    step_bytes: tuple[int, ...]


def _descriptor(*, leading_bytes: int, stride_bytes: int) -> int:
    fields = (leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32
    return SWIZZLE_128B | DESCRIPTOR_CONSTANT | fields


def k_major(rows: int, k_elements: int) -> Operand:
    """A tile [rows, K] whose columns are K (Q and K of the scores).

    Worked: 128 x 128: descriptor 0x4000404000010000, steps 0, 32, 64, 96, 16384, 16416, ...
    The leading offset is unused in this mode and written as one unit.
    """
    steps: list[int] = []
    for k in range(0, k_elements, MMA_K_ELEMENTS):
        chunk, inner = divmod(k, CHUNK_ELEMENTS)
        steps.append(chunk * rows * SWIZZLE_BYTES + inner * 2)
    return Operand(_descriptor(leading_bytes=UNIT_BYTES, stride_bytes=TILE_ALIGNMENT), tuple(steps))


def mn_major(k_rows: int) -> Operand:
    """A tile [K, N] whose rows are K (V): leading offset from one chunk of N to the next.

    Worked: 128 keys: descriptor 0x4000404004000000, steps 0, 2048, 4096, ...
    """
    steps = range(0, k_rows * SWIZZLE_BYTES, MMA_K_ELEMENTS * SWIZZLE_BYTES)
    descriptor = _descriptor(leading_bytes=k_rows * SWIZZLE_BYTES, stride_bytes=TILE_ALIGNMENT)
    return Operand(descriptor, tuple(steps))


def instruction_descriptor(element: str, *, m: int, n: int, b_is_mn_major: bool) -> int:
    """The 32-bit descriptor of a kind::f16 product with f32 accumulator.

    Worked: bf16, M 128, N 128, both K-major: 0x08200490.
    """
    code = ELEMENT_CODES[element]
    f32_accumulator = 1 << 4
    return (
        f32_accumulator
        | code << 7
        | code << 10
        | int(b_is_mn_major) << 16
        | (n >> 3) << 17
        | (m >> 4) << 24
    )


def tensor_columns(columns: int, element_bits: int) -> int:
    """Tensor-memory columns of a tile with one row per lane."""
    return columns * element_bits // 32
