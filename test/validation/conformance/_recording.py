"""Writes down every launch that a library makes through CuTe DSL, without a GPU and without a driver.

Runs in the environment of the peers. The library's own host code runs on tensors that have shapes and no memory
(torch's FakeTensorMode); `cute.compile` is replaced, so that a compiled function records its call: the launcher that CuTe
DSL made for the host is linked with a stand-in for the CUDA runtime (`bench/peers/fa4_recorder.c`) and called with addresses
that are assigned here. What comes out is all that an emulator needs to do the same: per launch PTX, grid, block,
cluster, shared memory and parameter bytes, and per allocation its address and size.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers.fa4_record import B200, H200, Device, DeviceTensor, record_calls

DEVICES = {"sm_100a": B200, "sm_90a": H200}
FIRST_ADDRESS = 0x7F00_0000_0000
ADDRESS_STEP = 0x1000_0000  # between two allocations; larger than any of them
_DLPACK = {  # torch dtype name: DLPack type code and bits
    "float16": (2, 16),
    "float32": (2, 32),
    "bfloat16": (4, 16),
    "bool": (6, 8),
    "int8": (0, 8),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "float8_e8m0fnu": (14, 8),
    "float4_e2m1fn_x2": (17, 4),
}


def fake_hardware(device: Device) -> type:
    """A class that answers cutlass.utils.HardwareInfo's questions without a driver."""

    class FakeHardware:
        def __init__(self, device_id: int = 0) -> None:
            self.device_id = device_id

        def get_device_multiprocessor_count(self) -> int:
            return device.sm_count

        def get_max_active_clusters(self, cluster_size: int = 1, **_: object) -> int:
            return device.sm_count // cluster_size

    return FakeHardware


def set_environment(dump: Path, target: str) -> None:
    """What CuTe DSL and the packages read once, when they are imported."""
    os.environ.update(
        CUTE_DSL_ARCH=target,
        CUTE_DSL_KEEP="ptx",
        CUTE_DSL_DUMP_DIR=str(dump),
        CUTE_DSL_DISABLE_FILE_CACHING="1",
        FLASH_ATTENTION_ARCH=target,
        FLASH_ATTENTION_NUM_SMS=str(DEVICES[target].sm_count),
        FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="0",
        QUACK_ARCH=target,
        QUACK_CACHE_ENABLED="0",
    )


def tensor(shape: tuple[int, ...], dtype: str, device: str = "cuda") -> Any:
    """A tensor on a GPU that is not there, or for host code that looks at values, on the CPU."""
    import torch

    kinds = {
        "bf16": torch.bfloat16,
        "f16": torch.float16,
        "f32": torch.float32,
        "i8": torch.int8,
        "i32": torch.int32,
        "i64": torch.int64,
        "e4m3": torch.float8_e4m3fn,
        "u8": torch.uint8,
    }
    return torch.empty(shape, dtype=kinds[dtype], device=device)


def entry_name(ptx: str) -> str:
    """The name of the one kernel in a PTX text."""
    (name,) = re.findall(r"\.entry\s+([\w$]+)", ptx)
    return name


@dataclass
class Recorder:
    """Collects the launches of one case.

    Attributes:
      dump: where CuTe DSL puts the PTX.
      target: of the PTX; decides what host code is told about the GPU.
      names: of tensors, by the identity of their storage.
      buffers: what the launches point at, by storage.
    """

    dump: Path
    target: str = "sm_100a"
    names: dict[int, str] = field(default_factory=dict[int, str])
    zeroed: set[int] = field(default_factory=set[int])
    buffers: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    launches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    texts: list[str] = field(default_factory=list[str])
    kept: list[Any] = field(default_factory=list[Any])

    @property
    def device(self) -> Device:
        """The GPU that is not there."""
        return DEVICES[self.target]

    def compile(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stands in for `cute.compile`: the same function, which records its calls."""
        for path in self.dump.rglob("*.ptx"):
            path.unlink()
        compiled = original(*args, **kwargs)
        made = list(self.dump.rglob("*.ptx"))
        if len(made) != 1:
            raise RuntimeError(f"expected one PTX file of one compilation, got {made}")
        ptx = made[0].read_text().rstrip("\0")
        return lambda *call: self.launched(compiled, ptx, call)

    def launched(self, compiled: Any, ptx: str, call: tuple[Any, ...]) -> None:
        """One call of a compiled function."""
        for launch in record_calls(
            compiled, ptx, lambda function: function(*map(self._pass, call)), self.device
        ):
            self.add(ptx, launch)

    def add(self, ptx: str, launch: dict[str, Any]) -> None:
        """One launch, by whatever way it is known; its `entry` may be left out where the PTX has only one."""
        entry = {} if "entry" in launch else {"entry": entry_name(ptx)}
        self.launches.append({**entry, **launch})
        self.texts.append(ptx)

    def _pass(self, value: Any) -> Any:
        import torch
        import tvm_ffi

        if isinstance(value, torch.Tensor):
            code, bits = _DLPACK[str(value.dtype).removeprefix("torch.")]
            address = self.address(value) + value.storage_offset() * value.element_size()
            lanes = 2 if bits == 4 else 1
            tensor = DeviceTensor(address, value.shape, code, bits, value.stride(), lanes)
            self.kept.append(tensor)
            return tvm_ffi.from_dlpack(tensor)
        if isinstance(value, tuple | list):
            return tuple(self._pass(item) for item in value)
        if is_dataclass(value):
            return tuple(self._pass(getattr(value, one.name)) for one in fields(value))
        return getattr(value, "value", value)  # cutlass.Int32 and the like

    def address(self, tensor: Any) -> int:
        """Where the storage of a tensor lies on the device."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.buffers:
            self.kept.append(storage)
            position = len(self.buffers)
            self.buffers[key] = {
                "address": FIRST_ADDRESS + position * ADDRESS_STEP,
                "bytes": storage.nbytes(),
                "name": f"buffer{position}",
                "zeroed": key in self.zeroed,
            }
        return self.buffers[key]["address"]

    def name(self, **tensors: Any) -> None:
        """Give names to the storages of these tensors; None is skipped."""
        for name, tensor in tensors.items():
            if tensor is not None:
                self.names[tensor.untyped_storage()._cdata] = name
                self.kept.append(tensor)

    def write(self, folder: Path, name: str, packages: tuple[str, ...]) -> None:
        """`NAME.json`, and `NAME.0.ptx`, `NAME.1.ptx`, ... in the order of the launches."""
        for key, buffer in self.buffers.items():
            buffer["name"] = self.names.get(key, buffer["name"])
        if not self.launches:
            raise RuntimeError(f"{name} launched nothing")
        for position, (launch, text) in enumerate(zip(self.launches, self.texts, strict=True)):
            launch["ptx"] = f"{name}.{position}.ptx"
            (folder / launch["ptx"]).write_text(text)
        record = {
            "packages": {package: version(package) for package in packages},
            "launches": self.launches,
            "buffers": list(self.buffers.values()),
        }
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def install(recorder: Recorder) -> None:
    """Let the libraries find the recorder and a GPU that is not there."""
    import cutlass
    import cutlass.cute as cute
    import cutlass.utils.hardware_info as hardware_info
    import torch

    hardware_info.HardwareInfo = cutlass.utils.HardwareInfo = fake_hardware(recorder.device)
    original, zeros = cute.compile, torch.zeros

    def recorded_zeros(*args: Any, **kwargs: Any) -> Any:
        tensor = zeros(*args, **kwargs)
        recorder.zeroed.add(tensor.untyped_storage()._cdata)
        recorder.kept.append(tensor)
        return tensor

    cute.compile = lambda *args, **kwargs: recorder.compile(original, *args, **kwargs)
    torch.zeros = recorded_zeros
    torch.cuda.current_device = lambda: 0
