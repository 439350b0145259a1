"""Bundles for machines without a compiler: collected where one is, looked up where none is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir import cli, env
from attn_mlir.compiling import compiler
from attn_mlir.compiling.prebuild import Collector, prebuild
from attn_mlir.compiling.prebuilt import file_name, find, write_archive
from attn_mlir.errors import SpecError, TargetError

Pack = Callable[..., bytes]
ROOT = Path(__file__).resolve().parents[3]
SPEC = am.mha(heads=2, head_dim=64)
NAME = file_name(SPEC.kernel_name, SPEC.canonical_json(), "sm_100a")

SCRIPT = """\
import sys
import ml_dtypes
import numpy as np
import attn_mlir as am

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 20, 2, 64)).astype(ml_dtypes.bfloat16)
k = rng.standard_normal((1, 300, 1, 64)).astype(ml_dtypes.bfloat16)
o = am.attention(q, k, k, num_splits=2, device="emulator")
if "judge" in sys.argv:
    verdict = am.reference.check_attention(q, k, k, o, None, mask=am.full())
    print("MLIR" if "numba_cuda_mlir" in sys.modules else "no MLIR", verdict)
if "stop" in sys.argv:
    sys.exit(3)
"""


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes MLIR away, and names the place of bundles."""

    def without(place: Path | None) -> None:
        variables = {} if place is None else {"ATTN_MLIR_BUNDLES": str(place)}
        settings = env.read(variables)
        monkeypatch.setattr(env, "settings", lambda: settings)
        monkeypatch.setattr(compiler, "_mlir_identity", lambda: "none")
        monkeypatch.setattr(compiler, "_memory", {})

    return without


@pytest.fixture
def folder(tmp_path: Path, pack: Pack) -> Path:
    """A folder with a bundle for SPEC, which a stand-in compiled."""
    (tmp_path / NAME).write_bytes(pack(request=json.loads(SPEC.canonical_json())))
    return tmp_path


@pytest.mark.parametrize("kind", ["folder", "archive", "archive of a folder"])
def test_looked_up_by_request_and_target(
    kind: str, folder: Path, no_compiler: Callable[..., None]
) -> None:
    place = folder
    if kind == "archive":
        place = write_archive(folder, folder / "all.zip")
    elif kind == "archive of a folder":
        place = folder / "all.zip"
        with zipfile.ZipFile(place, "w") as archive:
            archive.write(folder / NAME, f"some/where/{NAME}")
    no_compiler(place)
    bundle = am.compile(am.mha(heads=2, kv_heads=2, head_dim=64, dtype="bfloat16"))
    assert bundle.entry == "scale_rows" and bundle is am.compile(SPEC)
    with pytest.raises(TargetError) as caught:
        am.compile(am.mha(heads=4, head_dim=64))
    for told in (
        "attn_mha_null_bf16_h4k4_d64 for sm_100a",
        str(place),
        '"heads":4',
        "numba_cuda_mlir is missing",
        "run `attn-mlir prebuild -o FOLDER SCRIPT`",
    ):
        assert told in str(caught.value)


def test_nowhere_to_look(no_compiler: Callable[..., None]) -> None:
    no_compiler(None)
    with pytest.raises(TargetError, match="cannot compile attn_mha_null.* set ATTN_MLIR_BUNDLES"):
        am.compile(SPEC)


def test_no_ptxas_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = env.read({"ATTN_MLIR_PTXAS": str(tmp_path / "none")})
    monkeypatch.setattr(env, "settings", lambda: settings)
    assert "ATTN_MLIR_PTXAS names" in (compiler.missing_compiler() or "")


def test_another_bundle_under_this_name(
    folder: Path, pack: Pack, no_compiler: Callable[..., None]
) -> None:
    other = am.mha(heads=4, head_dim=64)
    (folder / NAME).write_bytes(pack(request=json.loads(other.canonical_json())))
    no_compiler(folder)
    with pytest.raises(TargetError, match="which is not what its name says"):
        am.compile(SPEC)
    (folder / NAME).write_bytes(b"no bundle")
    with pytest.raises(SpecError, match="is not a bundle or is damaged"):
        am.compile(SPEC)


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_a_place_that_cannot_be_read(content: bytes | None, tmp_path: Path) -> None:
    place = tmp_path / "bundles"
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(SpecError, match="ATTN_MLIR_BUNDLES names .* which cannot be read: "):
        find(place, "k", "{}", "sm_100a", "nothing is there")


def test_archives_of_the_same_files_are_the_same(folder: Path) -> None:
    first = write_archive(folder, folder / "a.zip").read_bytes()
    os.utime(folder / NAME, ns=(1, 1))
    assert write_archive(folder, folder / "b.zip").read_bytes() == first
    assert write_archive(folder, folder / "c.zip", lambda name: False).read_bytes() != first


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


def _bare_environment(folder: Path, place: Path) -> dict[str, str]:
    """Where numpy is importable and nothing else that was installed; no program is on PATH."""
    import ml_dtypes
    import numpy

    package = folder / "attn_mlir"
    package.mkdir()
    for path in (ROOT / "frontend").iterdir():
        (package / path.name).symlink_to(path)
    for name in ("dialect", "schedules", "passes", "lowering", "runtime"):
        (package / name).symlink_to(ROOT / name)
    for module in (numpy, ml_dtypes):
        home = Path(module.__file__).parent
        (folder / home.name).symlink_to(home)
        libraries = home.with_name(f"{home.name}.libs")
        if libraries.exists():
            (folder / libraries.name).symlink_to(libraries)
    return {"PYTHONPATH": str(folder), "PATH": "", "ATTN_MLIR_BUNDLES": str(place)}


@pytest.mark.slow
def test_a_program_finds_what_was_prebuilt_for_it(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Collected by the command, then run by an interpreter that has neither MLIR nor ptxas."""
    bundles = tmp_path / "bundles"
    command = ["prebuild", "-o", str(bundles), "--no-run", str(script)]
    assert cli.main(command) == 0
    told = capsys.readouterr()
    assert told.out.startswith("2 bundles, ") and "attn_combine_bf16_h2_d64.sm_100a." in told.err
    assert cli.main(command) == 0 and "already there" in capsys.readouterr().err

    (tmp_path / "bare").mkdir()
    environment = _bare_environment(tmp_path / "bare", bundles)
    plain = [sys.executable, "-S", str(script), "judge"]
    done = subprocess.run(plain, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no MLIR ok: O error")
    (bundles / "none").mkdir()
    environment["ATTN_MLIR_BUNDLES"] = str(bundles / "none")
    done = subprocess.run(plain, env=environment, capture_output=True, text=True, check=False)
    assert "TargetError: this installation cannot compile, numba_cuda_mlir is miss" in done.stderr


OF_ANY_BATCH = """\
import sys
import ml_dtypes
import numpy as np
import attn_mlir as am
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

q = np.zeros((int(sys.argv[1]), 40, 32, 64), ml_dtypes.bfloat16)
with launching_on(IdleDevice("sm_90a")):
    plan = am.plan(q, q, q, mask=am.causal())
    plan.run()
print(plan.steps[0].request.tile_order, "MLIR" if "numba_cuda_mlir" in sys.modules else "no MLIR")
"""


def test_a_program_runs_with_another_batch_than_it_was_prebuilt_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few work tiles have a CTA each, many are drawn from a counter: both kernels are collected."""
    script, bundles = tmp_path / "program.py", tmp_path / "bundles"
    script.write_text(OF_ANY_BATCH)
    assert cli.main(["prebuild", "-q", "-o", str(bundles), str(script), "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2 bundles, ")
    (tmp_path / "bare").mkdir()
    environment = _bare_environment(tmp_path / "bare", bundles)
    for batch, order in (("1", "None"), ("4", "None"), ("5", "counter"), ("64", "counter")):
        plain = [sys.executable, "-S", str(script), batch]
        done = subprocess.run(plain, env=environment, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (f"{order} no MLIR\n", ""), batch


def test_a_program_that_fails_leaves_what_it_asked_for(script: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    folder = tmp_path / "bundles"
    with pytest.raises(SpecError, match=r"failed \(exit 3\); the 2 bundles that it had asked for"):
        prebuild(script, ["stop"], folder, runs=False, say=lines.append)
    assert len(lines) == 2 and len(list(folder.glob("*.attn"))) == 2
    script.write_text("import attn_mlir\n1 / 0\n")
    with pytest.raises(SpecError, match=r"failed \(ZeroDivisionError: division by zero\); the 0 b"):
        prebuild(script, [], folder)
    with pytest.raises(SpecError, match="there is no program"):
        prebuild(tmp_path / "none.py", [], folder)
    assert not any(path.name.startswith(".attn-") for path in folder.iterdir())


def test_other_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel is compiled for every chip that is named; what has none for one is told."""
    script = tmp_path / "program.py"
    script.write_text(
        "from attn_mlir.compiling.compiler import compile_tma_copy\n"
        "import attn_mlir as am\n"
        "compile_tma_copy('sm_100a')\n"
        "am.compile(am.mha(heads=2, head_dim=64, schedule='mha'))\n"
    )
    for number, (targets, expected) in enumerate(
        (("sm_90a", ["tma_copy.sm_90a"]),
         ("sm_90a,sm_100a", ["attn_mha_null_bf16_h2k2_d64.sm_100a", "tma_copy.sm_100a", "tma_copy.sm_90a"]))
    ):  # fmt: skip
        folder = tmp_path / f"bundles{number}"
        assert cli.main(["prebuild", "-o", str(folder), "--target", targets, str(script)]) == 1
        told = capsys.readouterr()
        assert told.err.count("no kernel: attn_mha_null_bf16_h2k2_d64: ") == 1
        kept = sorted(folder.glob("*.attn"))
        assert [path.name.rsplit(".", 2)[0] for path in kept] == expected
        assert am.Bundle.load(kept[-1]).target == "sm_90a"


@pytest.mark.parametrize("runs", [[], ["--no-run"]])
def test_each_target_has_the_kernels_that_calls_choose_on_it(
    tmp_path: Path, runs: list[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import ml_dtypes, numpy as np, attn_mlir as am\n"
        "q = np.zeros((1, 40, 2, 64), ml_dtypes.bfloat16)\n"
        "am.attention(q, q, q)\n"
    )
    folder = tmp_path / "bundles"
    given = ["--target", "sm_90a,sm_100a", *runs, str(script)]
    assert cli.main(["prebuild", "-o", str(folder), *given]) == 0
    kept = {path.name.split(".")[0]: path.name.split(".")[1] for path in folder.glob("*.attn")}
    assert kept == {
        "attn_mha_null_held_bf16_h2k2_d64": "sm_90a",
        "attn_mha_null_bf16_h2k2_d64": "sm_100a",
    }


def test_prebuild_needs_a_compiler(script: Path, no_compiler: Callable[..., None]) -> None:
    no_compiler(None)
    with pytest.raises(TargetError, match="prebuild compiles, but numba_cuda_mlir is missing"):
        prebuild(script, [], script.parent)


def test_a_bundle_is_written_once(tmp_path: Path, pack: Pack) -> None:
    lines: list[str] = []
    collector = Collector(tmp_path, say=lines.append)
    asked: Any = compiler.RequestedKernel("k", "{}", "sm_100a", am.load(pack()).bundle)
    for _ in range(2):
        collector(asked)
    assert list(collector.written) == [file_name("k", "{}", "sm_100a")] and len(lines) == 1
