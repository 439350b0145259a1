"""`attn-mlir doctor`: shows what is installed, which GPUs there are, and whether a kernel runs.

The kernel only copies a tensor by TMA: it runs if the driver, tensor maps, the bundle's machine
code and the GPU work together, and its result is exact.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from attn_mlir._version import __version__
from attn_mlir.errors import LaunchError, TargetError
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.base import Device
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.runtime.manifest import Manifest, TensorArg
from attn_mlir.tools import makes_machine_code

PACKAGES = (
    "numba-cuda-mlir", "nvidia-cuda-nvcc", "cuda-bindings", "cuda-core", "numpy",
    "ml_dtypes",
)  # fmt: skip
TARGETS = ("sm_90a", "sm_100a")  # chips that the copy kernel is compiled for
EXTENTS = (
    77,
    200,
    3,
    5,
)  # extents of the copied tensor: no multiples of a tile; rows are multiples of 16 bytes

Say = Callable[[str, str], None]


@dataclass(frozen=True)
class Copy:
    """One run of the copy kernel.

    Attributes:
      seconds: time of the second run, from the call to the result in host memory.
      byte_count: number of copied bytes.
    """

    device: str
    target: str
    byte_count: int
    seconds: float


def versions() -> dict[str, str]:
    """Versions of relevant packages; `not installed` for missing ones."""
    found = {"python": f"{platform.python_version()} ({sys.executable})", "attn-mlir": __version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def run(
    bundle_for: Callable[[str], Bundle],
    *,
    emulator: bool,
    say: Say,
    targets: tuple[str, ...] | None = None,
    index: int | None = None,
) -> list[Copy]:
    """Reports what is installed, and runs the copy kernel.

    Args:
      bundle_for: returns the copy kernel for a target.
      emulator: whether to run on the emulator in place of GPUs.
      say: called with a topic and a finding, in order.
      targets: targets to run on the emulator; None for all of `TARGETS`.
      index: number of the GPU to run on; None for all.

    Returns:
      The runs, which all were correct.

    Raises:
      TargetError: no driver, no GPU, or a GPU that no copy kernel is compiled for.
      LaunchError: a kernel failed or copied something wrong.
    """
    for package, version in versions().items():
        say(package, version)
    if not makes_machine_code():
        say("machine code", "none is made: ATTN_MLIR_PTXAS=none, kernels run on the emulator alone")
    jobs: list[tuple[Device, str]] = []
    if emulator:
        jobs = [(EmulatorDevice(), target) for target in targets or TARGETS]
    else:
        try:
            major, minor = driver.driver_version()
            gpus = driver.gpus()
        except TargetError as error:
            raise TargetError(f"{error}: pass --emulator to try the emulator") from error
        say("driver", f"CUDA {major}.{minor}")
        if index is not None and not 0 <= index < len(gpus):
            raise TargetError(f"there is no GPU {index}: the driver shows {len(gpus)}")
        for gpu in gpus if index is None else (gpus[index],):
            say(
                f"cuda:{gpu.index}",
                f"{gpu.name}, {gpu.targets[0]}, {gpu.sm_count} SMs, "
                f"{gpu.memory_bytes / 2**30:.0f} GiB, {gpu.shared_bytes} B shared memory per CTA",
            )
            jobs.append((CudaDevice(gpu.index), _target_of(gpu)))
        if not jobs:
            raise TargetError("the driver shows no GPU: pass --emulator to try the emulator")
    copies: list[Copy] = []
    for device, target in jobs:
        done = copy_once(bundle_for(target), device)
        copies.append(done)
        say(
            f"TMA copy on {done.device}",
            f"ok: {done.byte_count} bytes by {target} code, exact, {done.seconds * 1e3:.2f} ms",
        )
    return copies


def copy_once(bundle: Bundle, device: Device) -> Copy:
    """Runs a copy kernel twice and compares every byte.

    Raises:
      TargetError: not a bundle of a copy kernel, or not for this device.
      LaunchError: it failed or copied something wrong.
    """
    source_arg, target_arg = _copy_arguments(bundle.manifest)
    sizes = dict(zip(bundle.manifest.symbols, EXTENTS, strict=False))
    shape = tuple(sizes[n] if isinstance(n, str) else n for n in source_arg.shape)
    dtype = _numpy_dtype(source_arg)
    byte_count = int(np.prod(shape)) * dtype.itemsize
    random = np.random.default_rng(0)
    kernel = Kernel(bundle)
    seconds = 0.0
    for _ in range(2):
        words = random.integers(0, 2**8, byte_count, np.uint8) & 0x3B  # finite in every dtype
        source = words.view(dtype).reshape(shape)
        result = np.full(byte_count, 0xFF, np.uint8).view(dtype).reshape(shape)
        start = time.perf_counter()
        kernel.launch({source_arg.name: source, target_arg.name: result}, device=device)
        seconds = time.perf_counter() - start
        wrong = int(np.count_nonzero(source.view(np.uint8) != result.view(np.uint8)))
        if wrong:
            raise LaunchError(
                f"the TMA copy on {device.name} gave {wrong} wrong bytes of {byte_count}: "
                f"target {bundle.target}, {target_arg.name} is not {source_arg.name}"
            )
    return Copy(device.name, bundle.target, byte_count, seconds)


def _copy_arguments(manifest: Manifest) -> tuple[TensorArg, TensorArg]:
    """The names of the input and output of a kernel with one of each, of the same shape."""
    tensors = manifest.tensors
    if (
        [tensor.role for tensor in tensors] != ["in", "out"]
        or tensors[0].shape != tensors[1].shape
        or tensors[0].dtype != tensors[1].dtype
        or len(manifest.symbols) > len(EXTENTS)
        or any(scalar.default is None for scalar in manifest.scalars)
    ):
        raise TargetError(f"the bundle of {manifest.entry} is not that of a copy kernel")
    return tensors[0], tensors[1]


def _numpy_dtype(tensor: TensorArg) -> np.dtype[Any]:
    if tensor.dtype == "bf16":
        import ml_dtypes

        return cast("np.dtype[Any]", np.dtype(ml_dtypes.bfloat16))
    names = {"f16": np.float16, "f32": np.float32, "i32": np.int32, "u8": np.uint8}
    return np.dtype(names[tensor.dtype])


def _target_of(gpu: driver.Gpu) -> str:
    for target in gpu.targets:
        if target in TARGETS:
            return target
    raise TargetError(
        f"cuda:{gpu.index} is a {gpu.name} ({gpu.targets[0]}): the copy kernel is compiled for "
        f"{' and '.join(TARGETS)}"
    )
