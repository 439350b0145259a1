"""The cuda device on a real GPU: results, streams, graphs, and the driver's tensor maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime import doctor
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.kernel import Kernel, load
from attn_mlir.runtime.tensormap import MapDescription, encode
from attn_mlir.runtime.tensors import view

pytestmark = pytest.mark.gpu
Bundles = dict[str, bytes]


@pytest.fixture
def scale(scale_bundles: Bundles, target: str) -> Kernel:
    return load(scale_bundles[target])


@pytest.fixture
def copy(tma_bundles: Bundles, target: str) -> Kernel:
    return load(tma_bundles[target])


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("shape", [(37, 300), (1, 1), (0, 5), (5, 0)])
def test_host_arrays(scale: Kernel, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    y = np.full_like(x, np.nan)
    launch = scale(x, y, scale=3.0, device="cuda")
    assert launch.device == "cuda:0" and (y == x * np.float32(3)).all()


def test_strided_host_arrays(scale: Kernel) -> None:
    x = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32)
    wide = np.full((8, 100), 7.0, np.float32)
    scale(x[:, 3:40], wide[:, 5:42])
    assert (wide[:, 5:42] == 2 * x[:, 3:40]).all()
    assert (wide[:, :5] == 7.0).all() and (wide[:, 42:] == 7.0).all()


def test_a_gpu_is_the_automatic_choice(scale: Kernel, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.ones((3, 4), np.float32)
    assert scale(x, np.empty_like(x)).device == "cuda:0"
    assert "emulator" not in capfd.readouterr().err


@pytest.mark.parametrize("shape", [(37, 200), (8, 64), (1, 8)])
def test_tma_copy(copy: Kernel, shape: tuple[int, int]) -> None:
    source = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    result = np.full_like(source, np.nan)
    copy(source, result, device="cuda")
    assert (source == result).all()


def test_bundle_for_another_chip(scale_bundles: Bundles, target: str) -> None:
    other = {"sm_90a": "sm_100a", "sm_100a": "sm_90a"}[target]
    x = np.ones((3, 4), np.float32)
    with pytest.raises(TargetError, match=rf"cuda:0 is a .* \({target}\), .* is for {other}"):
        load(scale_bundles[other])(x, np.empty_like(x), device="cuda")


def test_machine_code_for_another_chip_under_this_name(scale_bundles: Bundles, target: str) -> None:
    other = Bundle.from_bytes(scale_bundles[{"sm_90a": "sm_100a", "sm_100a": "sm_90a"}[target]])
    import dataclasses

    lying = dataclasses.replace(other, manifest=dataclasses.replace(other.manifest, target=target))
    x = np.ones((3, 4), np.float32)
    with pytest.raises(TargetError, match="does not take this binary"):
        Kernel(lying)(x, np.empty_like(x), device="cuda")


def test_the_encoder_writes_what_the_driver_writes(gpu: driver.Gpu) -> None:
    for dtype, item in (("f16", 2), ("bf16", 2), ("f32", 4), ("u8", 1), ("i32", 4)):
        for swizzle, inner in (("none", 256), ("32B", 32), ("64B", 64), ("128B", 128)):
            box = min(inner // item, 256)
            for extents, strides, boxes in (
                ((64, 100), (128 * item * 8,), (box, 8)),
                ((17,), (), (box,)),
                (
                    (64, 2**20, 2, 16, 3),
                    (1 << 36, 16 * item, 4096, (1 << 40) - 16),
                    (box, 256, 1, 1, 2) if box * 512 * item <= 1 << 17 else (box, 8, 1, 1, 2),
                ),
            ):
                description = MapDescription(
                    dtype, item, 0x7F00_0000_1000, extents, strides, boxes, swizzle
                )
                with driver.Current(0):
                    assert encode(description) == driver.encode_map(description), description


def test_tensors_of_torch(scale: Kernel, torch: Any) -> None:
    x = torch.randn(37, 300, device="cuda")
    y = torch.full_like(x, float("nan"))
    scale(x, y, scale=0.5)
    torch.cuda.synchronize()
    assert (y == x * 0.5).all()


def test_stream(scale: Kernel, torch: Any) -> None:
    x = torch.randn(37, 300, device="cuda")
    y = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for handle in (stream, stream.cuda_stream):
        scale(x, y, scale=4.0, stream=handle)
    stream.synchronize()
    assert (y == x * 4).all()


@pytest.mark.parametrize("stream", ["main", -1, 1.5, object()])
def test_not_a_stream(scale: Kernel, stream: object) -> None:
    x = np.ones((3, 4), np.float32)
    with pytest.raises(SpecError, match="stream must be an int or have __cuda_stream__"):
        scale(x, np.empty_like(x), device="cuda", stream=stream)


def test_launches_can_be_captured(scale: Kernel, copy: Kernel, torch: Any) -> None:
    x = torch.randn(37, 304, device="cuda")
    y = torch.zeros_like(x)
    a = torch.randn(37, 304, device="cuda", dtype=torch.float16)
    b = torch.zeros_like(a)
    CudaDevice(0).prepare(scale.bundle)
    CudaDevice(0).prepare(copy.bundle)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream()
        scale(x, y, scale=8.0, stream=stream)
        copy(a, b, stream=stream)
    torch.cuda.synchronize()
    assert (y == 0).all() and (b == 0).all()
    for _ in range(2):
        x.normal_()
        a.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert (y == x * 8).all() and (a == b).all()


def test_tensors_in_two_places(scale: Kernel, torch: Any) -> None:
    x = torch.randn(3, 4, device="cuda")
    with pytest.raises(SpecError, match="on one device, got x on cpu, y on cuda:0"):
        scale(x.cpu(), x)
    with pytest.raises(SpecError, match="x is on cuda:0, the emulator takes tensors in host mem"):
        scale(x, torch.empty_like(x), device="emulator")


def test_views_of_other_libraries(torch: Any, gpu: driver.Gpu) -> None:
    q = torch.randn(2, 3, 4, dtype=torch.bfloat16, device="cuda")[:, 1:]
    seen = view(q, "q")
    assert (seen.dtype, seen.place, seen.shape, seen.strides) == (
        "bf16", "cuda:0", (2, 2, 4), (12, 4, 1),
    )  # fmt: skip
    assert seen.address == q.data_ptr()
    with pytest.raises(SpecError, match="q requires a gradient.*detach"):
        view(q.float().requires_grad_(), "q")


def test_cupy(scale: Kernel) -> None:
    cupy: Any = pytest.importorskip("cupy")
    x = cupy.random.default_rng(0).standard_normal((37, 300), dtype=cupy.float32)
    y = cupy.full_like(x, cupy.nan)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    scale(x, y, stream=stream)
    stream.synchronize()
    assert (y == x * 2).all()


def test_doctor(tma_bundles: Bundles, target: str) -> None:
    told: list[tuple[str, str]] = []
    copies = doctor.run(
        lambda name: Bundle.from_bytes(tma_bundles[name]),
        emulator=False,
        index=0,
        say=lambda topic, finding: told.append((topic, finding)),
    )
    assert [(copy.device, copy.target) for copy in copies] == [("cuda:0", target)]
    assert any(topic == "driver" for topic, _ in told)


def test_an_unknown_gpu(gpu: driver.Gpu) -> None:
    assert "there is no GPU 99" in str(CudaDevice(99).refusal(Any))  # type: ignore[arg-type]
