"""Fragments from shared memory by `ldmatrix`, where their layout is one that it gives.

It hands a warp 8 x 8 cells of 16 bits, up to four such matrices at once: the lane whose number is
8 i + j gives the address of row j of matrix i, 16 bytes, and register i of the lane 4 g + q holds
the cells 2 q and 2 q + 1 of row g; transposed, those of column g in rows 2 q and 2 q + 1. So a
layout fits whose threads begin with the digits

    (4, columns by a register's elements) (8, rows by 1)       as it is, of 8 or 16 bits
    (4, rows by 2) (8, columns by 1)                           transposed, of 16 bits

    (4, rows by 2) (8, columns by 2)                           transposed, cells of two of 8 bits

and which lane gives the address of which 16 bytes is a layout too. In the last case a register has
two columns of two rows, and a layout that has four rows of one column in its registers has its two
from two matrices, 8 rows apart: `split`.

Source: PTX ISA, ldmatrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .fragments import COLUMN, PACKED_BITS, ROW, WORD_BITS, Digit, Layout
from .shared import UNIT_BYTES, line_elements

MATRIX_ROWS = 8
MOST_MATRICES = 4  # of one instruction
SPLIT = (
    0x6420,
    0x7531,
)  # bytes of two registers that are the left and the right of each cell; prmt


@dataclass(frozen=True)
class Matrices:
    """How `ldmatrix` loads a fragment.

    Attributes:
      addresses: which 16 bytes each lane gives the address of, as the layout of a fragment of such.
      steps: rows and columns from the first matrix of an instruction to each of its matrices.
      is_transposed: whether registers run down the columns of the tile.
      is_split: whether two neighbouring matrices give the registers of two neighbouring columns,
        put together by `SPLIT`.
    """

    addresses: Layout
    steps: tuple[tuple[int, int], ...]
    is_transposed: bool
    is_split: bool = False


def _halves(digits: Sequence[Digit]) -> list[Digit]:
    """The same numbers in digits of 2, as far as the counts have factors of 2."""
    found: list[Digit] = []
    for digit in digits:
        count, step = digit.count, digit.step
        while count % 2 == 0:
            found.append(Digit(2, digit.axis, step))
            count, step = count // 2, step * 2
        if count > 1:
            found.append(Digit(count, digit.axis, step))
    return found


def matrices_of(layout: Layout, element_bits: int, first_column: int = 0) -> Matrices | None:
    """How `ldmatrix` loads a fragment of a layout from a swizzled tile; None where it does not.

    Args:
      layout: of a fragment of rank 2.
      element_bits: width of its elements.
      first_column: of the tile, to the left of the fragment.
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
    rest = _halves([*layout.elements[1:], *layout.strips[len(across) :]])
    lanes = [d for d in rest if d.count == 2 and _is_of_lanes(d, element_bits, first_column)]
    chosen = lanes[: MOST_MATRICES.bit_length() - 1]
    spare = 2 ** (MOST_MATRICES.bit_length() - 1 - len(chosen))
    others = [digit for digit in rest if digit not in chosen]
    addresses = Layout(
        (Digit(MATRIX_ROWS, ROW, 1), *chosen, Digit(spare, None), *layout.threads[2:]),
        tuple(digit for digit in others if digit.axis == ROW),
        (Digit(unit, COLUMN, 1), *(digit for digit in others if digit.axis == COLUMN)),
    )
    steps = [(0, 0)]
    for digit in chosen:
        by = (digit.step, 0) if digit.axis == ROW else (0, digit.step)
        steps += [(row + by[0], column + by[1]) for row, column in steps]
    return Matrices(addresses, tuple(steps), is_turned, is_split)


def _is_of_lanes(digit: Digit, element_bits: int, first_column: int) -> bool:
    """Whether lanes may differ by a digit: not from one chunk of a line to another.

    The place in a line is put together by exclusive or: the digit is a bit of its own.
    """
    span = 2 * digit.step
    return digit.axis == ROW or (span <= line_elements(element_bits) and first_column % span == 0)
