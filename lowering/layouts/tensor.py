"""Where the elements of a tile in tensor memory lie: row r in lane r.

A 32-bit element takes a column; narrower ones share a column, the first element in the lowest bits.
"""


def tensor_columns(columns: int, element_bits: int) -> int:
    """Tensor-memory columns of a tile with one row per lane."""
    return columns * element_bits // 32
