"""Read-modify-write arithmetic of atomics, `red`, and bulk reductions.

Ambiguity resolved here: spec-ptx 7.1 names the operations only. Floating-point add rounds to
nearest even and keeps subnormals (.noftz) except for "f32.ftz"; min and max drop a NaN operand.
As measured on an H200, a NaN sum has all bits set but its sign (f16, bf16, f32), or is the NaN that
came in, signalling or not (f64).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .faults import Fault
from .formats import decode, encode

_STORAGE: dict[str, type[np.generic]] = {
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f32.ftz": np.float32,
    "tf32": np.float32,
    "tf32.ftz": np.float32,
    "f64": np.float64,
}
_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_NAN = {
    "f16": np.uint16(0x7FFF).view(np.float16),
    "f32": np.uint32(0x7FFF_FFFF).view(np.float32),
    "f32.ftz": np.uint32(0x7FFF_FFFF).view(np.float32),
}
OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")

Array = npt.NDArray[Any]


def as_bytes(values: Array) -> npt.NDArray[np.uint8]:
    """The bytes of elements, in order."""
    return np.ascontiguousarray(values).view(np.uint8)


def storage_type(type_name: str) -> type[np.generic]:
    """The numpy scalar that holds one element of a PTX or tensor-map type (bf16: its bits)."""
    if type_name not in _STORAGE:
        raise Fault("unsupported", f"reduction on type {type_name}")
    return _STORAGE[type_name]


def reduce_values(operation: str, type_name: str, old: Array, new: Array) -> Array:
    """`old` combined with `new`, both arrays of `storage_type(type_name)`; returns a new array.

    inc wraps to 0 once old >= new; dec wraps to `new` below 0 or above `new` (u32).
    """
    if operation in _BITWISE:
        if old.dtype.kind == "f":
            raise Fault("unsupported", f"reduction {operation} on type {type_name}")
        return _BITWISE[operation](old, new)
    if operation in ("inc", "dec"):
        if type_name not in ("u32", "b32"):
            raise Fault("unsupported", f"reduction {operation} on type {type_name}: u32 only")
        one = np.uint32(1)
        if operation == "inc":
            return np.where(old >= new, np.uint32(0), old + one)
        return np.where((old == 0) | (old > new), new, old - one)
    if operation not in OPERATIONS:
        raise Fault("unsupported", f"reduction {operation}: one of {', '.join(OPERATIONS)}")
    if type_name == "bf16":
        return _bf16(operation, old, new)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if type_name.endswith(".ftz"):
            old, new = _flush(old), _flush(new)
        result = _arithmetic(operation, old, new)
        if type_name == "f64" and operation == "add":
            result = np.where(np.isnan(new), new, np.where(np.isnan(old), old, result))
        if type_name in _NAN:
            result = np.where(np.isnan(result), _NAN[type_name], result)
        return _flush(result) if type_name.endswith(".ftz") else result


def _arithmetic(operation: str, old: Array, new: Array) -> Array:
    if operation == "add":
        return old + new
    chosen = np.minimum(old, new) if operation == "min" else np.maximum(old, new)
    if old.dtype.kind == "f":  # not np.fmin, which keeps signalling NaN
        chosen = np.where(np.isnan(new), old, np.where(np.isnan(old), new, chosen))
    return chosen


def _bf16(operation: str, old: Array, new: Array) -> Array:
    # float64 holds a sum of two bf16 well enough to round once, to nearest
    a, b = decode("bf16", old).astype(np.float64), decode("bf16", new).astype(np.float64)
    with np.errstate(invalid="ignore"):
        result = _arithmetic(operation, a, b)
    codes = encode("bf16", result, saturate=False).astype(np.uint16)
    return np.where(np.isnan(result), np.uint16(0x7FFF), codes)


def _flush(values: Array) -> Array:
    tiny = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), values), values).astype(values.dtype)
