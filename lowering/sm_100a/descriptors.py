"""Matrix and instruction descriptors of tcgen05 products.

Pure functions over integers. Source: PTX ISA, tcgen05 matrix descriptor and instruction descriptor.
"""

from dataclasses import replace

from attn_mlir.element_types import TYPES

from ..layouts import SWIZZLE_BYTES, Operand, k_major, mn_major

DESCRIPTOR_CONSTANT = 1 << 46  # bits 46..48
SWIZZLE_BIT = 61  # bits 61..63
SWIZZLE_CODES = {128: 2, 64: 4, 32: 6, 16: 0}  # by bytes of a line

ELEMENT_CODES = {row.mlir: row.tcgen05 for row in TYPES if row.use == "product" and row.tcgen05}
"""By element type the kind of instruction, and the code in bits 7..9 (A) and 10..12 (B) of its
descriptor."""


def shared_operand(
    rows: int,
    columns: int,
    element_bits: int,
    *,
    is_mn_major: bool,
    is_broadcast: bool = False,
    line_bytes: int = SWIZZLE_BYTES,
    k_rows: int | None = None,
) -> Operand:
    """A shared tile [rows, columns] as an operand; its columns are K, or its rows if `is_mn_major`.

    An operand whose columns are K may be the first rows of a larger tile; `rows` are those of the
    tile. One that `is_broadcast` has one line of columns, repeated for a product of more rows. Of
    an operand whose rows are K the product may use `k_rows`, from any multiple of 8 on.

    Worked, 16 bits: [128, 128] K-major: descriptor 0x4000404000010000, steps 0, 32, 64, 96, 16384,
    ...; 128 rows of K, MN-major: descriptor 0x4000404004000000, steps 0, 2048, 4096, ...
    """
    if is_mn_major:
        operand = mn_major(rows, element_bits, is_broadcast=is_broadcast, k_rows=k_rows)
    else:
        operand = k_major(rows, columns, element_bits, line_bytes)
    upper = SWIZZLE_CODES[line_bytes] << SWIZZLE_BIT | DESCRIPTOR_CONSTANT
    return replace(operand, descriptor=upper | operand.descriptor)


def instruction_descriptor(
    element: str, *, m: int, n: int, b_is_mn_major: bool, a_is_mn_major: bool = False
) -> int:
    """The 32-bit descriptor of a product with f32 accumulator.

    Worked: bf16, M 128, N 128, both K-major: 0x08200490; N 8, both MN-major: 0x08038490.
    """
    _, code = ELEMENT_CODES[element]
    f32_accumulator = 1 << 4
    return (
        f32_accumulator
        | code << 7
        | code << 10
        | int(a_is_mn_major) << 15
        | int(b_is_mn_major) << 16
        | (n >> 3) << 17
        | (m >> 4) << 24
    )
