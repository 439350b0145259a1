"""The chips that the emulator stands for, and the instructions that only some of them have.

An instruction without an `Extension` runs on every chip of the table: it is in PTX for sm_90. PTX
ISA, "Target ISA Notes" of each instruction; a test compares with ptxas.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Extension(Enum):
    """Instructions that some chips have."""

    WARPGROUP_PRODUCTS = auto()  # wgmma
    REGISTER_BUDGETS = auto()  # setmaxnreg
    MAP_FIELDS = auto()  # tensormap.replace
    TENSOR_MEMORY = auto()  # tcgen05
    INTEGER_PRODUCTS = auto()  # tcgen05.mma of kind::i8
    LOAD_REDUCTIONS = auto()  # tcgen05.ld.red
    LAUNCH_CONTROL = auto()  # clusterlaunchcontrol
    BOX_FORMS = auto()  # copies of boxes: gather4, scatter4, pairs of CTAs, masks of bytes
    PACKED_F32 = auto()  # f32x2
    NARROW_TYPES = auto()  # 4 and 6 bits, four narrow elements at once, stochastic rounding
    MIXED_SUMS = auto()  # add, sub and fma of f32 and 16 bits
    THREE_OPERANDS = auto()  # min and max of three
    F32_REDUCTIONS = auto()  # redux of f32
    WIDE_ACCESSES = auto()  # 256 bits of global memory, st.bulk


@dataclass(frozen=True)
class Chip:
    """One chip.

    Attributes:
      name: as `.target` has it.
      multiprocessors: of a GPU with the chip.
      extensions: the instructions that it has beyond those of sm_90.
    """

    name: str
    multiprocessors: int
    extensions: frozenset[Extension] = frozenset()


_ON_HOPPER_AND_BLACKWELL = frozenset({Extension.REGISTER_BUDGETS, Extension.MAP_FIELDS})
_ON_BLACKWELL = frozenset(Extension) - {
    Extension.WARPGROUP_PRODUCTS,
    Extension.INTEGER_PRODUCTS,
    Extension.LOAD_REDUCTIONS,
}

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("sm_100a", 148, _ON_BLACKWELL | {Extension.INTEGER_PRODUCTS}),  # a B200
        Chip("sm_103a", 148, _ON_BLACKWELL | {Extension.LOAD_REDUCTIONS}),  # a B300
        Chip("sm_90a", 132, _ON_HOPPER_AND_BLACKWELL | {Extension.WARPGROUP_PRODUCTS}),  # an H200
        Chip("sm_90", 132),  # an H200, by code that runs on later chips as well
    )
}
DEFAULT_CHIP = "sm_100a"  # where nobody names one


def chips_with(extension: Extension) -> list[str]:
    """The names of the chips that have an extension."""
    return [chip.name for chip in CHIPS.values() if extension in chip.extensions]
