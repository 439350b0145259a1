"""What the cuda device says before it touches a driver: the answers need no GPU."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import LaunchError, SpecError, TargetError
from attn_mlir.runtime import kernel as kernels
from attn_mlir.runtime.call.binding import KernelParam, bind
from attn_mlir.runtime.call.tensors import TensorView
from attn_mlir.runtime.devices import cuda, driver
from attn_mlir.runtime.devices.cuda import CudaDevice, stream_handle
from attn_mlir.runtime.devices.parameters import PackedParameters
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel

B200 = driver.Gpu(0, "NVIDIA B200", (10, 0), 148, 180 << 30, 232448)
Pack = Callable[..., bytes]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with one B200, a driver for CUDA 13.0, and nothing that works."""
    monkeypatch.setattr(driver, "gpus", lambda: (B200,))
    monkeypatch.setattr(driver, "driver_version", lambda: (13, 0))
    return monkeypatch


def bundle(pack: Pack, **changes: object) -> Bundle:
    return Bundle.from_bytes(pack(**changes))


def test_a_gpu_that_can(machine: Any, pack: Pack) -> None:
    assert CudaDevice(0).refusal(bundle(pack)) is None
    assert CudaDevice(0).refusal(bundle(pack, smem_bytes=232448)) is None
    assert CudaDevice(0).refusal(bundle(pack, versions={})) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "sm_90a"}, r"cuda:0 is a NVIDIA B200 (sm_100a), the bundle is for sm_90a"),
        ({"target": "sm_103a"}, r"the bundle is for sm_103a"),
        ({"smem_bytes": 232449}, "needs 232449 B of shared memory, cuda:0 gives 232448 B"),
    ],
)
def test_a_gpu_that_cannot(machine: Any, pack: Pack, changes: dict[str, Any], reason: str) -> None:
    assert reason in str(CudaDevice(0).refusal(bundle(pack, **changes)))
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(TargetError):
        Kernel(bundle(pack, **changes))(x, x.copy(), device="cuda")


def test_a_driver_that_is_too_old(machine: Any, pack: Pack) -> None:
    machine.setattr(driver, "driver_version", lambda: (12, 8))
    reason = CudaDevice(0).refusal(bundle(pack))
    assert reason is not None
    assert "supports CUDA 12.8, the bundle was assembled for CUDA 13: install a newer" in reason


def test_no_such_gpu(machine: Any, pack: Pack) -> None:
    assert CudaDevice(1).refusal(bundle(pack)) == "there is no GPU 1: the driver shows 1"


def test_no_driver(monkeypatch: pytest.MonkeyPatch, pack: Pack) -> None:
    def none() -> tuple[driver.Gpu, ...]:
        raise TargetError("there is no CUDA driver on this machine")

    monkeypatch.setattr(driver, "gpus", none)
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(TargetError, match="there is no CUDA driver"):
        Kernel(bundle(pack))(x, x.copy(), device="cuda")


class FakeStatus:
    def __init__(self, name: str):
        self.name = name


class FakeDriver:
    """A driver whose calls all end in the same way."""

    def __init__(self, name: str, *values: object):
        self._result = (FakeStatus(name), *values)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self._result


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("CUDA_ERROR_NO_BINARY_FOR_GPU", TargetError),
        ("CUDA_ERROR_INVALID_IMAGE", TargetError),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", LaunchError),
        ("CUDA_ERROR_OUT_OF_MEMORY", LaunchError),
    ],
)
def test_errors_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, status: str, error: type[Exception]
) -> None:
    monkeypatch.setattr(driver, "api", lambda: FakeDriver(status))
    with pytest.raises(error, match=rf"load the bundle: .*{status}"):
        driver.call("cuModuleLoadData", b"", what="load the bundle")


def test_results_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for values, result in (((), None), ((3,), 3), ((3, 4), (3, 4))):
        monkeypatch.setattr(
            driver, "api", lambda values=values: FakeDriver("CUDA_SUCCESS", *values)
        )
        assert driver.call("cuInit") == result


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (0, 0),
        (12345, 12345),
        (type("S", (), {"__cuda_stream__": lambda self: (0, 77)})(), 77),
        (type("S", (), {"__cuda_stream__": (0, 78)})(), 78),
        (type("S", (), {"cuda_stream": 79})(), 79),
        (type("S", (), {"ptr": 80})(), 80),
    ],
)
def test_streams(stream: object, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", [True, -1, "0", 1.0, object()])
def test_not_streams(stream: object) -> None:
    with pytest.raises(SpecError, match="stream must be an int or have __cuda_stream__"):
        stream_handle(stream)


def test_parameters_in_memory() -> None:
    params = [
        KernelParam("map", bytes(range(128))),
        KernelParam("u64", 0xFEDC_BA98_7654_3210),
        KernelParam("i32", -2),
        KernelParam("i64", -(1 << 40)),
        KernelParam("f32", 0.5),
    ]
    packed = PackedParameters(params)
    pointers = (ctypes.c_uint64 * 5).from_address(packed.pointer)
    assert pointers[0] % 64 == 0
    assert ctypes.string_at(pointers[0], 128) == bytes(range(128))
    assert ctypes.c_uint64.from_address(pointers[1]).value == 0xFEDC_BA98_7654_3210
    assert ctypes.c_int32.from_address(pointers[2]).value == -2
    assert ctypes.c_int64.from_address(pointers[3]).value == -(1 << 40)
    assert ctypes.c_float.from_address(pointers[4]).value == 0.5


def test_gpu_targets() -> None:
    assert B200.targets == ("sm_100a",)
    assert dataclasses.replace(B200, capability=(9, 0)).targets == ("sm_90a",)
    assert dataclasses.replace(B200, capability=(12, 1)).targets == ("sm_121a",)


class Recorder:
    """The structures of a launch, as the driver's bindings have them."""

    class CUlaunchConfig(SimpleNamespace):
        """Fields as they are set."""

    class CUlaunchAttribute:
        """A number and a value with fields of fields."""

        def __init__(self) -> None:
            self.id, self.value = "", SimpleNamespace(clusterDim=SimpleNamespace())

    class CUlaunchAttributeID:
        """Numbers by their names' ends."""

        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = "cluster"
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = "programmatic"

    CUstream = int


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"cluster": (2, 1, 1)}, ["cluster"]),
        ({"programmatic": True}, ["programmatic"]),
        ({"cluster": (2, 1, 1), "programmatic": True}, ["cluster", "programmatic"]),
    ],
)
def test_attributes_of_a_launch(
    monkeypatch: pytest.MonkeyPatch, pack: Pack, changes: dict[str, Any], expected: list[str]
) -> None:
    monkeypatch.setattr(driver, "api", Recorder)
    found = bundle(pack)
    found = dataclasses.replace(found, manifest=dataclasses.replace(found.manifest, **changes))
    x = np.zeros((16, 4), np.float32)
    config = cuda._config(found, bind(found.manifest, [x, x.copy()], {}), 0, 132)
    attributes = getattr(config, "attrs", [])
    assert [attribute.id for attribute in attributes] == expected
    assert config.numAttrs == len(expected)
    for attribute in attributes:
        if attribute.id == "programmatic":
            assert attribute.value.programmaticStreamSerializationAllowed == 1
        else:
            assert attribute.value.clusterDim.x == 2


def test_calls_that_come_again(monkeypatch: pytest.MonkeyPatch, pack: Pack) -> None:
    """From the third one on a plan launches, with the addresses and on the stream of that call."""
    launched: list[tuple[int, int, int, int]] = []

    def call(name: str, *arguments: Any, what: str = "") -> Any:
        if name == "cuCtxGetCurrent":
            return 7
        assert (name, arguments[1], what) == ("cuLaunchKernelEx", "function", "scale_rows")
        config, _, pointer, _ = arguments
        pointers = (ctypes.c_uint64 * 6).from_address(pointer)
        x, y = (ctypes.c_uint64.from_address(pointers[i]).value for i in range(2))
        launched.append((x, y, config.hStream, config.gridDimX))
        return None

    monkeypatch.setattr(driver, "gpus", lambda: (B200,))
    monkeypatch.setattr(driver, "api", Recorder)
    monkeypatch.setattr(driver, "call", call)
    monkeypatch.setattr(driver, "primary_context", lambda index: 7)
    monkeypatch.setattr(CudaDevice, "refusal", lambda *_: None)
    monkeypatch.setattr(CudaDevice, "prepare", lambda *_: "function")
    binds: list[int] = []
    bound = kernels.bind
    monkeypatch.setattr(kernels, "bind", lambda *given: binds.append(1) or bound(*given))
    kernel = Kernel(bundle(pack))
    for number, stream in enumerate((0, 5, 5, None, 9, 9)):
        x, y = (
            TensorView("f32", (3, 4), (4, 1), (number + 1) << 20 | i << 10, "cuda", 0, False, None)
            for i in range(2)
        )
        assert kernel(x, y, stream=stream).device == "cuda:0"
        assert launched.pop() == (x.address, y.address, stream or 0, 3)
        assert len(binds) == min(number + 1, 2)
    with pytest.raises(SpecError, match="^stream must be"):
        kernel(x, y, stream="main")
