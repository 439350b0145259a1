"""`attn-mlir doctor`: shows what is installed, which GPUs there are, and whether kernels run.

The first kernel only copies a tensor by TMA: it runs if the driver, tensor maps, the bundle's
machine code and the GPU work together, and its result is exact. The second is attention
(`attention_trial`), whose speed is told where it runs on a GPU. Neither needs more than numpy.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attn_mlir._version import __version__
from attn_mlir.errors import LaunchError, TargetError
from attn_mlir.runtime.attention_trial import AttentionRun, is_attention, try_attention
from attn_mlir.runtime.call.tensors import dtype_bytes, view_as
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.base import TARGETS, Device
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import Manifest, TensorArg
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.tools import makes_machine_code

PACKAGES = (
    "numba-cuda-mlir", "nvidia-cuda-nvcc", "cuda-bindings", "cuda-core", "numpy",
    "ml_dtypes",
)  # fmt: skip
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

    what: ClassVar[str] = "TMA copy"

    device: str
    target: str
    byte_count: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"ok: {self.byte_count} bytes by {self.target} code, exact, {self.seconds * 1e3:.2f} ms"
        )


def versions() -> dict[str, str]:
    """Versions of relevant packages; `not installed` for missing ones."""
    result = {"python": f"{platform.python_version()} ({sys.executable})", "attn-mlir": __version__}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = "not installed"
    return result


def run(
    kernels: Callable[[str], Sequence[Bundle]],
    *,
    emulator: bool,
    say: Say,
    targets: tuple[str, ...] | None = None,
    index: int | None = None,
) -> list[Copy | AttentionRun]:
    """Reports what is installed, and runs a copy kernel and attention.

    Args:
      kernels: returns the kernels to run for a target: of a copy, or of dense causal attention.
      emulator: whether to run on the emulator in place of GPUs.
      say: called with a topic and a finding, in order.
      targets: targets to run on the emulator; None for all of `TARGETS`.
      index: number of the GPU to run on; None for all.

    Returns:
      The runs, which all were correct. Attention is timed on GPUs alone.

    Raises:
      TargetError: no driver, no GPU, a GPU that no kernel is compiled for, or another kernel.
      LaunchError: a kernel failed, or its result is wrong.
    """
    for package, version in versions().items():
        say(package, version)
    if not makes_machine_code():
        say("machine code", "none is made: ATTN_MLIR_PTXAS=none, kernels run on the emulator alone")
    jobs: list[tuple[Device, str]] = []
    if emulator:
        jobs = [(EmulatorDevice(target=target), target) for target in targets or TARGETS]
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
    done: list[Copy | AttentionRun] = []
    for device, target in jobs:
        for bundle in kernels(target):
            for outcome in _tried(bundle, device):
                say(f"{outcome.what} on {outcome.device}", str(outcome))
                done.append(outcome)
    return done


def _tried(bundle: Bundle, device: Device) -> Iterable[Copy | AttentionRun]:
    """The runs of a kernel, one after the other."""
    if is_attention(bundle):
        return try_attention(bundle, device)
    return [copy_once(bundle, device)]


def copy_once(bundle: Bundle, device: Device) -> Copy:
    """Runs a copy kernel twice and compares every byte.

    Raises:
      TargetError: not a bundle of a copy kernel, or not for this device.
      LaunchError: it failed or copied something wrong.
    """
    source_arg, target_arg = _copy_arguments(bundle.manifest)
    sizes = dict(zip(bundle.manifest.symbols, EXTENTS, strict=False))
    shape = tuple(sizes[n] if isinstance(n, str) else n for n in source_arg.shape)
    item_bytes = dtype_bytes(source_arg.dtype)
    byte_count = int(np.prod(shape)) * item_bytes
    random = np.random.default_rng(0)
    kernel = Kernel(bundle)
    seconds = 0.0
    for _ in range(2):
        words = random.integers(0, 2**8, byte_count, np.uint8) & 0x3B  # finite in every dtype
        source = words.view(f"u{item_bytes}").reshape(shape)
        result = np.full_like(source, 2 ** (8 * item_bytes) - 1)
        arrays = {source_arg.name: source, target_arg.name: result}
        start = time.perf_counter()
        kernel.launch(
            {name: view_as(array, name, source_arg.dtype) for name, array in arrays.items()},
            device=device,
        )
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


def _target_of(gpu: driver.Gpu) -> str:
    for target in gpu.targets:
        if target in TARGETS:
            return target
    raise TargetError(
        f"cuda:{gpu.index} is a {gpu.name} ({gpu.targets[0]}): kernels are compiled for "
        f"{' and '.join(TARGETS)}"
    )
