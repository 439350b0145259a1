"""Layouts of CPython's and numpy's objects, checked on the running interpreter.

The offsets are those of the public headers listobject.h, bytesobject.h, ndarraytypes.h and
ufuncobject.h.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import driver

_METH_FASTCALL = 0x80
_NEW_FROM_DESCR = 94  # of the table of numpy's functions
_UFUNC_LOOPS, _UFUNC_DATA, _UFUNC_COUNT, _UFUNC_TYPES = 32, 40, 48, 64
_DOUBLE = bytes([np.dtype(np.float64).num] * 2)


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def _pointer(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _int(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def is_supported() -> bool:
    """Whether objects of this interpreter are laid out as `driver.py` expects."""
    if sys.implementation.name != "cpython" or sys.platform != "linux":
        return False
    if platform.machine() != "x86_64":
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)() or hasattr(sys, "gettotalrefcount"):
        return False
    if sys.maxsize < 1 << 32 or np.dtype(np.intp).itemsize != 8:
        return False
    array = np.zeros((2, 32), np.float32)
    at, items, data = id(array), [array, None], b"some bytes"
    checks = (
        _pointer(at + driver.TYPE) == id(np.ndarray),
        _int(at) == sys.getrefcount(array) - 1,
        _pointer(_pointer(id(items) + driver.LIST_ITEMS)) == at,
        _pointer(_pointer(id(items) + driver.LIST_ITEMS) + 8) == id(None),
        ctypes.string_at(id(data) + driver.BYTES_DATA, len(data)) == data,
        _pointer(at + driver.ARRAY_DATA) == array.ctypes.data,
        _int(at + driver.ARRAY_ND) == 2,
        [_pointer(_pointer(at + driver.ARRAY_SHAPE) + 8 * n) for n in (0, 1)] == [2, 32],
        _pointer(at + driver.ARRAY_BASE) == 0,
        _pointer(id(array[1]) + driver.ARRAY_BASE) == at,
        _pointer(at + driver.ARRAY_DTYPE) == id(array.dtype),
        _int(at + driver.ARRAY_FLAGS) == array.flags.num,
        _pointer(at + driver.ARRAY_WEAK) == 0,
    )
    return all(checks)


def builtin_maker(address: int) -> Callable[[bytes], Callable[..., int]]:
    """Makes a builtin of the native function at an address and its first argument."""
    definition = _MethodDef(b"block", address, _METH_FASTCALL, None)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    place = ctypes.addressof(definition)

    def make(first: bytes, _owner: Any = definition) -> Callable[..., int]:
        return new(place, first, None)

    return make


def float64_loop(ufunc: Any) -> tuple[int, int]:
    """Address and data of the loop by which a ufunc of one operand takes float64 to float64.

    Raises:
      ValueError: the ufunc is not laid out as expected.
    """
    at = id(ufunc)
    count = _int(at + _UFUNC_COUNT)
    if count != len(ufunc.types):
        raise ValueError(f"the ufunc {ufunc} has an unknown layout")
    kinds = ctypes.string_at(_pointer(at + _UFUNC_TYPES), 2 * count)
    number = next(n for n in range(count) if kinds[2 * n : 2 * n + 2] == _DOUBLE)
    data = _pointer(at + _UFUNC_DATA)
    loop = _pointer(_pointer(at + _UFUNC_LOOPS) + 8 * number)
    return loop, _pointer(data + 8 * number) if data else 0


def python_functions() -> tuple[int, int, int]:
    """Addresses of PyArray_NewFromDescr, Py_IncRef and Py_DecRef.

    numpy gives out its functions as a table, whose order never changes (numpy/__multiarray_api.h).
    """
    take = ctypes.pythonapi.PyCapsule_GetPointer
    take.restype, take.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = take(np._core._multiarray_umath._ARRAY_API, None)  # pyright: ignore
    new = _pointer(table + 8 * _NEW_FROM_DESCR)
    return new, _address(ctypes.pythonapi.Py_IncRef), _address(ctypes.pythonapi.Py_DecRef)


def integer_function() -> int:
    """Address of PyLong_AsLongLong."""
    return _address(ctypes.pythonapi.PyLong_AsLongLong)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
