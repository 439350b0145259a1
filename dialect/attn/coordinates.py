"""Which offsets of coordinates a call gives: what of them is static. Without MLIR."""

from dataclasses import dataclass

Q_OFFSET, K_OFFSET, HEAD_OFFSET = "q_offset", "k_offset", "head_offset"
OFFSETS = (Q_OFFSET, K_OFFSET, HEAD_OFFSET)
"""Names of the kernel's arguments, in the order of the call."""


@dataclass(frozen=True)
class Offsets:
    """Which offsets a call gives, whose values are arguments of the kernel.

    Attributes:
      numbers: names of those that are one number for all sequences.
      arrays: names of those that are i32 [batch], a number for each sequence.
    """

    numbers: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()

    @property
    def are_positions(self) -> bool:
        """Whether rows and columns have positions, in place of the alignment at the end."""
        return any(name != HEAD_OFFSET for name in (*self.numbers, *self.arrays))

    @property
    def short_name(self) -> str:
        """A short form for kernel names; empty without offsets."""
        words = [f"{name[0]}o" for name in OFFSETS if name in self.numbers]
        return "".join([*words, *(f"{name[0]}os" for name in OFFSETS if name in self.arrays)])


NO_OFFSETS = Offsets()
