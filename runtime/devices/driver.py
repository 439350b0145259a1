"""The CUDA driver: the only module that calls `cuda.bindings.driver`.

Everything is looked up on first use: importing this module loads nothing, and without a driver
calls raise a `TargetError`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from dataclasses import dataclass
from typing import Any

from attn_mlir.errors import LaunchError, TargetError
from attn_mlir.runtime.call.tensormap import MapDescription
from attn_mlir.runtime.file.recipes import MAP_BYTES

# CUDA errors for a cubin that is not for this GPU or driver; cuda.h, CUresult
_WRONG_BINARY = {
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "CUDA_ERROR_INVALID_SOURCE",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it.

    Attributes:
      capability: (major, minor), such as (10, 0).
      shared_bytes: most shared memory of a CTA, with opt-in.
    """

    index: int
    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    shared_bytes: int

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets whose machine code it can run; code for `sm_XYa` runs on that chip only."""
        return (f"sm_{self.capability[0]}{self.capability[1]}a",)


@functools.cache
def api() -> Any:
    """`cuda.bindings.driver`, initialised.

    Raises:
      TargetError: cuda-python or the driver is missing, or the driver finds no GPU.
    """
    try:
        module: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise TargetError(
            f"cuda-python cannot be imported ({error}): pip install cuda-python"
        ) from error
    try:
        (status,) = module.cuInit(0)
    except RuntimeError as error:  # the binding found no libcuda
        raise TargetError("there is no CUDA driver on this machine") from error
    if status.name != "CUDA_SUCCESS":
        raise TargetError(f"the CUDA driver does not start: {status.name}")
    return module


def call(name: str, *args: object, what: str | None = None) -> Any:
    """Calls a driver function and unpacks its result: None, a value, or a tuple.

    Raises:
      TargetError: the driver refuses the machine code.
      LaunchError: another failure; `what` says what was attempted.
    """
    status, *values = getattr(api(), name)(*args)
    if status.name != "CUDA_SUCCESS":
        doing = f"{what}: " if what else ""
        if status.name in _WRONG_BINARY:
            raise TargetError(
                f"{doing}the GPU or its driver does not take this binary ({status.name})"
            )
        raise LaunchError(f"{doing}{name} failed with {status.name}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def driver_version() -> tuple[int, int]:
    """The CUDA version that the driver supports, such as (13, 0)."""
    version = int(call("cuDriverGetVersion"))
    return version // 1000, version % 1000 // 10


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver lists.

    Raises:
      TargetError: there is no driver.
    """
    attribute = api().CUdevice_attribute
    devices: list[Gpu] = []
    for index in range(int(call("cuDeviceGetCount"))):
        device = call("cuDeviceGet", index)

        def get(name: str, device: Any = device) -> int:
            key = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(call("cuDeviceGetAttribute", key, device))

        name = call("cuDeviceGetName", 128, device)
        devices.append(
            Gpu(
                index=index,
                name=bytes(name).split(b"\0")[0].decode(),
                capability=(get("COMPUTE_CAPABILITY_MAJOR"), get("COMPUTE_CAPABILITY_MINOR")),
                sm_count=get("MULTIPROCESSOR_COUNT"),
                memory_bytes=int(call("cuDeviceTotalMem", device)),
                shared_bytes=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            )
        )
    return tuple(devices)


@functools.cache
def primary_context(index: int) -> Any:
    """The context of that GPU that the CUDA runtime, torch and cupy use as well."""
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", index))


class Current:
    """`with Current(index):` makes that GPU's primary context current and then restores the old."""

    def __init__(self, index: int):
        self.index = index
        self._pushed = False

    def __enter__(self) -> None:
        context = primary_context(self.index)
        if int(call("cuCtxGetCurrent")) != int(context):
            call("cuCtxPushCurrent", context)
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            call("cuCtxPopCurrent")


@functools.lru_cache(maxsize=256)
def encode_map(description: MapDescription) -> bytes:
    """A tensor map's 128 bytes, made by the driver.

    Raises:
      LaunchError: the driver refuses the description.
    """
    cuda = api()
    types = cuda.CUtensorMapDataType
    swizzle = "NONE" if description.swizzle == "none" else description.swizzle
    promotion = "NONE" if description.l2 == "none" else f"L2_{description.l2}"
    rank = len(description.extents)
    encoded = call(
        "cuTensorMapEncodeTiled",
        getattr(types, f"CU_TENSOR_MAP_DATA_TYPE_{description.copied_as}"),
        rank,
        description.address,
        [cuda.cuuint64_t(extent) for extent in description.extents],
        # One dimension has no strides, but the driver wants a place to read them from.
        [cuda.cuuint64_t(stride) for stride in description.strides_bytes or (16,)],
        [cuda.cuuint32_t(extent) for extent in description.box],
        [cuda.cuuint32_t(1)] * rank,
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        getattr(cuda.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        what=f"tensor map {description}",
    )
    return ctypes.string_at(encoded.getPtr(), MAP_BYTES)
