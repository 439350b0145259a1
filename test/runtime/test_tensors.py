"""Arrays of other libraries as memory."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call import dlpack
from attn_mlir.runtime.call.dlpack import Export
from attn_mlir.runtime.call.tensors import bytes_at, dense_strides, host_array, view


class OnlyDLPack:
    """An array of a library that is not numpy, on the CPU."""

    def __init__(self, array: np.ndarray[Any, Any], versioned: bool):
        self.array = array
        self.versioned = versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned and options:
            raise TypeError("older than DLPack 1.0")
        return self.array.__dlpack__(**options)


class FakeGpu:
    """An array that claims to be on GPU 1."""

    def __init__(self, **changes: Any):
        self.__cuda_array_interface__ = {
            "shape": (2, 3), "typestr": "<f4", "data": (0x7000, False), "version": 3, **changes,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float16, "f16"),
        (np.float32, "f32"),
        (ml_dtypes.bfloat16, "bf16"),
        (np.int32, "i32"),
        (ml_dtypes.float8_e4m3fn, "e4m3"),
        (ml_dtypes.float8_e5m2, "e5m2"),
    ],
)
def test_numpy(dtype: Any, name: str) -> None:
    array = np.zeros((2, 3, 4), dtype)[:, ::2]
    seen = view(array, "q")
    assert (seen.dtype, seen.shape, seen.strides) == (name, (2, 2, 4), (12, 8, 1))
    assert (seen.address, seen.place, seen.read_only) == (array.ctypes.data, "cpu", False)
    assert seen.span_bytes == (12 + 8 + 3 + 1) * array.itemsize


def test_read_only() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    assert view(array, "q").read_only


def test_axes_of_extent_one_get_dense_strides() -> None:
    array = np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), (1, 4, 1, 8), (4, 32, 12, 4))
    assert view(array, "q").strides == (32, 8, 8, 1)


def test_empty() -> None:
    seen = view(np.zeros((2, 0, 4), np.float16), "k")
    assert seen.empty and seen.span_bytes == 0 and seen.strides == (4, 4, 1)


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack(versioned: bool) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[:, 1:4]
    seen = view(OnlyDLPack(array, versioned), "q")
    assert (seen.dtype, seen.shape, seen.strides) == ("f32", (4, 3), (6, 1))
    assert seen.address == array.ctypes.data


def test_torch_8_bit_floats() -> None:
    """By their bytes, since not every torch exports them."""
    torch: Any = pytest.importorskip("torch")
    tensor = torch.zeros(3, 4, dtype=torch.uint8).view(torch.float8_e5m2)
    seen = view(tensor, "q")
    assert (seen.dtype, seen.shape, seen.address) == ("e5m2", (3, 4), tensor.data_ptr())


def test_dlpack_keeps_memory_alive() -> None:
    seen = view(OnlyDLPack(np.full(1000, 7.0, np.float32), True), "q")
    again = bytes_at(seen.address, seen.span_bytes).view(np.float32)
    assert (again == 7.0).all()


def test_export_is_taken_over_and_released() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    export = Export(array, array.ctypes.data, device="cpu", index=0, dtype="f32", shape=(2, 3))
    taken = np.from_dlpack(export)
    assert (taken == array).all() and taken.ctypes.data == array.ctypes.data
    seen = view(export, "q")
    assert (seen.dtype, seen.shape, seen.strides) == ("f32", (2, 3), (3, 1))


def test_cuda_array_interface() -> None:
    seen = view(FakeGpu(strides=(16, 4)), "q")
    assert (seen.dtype, seen.strides, seen.address) == ("f32", (4, 1), 0x7000)
    assert seen.place == "cuda:0"
    assert view(FakeGpu(), "q").strides == (3, 1)


@pytest.mark.parametrize("value", [None, 3, [1.0, 2.0], "q"])
def test_not_an_array(value: object) -> None:
    with pytest.raises(SpecError, match=r"^q must be a numpy array or have __dlpack__"):
        view(value, "q")


@pytest.mark.parametrize(
    "array", [np.zeros(2, np.complex64), np.zeros(2, ">f4"), np.zeros(2, object)]
)
def test_dtype_without_kernel(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(SpecError, match="^k has dtype"):
        view(array, "k")


def test_numbers_in_the_other_order_of_bytes() -> None:
    with pytest.raises(SpecError, match=r'^k has dtype >i4, .* pass k.astype\("int32"\)$'):
        view(np.zeros(2, ">i4"), "k")


def test_strides_that_split_elements() -> None:
    array = np.zeros(3, np.dtype([("a", np.float16), ("b", np.int8)]))["a"]
    with pytest.raises(SpecError, match="^v has strides .* split elements of 2 bytes"):
        view(array, "v")


class Elsewhere:
    """An array on a device that is neither CPU nor CUDA."""

    def __init__(self, code: int):
        self.code = code

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("nobody asks for this")

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.code < 0:
            raise ValueError("no such device in DLPack")
        return self.code, 0


def test_other_devices() -> None:
    with pytest.raises(SpecError, match="^q is on a device of DLPack type 10, allowed are CPU"):
        view(Elsewhere(10), "q")
    with pytest.raises(SpecError, match="^q cannot be exported by DLPack: no such device"):
        view(Elsewhere(-1), "q")


def test_a_library_that_refuses() -> None:
    class Stubborn(OnlyDLPack):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("tensors that require gradient")

    with pytest.raises(SpecError, match="^q cannot be exported by DLPack: tensors that require"):
        view(Stubborn(np.zeros(3, np.float32), True), "q")


def test_dense_strides() -> None:
    assert dense_strides((2, 3, 4)) == (12, 4, 1)
    assert dense_strides((2, 0, 4)) == (4, 4, 1)
    assert dense_strides(()) == ()


def test_parameters_of_torch() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(3))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert view(parameter, "q").address == parameter.data_ptr()
    with pytest.raises(SpecError, match=r"q requires a gradient.*torch.no_grad\(\), or pass q.det"):
        view(parameter, "q")


def capsule_of(array: np.ndarray[Any, Any], **fields: Any) -> Any:
    """A capsule of an array, with fields of its tensor changed."""
    export = Export(array, array.ctypes.data, device="cpu", index=0, dtype="f32", shape=array.shape)
    capsule = export.__dlpack__()
    tensor = dlpack.DLTensor.from_address(GET_POINTER(capsule, b"dltensor"))
    for name, value in fields.items():
        setattr(tensor, name, value)
    return capsule


GET_POINTER = ctypes.pythonapi.PyCapsule_GetPointer


class Gives:
    """An array whose `__dlpack__` gives what it was told."""

    def __init__(self, given: Any, device: Any = (1, 0)):
        self.given = given
        self.device = device

    def __dlpack__(self, **_: Any) -> Any:
        return self.given

    def __dlpack_device__(self) -> Any:
        return self.device


def consumed() -> Any:
    given = capsule_of(np.zeros(3, np.float32))
    np.from_dlpack(Gives(given))  # takes it over
    return given


def newer() -> Any:
    """A capsule of DLPack 2.0, which may lie differently in memory."""
    owner = np.from_dlpack(OnlyDLPack(np.zeros(3, np.float32), True))
    capsule = owner.__dlpack__(max_version=(1, 0))
    major = ctypes.c_uint32.from_address(GET_POINTER(capsule, b"dltensor_versioned"))
    major.value = 2
    return capsule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "__dlpack__ gave a NoneType, no capsule"),
        (lambda: 7, "__dlpack__ gave a int, no capsule"),
        (consumed, "the capsule is 'used_dltensor.*', no 'dltensor': it was consumed before"),
        (newer, "the capsule is of DLPack 2.*, not 1"),
        (lambda: capsule_of(np.zeros(3, np.float32), ndim=-1), "the capsule has -1 dimensions"),
        (lambda: capsule_of(np.zeros(3, np.float32), ndim=1 << 20), "the capsule has 1048576 dim"),
        (
            lambda: capsule_of(np.zeros(3, np.float32), shape=None),
            "the capsule has 1 dimensions and",
        ),
        (lambda: capsule_of(np.zeros(3, np.float32), data=None), r"has shape \[3\], but no memory"),
        (lambda: capsule_of(np.zeros(3, np.float32), lanes=2), "code 2, 32 bits and 2 lanes"),
        (lambda: capsule_of(np.zeros(3, np.float32), bits=33), "code 2, 33 bits"),
        (lambda: capsule_of(np.zeros(3, np.float32), device_type=2), "on a device of type 1, and"),
    ],
)
def test_capsules_that_are_none(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"^q cannot be exported by DLPack: .*{message}"):
        view(Gives(make()), "q")


def test_a_capsule_beyond_memory() -> None:
    array = np.zeros(3, np.float32)
    with pytest.raises(SpecError, match="^q has shape .* no memory is as large"):
        view(Gives(capsule_of(array, byte_offset=1 << 63)), "q")


@pytest.mark.parametrize("device", [None, 5, ("cpu", 0), (1,), (1, None), (2**40, 0)])
def test_devices_that_are_none(device: Any) -> None:
    with pytest.raises(SpecError, match="^q (cannot be exported by DLPack|is on a device)"):
        view(Gives(None, device), "q")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"typestr": "x9"}, "TypeError"),
        ({"typestr": None}, "TypeError"),
        ({"typestr": ">f4"}, "dtype >f4"),
        ({"typestr": "<c8"}, "dtype complex64"),
        ({"shape": (2, -3)}, r"shape \[2, -3\]"),
        ({"shape": "ab"}, "TypeError"),
        ({"shape": (2.0, 3)}, "TypeError"),
        ({"shape": None}, "TypeError"),
        ({"strides": (4,)}, r"strides \(4,\)"),
        ({"strides": (3, 1)}, "split elements of 4 bytes"),
        ({"strides": (1 << 63, 4)}, "no memory is as large"),
        ({"data": None}, "TypeError"),
        ({"data": 7}, "TypeError"),
        ({"data": (None, False)}, "no memory"),
        ({"data": (-8, False)}, "no memory is as large"),
        ({"data": ("there", False)}, "TypeError"),
        ({"mask": np.zeros(3)}, "it is masked"),
    ],
)
def test_cuda_array_interfaces_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^q .*({message})"):
        view(FakeGpu(**changes), "q")


@pytest.mark.parametrize("interface", [{}, {"typestr": "<f4"}, None, 7, [("shape", (2,))]])
def test_cuda_array_interfaces_without_fields(interface: Any) -> None:
    gpu = FakeGpu()
    gpu.__cuda_array_interface__ = interface
    with pytest.raises(SpecError, match="^q cannot be taken by __cuda_array_interface__: "):
        view(gpu, "q")


def test_a_property_that_raises() -> None:
    class Hostile:
        @property
        def __dlpack__(self) -> Any:
            raise RuntimeError("go away")

        @property
        def dtype(self) -> Any:
            raise RuntimeError("go away")

    with pytest.raises(SpecError, match="^q must be a numpy array or have __dlpack__"):
        view(Hostile(), "q")


def test_masked_arrays() -> None:
    for mask in (True, False, np.ma.nomask):
        with pytest.raises(SpecError, match=r"^v is a masked array, .*: pass v.filled\(...\)"):
            view(np.ma.array(np.zeros(3, np.float32), mask=mask), "v")


def test_torch_tensors_with_a_pending_sign() -> None:
    torch: Any = pytest.importorskip("torch")
    negated = torch.ones(3, dtype=torch.complex64).conj().imag
    with pytest.raises(SpecError, match=r"^q is a tensor whose signs .* pass q.resolve_neg\(\)"):
        view(negated, "q")
    assert view(negated.resolve_neg(), "q").shape == (3,)


def test_host_arrays_of_any_strides() -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    for seen in (array, array[::-1], array[::2, ::-3], array[:0], array.T[::-1], array[2, 3, ...]):
        found = host_array(view(np.asarray(seen), "n"))
        assert (found == seen).all() and np.shares_memory(found, array) == bool(seen.size)
