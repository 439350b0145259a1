"""Operands of a warpgroup's product: matrix descriptors, and orders of registers.

Pure functions over integers. Sources: PTX ISA, wgmma: matrix descriptor, register fragments.
"""

from dataclasses import replace

from attn_mlir.element_types import NARROW_MLIR, OF_MLIR, WIDE_MLIR

from ..layouts import Operand, k_major, mma_k, mn_major

ROWS = 64  # M of one instruction: 16 rows per warp
ELEMENT_NAMES = {kind: OF_MLIR[kind].ptx for kind in (*WIDE_MLIR, *NARROW_MLIR)}
SWIZZLE_128B = 1 << 62  # bits 62..63


def warpgroup_operand(rows: int, columns: int, element_bits: int, *, is_mn_major: bool) -> Operand:
    """A shared tile [rows, columns] as an operand; its columns are K, or its rows if `is_mn_major`.

    An operand whose columns are K may be some rows of a larger tile; `rows` are those of the tile.

    Worked, 16 bits: [64, 64] K-major: descriptor 0x4000004000010000, steps 0, 32, 64, 96; 64 rows
    of K, MN-major: descriptor 0x4000004002000000, steps 0, 2048, 4096, 6144.
    """
    operand = mn_major(rows, element_bits) if is_mn_major else k_major(rows, columns, element_bits)
    return replace(operand, descriptor=SWIZZLE_128B | operand.descriptor)


def accumulator_order(columns: int) -> list[tuple[int, int]]:
    """Strip and element of each f32 register of the accumulator [64, columns], in order.

    Register i is in strip (i / 2) mod 2, where strip 1 has the rows 8 below those of strip 0; it is
    element i mod 2 of the thread's pair in the 8 columns from 8 (i / 4) on.
    """
    return [(i >> 1 & 1, 2 * (i >> 2) + (i & 1)) for i in range(columns // 2)]


def a_registers(k_elements: int, element_bits: int) -> list[list[tuple[int, int]]]:
    """Strip and word of the four registers of A [64, K], for each K step of 32 bytes."""
    steps = k_elements // mma_k(element_bits)
    return [[(r & 1, 2 * step + (r >> 1)) for r in range(4)] for step in range(steps)]
