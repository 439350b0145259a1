"""Addresses of a kernel's shared and local variables."""

from ..machine.memory import SHARED_BASE
from .ast import Kernel, Module, Variable


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def lay_out_shared(module: Module, kernel: Kernel) -> tuple[int, int]:
    """Place shared variables: static ones first, then the dynamic window, all aligned.

    All `.extern .shared` arrays name the same window.

    Returns:
      (bytes of static variables, offset of the dynamic window); offsets count from 0x400.
    """
    offset = SHARED_BASE
    dynamic: list[Variable] = []
    for variable in (*module.variables, *kernel.variables):
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


def lay_out_local(kernel: Kernel) -> int:
    """Place local variables; returns the bytes per thread."""
    offset = 0
    for variable in kernel.variables:
        if variable.space == "local":
            offset = _align(offset, variable.alignment_bytes)
            variable.address = offset
            offset += variable.byte_count
    return offset
