"""Files with code for several targets: what is in them, which code runs where, what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.call.tensors import TensorView
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import FatBundle, bundles_of, load_bundles, read_bundles
from attn_mlir.runtime.file.members import zipped
from attn_mlir.runtime.kernel import Kernel, load

Pack = Callable[..., bytes]
TARGETS = ("sm_90a", "sm_100a")
H200 = driver.Gpu(0, "NVIDIA H200", (9, 0), 132, 141 << 30, 232448)


def both(pack: Pack, **changes: object) -> list[Bundle]:
    """The scale kernel for each target; changes are for the second one."""
    first, second = TARGETS
    return [
        Bundle.from_bytes(pack(target=first)),
        Bundle.from_bytes(pack(target=second, **changes)),
    ]


def files(bundles: list[Bundle]) -> dict[str, bytes]:
    return {f"{bundle.target}.attn": bundle.data for bundle in bundles}


def rows() -> tuple[Any, Any]:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    return x, np.zeros_like(x)


def test_what_is_saved_is_what_is_read(pack: Pack, tmp_path: Path) -> None:
    bundles = both(pack)
    path = FatBundle.of(bundles).save(tmp_path / "scale.attn")
    found = load_bundles(path)
    assert isinstance(found, FatBundle) and found.targets == TARGETS
    assert [one.data for one in bundles_of(found)] == [one.data for one in bundles]
    assert found.for_target("sm_90a").path == path / "sm_90a.attn"
    assert FatBundle.of(bundles).data == path.read_bytes()  # the same bytes each time


def test_a_file_for_one_target_stays_a_bundle(pack: Pack) -> None:
    assert isinstance(read_bundles(pack()), Bundle)
    assert bundles_of(Bundle.from_bytes(pack()))[0].target == "sm_100a"


@pytest.mark.parametrize("target", TARGETS)
def test_the_emulator_runs_the_code_for_its_target(pack: Pack, target: str) -> None:
    seen: list[str] = []

    @dataclasses.dataclass(frozen=True)
    class Noting(EmulatorDevice):
        def launch(self, bundle: Bundle, bound: Any, stream: object | None) -> Launch:
            seen.append(bundle.target)
            return super().launch(bundle, bound, stream)

    x, y = rows()
    load(FatBundle.of(both(pack)).data)(x, y, device=Noting(target=target), scale=3.0)
    assert seen == [target] and (y == 3.0 * x).all()


def test_a_gpu_runs_the_code_for_its_chip(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for arrays in its memory, and although the other code stands first in the file."""
    seen: list[tuple[str, str]] = []

    def launch(self: CudaDevice, bundle: Bundle, bound: Any, stream: object | None) -> Launch:
        seen.append((self.name, bundle.target))
        return Launch(self.name, bound.grid)

    monkeypatch.setattr(driver, "gpus", lambda: (H200,))
    monkeypatch.setattr(driver, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(CudaDevice, "launch", launch)
    monkeypatch.setattr(CudaDevice, "plan_launch", lambda *_: None)
    kernel = Kernel(FatBundle.of(both(pack)[::-1]))
    x, y = rows()
    kernel(x, y, scale=2.0)
    kernel.launch({"x": x, "y": y, "scale": 2.0}, device="cuda")
    there = TensorView("f32", (2, 3), (3, 1), 4096, "cuda", 0, False, None)
    kernel(there, dataclasses.replace(there, address=8192), scale=2.0)
    assert seen == [("cuda:0", "sm_90a")] * 3


def test_a_gpu_without_code(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named, or where the arrays are, it is an error; arrays on the host go to the emulator."""
    old = dataclasses.replace(H200, name="NVIDIA A100", capability=(8, 0))
    monkeypatch.setattr(driver, "gpus", lambda: (old,))
    kernel = Kernel(FatBundle.of(both(pack)))
    x, y = rows()
    wanted = (
        r"scale_rows has code for sm_90a and sm_100a, and cuda:0 runs none of it: cuda:0 is a "
        r"NVIDIA A100 \(sm_80a\), the bundle is for sm_90a; .* for sm_100a"
    )
    with pytest.raises(TargetError, match=wanted):
        kernel(x, y, device="cuda", scale=2.0)
    there = TensorView("f32", (2, 3), (3, 1), 4096, "cuda", 0, False, None)
    with pytest.raises(TargetError, match=f"{wanted}; the emulator would run it"):
        kernel(there, dataclasses.replace(there, address=8192), scale=2.0)
    kernel(x, y, scale=2.0)
    assert (y == 2.0 * x).all()
    assert capsys.readouterr().err.count("running on the emulator") == 1


def test_other_code_for_a_call_that_comes_again(pack: Pack) -> None:
    """What a call was bound by is its device's bundle: here one wants rows of four elements."""
    narrow = FatBundle.of(both(pack, tensors=wide_rows(Bundle.from_bytes(pack()))))
    x, y = rows()
    kernel = Kernel(narrow)
    kernel(x, y, device=EmulatorDevice(target="sm_90a"), scale=2.0)
    assert (y == 2.0 * x).all()
    with pytest.raises(SpecError, match="x has 3 elements in a row: the kernel takes multiples"):
        kernel(x, y, device=EmulatorDevice(target="sm_100a"), scale=2.0)


def wide_rows(bundle: Bundle) -> list[dict[str, Any]]:
    """The tensors of a manifest, in rows of multiples of four elements."""
    return [
        {**dataclasses.asdict(tensor), "row_multiple": 4, "shape": list(tensor.shape)}
        for tensor in bundle.manifest.tensors
    ]


def test_targets_that_a_file_lacks(pack: Pack) -> None:
    with pytest.raises(TargetError, match="no code for 'sm_80': it is for sm_90a and sm_100a"):
        FatBundle.of(both(pack)).for_target("sm_80")


def test_joined_bundles_that_differ(pack: Pack) -> None:
    with pytest.raises(SpecError, match="two bundles for one target: sm_90a, sm_90a"):
        FatBundle.of(both(pack)[:1] * 2)
    with pytest.raises(SpecError, match="at least one bundle, got none"):
        FatBundle.of([])
    other = both(pack, request={"op": "other"})
    with pytest.raises(SpecError, match="holds two kernels: the request is for sm_100a .*other"):
        FatBundle.of(other)
    with pytest.raises(SpecError, match="'.*' holds two kernels"):
        FatBundle.from_bytes(zipped(files(other)), path=Path("two.attn"))


def test_files_that_are_damaged(pack: Pack) -> None:
    members = files(both(pack))
    one, two = members.values()
    for wrong, message in [
        ({"sm_90a.attn": two, "sm_100a.attn": one}, "sm_90a.attn is for sm_100a"),
        (
            {**members, "notes": b""},
            "must consist of 1 to 8 bundle files.*got sm_90a.attn, sm_100a",
        ),
        ({"sm_90a.attn": one[:-9], "sm_100a.attn": two}, r"sm_90a.attn' is not a bundle"),
        ({f"sm_{n}.attn": one for n in range(9)}, "must consist of 1 to 8 bundle files"),
    ]:
        with pytest.raises(SpecError, match=message):
            read_bundles(zipped(wrong), path=Path("fat.attn"))
    with pytest.raises(SpecError, match="lacks bundle.json, kernel.ptx, but holds sm_90a.attn, sm"):
        Bundle.from_bytes(zipped(members))
    with pytest.raises(SpecError, match="is not a fat bundle: it must consist of"):
        FatBundle.from_bytes(one)
