"""The compiled operations: made once per machine, kept in the user's cache, and a frame to run them
in.

llvmlite compiles the IR for the processor at hand. The object code is kept in the cache folder
under a name that says what it was made from. Without llvmlite, on other systems than Linux on an
x86-64 with AVX2 and F16C, or on another interpreter than CPython there is no native machine, and
the emulator runs its Python.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attn_mlir.env import settings
from attn_mlir.errors import AttnError
from attn_mlir.files import make_folder, write_file
from attn_mlir.runtime.file.cache import default_root
from attn_mlir.runtime.file.trust import distrust, read_regular

from . import objects, operations, shadow
from .driver import DRIVER

FRAME_BYTES = 2 << 20
MOST_CODE_BYTES = 64 << 20  # of a file in the cache; the code has about one
_NEEDED = ("avx2", "f16c")


class Machine:
    """The operations as functions, and the frame.

    Attributes:
      addresses: of the function of each operation.
      builtin: makes a Python function of a block's bytes.
      frame: uint8[FRAME_BYTES]; `frame_address` is where it lies.
    """

    def __init__(self, engine: Any):
        self._engine = engine
        self.addresses: dict[str, int] = {
            name: engine.get_function_address(operations.symbol(name))
            for name in operations.OPERATIONS
        }
        run = engine.get_function_address("run_block")
        self.builtin: Callable[[bytes], Callable[..., int]] = objects.builtin_maker(run)
        record = engine.get_function_address("record_access")
        self._recorder: Callable[[bytes], Callable[..., Any]] = objects.builtin_maker(record)
        self._room = np.zeros(FRAME_BYTES + 64, np.uint8)
        skip = -self._room.ctypes.data % 64
        self.frame: Any = self._room[skip : skip + FRAME_BYTES]
        self.frame_address = int(self.frame.ctypes.data)
        struct.pack_into("<3Q", self.frame, operations.PYTHON_TABLE, *objects.python_functions())
        struct.pack_into("<2q", self.frame, operations.ARRAY_SHAPES, 2, operations.LANES)
        for number, name in enumerate(operations.MATH):
            loop = objects.float64_loop(getattr(np, name))
            struct.pack_into("<2Q", self.frame, operations.MATH_TABLE + 16 * number, *loop)

    def recorder(
        self, arrays: tuple[Any, ...], host: int, base: int, granule: int
    ) -> Callable[..., bool]:
        """A function that records usual accesses in a shadow; arguments as `shadow.described`.

        The arrays have to live as long as it is called.
        """
        return self._recorder(
            shadow.described(arrays, host, base, granule, objects.integer_function())
        )


@functools.cache
def machine() -> Machine | None:
    """The native machine, or None where there can be none."""
    if not objects.is_supported():
        return None
    try:
        llvm: Any = import_module("llvmlite.binding")
    except ImportError:
        return None
    features = llvm.get_host_cpu_features()
    if not all(features.get(name) for name in _NEEDED):
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, flags = llvm.get_host_cpu_name(), features.flatten()
    text = operations.module_text() + DRIVER + shadow.RECORDER
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=flags, opt=2, jit=True
    )
    key = "\n".join((import_module("llvmlite").__version__, name, flags, text))
    folder = _folder()
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.o" if folder else None
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)

    def cache_object(_: Any, code: bytes) -> None:
        _write_object(path, code)

    def cached_object(_: Any) -> bytes | None:
        return _read_object(path)

    engine.set_object_cache(cache_object, cached_object)
    engine.finalize_object()
    return Machine(engine)


def _folder() -> Path | None:
    """Where object code is kept; None where nothing is."""
    wanted = settings()
    root = None if wanted.no_cache else wanted.cache_dir or default_root()
    return root / "emulator" if root is not None else None


def _read_object(path: Path | None) -> bytes | None:
    """The object code after its SHA-256; None if missing, damaged or another user's."""
    try:
        if path is None or distrust(path.parent) is not None:
            return None
        data = read_regular(path, MOST_CODE_BYTES)
    except (OSError, ValueError):
        return None
    digest, code = data[:32], data[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write_object(path: Path | None, code: bytes) -> None:
    if path is None:
        return
    try:
        make_folder(path.parent)
        write_file(path, hashlib.sha256(code).digest() + code)
    except AttnError:
        pass  # it is compiled again next time
