"""A call that comes again gets the parameters that the full path computes, or takes the full path."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.binding import Bound, bind, parameters
from attn_mlir.runtime.call.repeats import Repeats
from attn_mlir.runtime.call.tensormap import encode
from attn_mlir.runtime.devices import idle
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.devices.launchplan import LaunchPlan
from attn_mlir.runtime.devices.parameters import PackedParameters
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel, launching_on
from attn_mlir.validation.tiny import (
    SCALE_MANIFEST,
    SCALE_PTX,
    TMA_MANIFEST,
    TMA_PTX,
    pack_bundle,
)

IDLE = IdleDevice()
Copies = Callable[[Any], Any]


def kernel(manifest: dict[str, Any], ptx: str, **changes: object) -> Kernel:
    text = ptx.replace("TARGET", "sm_100a")
    return Kernel(Bundle.from_bytes(pack_bundle(manifest, text, None, **changes)))


def scaling() -> Kernel:
    """x and y of f32 by pointers, and a number."""
    return kernel(SCALE_MANIFEST, SCALE_PTX)


def copying() -> Kernel:
    """source and destination of f16 by tensor maps."""
    return kernel(TMA_MANIFEST, TMA_PTX)


def block(bound: Bound) -> bytes:
    """The parameters of a call by the full path."""
    addresses = {name: tensor.address for name, tensor in bound.tensors.items()}
    return PackedParameters(parameters(bound, addresses, encode)).words.tobytes()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The parameters of what plans have launched on the idle device."""
    found: list[bytes] = []
    monkeypatch.setattr(
        idle, "_launch_nothing", lambda packed, stream: found.append(packed.words.tobytes())
    )
    return found


def called(kernel: Kernel, launched: list[bytes], *tensors: Any, **named: Any) -> bool:
    """Makes a call, which has to end as the full path does; whether a plan launched it."""
    del launched[:]
    try:
        bound = bind(kernel.bundle.manifest, tensors, named)
    except SpecError as refused:
        with pytest.raises(SpecError) as found:
            kernel(*tensors, device=IDLE, **named)
        assert str(found.value) == str(refused)
        assert not launched
        return False
    kernel(*tensors, device=IDLE, **named)
    assert not launched or launched == [block(bound)]
    return bool(launched)


def of_numpy(array: Any) -> Any:
    return array


def of_torch(array: Any) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


LIBRARIES = pytest.mark.parametrize("taken", [of_numpy, of_torch])


def memory(count: int, dtype: Any = np.float32) -> Any:
    """Elements from an address that is a multiple of 256 on."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 256, np.uint8)
    begin = -raw.ctypes.data % 256
    return raw[begin : begin + count * np.dtype(dtype).itemsize].view(dtype)


@LIBRARIES
def test_the_third_call_is_a_plans(launched: list[bytes], taken: Copies) -> None:
    for made, dtype in ((scaling(), np.float32), (copying(), np.float16)):
        plans = [
            called(made, launched, *(taken(memory(64, dtype).reshape(8, 8)) for _ in "xy"))
            for _ in range(5)
        ]
        assert plans == [False, False, True, True, True]


@LIBRARIES
def test_another_shape_at_the_same_address(launched: list[bytes], taken: Copies) -> None:
    made, x, y = copying(), memory(512, np.float16), memory(512, np.float16)
    for _ in range(3):
        for rows, columns in ((8, 64), (64, 8), (4, 64), (8, 32)):
            shape = (rows, columns)
            assert called(made, launched, *(taken(z[: rows * columns].reshape(shape)) for z in (x, y))) is (_ == 2)  # fmt: skip


@LIBRARIES
def test_other_strides(launched: list[bytes], taken: Copies) -> None:
    made, x, y = scaling(), memory(600), memory(600)
    for turn in range(3):
        for wide in (20, 30, 60):
            views = [taken(z.reshape(600 // wide, wide))[:10, 3:11] for z in (x, y)]
            assert called(made, launched, *views) is (turn == 2)


@LIBRARIES
def test_another_alignment(launched: list[bytes], taken: Copies) -> None:
    """A copy takes addresses of multiples of 16 only, and is refused for others as ever."""
    made, x, y = copying(), memory(1000, np.float16), memory(512, np.float16).reshape(8, 64)
    found = [
        called(made, launched, taken(x[offset : offset + 512].reshape(8, 64)), taken(y))
        for offset in (0, 8, 16, 24, 1, 4, 8, 64, 2)
    ]
    assert found == [False, False, True, True, False, False, True, True, False]


def test_alignment_that_the_kernel_asks_for(launched: list[bytes]) -> None:
    """More than a signature tells."""
    tensors = [{**tensor, "alignment_bytes": 128} for tensor in SCALE_MANIFEST["tensors"]]
    made, x = kernel(SCALE_MANIFEST, SCALE_PTX, tensors=tensors), memory(1000)
    y = memory(64).reshape(8, 8)
    found = [
        called(made, launched, x[offset : offset + 64].reshape(8, 8), y)
        for offset in (0, 32, 64, 4, 16, 96)
    ]
    assert found == [False, False, True, False, False, True]


@LIBRARIES
def test_another_dtype_or_rank(launched: list[bytes], taken: Copies) -> None:
    made, raw = scaling(), memory(128)
    y = memory(64).reshape(8, 8)
    x = raw[:64].reshape(8, 8)
    assert [called(made, launched, taken(x), taken(y)) for _ in range(3)][-1]
    for wrong in (x.view(np.int32), x.view(np.float16)[:, :8], x.reshape(64), x.reshape(8, 8, 1)):
        assert not called(made, launched, taken(wrong), taken(y))
    assert called(made, launched, taken(x), taken(y))


@LIBRARIES
def test_outputs_that_share_memory(launched: list[bytes], taken: Copies) -> None:
    made, both = scaling(), memory(1000)

    def at(*offsets: int) -> list[Any]:
        return [taken(both[offset : offset + 64].reshape(8, 8)) for offset in offsets]

    assert [called(made, launched, *at(0, 64)) for _ in range(3)][-1]
    for offset in (0, 32, 60, 63):
        assert not called(made, launched, *at(0, offset)), offset
        assert not called(made, launched, *at(offset, 0)), offset
    assert called(made, launched, *at(64, 0)) and called(made, launched, *at(100, 500))


@LIBRARIES
def test_tensors_that_interleave(launched: list[bytes], taken: Copies) -> None:
    """They are apart, which takes a solver to tell; where they lie alike they are known to be."""
    made, both, wide = scaling(), memory(2000), 120

    def at(begin: int, *offsets: int) -> list[Any]:
        rows = both[begin : begin + 8 * wide].reshape(8, wide)
        return [taken(rows)[:, i : i + 8] for i in offsets]

    assert [called(made, launched, *at(0, 0, 8)) for _ in range(3)][-1]
    assert called(made, launched, *at(500, 0, 8))
    for offset in (9, 16, 4, 7):  # the last two share memory
        assert not called(made, launched, *at(0, 0, offset)), offset
        assert not called(made, launched, *at(0, offset, 0)), offset


def test_memory_that_cannot_be_written(launched: list[bytes]) -> None:
    made, x, y = scaling(), memory(64).reshape(8, 8), memory(64).reshape(8, 8)
    assert [called(made, launched, x, y) for _ in range(3)][-1]
    y.flags.writeable = False
    assert not called(made, launched, x, y)


def test_numbers_count_by_value_and_kind(launched: list[bytes]) -> None:
    made, x, y = scaling(), memory(64).reshape(8, 8), memory(64).reshape(8, 8)
    for turn in range(3):
        for scale in (2, 2.0, 0.5, None, 1e-3):
            assert called(made, launched, x, y, scale=scale) is (turn == 2), scale
    for _ in range(3):
        for scale in (True, "2", 0.0, float("nan"), np.float32(3)):
            assert not called(made, launched, x, y, scale=scale), scale


def test_a_number_in_an_array_is_read_every_time(launched: list[bytes]) -> None:
    made, x, y = scaling(), memory(64).reshape(8, 8), memory(64).reshape(8, 8)
    number = np.array(1.0, np.float32)
    for value in range(1, 6):
        number[...] = value
        assert not called(made, launched, x, y, scale=number)


def test_names_in_any_order(launched: list[bytes]) -> None:
    made, x, y = scaling(), memory(64).reshape(8, 8), memory(64).reshape(8, 8)
    for turn in range(3):
        assert called(made, launched, x=x, y=y, scale=3.0) is (turn == 2)
        assert called(made, launched, y=x, scale=3.0, x=y) is (turn == 2)
        assert called(made, launched, x, y=y) is (turn == 2)


def test_what_is_empty_or_without_memory(launched: list[bytes]) -> None:
    made, nothing = scaling(), np.zeros((0, 8), np.float32)
    for _ in range(3):
        assert made(nothing, nothing.copy(), device=IDLE).grid == (0, 1, 1)
    assert not launched


def test_a_drawn_history(launched: list[bytes]) -> None:
    """Any of these calls, in any order, some of them refused: each ends as the full path does."""
    drawn, made = random.Random(0), copying()
    pool = memory(4096, np.float16)
    planned = 0
    for _ in range(600):
        rows, columns = drawn.choice([(8, 64), (4, 64), (8, 32), (1, 8), (8, 12)])
        wide = columns * drawn.choice([1, 2])
        views: list[Any] = []
        for _ in "xy":
            begin = drawn.choice([0, 8, 512, 1024, 2048, 2052, 2049])
            views.append(pool[begin : begin + rows * wide].reshape(rows, wide)[:, :columns])
        planned += called(made, launched, *views)
    assert planned > 100


@pytest.mark.usefixtures("only_new_garbage")
def test_memory_that_was_freed_and_given_to_another(launched: list[bytes]) -> None:
    """No plan holds a tensor; what comes to lie at its address is a tensor of its own."""
    made = scaling()
    for _ in range(4):
        x, y = memory(64).reshape(8, 8), memory(64).reshape(8, 8)
        gone = weakref.ref(x.base)
        called(made, launched, x, y)
        del x, y
        gc.collect()
        assert gone() is None
    for _ in range(20):
        x, y = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
        assert called(made, launched, x, y)


def test_threads_have_parameters_of_their_own() -> None:
    """Two launches of one plan meet between writing their addresses and launching."""
    made = scaling()
    arrays = [[memory(64).reshape(8, 8) for _ in "xy"] for _ in range(2)]
    bounds = [bind(made.bundle.manifest, given, {}) for given in arrays]
    meeting, found = threading.Barrier(2, timeout=20), list[tuple[str, bytes]]()

    def start(packed: PackedParameters, stream: object) -> None:
        meeting.wait()
        found.append((threading.current_thread().name, packed.words.tobytes()))

    plan = LaunchPlan(
        *(bounds[0], ("x", "y"), encode),
        pack=PackedParameters,
        start=start,
        launched=Launch("idle", (1, 1, 1)),
    )

    def launch(bound: Bound) -> None:
        for _ in range(10):
            plan.launch([tensor.address for tensor in bound.tensors.values()], None)

    threads = [
        threading.Thread(target=launch, args=(bound,), name=name)
        for name, bound in zip("ab", bounds, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [(name, block(bound)) for name, bound in zip("ab", bounds, strict=True)]
    assert sorted(found) == sorted(expected * 10)


def test_a_map_that_begins_in_front_of_its_tensor() -> None:
    """Its first word is the tensor's address less a constant, and never below 0."""
    params = [
        {**param, "dims": [param["dims"][0], {"extent": ["add", "rows", 8], "axis": 0, "step": 1, "first": -8}]}
        for param in TMA_MANIFEST["params"]
    ]  # fmt: skip
    made = kernel(TMA_MANIFEST, TMA_PTX, params=params)
    found: list[bytes] = []
    arrays = [[memory(512, np.float16).reshape(8, 64) for _ in "xy"] for _ in range(2)]
    bounds = [bind(made.bundle.manifest, given, {}) for given in arrays]
    plan = LaunchPlan(
        *(bounds[0], ("source", "destination"), encode),
        pack=PackedParameters,
        start=lambda packed, stream: found.append(packed.words.tobytes()),
        launched=Launch("idle", (1, 1, 1)),
    )
    addresses = [tensor.address for tensor in bounds[1].tensors.values()]
    assert plan.launch(addresses, None) is not None
    assert found == [block(bounds[1])]
    assert plan.launch([512, addresses[1]], None) is None
    assert plan.launch([addresses[0], 0], None) is None


def test_devices_have_plans_of_their_own(launched: list[bytes]) -> None:
    made, x, y = scaling(), memory(64).reshape(8, 8), memory(64).reshape(8, 8)
    for _ in range(3):
        made(x, y, device=IDLE)
    assert len(launched) == 1
    assert made(x, y, device="emulator").device == "emulator"
    with launching_on(IDLE):
        for _ in range(3):
            made(x, y)
    assert len(launched) == 2
    assert made(x, y, device="emulator").warp_instructions
    with pytest.raises(SpecError, match="^device must be"):
        made(x, y, device="gpu")


def test_tensors_that_torch_would_differentiate(launched: list[bytes]) -> None:
    torch = pytest.importorskip("torch")
    made, x, y = scaling(), torch.zeros(8, 8), torch.zeros(8, 8)
    assert [called(made, launched, x, y) for _ in range(3)][-1]
    wanted = torch.nn.Parameter(x)
    assert not called(made, launched, wanted, y)  # refused
    with torch.no_grad():
        assert [called(made, launched, wanted, y) for _ in range(3)][-1]
    assert not called(made, launched, x._neg_view(), y)  # refused
    sparse = torch.eye(8).to_sparse()
    with pytest.raises(SpecError, match="^x must be a dense tensor"):
        made(sparse, y, device=IDLE)
    with torch.autograd.forward_ad.dual_level():
        assert not called(made, launched, torch.autograd.forward_ad.make_dual(x, x), y)  # refused


def test_what_is_traced_launches_nothing(launched: list[bytes]) -> None:
    """The results of a loaded kernel lie in memory of the caller, which no tracer sees written."""
    torch = pytest.importorskip("torch")
    made, x, y = scaling(), torch.zeros(8, 8), torch.zeros(8, 8)
    assert [called(made, launched, x, y) for _ in range(3)][-1]
    del launched[:]
    with pytest.raises(
        SpecError, match=r"cannot be recorded by torch.jit.trace.*attn_mlir.attention"
    ):
        torch.jit.trace(lambda x: made(x, y, device=IDLE) or y, (x,))
    with pytest.raises(SpecError, match=r"nor transformed by torch.func"):
        torch.vmap(lambda x: made(x, y[0], device=IDLE) or y)(x)
    assert not launched


def test_a_bound_of_what_is_remembered() -> None:
    repeats = Repeats[str](most=3)
    for key in range(10):
        for _ in range(2):
            repeats.note(key, lambda key=key: f"plan {key}")
    assert len(repeats) == 3
    assert [repeats.get(key) for key in (6, 7, 8, 9)] == [None, "plan 7", "plan 8", "plan 9"]
    assert repeats.get(7)  # used last
    for _ in range(2):
        repeats.note(10, lambda: "plan 10")
    assert repeats.get(7) and repeats.get(8) is None
    for _ in range(5):
        repeats.note("none", lambda: None)
    assert repeats.get("none") is None and len(repeats) == 3
    repeats.clear()
    assert len(repeats) == 0 and repeats.get(7) is None
