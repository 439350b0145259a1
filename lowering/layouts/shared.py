"""Layout of a tile in shared memory.

A shared tile [rows, columns] is stored as the copy engine writes it with a swizzle: column chunks
of a line of bytes one after the other, each chunk `rows` lines, the 16-byte units of line r
permuted by XOR. With lines of 128 bytes, r mod 8 is the number that units are permuted by; for
16-bit elements, of which such a line holds 64:

    offset(r, c) = (c / 64) rows 128 + r 128 + (((c % 64) / 8) ^ (r % 8)) 16 + (c % 8) 2

Shorter lines repeat the pattern after fewer bytes, and permute by the same bits of an address;
lines of 16 bytes are not permuted:

| line | unit of line r | pattern |
| ---: | --- | ---: |
| 128 | u ^ r % 8 | 1024 bytes |
| 64 | u ^ r / 2 % 4 | 512 |
| 32 | u ^ r / 4 % 2 | 256 |
| 16 | u | 128 |

A shared tile [rows] is a plain array.
"""

from collections.abc import Mapping
from types import MappingProxyType

SWIZZLE_BYTES = 128  # one line of a swizzled chunk, unless a tile's type says otherwise
ATOM_ROWS = 8  # lines after which the swizzle pattern repeats
TILE_ALIGNMENT = ATOM_ROWS * SWIZZLE_BYTES  # the XOR uses absolute address bits 7..9
UNIT_BYTES = 16
SWIZZLES: Mapping[int, str] = MappingProxyType({128: "128B", 64: "64B", 32: "32B", 16: "none"})
"""Names of swizzles in tensor maps, by the bytes of a line."""


def line_elements(element_bits: int, line_bytes: int = SWIZZLE_BYTES) -> int:
    """Elements in a line of a swizzled tile."""
    return line_bytes * 8 // element_bits


def unit_elements(element_bits: int) -> int:
    """Elements in 16 bytes."""
    return UNIT_BYTES * 8 // element_bits


def chunk_count(columns: int, element_bits: int, line_bytes: int = SWIZZLE_BYTES) -> int:
    """Column chunks of a swizzled tile; the last one may be partly filled."""
    return -(-columns // line_elements(element_bits, line_bytes))


def swizzled_offset(
    row: int, column: int, *, rows: int, element_bits: int, line_bytes: int = SWIZZLE_BYTES
) -> int:
    """Byte offset of an element in a swizzled tile; the definition in the module's text."""
    chunk, inner = divmod(column, line_elements(element_bits, line_bytes))
    unit, element = divmod(inner, unit_elements(element_bits))
    line = (chunk * rows + row) * line_bytes
    phase = row * line_bytes // SWIZZLE_BYTES % (line_bytes // UNIT_BYTES)
    return line + (unit ^ phase) * UNIT_BYTES + element * element_bits // 8
