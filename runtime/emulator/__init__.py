"""A functional machine that executes PTX text for the chips of `machine.chips`."""

from .core.launch_errors import DeadlockError, InstructionLimitError, KernelFault
from .emulator import Emulator, Stats
from .ptx.errors import PtxError

__all__ = [
    "DeadlockError",
    "Emulator",
    "InstructionLimitError",
    "KernelFault",
    "PtxError",
    "Stats",
]
