"""The emulator as a product of its own: kernels from PTX, reports as objects, one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir import cli, emulator
from attn_mlir.errors import LaunchError, SpecError

ROOT = Path(__file__).resolve().parents[3]
COUNT = 128
PTX = """
.version 8.6
.target sm_100a
.address_size 64
.visible .entry reverse(.param .u64 out, .param .u64 x, .param .u32 n)
{
  .reg .b32 %r<10>;
  .reg .b64 %rd<10>;
  .reg .f32 %f<4>;
  .shared .align 4 .b8 tile[512];
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [x];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.f32 %f1, [%rd4];
  mov.u32 %r3, tile;
  shl.b32 %r4, %r2, 2;
  add.u32 %r5, %r3, %r4;
  st.shared.f32 [%r5], %f1;
  bar.sync 0;
  sub.u32 %r6, %r1, %r2;
  sub.u32 %r6, %r6, 1;
  shl.b32 %r7, %r6, 2;
  add.u32 %r8, %r3, %r7;
  ld.shared.f32 %f2, [%r8];
  add.s64 %rd5, %rd1, %rd3;
  st.global.f32 [%rd5], %f2;
  ret;
}
"""
RACE = PTX.replace("  bar.sync 0;\n", "")


def line_of(text: str, instruction: str) -> int:
    return next(n for n, x in enumerate(text.split("\n"), 1) if x.strip().startswith(instruction))


def operands() -> tuple[Any, Any]:
    return np.zeros(COUNT, np.float32), np.arange(COUNT, dtype=np.float32)


def test_a_kernel_computes_in_the_callers_arrays() -> None:
    kernel = emulator.load(PTX)
    assert [(x.name, x.type, x.byte_count) for x in kernel.parameters] == [
        ("out", "u64", 8), ("x", "u64", 8), ("n", "u32", 4),
    ]  # fmt: skip
    assert (kernel.entry, kernel.target, kernel.block) == ("reverse", "sm_100a", None)
    out, x = operands()
    report = kernel.launch(out, x, COUNT, grid=1, block=COUNT)
    assert report.ok and np.array_equal(out, x[::-1])
    assert report.stats is not None and report.stats.warp_instructions > 0
    assert (
        str(report) == f"reverse: {report.stats.warp_instructions} warp-instructions, no findings"
    )


def test_arrays_of_other_libraries() -> None:
    torch: Any = pytest.importorskip("torch")
    out, x = torch.zeros(COUNT + 1)[1:], torch.arange(COUNT).float()
    assert emulator.load(PTX).launch(out, x, COUNT, grid=1, block=[COUNT]).ok
    assert torch.equal(out, x.flip(0))


def test_one_array_for_two_parameters_is_one_memory() -> None:
    x = np.arange(COUNT, dtype=np.float32)
    wanted = x[::-1].copy()
    assert emulator.load(PTX).launch(x, x, COUNT, grid=1, block=COUNT).ok
    assert np.array_equal(x, wanted)


def test_findings_are_objects_and_name_lines() -> None:
    out, x = operands()
    report = emulator.load(RACE).launch(out, x, COUNT, grid=1, block=COUNT)
    assert not report.ok and report.error is None and report.stats is not None
    (first, *_) = races = [finding for finding in report.findings if finding.check == "race"]
    accesses = {line_of(RACE, "st.shared"): "writes", line_of(RACE, "ld.shared"): "reads"}
    assert first.earlier is not None
    assert accesses == {x.line: x.action for x in (first.current, first.earlier)}
    assert len(races) > 1 and f"{len(report.findings)} findings" in str(report)
    assert "st.shared.f32 [%r5], %f1;" in str(report)
    assert emulator.load(RACE).launch(out, x, COUNT, grid=1, block=COUNT, check="none").ok
    only = emulator.load(RACE).launch(out, x, COUNT, grid=1, block=COUNT, check="all,-race")
    assert {finding.check for finding in only.findings} == {"uninitialised"}


def test_a_failure_is_part_of_the_report() -> None:
    out, x = operands()
    report = emulator.load(PTX).launch(out[:4], x, COUNT, grid=1, block=COUNT)
    assert isinstance(report.error, emulator.KernelFault) and report.stats is None
    assert report.error.line == line_of(PTX, "st.global") and not report.ok
    assert str(report).startswith("reverse: failed, no findings\n\nKernelFault: cta (0,0,0)")
    loop = PTX.replace("  bar.sync 0;", "again: bra again;")
    report = emulator.load(loop).launch(out, x, COUNT, grid=1, block=COUNT, instruction_limit=1000)
    assert isinstance(report.error, emulator.InstructionLimitError)
    waits = PTX.replace("  bar.sync 0;", "  barrier.sync 0, 256;")
    report = emulator.load(waits).launch(out, x, COUNT, grid=1, block=COUNT)
    assert isinstance(report.error, emulator.DeadlockError)


def test_a_trace(tmp_path: Path) -> None:
    out, x = operands()
    report = emulator.load(PTX).launch(out, x, COUNT, grid=1, block=COUNT, trace=True)
    assert report.trace is not None and report.ok
    assert emulator.chrome_trace(report.trace)["traceEvents"]
    read_only = x.copy()
    read_only.flags.writeable = False
    report = emulator.load(PTX).launch(read_only, x, COUNT, grid=1, block=COUNT, trace=True)
    assert report.error is not None and report.trace is not None


TWO = PTX + PTX[PTX.index(".visible") :].replace("reverse", "again")


@pytest.mark.parametrize(
    "act, message",
    [
        (lambda k: k.launch(1, 2, grid=1, block=1), "3 parameters (out, x, n), got 2 arguments"),
        (lambda k: k.launch(*operands(), COUNT, grid=1), "block is missing"),
        (lambda k: k.launch(*operands(), np.zeros(4), grid=1, block=4), "n is of type u32"),
        (lambda k: k.launch([1], 2, 3, grid=1, block=4), "out must be a numpy array"),
        (lambda k: k.launch(*operands(), 1, grid=1, block=4, check="races"), "check 'races'"),
        (lambda k: k.launch(*operands(), 1, grid=1, block=4, trace=True, check="all"), "together"),
        (lambda k: k.launch(*operands(), 1, grid=1, block=4, schedule="late"), "schedule 'late'"),
        (lambda k: k.launch(*operands(), 2.5, grid=1, block=4), "parameter 2 of 'reverse'"),
        (lambda k: k.launch(*operands(), 2, grid=1, block=4096), "block must be 1 to 1024"),
        (lambda _: emulator.load(TWO), "entry is missing: the PTX has 2 (reverse, again)"),
        (lambda _: emulator.load(PTX, "x"), "the PTX has no entry 'x'; it has: reverse"),
        (lambda _: emulator.load(Path("nowhere.ptx")), "cannot read the PTX 'nowhere.ptx'"),
        (lambda _: emulator.load(PTX.replace("ret;", "ret")), "line"),
        (lambda _: emulator.load(PTX.replace("sm_100a", "sm_80")).launch(*operands(), 1, grid=1,
                                                                         block=4), "sm_80"),
    ],
)  # fmt: skip
def test_bad_input(act: Any, message: str) -> None:
    with pytest.raises((SpecError, LaunchError)) as refused:
        act(emulator.load(PTX))
    assert message in str(refused.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.ptx").write_text(PTX)
    (tmp_path / "race.ptx").write_text(RACE)
    np.save(tmp_path / "x.npy", operands()[1])
    (tmp_path / "launch.toml").write_text(
        f'block = [{COUNT}]\narguments = ["zeros:float32:2x64", "x.npy", {COUNT}]\n'
        'save = {out = "y.npy"}\n'
    )
    return tmp_path


WORDS = ["--block", "128", "-a", "zeros:float32:128", "-a", "x.npy", "-a", "0x80"]


def test_the_command_by_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulate", "good.ptx", *WORDS, "--save", "out=y.npy"]) == 0
    assert "no findings" in capsys.readouterr().out
    assert np.array_equal(np.load(folder / "y.npy"), operands()[1][::-1])
    assert cli.main(["emulate", "race.ptx", *WORDS]) == 1
    assert f"{line_of(RACE, 'ld.shared')} | ld.shared.f32" in capsys.readouterr().out
    assert cli.main(["emulate", "race.ptx", *WORDS, "--trace", "t.json"]) == 0
    assert json.loads((folder / "t.json").read_text())["traceEvents"]


def test_the_command_by_a_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose arrays lie beside it; an option counts before its field."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    given = ["emulate", str(folder / "good.ptx"), "--launch", str(folder / "launch.toml")]
    assert cli.main(given) == 0
    assert np.load(elsewhere / "y.npy").tolist() == operands()[1][::-1].reshape(2, 64).tolist()
    assert cli.main([*given, "--grid", "2", "--save", "x=z.npy"]) == 0
    assert np.array_equal(np.load(elsewhere / "z.npy"), operands()[1])


@pytest.mark.parametrize(
    "given, message",
    [
        (["-a", "three"], "an argument must be NAME.npy, zeros:DTYPE:4x128 or a number, got 'three'"),
        (["-a", "zeros:float33:4"], "got 'zeros:float33:4'"),
        (["-a", "nowhere.npy"], "cannot read the array 'nowhere.npy'"),
        (["-a", "good.ptx.npy"], "cannot read the array"),
        ([*WORDS, "--save", "n=y.npy"], "save names 'n', parameters with an array are out, x"),
        ([*WORDS, "--save", "out"], "--save must be PARAMETER=NPY, got 'out'"),
        ([*WORDS, "--save", "out=good.ptx"], "--save names the input"),
        (["--launch", "nowhere.toml"], "cannot read the launch 'nowhere.toml'"),
        (["--launch", "good.ptx"], "cannot read the launch 'good.ptx'"),
        (["--launch", "odd.toml"], "odd.toml has a field 'blocks', allowed are entry, grid"),
        (["--launch", "list.toml"], "arguments of a launch must be a list, got 3"),
        (["--launch", "nested.toml"], "zeros:DTYPE:4x128 or a number, got [1]"),
    ],
)  # fmt: skip
def test_a_wrong_command(
    given: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "odd.toml").write_text("blocks = 3")
    (folder / "list.toml").write_text("arguments = 3")
    (folder / "nested.toml").write_text("arguments = [[1]]")
    (folder / "good.ptx.npy").write_text("no array")
    assert cli.main(["emulate", "good.ptx", *given]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("attn-mlir: SpecError: ") and printed.count("\n") == 1
    assert message in printed


def test_it_needs_neither_mlir_nor_ptxas(folder: Path) -> None:
    """In a process that has none of what compiles, and nothing on its path."""
    program = (
        "import sys\n"
        "for name in ('numba_cuda_mlir', 'mlir', 'torch'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "import numpy, attn_mlir.emulator as e\n"
        "x = numpy.arange(128, dtype=numpy.float32)\n"
        "print(e.load(Path('race.ptx')).launch(x.copy(), x, 128, grid=1, block=128).ok)\n"
        "print([x for x in sys.modules if x.startswith('attn_mlir.') and x.split('.')[1] in "
        "('dialect', 'passes', 'lowering', 'schedules', 'compiling')])\n"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env={"PATH": ""}, cwd=folder, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout == "False\n[]\n"


@pytest.mark.slow
def test_without_a_compiler(tmp_path: Path) -> None:
    """A Python that has numpy, ml_dtypes and this package alone, and no ptxas, runs a kernel and finds its race."""
    packages = tmp_path / "packages"
    package = packages / "attn_mlir"
    package.mkdir(parents=True)
    for path in (ROOT / "frontend").iterdir():
        (package / path.name).symlink_to(path)
    for room in ("dialect", "passes", "lowering", "runtime", "schedules"):
        (package / room).symlink_to(ROOT / room)
    for module in (np, ml_dtypes):
        place = Path(module.__file__ or "").parent
        for folder in (place, place.with_name(f"{place.name}.libs")):
            if folder.exists():
                (packages / folder.name).symlink_to(folder.resolve())
    (tmp_path / "race.ptx").write_text(RACE)
    program = """
import sys, numpy as np
from pathlib import Path
from attn_mlir import emulator
out, x = np.zeros(128, np.float32), np.arange(128, dtype=np.float32)
report = emulator.load(Path("race.ptx")).launch(out, x, 128, grid=1, block=128)
print(report)
assert not [name for name in sys.modules if "mlir" in name.replace("attn_mlir", "")]
"""
    found = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(packages), "PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "race: nothing orders these accesses" in found.stdout
    assert f"{line_of(RACE, 'ld.shared.f32')} | ld.shared.f32" in found.stdout


ARRIVALS = """
.version 8.6
.target sm_100a
.address_size 64
.visible .entry arrive(.param .u64 out, .param .u64 count)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [count];
  mov.u32 %r1, %ctaid.x;
  atom.global.add.u32 %r2, [%rd2], 1;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd1, %rd3;
  st.global.u32 [%rd4], %r1;
  ret;
}
"""


def test_several_ctas_run_at_a_time() -> None:
    """Each CTA notes when it came: one after the other, or in an order that the seed chooses."""
    kernel = emulator.load(ARRIVALS)

    def order(resident: int, seed: int) -> list[int]:
        came, count = np.full(6, -1, np.int32), np.zeros(1, np.int32)
        options: Any = {"schedule": "adversarial", "seed": seed, "resident": resident}
        assert kernel.launch(came, count, grid=6, block=1, **options).ok
        return came.tolist()

    assert all(order(1, seed) == [0, 1, 2, 3, 4, 5] for seed in range(4))
    others = [order(3, seed) for seed in range(4)]
    assert [0, 1, 2, 3, 4, 5] not in others and all(sorted(x) == [*range(6)] for x in others)
