"""Other libraries' arrays seen as memory: dtype, shape, strides, address and device, no copies.

numpy arrays are read directly (DLPack has no read-only numpy arrays and no `ml_dtypes`), anything
else through `__dlpack__`, and what offers only `__cuda_array_interface__` through that. No producer
is asked to synchronise: ordering between streams is the caller's.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np

from attn_mlir.element_types import ELEMENT_TYPES, NARROW, TYPES
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call import dlpack
from attn_mlir.runtime.call.jax_arrays import is_tracer
from attn_mlir.runtime.call.torch_tensors import check_tensor, is_compiling, is_tensor, is_traced

DeviceKind = Literal["cpu", "cuda"]

_PLAIN_OF_NUMPY = (np.ndarray, np.memmap)
ADDRESSES = 1 << 63  # bytes that an address space has at most

_BYTES = {row.name: row.packed_bytes(1) for row in TYPES if row.use != "format"}
_TORCH_BYTES = {f"torch.{ELEMENT_TYPES[name].torch}": name for name in NARROW}


class SupportsDLPack(Protocol):
    """An array of any library that exports itself by DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class TensorView:
    """A tensor in somebody else's memory.

    Attributes:
      dtype: `bf16`, `f16`, `f32`, ...
      shape: extents.
      strides: in elements; an axis of extent 0 or 1 has the stride of a dense array, whatever the
        library says, since nothing is ever multiplied with it.
      address: of element 0, in the memory of the device.
      device: `cpu` or `cuda`.
      device_index: which GPU.
      read_only: the producer forbids writing.
      owner: keeps the memory alive.
      has_memory: whether there are elements to look at; a fake of PyTorch's compiler has none.
    """

    has_memory: ClassVar[bool] = True

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: DeviceKind
    device_index: int
    read_only: bool
    owner: object = field(repr=False, compare=False)

    @functools.cached_property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return dtype_bytes(self.dtype)

    @functools.cached_property
    def empty(self) -> bool:
        """Whether it has no elements."""
        return 0 in self.shape

    @functools.cached_property
    def span_bytes(self) -> int:
        """Bytes from element 0 to the end of the last element; 0 when empty."""
        if self.empty:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.item_bytes

    @functools.cached_property
    def byte_range(self) -> tuple[int, int]:
        """Address of its lowest byte, and its extent in bytes; strides may be negative."""
        if self.empty:
            return self.address, 0
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        below = -sum(step for step in steps if step < 0)
        above = sum(step for step in steps if step > 0)
        return self.address - below * self.item_bytes, (below + above + 1) * self.item_bytes

    def reshaped(self, shape: Sequence[int], strides: Sequence[int]) -> TensorView:
        """The same memory with other dimensions; strides in elements."""
        return dataclasses.replace(self, shape=tuple(shape), strides=_normalised(shape, strides))

    def moved(self, elements: int) -> TensorView:
        """The same dimensions, so many elements further on in memory."""
        return dataclasses.replace(self, address=self.address + elements * self.item_bytes)

    @property
    def place(self) -> str:
        """The device for people: `cpu` or `cuda:0`."""
        return self.device if self.device == "cpu" else f"cuda:{self.device_index}"


class Described(TensorView):
    """A traced array of PyTorch or jax, which has no memory, as shape, strides and dtype."""

    __dlpack__ = None  # recognised as an array by tracing
    has_memory = False


class Extended(TensorView):
    """An array with one axis more, of extent 1, as kernels want a dense last axis."""


class _ExtendedDescription(Described, Extended):
    """A traced tensor with one axis more."""


def extended(tensor: TensorView) -> Extended:
    """An array with one axis more, of extent 1."""
    kind = _ExtendedDescription if isinstance(tensor, Described) else Extended
    values = {x.name: getattr(tensor, x.name) for x in dataclasses.fields(tensor)}
    values |= {"shape": (*tensor.shape, 1), "strides": (*tensor.strides, 1)}
    return kind(**values)


def described(tensor: Any, name: str, *, has_gradient: bool = False) -> Described:
    """The view of a tensor of PyTorch, without its memory.

    Args:
      has_gradient: as of `check_tensor`.

    Raises:
      SpecError: it is no tensor, stands for something that no kernel computes with, or has a dtype
        that no kernel has.
    """
    if not is_tensor(tensor):
        raise SpecError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not is_compiling():  # the operator that gets it checks it
        check_tensor(tensor, name, has_gradient=has_gradient)
    shape, index = tuple(tensor.shape), tensor.device.index or 0
    dtype = _readable(str(tensor.dtype).removeprefix("torch."), name)
    device = "cuda" if tensor.device.type == "cuda" else "cpu"
    strides = _normalised(shape, tensor.stride())
    return Described(dtype, shape, strides, 0, device, index, False, tensor)


def described_dense(array: Any, name: str, device: DeviceKind = "cpu") -> Described:
    """The view of a dense array, without its memory.

    Args:
      array: an array of numpy or jax; it may be traced.
      name: the argument's name in errors.

    Raises:
      SpecError: no kernel takes the dtype.
    """
    shape = tuple(array.shape)
    dtype = _readable(array.dtype.name, name)
    return Described(dtype, shape, dense_strides(shape), 0, device, 0, False, array)


def check_has_memory(tensor: TensorView, name: str) -> None:
    """Refuses to read or launch with a tensor that only stands for one.

    Raises:
      SpecError: names its class.
    """
    if not tensor.has_memory:
        kind = type(tensor.owner)
        raise SpecError(
            f"{name} is a {kind.__module__}.{kind.__qualname__} that is traced, transformed or on "
            "meta, and has no elements here: pass a tensor with memory"
        )


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype name."""
    return _BYTES[dtype]


def view(value: object, name: str, *, has_gradient: bool = False) -> TensorView:
    """Look at an array of any library; one of PyTorch or jax that is traced is described.

    Args:
      value: numpy array, anything with `__dlpack__` or `__cuda_array_interface__`, or a view.
      name: of the argument, for messages.
      has_gradient: as of `check_tensor`.

    Raises:
      SpecError: not an array, one that stands for something else than its memory holds, a dtype
        that no kernel has, or the library refuses to export it.
    """
    if isinstance(value, TensorView):
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(cast("np.ndarray[Any, Any]", value), name)
    if is_tensor(value):
        return _from_torch(value, name, has_gradient)
    if is_tracer(value):
        return described_dense(value, name)
    if _offers(value, "__dlpack__") and _offers(value, "__dlpack_device__"):
        return _from_dlpack(cast(SupportsDLPack, value), name)
    if _offers(value, "__cuda_array_interface__"):
        return _from_cuda_array_interface(value, name)
    raise SpecError(
        f"{name} must be a numpy array or have __dlpack__ or __cuda_array_interface__, got "
        f"{type(value).__module__}.{type(value).__qualname__}"
    )


def shape_of(value: Any, name: str, *, has_gradient: bool = False) -> tuple[int, ...]:
    """The shape of an array, by its own account where it gives one, which graphs of PyTorch trace.

    Args:
      has_gradient: as of `check_tensor`.

    Raises:
      SpecError: not an array, or a tensor that stands for something else than its memory holds.
    """
    if not is_compiling() and is_tensor(value):
        check_tensor(value, name, has_gradient=has_gradient)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return tuple(cast("tuple[int, ...]", shape))
    return view(value, name).shape


def view_as(value: object, name: str, dtype: str) -> TensorView:
    """Look at an array whose library lacks a dtype, as its words for elements of that dtype."""
    result = view(value, name)
    assert result.item_bytes == dtype_bytes(dtype), f"{name} of {result.dtype} is no {dtype}"
    return dataclasses.replace(result, dtype=dtype)


def _offers(value: object, name: str) -> bool:
    """Whether an object has an attribute that can be read."""
    try:
        return hasattr(value, name)
    except Exception:  # somebody else's property
        return False


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements; an extent of 0 counts as 1."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _normalised(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides with those of axes of extent 0 or 1, which mean nothing, replaced by dense ones."""
    if 0 in shape:
        return dense_strides(shape)
    normal = list(strides)
    step = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            normal[axis] = step
        step = normal[axis] * shape[axis]
    return tuple(normal)


def _readable(dtype: str, name: str) -> str:
    """Our name of a dtype, by that of numpy, which torch shares.

    Raises:
      SpecError: arrays of it cannot be read.
    """
    if dtype not in dlpack.READABLE:
        allowed = ", ".join(dlpack.READABLE)
        raise SpecError(f"{name} has dtype {dtype}, allowed are {allowed}")
    return dlpack.READABLE[dtype]


def check_numpy(array: np.ndarray[Any, Any], name: str) -> None:
    """Refuses an array of numpy whose memory does not hold all of its value, such as a masked one.

    Raises:
      SpecError: names the kind of the array, and what to pass instead.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise SpecError(
            f"{name} is a masked array, whose mask no kernel knows: pass {name}.filled(...), and "
            "hide keys by a mask_mod"
        )
    if type(array) not in _PLAIN_OF_NUMPY:
        kind = type(array)
        raise SpecError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, which means more than its memory "
            f"holds: pass np.asarray({name})"
        )


def _from_numpy(array: np.ndarray[Any, Any], name: str) -> TensorView:
    check_numpy(array, name)
    dtype = _readable(array.dtype.name, name)
    if not array.dtype.isnative:
        raise SpecError(
            f"{name} has dtype {array.dtype}, of the other order of bytes: pass "
            f'{name}.astype("{array.dtype.name}")'
        )
    item = array.dtype.itemsize
    if any(stride % item for stride in array.strides):
        raise SpecError(f"{name} has strides {array.strides} that split elements of {item} bytes")
    return _checked(
        TensorView(
            dtype=dtype,
            shape=array.shape,
            strides=_normalised(array.shape, [stride // item for stride in array.strides]),
            address=array.ctypes.data,
            device="cpu",
            device_index=0,
            read_only=not array.flags.writeable,
            owner=array,
        ),
        name,
    )


def _checked(tensor: TensorView, name: str) -> TensorView:
    """The view, if its elements lie within an address space."""
    steps = [(n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True)]
    reach = sum(abs(step) for step in steps) * tensor.item_bytes
    if not tensor.empty and (reach >= ADDRESSES or not 0 <= tensor.address < ADDRESSES):
        raise SpecError(
            f"{name} has shape {list(tensor.shape)} and strides {list(tensor.strides)} from "
            f"{tensor.address:#x} on: no memory is as large"
        )
    return tensor


def _export(value: SupportsDLPack, on_gpu: bool) -> object:
    """The library's capsule; stream -1 asks a GPU library not to synchronise.

    A library that does not know -1 (jax takes it for a handle) is asked again without a stream: it
    then orders its work before the default stream, still without making the host wait.
    """
    attempts: list[dict[str, Any]] = [{"max_version": (1, 0)}, {}]
    if on_gpu:
        attempts = [{"max_version": (1, 0), "stream": -1}, {"stream": -1}, *attempts]
    error: Exception | None = None
    for options in attempts:
        try:
            return value.__dlpack__(**options)
        except TypeError as failure:  # a library from before DLPack 1.0
            error = error or failure
        except Exception as failure:  # libraries differ in what they raise here
            error = failure
    assert error is not None
    raise error


def _from_dlpack(value: SupportsDLPack, name: str) -> TensorView:
    """A view by DLPack; whatever the library does wrong is an error that names the argument."""
    if _negated(value):
        raise SpecError(
            f"{name} is a tensor whose signs or conjugation are pending: pass {name}.resolve_neg() "
            "or resolve_conj()"
        )
    try:
        code, index = value.__dlpack_device__()
        code, index = int(code), int(index)
        device = dlpack.DEVICES.get(code)
        capsule = None if device is None else _export(value, device == "cuda")
        export = None if device is None else dlpack.read_capsule(capsule)
    except Exception as error:  # libraries differ in what they raise here
        raise SpecError(f"{name} cannot be exported by DLPack: {error}") from error
    if export is None:
        raise SpecError(f"{name} is on a device of DLPack type {code}, allowed are CPU and CUDA")
    if dlpack.DEVICES.get(export.device[0]) != device:
        raise SpecError(
            f"{name} cannot be exported by DLPack: it says to be on a device of type {code}, and "
            f"its capsule on one of type {export.device[0]}"
        )
    strides = dense_strides(export.shape) if export.strides is None else export.strides
    view = TensorView(
        dtype=export.dtype,
        shape=export.shape,
        strides=_normalised(export.shape, strides),
        address=export.address,
        device="cuda" if device == "cuda" else "cpu",
        device_index=index,
        read_only=export.read_only,
        owner=(value, capsule),
    )
    return _checked(view, name)


def _negated(value: Any) -> bool:
    """Whether a torch tensor is the negative of its memory, which DLPack cannot say."""
    return is_tensor(value) and (value.is_neg() or value.is_conj())


def _from_torch(tensor: Any, name: str, has_gradient: bool) -> TensorView:
    """A view of a tensor of PyTorch, after it is known what it is."""
    if is_compiling() or is_traced(tensor):
        return described(tensor, name, has_gradient=has_gradient)
    check_tensor(tensor, name, has_gradient=has_gradient)
    if tensor.requires_grad:  # and the caller sees to its gradient, or none is computed
        tensor = tensor.detach()
    _readable(str(tensor.dtype).removeprefix("torch."), name)
    if str(tensor.dtype) in _TORCH_BYTES:
        return _from_torch_bytes(tensor, name)
    return _from_dlpack(tensor, name)


def _from_torch_bytes(value: Any, name: str) -> TensorView:
    """A tensor of 8-bit floats, which not every torch exports, by way of its bytes."""
    try:
        as_bytes = cast(SupportsDLPack, value.view(sys.modules["torch"].uint8))
    except Exception as error:  # of the library
        raise SpecError(f"{name} cannot be looked at as bytes: {error}") from error
    return dataclasses.replace(_from_dlpack(as_bytes, name), dtype=_TORCH_BYTES[str(value.dtype)])


def _from_cuda_array_interface(value: object, name: str) -> TensorView:
    """A view by `__cuda_array_interface__`, as its version 3 says."""
    try:
        interface = cast("dict[str, Any]", getattr(value, "__cuda_array_interface__"))  # noqa: B009
        if interface.get("mask") is not None:
            raise ValueError("it is masked")
        kind = np.dtype(str(interface["typestr"]))
        shape = tuple(operator.index(extent) for extent in interface["shape"])
        steps = interface.get("strides")
        steps = None if steps is None else tuple(operator.index(step) for step in steps)
        address, read_only = interface["data"]
        address = operator.index(address or 0)
        if any(extent < 0 for extent in shape) or (steps is not None and len(steps) != len(shape)):
            raise ValueError(f"it has shape {list(shape)} and strides {steps}")
        if not address and 0 not in shape:
            raise ValueError(f"it has shape {list(shape)}, but no memory")
    except Exception as error:  # somebody else's fields
        raise SpecError(
            f"{name} cannot be taken by __cuda_array_interface__: {type(error).__name__}: {error}"
        ) from error
    if not kind.isnative:
        raise SpecError(f"{name} has dtype {kind}, of the other order of bytes")
    dtype = _readable(kind.name, name)
    item = dtype_bytes(dtype)
    if steps is not None and any(step % item for step in steps):
        raise SpecError(f"{name} has strides {steps} that split elements of {item} bytes")
    strides = dense_strides(shape) if steps is None else [step // item for step in steps]
    view = TensorView(
        dtype=dtype,
        shape=shape,
        strides=_normalised(shape, strides),
        address=address,
        device="cuda",
        device_index=0,
        read_only=bool(read_only),
        owner=value,
    )
    return _checked(view, name)


def host_array(tensor: TensorView, dtype: np.dtype[Any] | None = None) -> np.ndarray[Any, Any]:
    """A tensor in host memory as a numpy array that aliases it, whatever its strides.

    Args:
      tensor: in host memory.
      dtype: numpy's, for those that it does not have without another package.
    """
    check_has_memory(tensor, "an array")
    low, length = tensor.byte_range
    memory = bytes_at(low, length)
    if dtype is None:
        dtype = np.dtype(ELEMENT_TYPES[tensor.dtype].numpy)
    strides = [stride * tensor.item_bytes for stride in tensor.strides]
    return np.ndarray(tensor.shape, dtype, memory.data, max(tensor.address - low, 0), strides)


def bytes_at(address: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Host memory as a numpy array of bytes that aliases it."""
    if length == 0:
        return np.empty(0, np.uint8)
    buffer = (ctypes.c_uint8 * length).from_address(address)
    return np.frombuffer(memoryview(buffer), np.uint8)


def element_count(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)
