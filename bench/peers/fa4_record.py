"""Writes down how FlashAttention-4 launches its kernel: grid, shared memory and the bytes of every parameter.

Runs inside the peers' environment, as a part of `fa4_compile.py --record`. CuTe DSL compiles a launcher for the host that
computes grid and tensor maps itself; here it is linked with `fa4_recorder.c` in place of the CUDA runtime (a C compiler
called `cc` is needed) and called with tensors that have shapes and addresses but no memory. With the PTX this is all
that an emulator needs to run the kernel exactly as its own authors would.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDER = Path(__file__).with_name("fa4_recorder.c")
MAP_BYTES = 128  # CUtensorMap
MAP_BYTES_WRITTEN = 64  # CuTe DSL fills this much of one; what follows is left over from its stack
ADDRESSES = {
    "q": 0x7F00_1000_0000,
    "k": 0x7F00_2000_0000,
    "v": 0x7F00_3000_0000,
    "o": 0x7F00_4000_0000,
    "lse": 0x7F00_5000_0000,
}
_CUDA = 2  # DLPack device type
_FLOAT, _BFLOAT = 2, 4  # DLPack type codes


@dataclass(frozen=True)
class Device:
    """A GPU as host code asks for it: multiprocessors and major compute capability."""

    sm_count: int
    major: int


B200, H200 = Device(148, 10), Device(132, 9)


class _Type(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor with its DLTensor laid out flat."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class DeviceTensor:
    """Something with a DLPack protocol that claims to be GPU memory at `address`.

    Args:
      strides: in elements; contiguous when left out.
      code, bits, lanes: DLPack's type code, the width of one value, and values per element.
    """

    def __init__(
        self,
        address: int,
        shape: Sequence[int],
        code: int,
        bits: int,
        strides: Sequence[int] | None = None,
        lanes: int = 1,
    ) -> None:
        rank = len(shape)
        if strides is None:
            strides = [1] * rank
            for axis in reversed(range(rank - 1)):
                strides[axis] = strides[axis + 1] * shape[axis + 1]
        self._shape = (ctypes.c_int64 * rank)(*shape)
        self._strides = (ctypes.c_int64 * rank)(*strides)
        self._managed = _Managed(
            data=address,
            device_type=_CUDA,
            ndim=rank,
            dtype=_Type(code, bits, lanes),
            shape=self._shape,
            strides=self._strides,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, **_: object) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._managed), b"dltensor", None)


def parameter_bytes(ptx: str) -> dict[str, list[int]]:
    """Sizes of the parameters of each entry, in the order of its signature."""
    result: dict[str, list[int]] = {}
    for entry, signature in re.findall(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", ptx):
        kinds = re.findall(
            r"\.param\s+(?:\.align \d+ )?\.(\w+) \S+?(?:\[(\d+)\])?(?:[,\s]|$)", signature
        )
        result[entry] = [int(array) if array else int(kind[1:]) // 8 for kind, array in kinds]
    return result


def record_calls(
    compiled: Any, ptx: str, call: Callable[[Callable[..., Any]], object], device: Device = B200
) -> list[dict[str, Any]]:
    """The launches that a function made by CuTe DSL with TVM-FFI hands to the driver.

    Args:
      ptx: of the kernels that the function launches.
      call: calls the function that it is given, with `tvm_ffi` tensors of `DeviceTensor`s.
      device: what the function is told about the GPU.

    Returns:
      Per launch `entry`, `grid` (CTAs), `block`, `cluster`, `shared_bytes` and `params` (hexadecimal bytes).
    """
    import tvm_ffi  # pyright: ignore[reportMissingImports]

    ffi: Any = tvm_ffi
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled.export_to_c(object_file_path=str(folder / "launch.o"), function_name="func")
        library = folder / "launch.so"
        # Symbolic: the library prefers its own stand-ins to the runtime that the process has loaded.
        options = ["-shared", "-fPIC", "-Wl,-Bsymbolic"]
        command = ["cc", *options, "-o", library, RECORDER, folder / "launch.o"]
        subprocess.run([str(word) for word in command], check=True)
        launches = folder / "launches.jsonl"
        launches.touch()
        sizes = parameter_bytes(ptx).items()
        os.environ["RECORD_FILE"] = str(launches)
        os.environ["RECORD_DEVICE"] = f"{device.sm_count} {device.major}"
        os.environ["RECORD_PARAM_BYTES"] = ";".join(
            f"{entry}:{','.join(map(str, widths))}" for entry, widths in sizes
        )
        call(ffi.load_module(str(library))["func"])
        result: list[dict[str, Any]] = [
            json.loads(line) for line in launches.read_text().splitlines()
        ]
    for launch in result:
        launch["params"] = [_tidy(text) for text in launch["params"]]
    return result


def record(compiled: Any, ptx: str, args: Any) -> dict[str, Any]:
    """The launch of `compiled` for the shapes in `args` (the options of `fa4_compile.py`), ready for JSON.

    Returns what `record_calls` has for a launch, and for the tensors that the parameters point at `shapes` (contiguous) and
    `addresses`.
    """
    import tvm_ffi  # pyright: ignore[reportMissingImports]

    ffi: Any = tvm_ffi
    shapes = {
        "q": [args.batch, args.sq, args.heads, args.head_dim],
        "k": [args.batch, args.sk, args.kv_heads, args.head_dim],
        "v": [args.batch, args.sk, args.kv_heads, args.head_dim],
        "o": [args.batch, args.sq, args.heads, args.head_dim],
        "lse": [args.batch, args.heads, args.sq],
    }
    element = (_BFLOAT if args.dtype == "bf16" else _FLOAT, 16)
    backing = {
        name: DeviceTensor(ADDRESSES[name], shape, *((_FLOAT, 32) if name == "lse" else element))
        for name, shape in shapes.items()
    }
    tensors = [ffi.from_dlpack(tensor) for tensor in backing.values()]
    scale = float(args.head_dim) ** -0.5
    is_hopper = args.target == "sm_90a"
    # cu_seqlens, seqused, page table, windows, sink, block sparsity; for Blackwell descales as well
    absent, auxiliary = [None] * (9 if is_hopper else 10), (None, None)
    # for Hopper varlen tables; for Blackwell split counts, semaphores, varlen tables, the queries
    scheduler = [None] * 2 if is_hopper else [*[None] * 7, args.sq]
    (result,) = record_calls(
        compiled,
        ptx,
        lambda launch: launch(*tensors, scale, *absent, auxiliary, *scheduler),
        H200 if is_hopper else B200,
    )
    return {
        **result,
        "scale": scale,
        "shapes": shapes,
        "addresses": {name: hex(address) for name, address in ADDRESSES.items()},
        "dtype": args.dtype,
        "causal": args.causal,
    }


def _tidy(text: str) -> str:
    """A tensor map without what CuTe DSL left unwritten; other parameters as they are."""
    if len(text) != 2 * MAP_BYTES:
        return text
    return text[: 2 * MAP_BYTES_WRITTEN].ljust(2 * MAP_BYTES, "0")
