"""The emulator as a device: whole launches of hand-written kernels from bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.errors import LaunchError, SpecError, TargetError
from attn_mlir.runtime import doctor, kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice, names_of
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import load
from attn_mlir.validation.gpu import empty_boxes

Bundles = dict[str, bytes]
TARGETS = ("sm_90a", "sm_100a")


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(3, 300), (1, 1), (2, 128)])
def test_scale(scale_bundles: Bundles, target: str, shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    y = np.full_like(x, np.nan)
    launch = load(scale_bundles[target])(x, y, scale=3.0, device="emulator")
    assert (y == x * np.float32(3)).all()
    assert launch.device == "emulator" and launch.grid == (shape[0], 1, 1)
    assert launch.warp_instructions is not None and launch.warp_instructions > 0


def test_from_a_file_with_the_default_scale(scale_bundles: Bundles, tmp_path: Path) -> None:
    path = tmp_path / "scale.attn"
    path.write_bytes(scale_bundles["sm_100a"])
    x = numbers(2, 5)
    y = np.empty_like(x)
    am.load(path)(x, y, device=EmulatorDevice())
    assert (y == 2 * x).all()


@pytest.mark.parametrize(
    "name", [n for n, c in empty_boxes.CASES.items() if not c.front_has_memory]
)
def test_a_copy_of_nothing_faults_as_on_a_gpu(name: str) -> None:
    case = empty_boxes.CASES[name]
    source, destination = empty_boxes.arrays()
    rows = {"load_row": case.load_row, "store_row": case.store_row}
    kernel = empty_boxes.move_box("sm_90a")
    if case.outcome == empty_boxes.ILLEGAL:
        with pytest.raises(LaunchError, match="nothing of the box lies inside the tensor"):
            kernel(source, destination, **rows, device="emulator")
        return
    kernel(source, destination, **rows, device="emulator")
    assert (destination == empty_boxes.moved(case)).all()


def test_strided_views_and_what_lies_between(scale_bundles: Bundles) -> None:
    wide = np.full((4, 100), 7.0, np.float32)
    wide[:, 3:40] = numbers(4, 37)
    out = wide.copy()
    load(scale_bundles["sm_100a"])(wide[:, 3:40], out[:, 45:82], device="emulator")
    assert (out[:, 45:82] == 2 * wide[:, 3:40]).all()
    assert (out[:, :45] == wide[:, :45]).all() and (out[:, 82:] == 7.0).all()


def test_views_of_one_buffer(scale_bundles: Bundles) -> None:
    packed = np.zeros((3, 64), np.float32)
    packed[:, :32] = numbers(3, 32)
    x, y = packed[:, :32], packed[:, 32:]
    load(scale_bundles["sm_100a"])(x, y, device="emulator")
    assert (y == 2 * x).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(8, 64), (13, 200), (1, 8)])
def test_tma_copy(tma_bundles: Bundles, target: str, shape: tuple[int, int]) -> None:
    source = numbers(*shape, dtype=np.float16)
    result = np.full_like(source, np.nan)
    load(tma_bundles[target])(source, result, device="emulator")
    assert (source == result).all()


def test_tma_copy_into_a_wider_tensor(tma_bundles: Bundles) -> None:
    source = numbers(13, 72, dtype=np.float16)
    wide = np.full((13, 104), 7.0, np.float16)
    load(tma_bundles["sm_100a"])(source, wide[:, 16:88], device="emulator")
    assert (wide[:, 16:88] == source).all()
    assert (wide[:, :16] == 7.0).all() and (wide[:, 88:] == 7.0).all()


@pytest.mark.parametrize("seed", range(3))
def test_adversarial(tma_bundles: Bundles, seed: int) -> None:
    source = numbers(13, 200, dtype=np.float16)
    result = np.full_like(source, np.nan)
    device = EmulatorDevice(schedule="adversarial", seed=seed)
    load(tma_bundles["sm_100a"])(source, result, device=device)
    assert (source == result).all()


@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (3, 0)])
def test_nothing_to_launch(scale_bundles: Bundles, shape: tuple[int, int]) -> None:
    x = np.zeros(shape, np.float32)
    launch = load(scale_bundles["sm_100a"])(x, x.copy(), device="emulator")
    assert launch.warp_instructions == 0 and launch.grid == (shape[0], 1, 1)


def test_inputs_are_read_only(scale_bundles: Bundles) -> None:
    bundle = Bundle.from_bytes(scale_bundles["sm_100a"])
    swapped = bundle.ptx.replace("ld.param.u64 %rd2, [y];", "ld.param.u64 %rd2, [x];")
    import dataclasses

    x = numbers(1, 4)
    before = x.copy()
    with pytest.raises(LaunchError):
        kernel.Kernel(dataclasses.replace(bundle, ptx=swapped))(
            x, np.empty_like(x), device="emulator"
        )
    assert (x == before).all()


def test_automatic_choice_says_so_once(
    scale_bundles: Bundles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: object, bundle: Bundle) -> str:
        return "there is no CUDA driver on this machine"

    monkeypatch.setattr(kernel.CudaDevice, "refusal", refuse)
    kernel.say_emulator.cache_clear()
    x = numbers(1, 4)
    for _ in range(2):
        assert load(scale_bundles["sm_100a"])(x, np.empty_like(x)).device == "emulator"
    assert capsys.readouterr().err == (
        "attn-mlir: running on the emulator: there is no CUDA driver on this machine\n"
    )


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", 3, object()])
def test_no_such_device(scale_bundles: Bundles, device: Any) -> None:
    x = numbers(1, 4)
    with pytest.raises(SpecError, match="device must be 'cuda', 'emulator', a device or None"):
        load(scale_bundles["sm_100a"])(x, np.empty_like(x), device=device)


def test_no_such_schedule() -> None:
    with pytest.raises(SpecError, match="schedule must be 'fair' or 'adversarial', got 'unfair'"):
        EmulatorDevice(schedule="unfair")  # type: ignore[arg-type]


def test_streams_are_refused(scale_bundles: Bundles) -> None:
    x = numbers(1, 4)
    with pytest.raises(SpecError, match="the emulator has no streams"):
        load(scale_bundles["sm_100a"])(x, np.empty_like(x), device="emulator", stream=0)


def test_target_that_the_emulator_does_not_know(pack: Any) -> None:
    x = numbers(1, 4)
    with pytest.raises(
        TargetError, match="runs sm_100a, sm_103a, sm_90a, sm_90, the bundle is for sm_80"
    ):
        load(pack(target="sm_80"))(x, np.empty_like(x), device="emulator")


def test_a_refused_call_launches_nothing(scale_bundles: Bundles) -> None:
    x = numbers(2, 4)
    y = np.full_like(x, np.nan)
    with pytest.raises(SpecError):
        load(scale_bundles["sm_100a"])(x, y, scale=-1.0, device="emulator")
    assert np.isnan(y).all()


def test_repr(scale_bundles: Bundles) -> None:
    assert repr(load(scale_bundles["sm_90a"])) == "<Kernel scale_rows(x, y, scale=) for sm_90a>"


class TestDoctor:
    """The doctor on the emulator; on a GPU it is tested in test/gpu."""

    def test_copies(self, tma_bundles: Bundles) -> None:
        told: list[tuple[str, str]] = []
        copies = doctor.run(
            lambda target: [Bundle.from_bytes(tma_bundles[target])],
            emulator=True,
            say=lambda topic, finding: told.append((topic, finding)),
        )
        assert [(copy.device, copy.target) for copy in copies] == [
            ("emulator", "sm_90a"),
            ("emulator", "sm_100a"),
        ]
        topics = [topic for topic, _ in told]
        assert topics[: 2 + len(doctor.PACKAGES)] == ["python", "attn-mlir", *doctor.PACKAGES]

    def test_a_copy_that_is_wrong(self, scale_bundles: Bundles) -> None:
        with pytest.raises(LaunchError, match=r"on emulator gave \d+ wrong bytes of 61600"):
            doctor.copy_once(Bundle.from_bytes(scale_bundles["sm_100a"]), EmulatorDevice())

    def test_not_a_copy_kernel(self, pack: Any, scale_manifest: Any) -> None:
        tensors = [{**tensor, "role": "out"} for tensor in scale_manifest["tensors"]]
        with pytest.raises(TargetError, match="scale_rows is not that of a copy kernel"):
            doctor.copy_once(Bundle.from_bytes(pack(tensors=tensors)), EmulatorDevice())

    def test_versions(self) -> None:
        found = doctor.versions()
        assert found["attn-mlir"] == am.__version__ and found["numpy"] == np.__version__


def test_names_for_a_trace_come_from_any_report() -> None:
    report: dict[str, object] = {
        "roles": [{"role": "mma", "warps": "1-99999999999999"}, {"warps": "²"}, {"warps": None}, 3],
        "barriers": [{"begin": 8, "count": 10**12, "name": "q"}, {"begin": "x"}],
        "memory_map": [{"space": "tensor", "begin": "0", "end": 8, "what": "s"}],
    }
    names = names_of(report)
    assert len(names.warps) == 31 and len(names.barriers) == 1024
