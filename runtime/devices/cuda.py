"""GPUs as devices: machine code is loaded once, launches go to a stream and do not wait.

After the first launch of a bundle (or `prepare`) a launch makes no driver call that a stream
capture forbids, so it can be recorded in a CUDA graph.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.call.binding import Bound, KernelParam, parameters
from attn_mlir.runtime.devices import driver, memory
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.launchplan import LaunchPlan, can_be_planned
from attn_mlir.runtime.devices.parameters import PackedParameters
from attn_mlir.runtime.file.bundle import Bundle

PORTABLE_CLUSTER = 8  # CTAs of a cluster without opt-in; CUDA programming guide, clusters


@functools.cache
def _loaded(cubin_sha256: str, index: int) -> dict[str, Any]:
    """The module and function of a cubin on a GPU, filled in by `CudaDevice.prepare`."""
    return {}


@dataclass(frozen=True)
class CudaDevice:
    """GPU number `index`, through its primary context."""

    index: int = 0

    @property
    def name(self) -> str:
        """`cuda:0`."""
        return f"cuda:{self.index}"

    @property
    def gpu(self) -> driver.Gpu:
        """The driver's description of this GPU.

        Raises:
          TargetError: there is no driver, or no GPU of that number.
        """
        gpus = driver.gpus()
        if self.index >= len(gpus):
            raise TargetError(f"there is no GPU {self.index}: the driver shows {len(gpus)}")
        return gpus[self.index]

    def refusal(self, bundle: Bundle) -> str | None:
        """Why this GPU cannot run the bundle; None if it can."""
        try:
            _ = bundle.cubin
            gpu = self.gpu
        except TargetError as error:
            return str(error)
        if bundle.target not in gpu.targets:
            return (
                f"{self.name} is a {gpu.name} ({', '.join(gpu.targets)}), the bundle is for "
                f"{bundle.target}"
            )
        needed, own = _assembler_major(bundle), driver.driver_version()
        if needed is not None and own[0] < needed:
            return (
                f"the driver of {self.name} supports CUDA {own[0]}.{own[1]}, the bundle was "
                f"assembled for CUDA {needed}: install a newer driver"
            )
        if bundle.manifest.smem_bytes > gpu.shared_bytes:
            return (
                f"{bundle.entry} needs {bundle.manifest.smem_bytes} B of shared memory, "
                f"{self.name} gives {gpu.shared_bytes} B"
            )
        return None

    def prepare(self, bundle: Bundle) -> Any:
        """Loads the machine code and sets its attributes, once; returns the driver's function.

        Raises:
          TargetError: this GPU or its driver cannot run the bundle.
        """
        slot = _loaded(bundle.manifest.sha256 or "", self.index)
        if "function" in slot:
            return slot["function"]
        if reason := self.refusal(bundle):
            raise TargetError(reason)
        with driver.Current(self.index):
            slot["module"] = driver.call("cuModuleLoadData", bundle.cubin, what="load the bundle")
            function = driver.call(
                "cuModuleGetFunction", slot["module"], bundle.entry.encode(), what=bundle.entry
            )
            attributes = driver.api().CUfunction_attribute
            if bundle.manifest.smem_bytes:
                driver.call(
                    "cuFuncSetAttribute",
                    function,
                    attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    bundle.manifest.smem_bytes,
                    what=f"{bundle.entry}: {bundle.manifest.smem_bytes} B of shared memory",
                )
            if _volume(bundle.manifest.cluster) > PORTABLE_CLUSTER:
                driver.call(
                    "cuFuncSetAttribute",
                    function,
                    attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )
        slot["function"] = function
        return function

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """Queues the kernel on `stream` (None: the default stream) and returns at once.

        Tensors in host memory are copied to the GPU, and outputs back, which waits for the kernel:
        convenient, but slow.

        Raises:
          SpecError: a tensor on another GPU, or an invalid stream.
          TargetError: this GPU cannot run the bundle.
          LaunchError: the driver refuses the launch.
        """
        handle = stream_handle(stream)
        function = self.prepare(bundle)
        if bound.launches_nothing:
            return Launch(self.name, bound.grid)
        if all(tensor.device == "cpu" for tensor in bound.tensors.values()):
            staged = memory.stage(bound, self.index)
            self._queue(bundle, staged, function, handle)
            memory.unstage(staged, bound, handle)
        else:
            for name, tensor in bound.tensors.items():
                if tensor.device_index != self.index:
                    raise SpecError(f"{name} is on {tensor.place}, the kernel runs on {self.name}")
            self._queue(bundle, bound, function, handle)
        return Launch(self.name, bound.grid)

    def _queue(self, bundle: Bundle, bound: Bound, function: Any, handle: int) -> None:
        with driver.Current(self.index):
            addresses = {name: tensor.address for name, tensor in bound.tensors.items()}
            packed = PackedParameters(parameters(bound, addresses, driver.encode_map))
            config = _config(bundle, bound, handle, driver.gpus()[self.index].sm_count)
            driver.call("cuLaunchKernelEx", config, function, packed.pointer, 0, what=bundle.entry)

    def plan_launch(
        self, bundle: Bundle, bound: Bound, names: Sequence[str]
    ) -> LaunchPlan[Any] | None:
        """A plan of a call with tensors of this GPU; see `PlansLaunches`.

        Raises:
          TargetError: this GPU cannot run the bundle.
        """
        places = {tensor.place for tensor in bound.tensors.values()}
        if places != {self.name} or not can_be_planned(bound):
            return None
        function, entry = self.prepare(bundle), bundle.entry
        stream_type = driver.api().CUstream
        plain = dataclasses.replace(bound, tensors={})  # a plan keeps no tensors

        def pack(params: Sequence[KernelParam]) -> _Queued:
            count = driver.gpus()[self.index].sm_count
            return _Queued(params, _config(bundle, plain, 0, count))

        def start(queued: _Queued, stream: object | None) -> None:
            handle = stream_handle(stream)
            if handle != queued.handle:
                queued.config.hStream, queued.handle = stream_type(handle), handle
            with driver.Current(self.index):
                driver.call(
                    "cuLaunchKernelEx", queued.config, function, queued.pointer, 0, what=entry
                )

        launched = Launch(self.name, bound.grid)
        with driver.Current(self.index):
            return LaunchPlan(
                bound, names, driver.encode_map, pack=pack, start=start, launched=launched
            )

    def synchronize(self) -> None:
        """Waits for everything that was queued on this GPU.

        Raises:
          LaunchError: a kernel failed.
        """
        with driver.Current(self.index):
            driver.call("cuCtxSynchronize", what="wait for the GPU")


class _Queued(PackedParameters):
    """Parameters with their launch configuration, whose stream is updated if it changes."""

    def __init__(self, params: Sequence[KernelParam], config: Any):
        super().__init__(params)
        self.config = config
        self.handle = 0


def stream_handle(stream: object | None) -> int:
    """The driver's handle of a stream: an int, an object with `__cuda_stream__`, or of torch or
    cupy.

    Raises:
      SpecError: it is none of these.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair: Any = protocol() if callable(protocol) else protocol
        return int(pair[1])  # (version of the protocol, handle)
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise SpecError(
        f"stream must be an int or have __cuda_stream__, got {type(stream).__module__}."
        f"{type(stream).__qualname__}"
    )


def _config(bundle: Bundle, bound: Bound, stream: int, multiprocessors: int) -> Any:
    cuda = driver.api()
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = bound.grid_on(multiprocessors)
    config.blockDimX, config.blockDimY, config.blockDimZ = bundle.manifest.block
    config.sharedMemBytes = bundle.manifest.smem_bytes
    config.hStream = cuda.CUstream(stream)
    cluster = bundle.manifest.cluster
    attributes: list[Any] = []
    if _volume(cluster) > 1:
        attribute = cuda.CUlaunchAttribute()
        attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = cluster[0]
        attribute.value.clusterDim.y = cluster[1]
        attribute.value.clusterDim.z = cluster[2]
        attributes.append(attribute)
    if bundle.manifest.programmatic:
        attribute = cuda.CUlaunchAttribute()
        attribute.id = (
            cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        )
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if attributes:
        config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _assembler_major(bundle: Bundle) -> int | None:
    """The CUDA major version of the assembler that made the machine code, if recorded."""
    version = bundle.manifest.versions.get("ptxas", "")
    head = version.split(".")[0]
    return int(head) if head.isdigit() else None


def _volume(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
