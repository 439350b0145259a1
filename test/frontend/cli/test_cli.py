"""The command line: help, exit codes, one-line errors, and what each command prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attn_mlir import cli, env
from attn_mlir.cli import demo, experiment
from attn_mlir.compiling import compiler
from attn_mlir.compiling.options import HEAD_DIM_STEP, NARROW_HEAD_DIM_STEP
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.reference import Comparison
from attn_mlir.runtime import doctor
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import FatBundle
from attn_mlir.schedules.policy.tiling import MAX_HEAD_DIM

Pack = Callable[..., bytes]
COMMANDS = ("compile", "run", "emulate", "trace", "plan-parallel", "info", "doctor", "demo")


@pytest.fixture
def bundle_file(pack: Pack, tmp_path: Path) -> Path:
    path = tmp_path / "scale.attn"
    path.write_bytes(
        pack(report={
            "registers": 12, "spill_bytes": 0,
            "stages": [{"name": "schedule", "seconds": 0.0125, "bytes": 4096}],
            "memory_map": [{"space": "shared", "name": "q tile", "offset": 1024, "bytes": 65536}],
        })
    )  # fmt: skip
    return path


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    for arguments in ([], *([command] for command in COMMANDS)):
        with pytest.raises(SystemExit) as left:
            cli.main([*arguments, "--help"])
        assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "attn-mlir 0.1.0\n"


@pytest.mark.parametrize("arguments", [["compile"], ["run", "x.attn"], ["demo"], ["info"], []])
def test_unknown_flags(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that a command lacks is refused with the usage of that command."""
    with pytest.raises(SystemExit) as left:
        cli.main([*arguments, "--foo", "--bar=2"])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith(f"usage: {' '.join(['attn-mlir', *arguments[:1]])} [-h]")
    assert said.endswith("error: unrecognized arguments: --foo --bar=2\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such"],
        ["compile", "--heads", "x"],
        ["run"],
        ["run", "x.attn", "--seed", "-1"],
        ["demo", "--schedule-seed", "-1"],
        ["trace", "x.json"],
    ],
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    assert "usage: attn-mlir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile", "--head-dim", "97"], "SpecError: head_dim 97 has no kernel: supported are m"),
        (["compile", "--mask", "diagonal"], "SpecError: mask 'diagonal' has no kernel: supported"),
        (["compile", "--target", "sm_80"], "TargetError: target 'sm_80' is not known"),
        (["demo", "--heads", "3", "--kv-heads", "2"], "SpecError: kv_heads must divide heads"),
        (["info", "none.attn"], "SpecError: cannot read the bundle 'none.attn'"),
        (["run", "none.attn"], "SpecError: cannot read the bundle"),
        (["trace", "x.json", "-o", "x.png"], "SpecError: --output must end in .svg, got 'x.png'"),
        (["trace", "x.json", "-o", "x"], "SpecError: --output must end in .svg, got 'x'"),
        (["trace", "none.json", "-o", "x.svg"], "SpecError: cannot read none.json: No such file"),
        (["doctor", "--bundle", "none.attn"], "SpecError: cannot read the bundle"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"attn-mlir: {message}") and error.count("\n") == 1


def test_module_entry_point() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attn_mlir.cli", "compile", "--kv-heads", "5"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "attn-mlir: SpecError: kv_heads must divide heads, got heads = 16 and kv_heads = 5\n"
    )


def test_a_full_disk_under_the_output() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "attn_mlir.cli", "info", "--env"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "attn-mlir: cannot write the output: No space left on device\n",
    )


@pytest.mark.parametrize("entry", [cli.compile_main, lambda a: cli.main(["compile", *a])])
def test_compile(
    entry: Any, monkeypatch: pytest.MonkeyPatch, pack: Pack, tmp_path: Path, capsys: Any
) -> None:
    def fake(spec: Any, *, target: str, progress: Any) -> Bundle:
        progress("schedule")
        return Bundle.from_bytes(pack(report={"heads": spec.heads, "mask": spec.mask.name}))

    monkeypatch.setattr(compiler, "compile", fake)
    path = tmp_path / "mha.attn"
    assert entry(["--heads", "4", "-o", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{path}\n" and printed.err == "  schedule\n"
    assert Bundle.load(path).report == {"heads": 4, "mask": "causal"}


def test_info(bundle_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(bundle_file)]) == 0
    text = capsys.readouterr().out
    for needle in (
        "scale_rows for sm_100a", "grid (rows, 1, 1)", "[rows, cols]", "default 2, > 0",
        "registers per thread 12, spilled 0 B", "q tile", "65536", "12.5 ms", "13.5.37",
    ):  # fmt: skip
        assert needle in text
    assert cli.main(["info", "--ptx", str(bundle_file)]) == 0
    assert ".entry scale_rows(" in capsys.readouterr().out
    assert cli.main(["info", "--json", str(bundle_file)]) == 0
    assert json.loads(capsys.readouterr().out)["entry"] == "scale_rows"


def test_files_for_several_targets(
    monkeypatch: pytest.MonkeyPatch, pack: Pack, tmp_path: Path, capsys: Any
) -> None:
    """`compile` joins what it makes for each, `info` lists all of it, or one that is named."""

    def fake(spec: Any, *, target: str, progress: Any) -> Bundle:
        return Bundle.from_bytes(pack(target=target))

    monkeypatch.setattr(compiler, "compile", fake)
    path = tmp_path / "fat.attn"
    assert cli.main(["compile", "-q", "--target", "sm_90a,sm_100a", "-o", str(path)]) == 0
    assert cli.main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("scale_rows: code for 2 targets")
    assert text.index("scale_rows for sm_90a") < text.index("scale_rows for sm_100a")
    assert cli.main(["info", str(path), "--ptx"]) == 1
    assert "fat.attn has code for sm_90a, sm_100a: name one" in capsys.readouterr().err
    for target in ("sm_90a", "sm_100a"):
        assert cli.main(["info", str(path), "--ptx", "--target", target]) == 0
        assert f".target {target}\n" in capsys.readouterr().out
    assert cli.main(["info", str(path), "--target", "sm_80"]) == 1
    assert "has no code for 'sm_80'" in capsys.readouterr().err


def test_info_prints_whatever_a_report_holds(pack: Pack, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "odd.attn"
    path.write_bytes(
        pack(report={
            "registers": "[/bold]", "roles": [{"[red]": "[/x]", "role": ["[/]", {"a": None}]}],
            "stages": [{"name": "[/]", "seconds": "long"}, {"seconds": 1e300}, 3],
            "memory_map": [{"space": "tensor", "begin": "x", "end": None, "what": 1}],
            "barriers": [{"name": "[k] full", "count": "[/]"}],
        })
    )  # fmt: skip
    assert cli.main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "[/x]" in text and "registers per thread [/bold]" in text and "[k] full" in text


def test_info_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [variable.name for variable in env.VARIABLES]
    values = dict(line.split(" = ") for line in lines if line.startswith("ATTN_MLIR_"))
    assert list(values) == names and all(values.values())
    assert values["ATTN_MLIR_BUNDLES"] == "not set" and values["ATTN_MLIR_NO_CACHE"] == "0"
    assert values["ATTN_MLIR_CACHE_DIR"] == str(env.settings().cache_dir)
    assert "    allowed: 0 or 1" in lines
    assert cli.main(["info"]) == 2


def test_head_sizes_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compile", "demo"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        sizes = (
            f"multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}, of {NARROW_HEAD_DIM_STEP} for 8-bit"
        )
        assert sizes in text


def test_sizes_beyond_memory(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(demo, "demo", none)
    assert cli.main(["demo"]) == 1
    assert "not enough memory" in capsys.readouterr().err


def test_info_of_machine_code(
    scale_bundles: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scale.attn"
    path.write_bytes(scale_bundles["sm_100a"])
    assert cli.main(["info", "--sass", str(path)]) == 0
    assert "FMUL" in capsys.readouterr().out


def test_run_wants_attention(bundle_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(bundle_file)]) == 1
    assert "SpecError: scale_rows takes x, y, attention takes" in capsys.readouterr().err


def test_device_of() -> None:
    assert experiment.device_of(None, "fair", 0) is None
    assert experiment.device_of("cuda:1", "fair", 0) == "cuda:1"
    assert experiment.device_of("emulator", "adversarial", 3) == EmulatorDevice("adversarial", 3)
    with pytest.raises(SpecError, match="a schedule is the emulator's"):
        experiment.device_of("cuda", "adversarial", 0)


def test_doctor_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> tuple[int, int]:
        raise TargetError("there is no CUDA driver on this machine")

    monkeypatch.setattr(doctor.driver, "driver_version", none)
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr()
    message = "TargetError: there is no CUDA driver on this machine: pass --emulator to try"
    assert message in printed.err
    assert "numpy" in printed.out


def test_doctor_on_the_emulator(
    tma_bundles: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "copy.attn"
    path.write_bytes(tma_bundles["sm_90a"])
    assert cli.main(["doctor", "--emulator", "--bundle", str(path)]) == 0
    assert "TMA copy on emulator ok: 30800 bytes by sm_90a code" in capsys.readouterr().out


def test_doctor_writes_its_bundles(
    tma_bundles: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """A file for each kernel, with the code for all targets; it runs what it finds in the folder."""

    def bundle(target: str) -> Bundle:
        return Bundle.from_bytes(tma_bundles[target])

    monkeypatch.setattr(compiler, "compile_tma_copy", bundle)
    monkeypatch.setattr(compiler, "compile", lambda spec, *, target: bundle(target))
    folder = tmp_path / "kernels"
    assert cli.main(["doctor", "--write", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/tma_copy.attn\n{folder}/attention.attn\n"
    assert FatBundle.load(folder / "attention.attn").targets == ("sm_90a", "sm_100a")
    (folder / "attention.attn").unlink()
    assert cli.main(["doctor", "--emulator", "--bundle", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.count("TMA copy on emulator ok: 30800 bytes") == 2


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one H200, and nothing that works."""
    gpu = doctor.driver.Gpu(0, "NVIDIA H200", (9, 0), 132, 141 << 30, 232448)
    monkeypatch.setattr(doctor.driver, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(doctor.driver, "gpus", lambda: (gpu,))


def test_the_demo_is_for_the_gpu_that_there_is(
    h200: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def compile_afresh(spec: Any, *, target: str, progress: Any) -> Bundle:
        raise TargetError(f"asked for {target}")

    monkeypatch.setattr(demo, "compile_afresh", compile_afresh)
    for arguments, target in (([], "sm_90a"), (["--device", "emulator"], "sm_100a")):
        assert cli.main(["demo", *arguments]) == 1
        assert f"TargetError: asked for {target}\n" in capsys.readouterr().err


def test_doctor_without_code_for_the_gpu(
    h200: None, tma_bundles: dict[str, bytes], tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "copy.attn"
    path.write_bytes(tma_bundles["sm_100a"])
    assert cli.main(["doctor", "--bundle", str(path)]) == 1
    assert "TargetError:" in (told := capsys.readouterr().err)
    assert "copy.attn has code for sm_100a, not for sm_90a" in told
    assert cli.main(["doctor", "--bundle", str(tmp_path / "kernels")]) == 1
    (tmp_path / "none").mkdir()
    assert cli.main(["doctor", "--bundle", str(tmp_path / "none")]) == 1
    assert "none holds no bundle: `attn-mlir doctor --write DIR`" in capsys.readouterr().err


def comparison(wrong: int) -> Comparison:
    return Comparison(1e-3, 2e-3, 0.5 + wrong, (0, 1, 0, 3), wrong, 1000, 1e-6, 0)


@pytest.mark.parametrize("wrong", [0, 7])
def test_demo(
    wrong: int, bundle_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    bundle = Bundle.load(bundle_file)

    def compile_afresh(spec: Any, *, target: str, progress: Any) -> Bundle:
        progress("schedule")
        progress("ptxas")
        return bundle

    def run_attention(given: Bundle, **sizes: Any) -> experiment.Trial:
        assert given is bundle and (sizes["sq"], sizes["sk"]) == (384, 512)
        launch = Launch("emulator", (2, 2, 1), 150_000, 5.0)
        return experiment.Trial(launch, comparison(wrong), 5.0, 0.1)

    monkeypatch.setattr(demo, "compile_afresh", compile_afresh)
    monkeypatch.setattr(demo, "run_attention", run_attention)
    out = tmp_path / "out"
    code = cli.main(["demo", "--sq", "384", "--sk", "512", "--out", str(out)])
    assert code == (1 if wrong else 0)
    text = capsys.readouterr().out
    for needle in (
        "causal attention, 2 heads on 1 KV heads of 128, bf16, for sm_100a",
        "q tile", "registers per thread 12, spilled 0 B", "on emulator", "1.000e-03", "2.000e-03",
        "30,000 per second", "every element checked: " + ("WRONG" if wrong else "right"),
    ):  # fmt: skip
        assert needle in text, needle
    assert text.count("schedule") == 1, "each stage is printed once"
    assert {"mha.attn", "mha.ptx", "mha.cubin"} <= {path.name for path in out.iterdir()}
    assert (out / "mha.ptx").read_text() == bundle.ptx


def test_nothing_is_searched_for_cycles_at_the_end_of_a_command() -> None:
    """What is registered first is called last: all objects are in the permanent generation then."""
    program = (
        "import atexit, gc, sys; from attn_mlir import cli;"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000));"
        "sys.exit(cli.main(['info', '--env']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


def test_the_help_says_what_the_command_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "compile, look at, run and check them" in " ".join(capsys.readouterr().out.split())


def test_the_operands_of_the_demo_are_drawn_from_seed_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--help"])
    assert "of the operands (0)" in " ".join(capsys.readouterr().out.split())


def test_a_gpu_without_a_target_of_ours() -> None:
    gpu = driver.Gpu(3, "Old", (8, 0), 108, 1 << 30, 1 << 17)
    with pytest.raises(
        TargetError, match="^cuda:3 is a Old \\(sm_80a\\): kernels are compiled for"
    ):
        doctor._target_of(gpu)  # pyright: ignore[reportPrivateUsage]
