"""Runs the same PTX on a Hopper GPU and on the emulator.

The tests named `test_hopper_*` need a GPU of compute capability 9.0. They check what the description
of the machine only reports from others: swizzled addresses of descriptors and of TMA, fragment
layouts, the fused rounding of the tensor core, out-of-bounds fill, reductions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.runtime.emulator import Emulator

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
SHARED_BYTES = 0xC000
Array = npt.NDArray[Any]


@dataclass
class Hopper:
    """A context on the first Hopper GPU.

    Attributes:
      driver: `cuda.bindings.driver`.
    """

    driver: Any

    def call(self, name: str, *args: Any) -> Any:
        """A driver function; its results without the status."""
        status, *results = getattr(self.driver, name)(*args)
        if int(status) != 0:
            raise RuntimeError(f"{name}: {status}")
        return results[0] if len(results) == 1 else results

    def run(
        self, ptx: str, entry: str, grid: int, block: int, arrays: list[Array], extra: list[Any]
    ) -> list[int]:
        """Launch with pointers to copies of `arrays`, then `extra` values; copies back."""
        d = self.driver
        module = self.call("cuModuleLoadData", ptx.encode() + b"\0")
        function = self.call("cuModuleGetFunction", module, entry.encode())
        self.call(
            "cuFuncSetAttribute",
            function,
            d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            SHARED_BYTES,
        )
        pointers = [self.call("cuMemAlloc", max(a.nbytes, 16)) for a in arrays]
        for pointer, array in zip(pointers, arrays, strict=True):
            self.call("cuMemcpyHtoD", pointer, array.ctypes.data, array.nbytes)
        addresses = [int(p) for p in pointers]
        values = [struct.pack("<Q", a) for a in addresses]
        values += [e(addresses) if callable(e) else e for e in extra]
        holders = [_aligned(v) for v in values]
        table = np.array([h.ctypes.data for h in holders], np.uint64)
        self.call(
            "cuLaunchKernel", function, grid, 1, 1, block, 1, 1, SHARED_BYTES, 0,
            table.ctypes.data, 0,
        )  # fmt: skip
        self.call("cuCtxSynchronize")
        for pointer, array in zip(pointers, arrays, strict=True):
            self.call("cuMemcpyDtoH", array.ctypes.data, pointer, array.nbytes)
            self.call("cuMemFree", pointer)
        self.call("cuModuleUnload", module)
        return addresses


def _aligned(value: bytes) -> npt.NDArray[np.uint8]:
    raw = np.zeros(len(value) + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    raw[skip : skip + len(value)] = np.frombuffer(value, np.uint8)
    return raw[skip:]


def both(
    hopper: Hopper,
    ptx: str,
    grid: int,
    block: int,
    arrays: list[Array],
    extra: list[bytes | Callable[[list[int]], bytes]] | None = None,
    numeric: str = "fused",
) -> list[Array]:
    """Run on the GPU (into `arrays`) and on the emulator; returns the emulator's arrays."""
    twins = [a.copy() for a in arrays]
    addresses = hopper.run(ptx, "kernel", grid, block, arrays, list(extra or []))
    emulator = Emulator(target="sm_90a", numeric=numeric)  # type: ignore[arg-type]
    for twin, address in zip(twins, addresses, strict=True):
        emulator.map(twin, address=address)
    values = [e(addresses) if callable(e) else e for e in extra or []]
    emulator.launch(
        ptx, "kernel", grid=(grid, 1, 1), block=(block, 1, 1), shared_bytes=SHARED_BYTES,
        params=[*addresses, *values],
    )  # fmt: skip
    return twins


def differing(gpu: Array, emulated: Array) -> str:
    """Empty if equal, else the first differences."""
    bad = np.argwhere(gpu != emulated)
    if not len(bad):
        return ""
    lines = [
        f"{tuple(int(i) for i in at)}: gpu 0x{int(gpu[tuple(at)]):x}, "
        f"emulator 0x{int(emulated[tuple(at)]):x}"
        for at in bad[:6]
    ]
    return f"{len(bad)} of {gpu.size} differ: " + "; ".join(lines)


def connect() -> Hopper:
    """The first GPU; skips the test where there is none or it is no Hopper."""
    driver = pytest.importorskip("cuda.bindings.driver")
    try:
        gpu = Hopper(driver)
        gpu.call("cuInit", 0)
        device = gpu.call("cuDeviceGet", 0)
        attribute = driver.CUdevice_attribute
        major = gpu.call(
            "cuDeviceGetAttribute",
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            device,
        )
    except Exception as error:
        pytest.skip(f"no GPU: {error}")
    if major != 9:
        pytest.skip(f"the GPU has compute capability {major}.x, 9.0 is needed")
    gpu.call("cuCtxSetCurrent", gpu.call("cuDevicePrimaryCtxRetain", device))
    return gpu
