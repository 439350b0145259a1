"""ATTN_MLIR_PTXAS=none: bundles for the emulator alone, which say so and are taken for nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import cli, env, tools
from attn_mlir.compiling import compiler
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.lowering import assemble
from attn_mlir.lowering.ptxas import Assembled
from attn_mlir.runtime import doctor
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.cache import Cache
from attn_mlir.validation.gpu.bundles import collect
from attn_mlir.validation.tiny import SCALE_MANIFEST, SCALE_PTX, assembled

SPEC = am.mha(heads=1, head_dim=64)


@pytest.fixture(autouse=True)
def no_machine_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The setting that the tests have anyhow, also where somebody set another."""
    monkeypatch.setenv("ATTN_MLIR_PTXAS", "none")
    env.settings.cache_clear()
    yield
    monkeypatch.undo()
    env.settings.cache_clear()


@pytest.fixture
def bundle() -> Bundle:
    """Of a tiny kernel, without machine code."""
    return Bundle.from_bytes(assembled(SCALE_MANIFEST, SCALE_PTX, "sm_100a"))


def test_a_compiled_kernel_says_so_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> Assembled:
        raise AssertionError("ptxas was run")

    monkeypatch.setattr("attn_mlir.lowering.compile.assemble", never)
    stages: list[str] = []
    found = compiler.compile_afresh(SPEC, progress=stages.append)
    assert "cubin" not in stages and "ptx" in stages
    assert found.machine_code is None and found.manifest.sha256 is None
    assert not {"registers", "spill_bytes"} & set(found.report)
    assert "ptxas" not in found.manifest.versions
    with zipfile.ZipFile(io.BytesIO(found.data)) as archive:
        assert "kernel.cubin" not in archive.namelist()
        assert json.loads(archive.read("bundle.json"))["sha256"] is None
    q = np.ones((1, 8, 1, 64), np.float16)
    o, lse = np.empty_like(q), np.empty((1, 1, 8), np.float32)
    kernel = am.load(compiler.compile_afresh(am.mha(heads=1, head_dim=64, dtype="f16")))
    kernel(q, q, q, o, lse, device="emulator")
    assert np.array_equal(o, q)


def test_the_rest_of_the_bundle_is_the_same() -> None:
    manifest = {"report": {"stages": []}, "entry": "e"}
    without = assemble.bundle_bytes(manifest, "text", None, "source")
    whole = assemble.bundle_bytes(manifest, "text", Assembled(b"code", 7, 8, "13.5.37"), "source")
    members = []
    for data in (without, whole):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members.append({name: archive.read(name) for name in archive.namelist()})
    assert members[1].pop("kernel.cubin") == b"code"
    one, other = (json.loads(member.pop("bundle.json")) for member in members)
    assert members[0] == members[1]
    assert (other["report"].pop("registers"), other["report"].pop("spill_bytes")) == (7, 8)
    assert other["versions"].pop("ptxas") and other.pop("sha256") and one.pop("sha256") is None
    assert one == other


def test_it_is_another_kernel_for_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    assert compiler.missing_compiler() is None
    key = compiler.cache_key("{}", "sm_100a", cache)
    assert key.parts["ptxas"] == "no machine code"
    for named in ({}, {"ATTN_MLIR_PTXAS": str(tmp_path / "missing")}):
        settings = env.read(named)
        monkeypatch.setattr(env, "settings", lambda settings=settings: settings)
        other = compiler.cache_key("{}", "sm_100a", cache)
        assert other.digest() != key.digest()


def test_what_needs_machine_code_is_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TargetError, match="has no machine code: .*ATTN_MLIR_PTXAS=none .* unset"):
        _ = bundle.cubin
    monkeypatch.setattr(driver, "gpus", lambda: (driver.Gpu(0, "B200", (10, 0), 1, 1, 1 << 18),))
    monkeypatch.setattr(driver, "driver_version", lambda: (13, 0))
    assert "has no machine code" in (CudaDevice(0).refusal(bundle) or "")
    x = np.ones((2, 64), np.float32)
    with pytest.raises(TargetError, match="has no machine code"):
        am.load(bundle)(x, x.copy(), device="cuda")
    with pytest.raises(TargetError, match="ATTN_MLIR_PTXAS=none says that none is to be used"):
        tools.find_ptxas()


def test_where_nobody_chose_a_device_it_is_the_emulator(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = np.ones((2, 64), np.float32), np.zeros((2, 64), np.float32)
    assert am.load(bundle)(x, y).device == "emulator" and (y == 2).all()


def test_a_file_that_contradicts_itself(bundle: Bundle) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as old, zipfile.ZipFile(whole, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.writestr("kernel.cubin", b"code")
    with pytest.raises(SpecError, match=r"damaged: kernel.cubin is there, bundle.json says other"):
        Bundle.from_bytes(whole.getvalue())
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as old, zipfile.ZipFile(whole, "w") as new:
        new.writestr("kernel.ptx", old.read("kernel.ptx"))
        fields = json.loads(old.read("bundle.json")) | {"sha256": "0" * 64}
        new.writestr("bundle.json", json.dumps(fields))
    with pytest.raises(SpecError, match="damaged: kernel.cubin is missing, bundle.json says other"):
        Bundle.from_bytes(whole.getvalue())


def test_commands(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle.save(tmp_path / "scale.attn")
    assert cli.main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "no cubin, PTX" in text and "no machine code, for the emulator alone" in text
    assert "registers per thread" not in text and "sha256" not in text
    assert cli.main(["info", str(path), "--sass"]) == 1
    assert "TargetError: the bundle of scale_rows" in capsys.readouterr().err
    with pytest.raises(TargetError, match="ATTN_MLIR_PTXAS=none"):
        collect(tmp_path / "gpu.zip")


def test_the_doctor_tells() -> None:
    told: dict[str, str] = {}
    with contextlib.suppress(TargetError):
        doctor.run(lambda target: [], emulator=False, say=told.__setitem__)
    assert "ATTN_MLIR_PTXAS=none" in told["machine code"]


def test_dumps_leave_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"ATTN_MLIR_DUMP": "ptx,cubin,sass", "ATTN_MLIR_DUMP_DIR": str(tmp_path)}
    settings = env.read({**names, "ATTN_MLIR_PTXAS": "none"})
    monkeypatch.setattr(env, "settings", lambda: settings)
    am.compile(SPEC)
    assert [path.suffix for path in tmp_path.iterdir()] == [".ptx"]
    assert "ATTN_MLIR_DUMP=cubin leaves nothing" in capsys.readouterr().err
