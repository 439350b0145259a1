"""Where elements lie, in shared and tensor memory and in registers, and how descriptors say so.

This re-exports the pure functions. `inference` finds the layout of each fragment of a
role. Descriptors of one target alone lie in its folder.
"""

from .descriptors import Operand, k_major, mma_k, mn_major
from .fragments import (
    COLUMN,
    PART_ELEMENTS,
    ROW,
    Layout,
    Scheme,
    accumulator,
    operand_a,
    operand_b,
    row_per_thread,
)
from .shared import (
    ATOM_ROWS,
    SWIZZLE_BYTES,
    SWIZZLES,
    UNIT_BYTES,
    chunk_count,
    line_elements,
    swizzled_offset,
    unit_elements,
)
from .tensor import tensor_columns, tensor_offset

__all__ = [
    "ATOM_ROWS",
    "COLUMN",
    "PART_ELEMENTS",
    "ROW",
    "SWIZZLES",
    "SWIZZLE_BYTES",
    "UNIT_BYTES",
    "Layout",
    "Operand",
    "Scheme",
    "accumulator",
    "chunk_count",
    "k_major",
    "line_elements",
    "mma_k",
    "mn_major",
    "operand_a",
    "operand_b",
    "row_per_thread",
    "swizzled_offset",
    "tensor_columns",
    "tensor_offset",
    "unit_elements",
]
