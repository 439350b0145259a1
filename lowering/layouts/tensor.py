"""Where the elements of a tile in tensor memory lie: row r in lane r.

32-bit elements take a column each, narrower ones share one, the first element in the lowest bits.
"""


def tensor_columns(columns: int, element_bits: int) -> int:
    """Tensor-memory columns of a tile with one row per lane."""
    return columns * element_bits // 32
