"""Results as arrays of the caller's library: numpy, torch, cupy, or any with DLPack."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.binding import check_output
from attn_mlir.runtime.call.dlpack import Export
from attn_mlir.runtime.call.scalars import MAX_I32
from attn_mlir.runtime.call.tensors import (
    TensorView,
    dense_strides,
    dtype_bytes,
    element_count,
    host_array,
    view,
)
from attn_mlir.runtime.devices import memory
from attn_mlir.runtime.devices.counters import counters, counters_address
from attn_mlir.runtime.devices.cuda import stream_handle
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.manifest import TensorArg
from attn_mlir.runtime.kernel import DeviceChoice, check_device

DEFAULT_STREAMS = (0, 1)  # handles of the default stream; CUDA Runtime API, cudaStreamLegacy
OUTPUT_ALIGNMENT = 16  # bytes; alignment of tensors that kernels write by tiles


_NUMPY_TYPES = {
    "f16": "f2", "f32": "f4", "f64": "f8", "bool": "?",
    "i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "i32": "i4", "i64": "i8",
}  # fmt: skip


@dataclass(frozen=True)
class Output:
    """Memory for a result.

    Attributes:
      tensor: the array or view that the kernel writes to.
      finish: returns it as an array of the caller's library.
    """

    tensor: object
    finish: Callable[[], Any]


def output_like(model: object, like: TensorView, shape: tuple[int, ...], dtype: str) -> Output:
    """Uninitialised memory for a result, in the library and on the device of `model`.

    Args:
      model: an argument of the call.
      like: the view of `model`.
      dtype: `bf16`, `f16` or `f32`.

    Raises:
      SpecError: a library that cannot import memory by DLPack.
    """
    make = maker_like(model, like, shape, dtype)
    if make is None:
        return _through_dlpack(model, like, shape, dtype)
    made = make()
    return Output(made, lambda: made)


def maker_like(
    model: object, like: TensorView, shape: tuple[int, ...], dtype: str
) -> Callable[[], Any] | None:
    """A function that makes uninitialised arrays as `output_like`, without keeping `model` alive.

    Returns:
      None if arrays are made of our own memory, imported by DLPack.
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
    """i32 counters for one launch, which are 0 before and after it.

    Args:
      like: a tensor of the call, on whose device they are.
      stream: the stream of the launch.
    """
    if like.device == "cuda":
        array: object = counters(shape, like.device_index, stream_handle(stream))
    else:
        array = np.zeros(shape, np.int32)
    return Output(array, lambda: array)


def counters_at(like: TensorView, count: int, stream: object | None) -> tuple[Any, int]:
    """The owner of the counters of `counters_like`, and their address."""
    if like.device == "cuda":
        return None, counters_address(count, like.device_index, stream_handle(stream))
    array = np.zeros(count, np.int32)
    return array, array.__array_interface__["data"][0]


def caller_output(
    out: object, shape: tuple[int, ...], dtype: str, operands: Mapping[str, TensorView]
) -> Output:
    """Checks a caller's array for a result, before anything is compiled.

    Args:
      out: the array, with any strides except along the last axis.
      operands: the operands by name, with which it must share no memory.

    Raises:
      SpecError: another shape, dtype or device, or memory that cannot be written to.
    """
    expected = TensorArg("out", "out", dtype, shape, len(shape) - 1, OUTPUT_ALIGNMENT)
    check_output(expected, view(out, "out"), operands)
    return Output(out, lambda: out)


def check_memory(
    name: str, value: object, shape: tuple[int, ...], dtype: str, operands: Mapping[str, TensorView]
) -> None:
    """Refuses memory of the caller that cannot take a result; any strides will do.

    Args:
      operands: by name, with which it must share no memory.

    Raises:
      SpecError: another shape or dtype, or memory that cannot be written to.
    """
    expected = TensorArg(name, "out", dtype, shape, None, 1)
    check_output(expected, view(value, name), operands)


def as_i32(value: object, name: str, *, all_count: bool = False) -> object:
    """An array of indices or lengths: itself, or one of u32 reinterpreted as i32.

    Numbers from 2^31 on are then below 0, which is out of range for rows, pages and positions.

    Args:
      all_count: whether there is no such number, as among lengths; in host memory one is refused.

    Raises:
      SpecError: it is no array, or names the number.
    """
    array_view = view(value, name)
    if array_view.dtype != "u32":
        return value
    if all_count and array_view.has_memory and array_view.device == "cpu":
        numbers = host_array(array_view)
        for position in np.argwhere(numbers > MAX_I32).tolist()[:1]:
            index = ", ".join(map(str, position))
            raise SpecError(
                f"{name}[{index}] is {numbers[tuple(position)]}, allowed are 0 to {MAX_I32}"
            )
    if isinstance(value, TensorView) or not hasattr(value, "view"):
        return dataclasses.replace(array_view, dtype="i32")
    array: Any = value
    return array.view(sys.modules["torch"].int32 if _library(value) == "torch" else np.int32)


def dense_on_host(value: object, name: str) -> object:
    """A small array as kernels take it: a dense copy if it is in host memory and not dense.

    Args:
      value: an array of any library.
      name: name of the argument.

    Returns:
      The array itself if it is dense, a fake, or on a GPU, where a copy would need ordering; else a
      copy.

    Raises:
      SpecError: it is no array.
    """
    array_view = view(value, name)
    is_unread = array_view.device != "cpu" or not array_view.has_memory
    if is_unread or array_view.strides == dense_strides(array_view.shape):
        return value
    return np.array(host_array(array_view), order="C")


def host_arrays(arrays: Mapping[str, object]) -> dict[str, npt.NDArray[Any]]:
    """Arrays of any library as numpy arrays that alias them.

    Raises:
      SpecError: one that is not in the host's memory.
    """
    result: dict[str, npt.NDArray[Any]] = {}
    for name, value in arrays.items():
        tensor = view(value, name)
        if tensor.device != "cpu":
            raise SpecError(f"{name} is on {tensor.place}: the reference computes on the host")
        result[name] = host_array(tensor, _numpy_dtype(tensor.dtype))
    return result


def put_like(model: object, like: TensorView, array: np.ndarray[Any, Any]) -> Any:
    """A numpy array on the device of `model`: itself in host memory, else a copy on the GPU.

    Args:
      model, like: as in `output_like`.
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
    """The stream of a launch: the given one, else the current stream of the caller's library.

    Args:
      stream, device: arguments of the call; the device is checked.
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


def on_stream(stream: object | None, array: Any) -> AbstractContextManager[Any]:
    """A context in which the library of an array computes on the stream of a launch.

    Args:
      stream: the caller's; None: the current one of the library, which launches take as well.
      array: of numpy, torch or cupy.
    """
    library = _library(array)
    if stream is None or library not in ("torch", "cupy"):
        return nullcontext()
    module: Any = sys.modules[library]
    if library == "torch" and not array.is_cuda:
        return nullcontext()
    handle = stream_handle(stream)
    if library == "cupy":
        return module.cuda.ExternalStream(handle)
    if handle in DEFAULT_STREAMS:  # which PyTorch takes for numbers of streams of its own
        return module.cuda.stream(module.cuda.default_stream(array.device))
    return module.cuda.stream(module.cuda.ExternalStream(handle, device=array.device))


def current_stream_of(model: object, like: TensorView) -> Callable[[], int | None]:
    """A function that returns the current stream of an array's library, without keeping the array.

    Args:
      model, like: as of `output_like`.
    """
    library = _library(model)
    module: Any = sys.modules.get(library)
    if library == "torch":
        raw: Any = getattr(
            module._C, "_cuda_getCurrentRawStream", None
        )  # at the other place that asks for it
        if raw is not None:
            return functools.partial(raw, like.device_index)
        return lambda: int(module.cuda.current_stream(like.device_index).cuda_stream)
    if library == "cupy":
        return lambda: int(module.cuda.get_current_stream().ptr)
    return lambda: None


def _library(model: object) -> str:
    """The name of an array's library."""
    return type(model).__module__.partition(".")[0]


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype of numpy; that of bf16 is another package's, which is imported on first use."""
    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_NUMPY_TYPES[dtype])


def _through_dlpack(model: object, like: TensorView, shape: tuple[int, ...], dtype: str) -> Output:
    """Our own memory, which the caller's library imports after the kernel has written it."""
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
