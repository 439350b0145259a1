"""Layout of a tile in tensor memory.

A 32-bit element takes a column; narrower ones share one, the first element in the lowest bits. A
tile of 128 rows has row r in lane r. A tile of 64 rows has it in lane 32 (r / 16) + r % 16, which
leaves half of the lanes free: columns from 256 on lie in those, 16 lanes further.

Source: PTX ISA, tcgen05.mma, layouts D and F of the sums.
"""

from attn_mlir.dialect.targets.limits import FOLD_COLUMNS, HALF_ROWS

FOLD_LANES = 16
LANE_SHIFT = 16  # of an address, whose lower half is the column


def tensor_columns(columns: int, element_bits: int) -> int:
    """Tensor-memory columns of a tile with one row per lane."""
    return columns * element_bits // 32


def tensor_offset(rows: int, column: int, element_bits: int) -> int:
    """The offset of a column from the address of a tile of `rows` rows.

    Worked: column 300 of f32: 300 of 128 rows, 0x10002c of 64.
    """
    if rows != HALF_ROWS:
        return tensor_columns(column, element_bits)
    fold, column = divmod(column, FOLD_COLUMNS)
    return (fold * FOLD_LANES << LANE_SHIFT) + tensor_columns(column, element_bits)
