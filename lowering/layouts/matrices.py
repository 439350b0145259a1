"""Fragment layouts that `ldmatrix` can load from shared memory and `stmatrix` can store to it.

An `ldmatrix` loads up to four matrices of 8 x 8 cells of 16 bits: lane 8 i + j passes the address
of row j of matrix i, 16 bytes, and register i of lane 4 g + q receives the cells 2 q and 2 q + 1 of
row g or, transposed, those of column g in rows 2 q and 2 q + 1. So it can load layouts whose
threads begin with the digits

    (4, columns by a register's elements) (8, rows by 1)       as it is, of 8 or 16 bits
    (4, rows by 2) (8, columns by 1)                           transposed, of 16 bits

    (4, rows by 2) (8, columns by 2)                           transposed, cells of two of 8 bits

The lanes that pass addresses form a layout as well. In the last case a register has two columns of
two rows. A layout with four rows of one column in a register gets them by permuting the bytes of
two registers, from matrices 8 rows apart (`is_split`). `stmatrix` writes what `ldmatrix` loads from
the same addresses.

Source: PTX ISA, ldmatrix and stmatrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .fragments import COLUMN, PACKED_BITS, ROW, WORD_BITS, Digit, Layout
from .shared import UNIT_BYTES, line_elements

MATRIX_ROWS = 8
MOST_MATRICES = 4  # most matrices of one instruction
SPLIT = (
    0x6420,
    0x7531,
)  # prmt selectors: from two registers, the left bytes of all cells, and the right ones


@dataclass(frozen=True)
class Matrices:
    """How `ldmatrix` loads a fragment, and `stmatrix` writes one.

    Attributes:
      addresses: the layout in which lanes pass addresses; its elements are units of 16 bytes.
      steps: rows and columns from the first matrix of an instruction to each of them.
      is_transposed: whether registers run down the columns of the tile.
      is_split: whether registers for two neighbouring columns are made from those of two matrices,
        by the byte selectors `SPLIT`.
    """

    addresses: Layout
    steps: tuple[tuple[int, int], ...]
    is_transposed: bool
    is_split: bool = False


def _binary_digits(digits: Sequence[Digit]) -> list[Digit]:
    """The same indices with even digits split into digits of radix 2, as far as possible."""
    binary: list[Digit] = []
    for digit in digits:
        count, step = digit.count, digit.step
        while count % 2 == 0:
            binary.append(Digit(2, digit.axis, step))
            count, step = count // 2, step * 2
        if count > 1:
            binary.append(Digit(count, digit.axis, step))
    return binary


def matrices_of(layout: Layout, element_bits: int, first_column: int = 0) -> Matrices | None:
    """How `ldmatrix` loads a fragment of a layout from a swizzled tile; None if it cannot.

    Args:
      layout: the layout, of a fragment of rank 2.
      element_bits: width of its elements.
      first_column: the tile's column at which the fragment begins.
    """
    if element_bits not in PACKED_BITS:
        return None
    pack = WORD_BITS // element_bits
    unit = UNIT_BYTES * 8 // element_bits
    is_plain = layout.threads[:2] == (Digit(4, COLUMN, pack), Digit(8, ROW, 1))
    is_turned = layout.threads[:2] == (Digit(4, ROW, 2), Digit(8, COLUMN, pack // 2))
    if not ((is_plain and layout.along == COLUMN) or (is_turned and layout.along == ROW)):
        return None
    is_split = is_turned and pack == 4
    within = (Digit(2, ROW, 1),) if is_turned else (Digit(pack, COLUMN, 1),)
    across = (Digit(2, COLUMN, 1),) if is_split else ()
    if (layout.elements[:1], layout.strips[: len(across)]) != (within, across):
        return None
    if is_split and layout.elements[1:2] != (Digit(2, ROW, MATRIX_ROWS),):
        return None
    remaining = _binary_digits([*layout.elements[1:], *layout.strips[len(across) :]])
    lanes = [d for d in remaining if d.count == 2 and _is_of_lanes(d, element_bits, first_column)]
    chosen = lanes[: MOST_MATRICES.bit_length() - 1]
    copies = 2 ** (MOST_MATRICES.bit_length() - 1 - len(chosen))
    others = [digit for digit in remaining if digit not in chosen]
    addresses = Layout(
        (Digit(MATRIX_ROWS, ROW, 1), *chosen, Digit(copies, None), *layout.threads[2:]),
        tuple(digit for digit in others if digit.axis == ROW),
        (Digit(unit, COLUMN, 1), *(digit for digit in others if digit.axis == COLUMN)),
    )
    steps = [(0, 0)]
    for digit in chosen:
        by = (digit.step, 0) if digit.axis == ROW else (0, digit.step)
        steps += [(row + by[0], column + by[1]) for row, column in steps]
    return Matrices(addresses, tuple(steps), is_turned, is_split)


def _is_of_lanes(digit: Digit, element_bits: int, first_column: int) -> bool:
    """Whether a digit may select lanes: it must stay within a 128-byte line.

    Offsets within a line are combined by XOR, so the digit's bits must be its own.
    """
    span = 2 * digit.step
    return digit.axis == ROW or (span <= line_elements(element_bits) and first_column % span == 0)
