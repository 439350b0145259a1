"""Where the elements of a tile in shared memory lie.

A shared tile [rows, columns] is stored as the copy engine writes it with the 128-byte swizzle:
column chunks of 128 bytes one after the other, each chunk `rows` lines, the 16-byte units of line
r permuted by XOR with r mod 8. For 16-bit elements, of which a line holds 64:

    offset(r, c) = (c / 64) rows 128 + r 128 + (((c % 64) / 8) ^ (r % 8)) 16 + (c % 8) 2

A shared tile [rows] is a plain array.
"""

SWIZZLE_BYTES = 128  # one line of a swizzled chunk
ATOM_ROWS = 8  # lines after which the swizzle pattern repeats
TILE_ALIGNMENT = ATOM_ROWS * SWIZZLE_BYTES  # the XOR uses absolute address bits 7..9
UNIT_BYTES = 16


def line_elements(element_bits: int) -> int:
    """Elements in a line of a swizzled tile."""
    return SWIZZLE_BYTES * 8 // element_bits


def unit_elements(element_bits: int) -> int:
    """Elements in 16 bytes."""
    return UNIT_BYTES * 8 // element_bits


def chunk_count(columns: int, element_bits: int) -> int:
    """Column chunks of a swizzled tile; the last one may be partly filled."""
    return -(-columns // line_elements(element_bits))


def swizzled_offset(row: int, column: int, *, rows: int, element_bits: int) -> int:
    """Byte offset of an element in a swizzled tile; the definition in the module's text."""
    chunk, inner = divmod(column, line_elements(element_bits))
    unit, element = divmod(inner, unit_elements(element_bits))
    line = chunk * rows * SWIZZLE_BYTES + row * SWIZZLE_BYTES
    return line + (unit ^ row % ATOM_ROWS) * UNIT_BYTES + element * element_bits // 8
