"""Checks the arguments of `Emulator.launch` against the machine and the kernel's directives."""

import math
import operator
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import LaunchError

from ..ptx.ast import Kernel, Variable
from ..ptx.errors import PtxError
from .state import Dim3

Parameter = int | float | bytes | bytearray | npt.NDArray[Any] | np.generic

MAX_GRID = (2**31 - 1, 65535, 65535)  # CTAs in x, y, z; CUDA programming guide
MAX_BLOCK = (1024, 1024, 64)  # threads in x, y, z; CUDA programming guide
MAX_THREADS = 1024  # per CTA; CUDA programming guide, compute capabilities
MAX_PARAM_BYTES = 32764  # kernel parameters; CUDA programming guide
MAX_CLUSTER_CTAS = 16  # with opt-in; spec-ptx 8

_FORMATS = {
    **{f"{sign}8": "<b" if sign == "s" else "<B" for sign in "bus"},
    **{f"{sign}16": "<h" if sign == "s" else "<H" for sign in "bus"},
    **{f"{sign}32": "<i" if sign == "s" else "<I" for sign in "bus"},
    **{f"{sign}64": "<q" if sign == "s" else "<Q" for sign in "bus"},
    "f32": "<f",
    "f64": "<d",
}


def integer(value: Any, what: str) -> int:
    """An argument that has to be an integer.

    Raises:
      LaunchError: it is something else, or of more than 64 bits.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = 1 << 64
    if number.bit_length() > 64:
        raise LaunchError(f"{what} must be an integer, got {shown(value)}")
    return number


def extent(value: Sequence[int], name: str, limits: Dim3, *, least: int = 1) -> Dim3:
    """One to three numbers of CTAs or threads as x, y, z.

    Args:
      limits: the most in each dimension. least: the fewest.

    Raises:
      LaunchError: they are not.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise LaunchError(f"{name} must be one to three integers, got {shown(value)}")
    numbers = tuple(integer(v, f"each number of {name}") for v in value)
    if not 1 <= len(numbers) <= 3:
        raise LaunchError(f"{name} must be one to three integers, got {len(numbers)} of them")
    x, y, z = (*numbers, 1, 1, 1)[:3]
    for axis, count, limit in zip("xyz", (x, y, z), limits, strict=True):
        if not least <= count <= limit:
            raise LaunchError(
                f"{name} must be {least} to {limit} in {axis}, got {shown((x, y, z))}"
            )
    return (x, y, z)


def check_shape(kernel: Kernel, grid: Dim3, block: Dim3, cluster: Dim3) -> Dim3:
    """Checks grid, block and cluster against the kernel's directives; returns the cluster.

    Raises:
      LaunchError: they do not fit.
    """
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise LaunchError(f"block {block} has {threads} threads, {MAX_THREADS} are allowed")
    required = kernel.directives.get("reqntid")
    if required and (*required, 1, 1)[:3] != block:
        raise LaunchError(f"'{kernel.name}' requires a block of {required}, got {block}")
    limit = kernel.directives.get("maxntid")
    if limit and threads > math.prod(limit):
        raise LaunchError(f"'{kernel.name}' allows blocks up to {limit}, got {block}")
    needed = kernel.directives.get("reqnctapercluster")
    if needed:
        shape = (*needed, 1, 1)[:3]
        if cluster == (1, 1, 1):
            cluster = (shape[0], shape[1], shape[2])
        elif shape != cluster:
            raise LaunchError(f"'{kernel.name}' requires clusters of {shape}, got {cluster}")
    count = cluster[0] * cluster[1] * cluster[2]
    most = min(MAX_CLUSTER_CTAS, *kernel.directives.get("maxclusterrank", (MAX_CLUSTER_CTAS,)))
    if not 1 <= count <= most:
        raise LaunchError(f"cluster {cluster} has {count} CTAs, {most} are allowed")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"cluster {cluster} does not divide the grid {grid}")
    return cluster


def pack_parameters(kernel: Kernel, params: Sequence[Parameter]) -> npt.NDArray[np.uint8]:
    """The bytes of the parameter space.

    Raises:
      LaunchError: there are too few, too many or too large ones, or one is not of its type.
    """
    if isinstance(params, str | bytes) or not hasattr(params, "__len__"):
        raise LaunchError(f"params must be a sequence of parameters, got {shown(params)}")
    if len(params) != len(kernel.params):
        raise LaunchError(f"'{kernel.name}' has {len(kernel.params)} parameters, got {len(params)}")
    size = max((p.address + p.byte_count for p in kernel.params), default=0)
    if size > MAX_PARAM_BYTES:
        raise LaunchError(f"{size} B of parameters, {MAX_PARAM_BYTES} B are allowed")
    result = np.zeros(max(size, 1), np.uint8)
    for position, (declared, value) in enumerate(zip(kernel.params, params, strict=True)):
        raw = _parameter_bytes(kernel, position, declared, value)
        result[declared.address : declared.address + len(raw)] = np.frombuffer(raw, np.uint8)
    return result


def _parameter_bytes(kernel: Kernel, position: int, declared: Variable, value: Parameter) -> bytes:
    where = f"parameter {position} of '{kernel.name}'"
    if isinstance(value, bytes | bytearray | np.ndarray):
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            raise LaunchError(f"{where} is an array of Python objects, which have no bytes")
        raw = bytes(value) if not isinstance(value, np.ndarray) else value.tobytes()
        if len(raw) != declared.byte_count:
            raise LaunchError(f"{where} has {declared.byte_count} bytes, got {len(raw)}")
        return raw
    if declared.is_array:
        raise LaunchError(
            f"{where} is an aggregate of {declared.byte_count} bytes: pass bytes, "
            f"got {type(value).__name__}"
        )
    form = _FORMATS.get(declared.element)
    if form is None:
        raise LaunchError(f"{where} has type .{declared.element}: pass raw bytes")
    number = value.item() if isinstance(value, np.generic) else value
    refusal = LaunchError(f"{where} has type .{declared.element}: got {shown(number)}")
    if form[-1] in "fd":
        if not isinstance(number, int | float):
            raise refusal
        try:
            return struct.pack(form, number)
        except (OverflowError, struct.error):
            raise LaunchError(
                f"{where} has type .{declared.element}: {shown(number)} does not fit"
            ) from None
    if not isinstance(number, int):
        raise refusal
    bits = 8 * declared.element_bytes
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise LaunchError(f"{where} has type .{declared.element}: {shown(number)} does not fit")
    return (number & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def initial_bytes(text: str, variable: Variable) -> npt.NDArray[np.uint8]:
    """The bytes of a `.global` or `.const` variable before the first launch.

    Raises:
      PtxError: it has more values than elements, values not of its type, addresses, or this process
        cannot have the memory.
    """

    def refused(why: str) -> PtxError:
        return PtxError.at(text, variable.line, f"variable '{variable.name}' {why}")

    if len(variable.initial) > variable.count:
        raise refused(f"has {len(variable.initial)} values for {variable.count} elements")
    try:
        result = np.zeros(max(1, variable.byte_count), np.uint8)
    except (MemoryError, ValueError):
        raise refused(f"of {variable.byte_count} B does not fit into this process") from None
    form = _FORMATS.get(variable.element)
    for position, value in enumerate(variable.initial):
        if isinstance(value, str):
            raise refused(f"has the address of '{value}' as a value: only numbers are supported")
        start = position * variable.element_bytes
        try:
            if form is not None and form[-1] in "fd":
                raw = struct.pack(form, float(value))
            else:
                bits = 8 * variable.element_bytes
                raw = (int(value) & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
        except (OverflowError, ValueError):
            raise refused(f"of type .{variable.element} cannot hold {value}") from None
        result[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    return result


def shown(value: object) -> str:
    """A value for a message, cut if it is long."""
    try:
        text = repr(value)
    except Exception:  # raised by an object of the caller, or for integers with thousands of digits
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 80 else f"{text[:77]}..."
