"""Results in the caller's own kind of array: numpy, torch, cupy, or whatever speaks DLPack."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.errors import SpecError
from attn_mlir.runtime.binding import check_output
from attn_mlir.runtime.devices import memory
from attn_mlir.runtime.devices.counters import counters
from attn_mlir.runtime.devices.cuda import stream_handle
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.dlpack import Export
from attn_mlir.runtime.kernel import DeviceChoice, check_device
from attn_mlir.runtime.manifest import TensorArg
from attn_mlir.runtime.tensors import (
    TensorView,
    dense_strides,
    dtype_bytes,
    element_count,
    host_array,
    view,
)

OUTPUT_ALIGNMENT = 16  # bytes; what kernels ask of tensors that they write in tiles


@dataclass(frozen=True)
class Output:
    """Memory for a result.

    Attributes:
      tensor: what the kernel writes to: an array of the caller's kind, or a view.
      finish: makes the caller's kind of array of it.
    """

    tensor: object
    finish: Callable[[], Any]


def output_like(model: object, like: TensorView, shape: tuple[int, ...], dtype: str) -> Output:
    """Uninitialised memory for a result where `model` lives.

    Args:
      model: an argument of the call; decides the kind of array and the device.
      like: the view of `model`.
      dtype: `bf16`, `f16` or `f32`.

    Raises:
      SpecError: a library that cannot take over DLPack memory.
    """
    make = maker_like(model, like, shape, dtype)
    if make is None:
        return _through_dlpack(model, like, shape, dtype)
    made = make()
    return Output(made, lambda: made)


def maker_like(
    model: object, like: TensorView, shape: tuple[int, ...], dtype: str
) -> Callable[[], Any] | None:
    """What makes uninitialised arrays as `output_like` does, and holds no array itself.

    Returns:
      None where arrays are made of memory that their library takes over.
    """
    library = _library(model)
    if isinstance(model, np.ndarray):
        return functools.partial(np.empty, shape, _numpy_dtype(dtype))
    if library == "torch":
        torch: Any = sys.modules["torch"]
        names = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
        device = getattr(model, "device")  # noqa: B009
        return functools.partial(torch.empty, shape, dtype=names[dtype], device=device)
    if library == "cupy" and dtype != "bf16":
        cupy: Any = sys.modules["cupy"]

        def make() -> Any:
            with cupy.cuda.Device(like.device_index):
                return cupy.empty(shape, _numpy_dtype(dtype))

        return make
    return None


def counters_like(like: TensorView, shape: tuple[int, ...], stream: object | None) -> Output:
    """Counters of i32 for one launch, which are 0 and become 0 again.

    Args:
      like: a tensor of the call, which they lie beside.
      stream: of the launch.
    """
    if like.device == "cuda":
        found: object = counters(shape, like.device_index, stream_handle(stream))
    else:
        found = np.zeros(shape, np.int32)
    return Output(found, lambda: found)


def given_output(
    out: object, shape: tuple[int, ...], dtype: str, others: Mapping[str, TensorView]
) -> Output:
    """A caller's array as memory for a result, checked before anything is compiled.

    Args:
      out: the array, of any strides along all but the last axis.
      others: the operands, which it must share nothing with, by name.

    Raises:
      SpecError: another shape or dtype, another device, or memory that cannot be written to.
    """
    wanted = TensorArg("out", "out", dtype, shape, len(shape) - 1, OUTPUT_ALIGNMENT)
    check_output(wanted, view(out, "out"), others)
    return Output(out, lambda: out)


def dense_on_host(value: object, name: str) -> object:
    """A small array as a kernel takes it: in host memory dense, so that any view of it will do.

    Args:
      value: an array of any library.
      name: of the argument.

    Returns:
      The array itself where it is dense, a fake, or on a GPU, where a copy would have to be ordered,
      else a copy.

    Raises:
      SpecError: no array.
    """
    found = view(value, name)
    is_kept = found.device != "cpu" or not found.has_memory
    if is_kept or found.strides == dense_strides(found.shape):
        return value
    return np.array(host_array(found), order="C")


def put_like(model: object, like: TensorView, array: np.ndarray[Any, Any]) -> Any:
    """A numpy array where `model` lives: itself in host memory, else a copy on the GPU.

    Args:
      model, like: as of `output_like`.
    """
    if like.device != "cuda":
        return array
    library = _library(model)
    module: Any = sys.modules.get(library)
    if library == "torch":
        return module.from_numpy(array).to(f"cuda:{like.device_index}")
    if library == "cupy":
        with module.cuda.Device(like.device_index):
            return module.asarray(array)
    return memory.upload(view(array, "array"), like.device_index)


def stream_of(
    stream: object | None, device: DeviceChoice, model: object, like: TensorView
) -> object | None:
    """The stream of a launch: the caller's, else that on which the caller's library works on this GPU.

    Args:
      stream, device: of the call, the latter checked.
      model, like: as of `output_like`.

    Raises:
      SpecError: no such device.
    """
    check_device(device)
    if stream is not None or like.device != "cuda" or isinstance(device, EmulatorDevice):
        return stream
    if isinstance(device, str) and device == "emulator":
        return None
    return current_stream_of(model, like)()


def current_stream_of(model: object, like: TensorView) -> Callable[[], int | None]:
    """What tells the stream that the library of an array on a GPU works on, and holds no array itself.

    Args:
      model, like: as of `output_like`.
    """
    library = _library(model)
    module: Any = sys.modules.get(library)
    if library == "torch":
        raw: Any = getattr(module._C, "_cuda_getCurrentRawStream", None)  # where the other one asks
        if raw is not None:
            return functools.partial(raw, like.device_index)
        return lambda: int(module.cuda.current_stream(like.device_index).cuda_stream)
    if library == "cupy":
        return lambda: int(module.cuda.get_current_stream().ptr)
    return lambda: None


def _library(model: object) -> str:
    """The package that an array is of."""
    return type(model).__module__.partition(".")[0]


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"f16": np.float16, "f32": np.float32}[dtype])


def _through_dlpack(model: object, like: TensorView, shape: tuple[int, ...], dtype: str) -> Output:
    """Memory of ours that the caller's library takes over when the kernel has written it."""
    namespace: Any = sys.modules.get(_library(model))
    array_namespace: Any = getattr(model, "__array_namespace__", None)
    if array_namespace is not None:
        namespace = array_namespace()
    from_dlpack: Any = getattr(namespace, "from_dlpack", None)
    if from_dlpack is None:
        raise SpecError(
            f"q is a {type(model).__module__}.{type(model).__qualname__}, whose library has no "
            "from_dlpack: load a kernel and pass it outputs of your own"
        )
    if like.device == "cuda":
        made = memory.empty(dtype, shape, like.device_index)
    else:
        host = np.empty(max(element_count(shape) * dtype_bytes(dtype), 1), np.uint8)
        address, strides = host.ctypes.data, dense_strides(shape)
        made = TensorView(dtype, shape, strides, address, "cpu", 0, False, host)
    export = Export(
        made.owner,
        made.address,
        device=made.device,
        index=made.device_index,
        dtype=dtype,
        shape=shape,
    )
    return Output(made, lambda: from_dlpack(export))
