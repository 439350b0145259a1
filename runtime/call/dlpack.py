"""DLPack by ctypes: reads capsules of other libraries, and exports our own memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.element_types import TYPES

# dlpack.h, DLDeviceType: CPU, CUDA, pinned host memory, managed memory
DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}
# dlpack.h, (DLDataTypeCode, bits)
DTYPES = {(row.dlpack, row.bits): row.name for row in TYPES if row.use != "format"}
READABLE = {row.numpy: row.name for row in TYPES if row.use != "format"}  # by the names of numpy
_CODES = {name: code for code, name in DTYPES.items()}
_READ_ONLY = 1  # dlpack.h, DLPACK_FLAG_BITMASK_READ_ONLY

_UNVERSIONED = b"dltensor"
_VERSIONED = b"dltensor_versioned"
_MAJOR = 1  # major version of the versioned form: others may have another memory layout
MAX_RANK = 64  # numpy's limit; a capsule with more dimensions is damaged


class DLTensor(ctypes.Structure):
    """dlpack.h, DLTensor: shape and strides in elements."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """dlpack.h, DLManagedTensor."""

    _fields_ = (
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _ManagedVersioned(ctypes.Structure):
    """dlpack.h, DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype = ctypes.c_char_p
_get_name.argtypes = [ctypes.py_object]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@dataclass(frozen=True)
class Described:
    """The description of a tensor, copied from a capsule.

    Attributes:
      dtype: a name in `DTYPES`.
      strides: in elements; None for a dense tensor.
      address: address of element 0.
      device: DLPack's numbers for the kind of device and for the device.
      read_only: whether writing is forbidden.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    address: int
    device: tuple[int, int]
    read_only: bool


def read_capsule(capsule: object) -> Described:
    """Reads the description in a capsule.

    The capsule is not consumed: its destructor releases the tensor, so it must be kept alive while
    the description is in use.

    Raises:
      ValueError: no DLPack capsule, a consumed one, one of another version, or with invalid fields.
    """
    is_versioned = bool(_is_valid(capsule, _VERSIONED))
    if not is_versioned and not _is_valid(capsule, _UNVERSIONED):
        if type(capsule).__name__ != "PyCapsule":
            raise ValueError(f"__dlpack__ gave a {type(capsule).__name__}, no capsule")
        name = (_get_name(capsule) or b"without a name").decode(errors="replace")
        hint = ": it was consumed before" if name.startswith("used_") else ""
        raise ValueError(f"the capsule is {name!r:.40}, no 'dltensor'{hint}")
    if not is_versioned:
        return _described(DLTensor.from_address(_get_pointer(capsule, _UNVERSIONED)), 0)
    managed = _ManagedVersioned.from_address(_get_pointer(capsule, _VERSIONED))
    if managed.major != _MAJOR:
        raise ValueError(f"the capsule is of DLPack {managed.major}.{managed.minor}, not {_MAJOR}")
    return _described(managed.dl_tensor, managed.flags)


def _described(tensor: DLTensor, flags: int) -> Described:
    """The fields of a tensor, checked to be possible."""
    if not 0 <= tensor.ndim <= MAX_RANK or (tensor.ndim and not tensor.shape):
        raise ValueError(f"the capsule has {tensor.ndim} dimensions and no shape for them")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if any(extent < 0 for extent in shape):
        raise ValueError(f"the capsule has shape {list(shape)}")
    dtype = DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise ValueError(
            f"the dtype has DLPack code {tensor.code}, {tensor.bits} bits and {tensor.lanes} "
            f"lanes, allowed are {', '.join(READABLE)}"
        )
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim))
    if not tensor.data and 0 not in shape:
        raise ValueError(f"the capsule has shape {list(shape)}, but no memory")
    return Described(
        dtype=dtype,
        shape=shape,
        strides=strides,
        address=(tensor.data or 0) + tensor.byte_offset,
        device=(tensor.device_type, tensor.device_id),
        read_only=bool(flags & _READ_ONLY),
    )


# Exported objects by address of the description, until the consumer calls the deleter.
_exported: dict[int, tuple[Any, ...]] = {}


def _release(pointer: int | None, exported: dict[int, tuple[Any, ...]] = _exported) -> None:
    """Releases an exported tensor; the default argument is still alive at interpreter exit."""
    exported.pop(pointer or 0, None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_release)


class Export:
    """Our own memory, which another library can import with its `from_dlpack`.

    Args:
      owner: keeps the memory alive until the consumer releases it.
      address: address of element 0.
      device: `cpu` or `cuda`.
      index: number of the GPU.
      dtype: a name in `DTYPES`.
      shape: extents; the tensor is dense.
    """

    def __init__(
        self,
        owner: object,
        address: int,
        *,
        device: str,
        index: int,
        dtype: str,
        shape: Sequence[int],
    ):
        self._owner = owner
        self._address = address
        self._device = (2 if device == "cuda" else 1, index)
        self._code = _CODES[dtype]
        self._shape = tuple(shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_options: object) -> Any:
        """A capsule in the unversioned form before DLPack 1.0, which every consumer accepts."""
        rank = len(self._shape)
        extents = (ctypes.c_int64 * max(rank, 1))(*self._shape)
        managed = _Managed()
        tensor = managed.dl_tensor
        tensor.data = self._address or None
        tensor.device_type, tensor.device_id = self._device
        tensor.ndim = rank
        tensor.code, tensor.bits = self._code
        tensor.lanes = 1
        tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
        address = ctypes.addressof(managed)
        _exported[address] = (managed, extents, self._owner)
        return _new_capsule(address, _UNVERSIONED, None)
