"""The largest scale of scores; names and blocks of the scales of 8-bit operands. No MLIR."""

from typing import NamedTuple

MAX_SCALE = 2e38  # so that it is finite in float32 when multiplied by log2(e)
DESCALES = (
    "q_descale",
    "k_descale",
    "v_descale",
)  # names of the kernel's operands for 8-bit q, k and v


class ScaleBlock(NamedTuple):
    """The elements of a head that share a scale.

    Attributes:
      rows: neighbouring positions; 0 for all of a sequence.
      columns: neighbouring columns.
    """

    rows: int
    columns: int

    @property
    def is_whole(self) -> bool:
        """Whether a sequence has a single scale for each head."""
        return not self.rows
