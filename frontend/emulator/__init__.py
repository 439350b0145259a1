"""PTX without a GPU: load a kernel, launch it, and get findings, faults and traces as objects.

    from attn_mlir import emulator

    kernel = emulator.load(Path("kernel.ptx"))
    report = kernel.launch(x, y, 1024, grid=8, block=128)
    print(report)

Arguments are arrays in host memory, which the kernel reads and writes itself, and numbers. It needs
neither MLIR nor ptxas. `Emulator` is the machine below, for several launches in one memory.
"""

from attn_mlir.emulator.kernel import Kernel, Parameter, load
from attn_mlir.emulator.report import Report
from attn_mlir.emulator.triton import TritonKernel, load_triton
from attn_mlir.runtime.emulator import (
    DeadlockError,
    Emulator,
    InstructionLimitError,
    KernelFault,
    PtxError,
    Stats,
)
from attn_mlir.runtime.emulator.checkers import CHECKS, Access, CheckError, Finding
from attn_mlir.runtime.emulator.machine.chips import CHIPS
from attn_mlir.runtime.emulator.trace import Trace, chrome_trace, write_trace

__all__ = [
    "CHECKS",
    "CHIPS",
    "Access",
    "CheckError",
    "DeadlockError",
    "Emulator",
    "Finding",
    "InstructionLimitError",
    "Kernel",
    "KernelFault",
    "Parameter",
    "PtxError",
    "Report",
    "Stats",
    "Trace",
    "TritonKernel",
    "chrome_trace",
    "load",
    "load_triton",
    "write_trace",
]
