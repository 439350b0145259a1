"""Addresses of a kernel's shared and local variables."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..machine.memory import SHARED_BASE
from .ast import Kernel, Module, Variable

LOCAL_GAP_BYTES = 32  # behind each local variable; the widest access cannot step over it


@dataclass(frozen=True, eq=False)
class LocalLayout:
    """Where a thread's local variables lie.

    Attributes:
      byte_count: bytes of the variables with their alignment, which the machine has to have.
      extent: bytes with the gaps between variables, which are the emulator's own.
      rooms: for each of these bytes whether a variable has it; None if all have one.
    """

    byte_count: int
    extent: int
    rooms: npt.NDArray[np.bool_] | None


NO_LOCALS = LocalLayout(0, 0, None)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def reached(module: Module, kernel: Kernel) -> list[Variable]:
    """The variables that a kernel names, or a function does that it may call, in text order."""
    functions, named = [kernel], set[Variable]()
    for function in functions:
        named |= function.named
        functions += [
            callee
            for name, callee in module.kernels.items()
            if name in function.functions and callee not in functions
        ]
    variables = [variable for function in functions for variable in function.variables]
    return [variable for variable in (*module.variables, *variables) if variable in named]


def lay_out_shared(module: Module, kernel: Kernel) -> tuple[int, int]:
    """Place the shared variables that a kernel reaches: static ones, then the dynamic window, all
    aligned.

    All `.extern .shared` arrays name the same window.

    Returns:
      (bytes of static variables, offset of the dynamic window); offsets count from 0x400.
    """
    offset = SHARED_BASE
    dynamic: list[Variable] = []
    for variable in reached(module, kernel):
        if variable.space != "shared":
            continue
        if variable.is_extern or variable.count == 0:
            dynamic.append(variable)
            continue
        offset = _align(offset, variable.alignment_bytes)
        variable.address = offset
        offset += variable.byte_count
    static_bytes = offset - SHARED_BASE
    alignment = max((variable.alignment_bytes for variable in dynamic), default=16)
    window = _align(offset, alignment)
    for variable in dynamic:
        variable.address = window
    return static_bytes, window


def lay_out_local(kernel: Kernel) -> LocalLayout:
    """Place local variables, apart from each other:
    PTX does not say which bytes follow a variable.
    """
    if kernel.calls:  # its frame is laid out, and those of calls lie behind it
        return LocalLayout(kernel.frame_bytes, kernel.frame_bytes, None)
    variables = [variable for variable in kernel.variables if variable.space == "local"]
    byte_count = extent = end = 0
    for variable in variables:
        byte_count = _align(byte_count, variable.alignment_bytes) + variable.byte_count
        variable.address = _align(extent, variable.alignment_bytes)
        end = variable.address + variable.byte_count
        extent = end + LOCAL_GAP_BYTES
    if len(variables) < 2:
        return LocalLayout(byte_count, end, None)
    rooms = np.zeros(end, np.bool_)
    for variable in variables:
        rooms[variable.address : variable.address + variable.byte_count] = True
    return LocalLayout(byte_count, end, rooms)
