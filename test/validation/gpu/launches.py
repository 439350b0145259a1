"""Checks of launches on a GPU: results, streams, graphs, and the driver's tensor maps."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from attn_mlir.cli.doctor import kernels_for
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime import doctor
from attn_mlir.runtime.attention_trial import AttentionRun
from attn_mlir.runtime.call.binding import bind, parameters
from attn_mlir.runtime.call.tensormap import MapDescription, encode
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.launchplan import LaunchPlan
from attn_mlir.runtime.devices.parameters import PackedParameters
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.gpu.check import BLACKWELL, HOPPER, Machine, check, module, refused
from attn_mlir.validation.tiny import copy_kernel, kernel_of_text, scale_kernel

OTHER = {HOPPER: BLACKWELL, BLACKWELL: HOPPER}


def _ones() -> Any:
    return np.ones((3, 4), np.float32)


@check(asks=scale_kernel)
def host_arrays(machine: Machine) -> None:
    """Results in host memory, of empty arrays and of strided ones too; neighbours stay."""
    scale = scale_kernel(machine.target)
    for shape in ((37, 300), (1, 1), (0, 5), (5, 0)):
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        y = np.full_like(x, np.nan)
        launch = scale(x, y, scale=3.0, device="cuda")
        assert launch.device == "cuda:0" and (y == x * np.float32(3)).all(), shape
    x = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32)
    wide = np.full((8, 100), 7.0, np.float32)
    scale(x[:, 3:40], wide[:, 5:42])
    assert (wide[:, 5:42] == 2 * x[:, 3:40]).all()
    assert (wide[:, :5] == 7.0).all() and (wide[:, 42:] == 7.0).all()


@check(asks=scale_kernel)
def a_gpu_is_the_automatic_choice(machine: Machine) -> None:
    """Where no device is named, the kernel runs on the GPU."""
    assert scale_kernel(machine.target)(_ones(), _ones()).device == "cuda:0"


@check(asks=copy_kernel)
def boxes_by_the_copy_engine(machine: Machine) -> None:
    """Tensor maps with boxes beyond the edges copy every element."""
    copy = copy_kernel(machine.target)
    for shape in ((37, 200), (8, 64), (1, 8)):
        source = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
        result = np.full_like(source, np.nan)
        copy(source, result, device="cuda")
        assert (source == result).all(), shape


@check(asks=lambda target: scale_kernel(OTHER[target]))
def a_bundle_for_another_chip(machine: Machine) -> None:
    """It is refused by its manifest, and by the driver where the manifest lies."""
    other = scale_kernel(OTHER[machine.target]).bundle
    words = (f"({machine.target})", f"is for {other.target}")
    refused(lambda: Kernel(other)(_ones(), _ones(), device="cuda"), TargetError, *words)
    manifest = dataclasses.replace(other.manifest, target=machine.target)
    lying = Kernel(dataclasses.replace(other, manifest=manifest))
    what = "does not take this binary"
    refused(lambda: lying(_ones(), _ones(), device="cuda"), TargetError, what)


@check()
def the_encoder_writes_what_the_driver_writes(machine: Machine) -> None:
    """Tensor maps of every dtype, swizzle and several ranks."""
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


@check(asks=copy_kernel)
def a_plan_writes_what_the_driver_writes(machine: Machine) -> None:
    """Tensor maps of a launch plan, at addresses that it was not made at."""
    torch, copy = module("torch"), copy_kernel(machine.target)
    names, manifest = ("source", "destination"), copy.bundle.manifest
    x, y, *others = torch.zeros(4, 64, 256, device="cuda", dtype=torch.float16)
    found: list[bytes] = []
    with driver.Current(0):
        plan = LaunchPlan(
            *(bind(manifest, (x, y), {}), names, driver.encode_map),
            pack=PackedParameters,
            start=lambda packed, stream: found.append(packed.words.tobytes()),
            launched=Launch("nowhere", (1, 1, 1)),
        )
        assert plan.launch([tensor.data_ptr() for tensor in others], None) is not None
        addresses = {name: x.data_ptr() for name, x in zip(names, others, strict=True)}
        params = parameters(bind(manifest, others, {}), addresses, driver.encode_map)
    assert found == [PackedParameters(params).words.tobytes()]


@check(asks=lambda target: (scale_kernel(target), copy_kernel(target)))
def calls_that_come_again(machine: Machine) -> None:
    """Plans launch on other tensors, other streams, in several threads and in a graph."""
    torch = module("torch")
    scale, copy = scale_kernel(machine.target), copy_kernel(machine.target)
    planned: list[object] = []
    watched = LaunchPlan.launch

    def launch(*arguments: Any) -> Any:
        planned.append(watched(*arguments))
        return planned[-1]

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(20):
                x = torch.full((64, 256), number + 32.0 * turn, device="cuda")
                h, y = x.half(), torch.full_like(x, torch.nan)
                g = torch.full_like(h, torch.nan)
                scale(x, y, scale=3.0, stream=stream)
                copy(h, g, stream=stream.cuda_stream)
                stream.synchronize()
                assert (y == 3 * x).all() and (g == h).all(), (number, turn)

    LaunchPlan.launch = launch
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        x, y = (torch.zeros(64, 256, device="cuda") for _ in "xy")
        count, graph = len(planned), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scale(x, y, scale=3.0, stream=torch.cuda.current_stream())
    finally:
        LaunchPlan.launch = watched
    assert None not in planned and len(planned) == count + 1 > 100
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert (y == x * 3).all()


@check(asks=scale_kernel)
def tensors_of_torch(machine: Machine) -> None:
    """On the GPU, on torch's streams, and refused where they are in two places."""
    torch, scale = module("torch"), scale_kernel(machine.target)
    x = torch.randn(37, 300, device="cuda")
    y = torch.full_like(x, float("nan"))
    scale(x, y, scale=0.5)
    torch.cuda.synchronize()
    assert (y == x * 0.5).all()
    stream = torch.cuda.Stream()
    for handle in (stream, stream.cuda_stream):
        scale(x, y, scale=4.0, stream=handle)
    stream.synchronize()
    assert (y == x * 4).all()
    refused(lambda: scale(x.cpu(), x), SpecError, "on one device, got x on cpu, y on cuda:0")
    told = "x is on cuda:0, the emulator takes tensors in host mem"
    refused(lambda: scale(x, torch.empty_like(x), device="emulator"), SpecError, told)
    q = torch.randn(2, 3, 4, dtype=torch.bfloat16, device="cuda")[:, 1:]
    seen = view(q, "q")
    assert (seen.dtype, seen.place, seen.shape) == ("bf16", "cuda:0", (2, 2, 4))
    assert (seen.strides, seen.address) == ((12, 4, 1), q.data_ptr())
    wanted = ("q requires a gradient", "detach")
    refused(lambda: view(q.float().requires_grad_(), "q"), SpecError, *wanted)


@check(asks=scale_kernel)
def what_is_no_stream(machine: Machine) -> None:
    """It is refused before anything is launched."""
    scale = scale_kernel(machine.target)
    for stream in ("main", -1, 1.5, object()):

        def call(stream: object = stream) -> object:
            return scale(_ones(), _ones(), device="cuda", stream=stream)

        refused(call, SpecError, "stream must be an int or have __cuda_stream__")


@check(asks=lambda target: (scale_kernel(target), copy_kernel(target)))
def launches_in_a_graph(machine: Machine) -> None:
    """Launches are captured, and replayed with what the tensors hold then."""
    torch = module("torch")
    scale, copy = scale_kernel(machine.target), copy_kernel(machine.target)
    x = torch.randn(37, 304, device="cuda")
    y = torch.zeros_like(x)
    a = torch.randn(37, 304, device="cuda", dtype=torch.float16)
    b = torch.zeros_like(a)
    for kernel in (scale, copy):
        CudaDevice(0).prepare(kernel.bundle)
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


@check(asks=scale_kernel)
def arrays_of_cupy(machine: Machine) -> None:
    """On a stream of cupy's."""
    cupy = module("cupy")
    x = cupy.random.default_rng(0).standard_normal((37, 300), dtype=cupy.float32)
    y = cupy.full_like(x, cupy.nan)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    scale_kernel(machine.target)(x, y, stream=stream)
    stream.synchronize()
    assert (y == x * 2).all()


@check(asks=kernels_for)
def the_doctor(machine: Machine) -> None:
    """Its kernels, found as any kernel that the front end asks for; attention is timed."""
    told: list[tuple[str, str]] = []
    done = doctor.run(
        kernels_for,
        emulator=False,
        index=0,
        say=lambda topic, finding: told.append((topic, finding)),
    )
    copy, small, timed = done
    assert {(one.device, one.target) for one in done} == {("cuda:0", machine.target)}
    assert (
        isinstance(copy, doctor.Copy) and isinstance(small, AttentionRun) and small.tflops is None
    )
    assert isinstance(timed, AttentionRun) and timed.tflops is not None and timed.tflops > 50
    assert any(topic == "driver" for topic, _ in told)


@check()
def a_gpu_that_is_not_there(machine: Machine) -> None:
    """It is told by its number."""
    nothing: Any = Bundle
    assert "there is no GPU 99" in str(CudaDevice(99).refusal(nothing))


def _sequences(target: str) -> Kernel:
    """A kernel in `ws` that copies sequences of unequal lengths."""
    module("ml_dtypes")
    from attn_mlir.validation.ws.kernels import bundle
    from attn_mlir.validation.ws.sequences import copy_sequences

    text = copy_sequences()
    return kernel_of_text("k", text, target, lambda: bundle(text, target))


@check(asks=_sequences)
def copies_touch_no_row_of_a_neighbour(machine: Machine) -> None:
    """The first sequence's tensor map begins 64 rows in front of an allocation of its own."""
    kernel = _sequences(machine.target)
    from attn_mlir.validation.ws.sequences import check_sequences, sequences

    call = sequences()
    kernel(*call.values(), most=128, device="cuda")
    check_sequences(**call)


def _pages(target: str) -> Kernel:
    """A kernel in `ws` that copies pages of a pool by their numbers."""
    module("ml_dtypes")
    from attn_mlir.validation.ws.kernels import bundle
    from attn_mlir.validation.ws.pages import copy_pages

    text = copy_pages()
    return kernel_of_text("k", text, target, lambda: bundle(text, target))


@check(asks=_pages)
def pages_outside_a_pool_are_zeros(machine: Machine) -> None:
    """Numbers in front of a pool and behind it, also where a copy ends within its page."""
    kernel = _pages(machine.target)
    from attn_mlir.validation.ws.pages import check_pages, pages

    for heads_first in (False, True):
        call = pages(heads_first=heads_first)
        kernel(*call.values(), device="cuda")
        check_pages(**call)
