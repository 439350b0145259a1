"""attn-opt as a program: exit status, output, what it imports; in process where that is enough."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_mlir.passes.attn_opt import run as main

GOOD = "func.func @f(%a: f32) {\n  %0 = arith.addf %a, %a : f32\n  func.return\n}\n"
BAD = 'func.func @f(%a: f32) {\n  "attn.yield"(%a) : (f32) -> ()\n}\n'


@pytest.fixture
def good(tmp_path: Path) -> str:
    """A file with a sound module."""
    file = tmp_path / "good.mlir"
    file.write_text(GOOD)
    return str(file)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    """A file whose module does not verify."""
    file = tmp_path / "bad.mlir"
    file.write_text(BAD)
    return str(file)


def test_success_is_0_and_prints_the_module(good: str, capsys: pytest.CaptureFixture[str]):
    assert main([good, "--cse"]) == 0
    output = capsys.readouterr()
    assert "func.func @f" in output.out
    assert "addf" not in output.out
    assert output.err == ""


def test_a_diagnosed_failure_is_1_and_prints_nothing(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    target = tmp_path / "out.mlir"
    assert main([bad, "-o", str(target)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"{bad}:2:3: error: 'attn.yield' op expects to be inside an attn operation, "
        "is inside 'func.func'\n"
    )
    assert not target.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--attn-configur"],
        ["--cse=nothing=1"],
        ["--pass-pipeline=builtin.module(cse"],
        ["--pass-pipeline=cse", "--cse"],
        ["second.mlir"],
        ["--verify-each=maybe"],
        ["--run-reproducer"],
        ["--run-reproducer", "--cse"],
        ["--mlir-print-ir-after=cze"],
    ],
)
def test_a_usage_error_is_2(good: str, arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([good, *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("attn-opt: error: ")


def test_a_value_that_argparse_refuses_is_2(good: str):
    with pytest.raises(SystemExit) as caught:
        main([good, "--mlir-timing-display=moon"])
    assert caught.value.code == 2


def test_unregistered_operations_only_on_request(tmp_path: Path):
    file = tmp_path / "other.mlir"
    file.write_text('"other.op"() : () -> ()\n')
    assert main([str(file)]) == 1
    assert main([str(file), "--allow-unregistered-dialect"]) == 0


def test_expected_diagnostics_decide_the_status(tmp_path: Path):
    file = tmp_path / "expected.mlir"
    line = '  "attn.yield"(%a) : (f32) -> ()'
    file.write_text(BAD.replace(line, f"  // expected-error @below {{{{inside}}}}\n{line}"))
    assert main([str(file), "--verify-diagnostics"]) == 0
    file.write_text(BAD)
    assert main([str(file), "--verify-diagnostics"]) == 1
    file.write_text(GOOD)
    assert main([str(file), "--verify-diagnostics"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--split-input-files", "unknown flag, pass or pipeline 'split-input-files': did you mean"),
        ("--verify-rondtrip", "did you mean verify-roundtrip"),
        ("--attn-configur", "did you mean attn-configure"),
        ("--pass=a=1 b=2", "--pass is no flag: write --NAME='key=value key=value'"),
        (
            "--attn-configure tile-n=64",
            "no pass has the name 'attn-configure tile-n': options foll",
        ),
        ("--attn-configure=tile-n 64", "'tile-n' of 'attn-configure' expects an integer, got ''"),
        ("--attn-configure=tile-n = 64", "options hold '=' without a name: write key=value"),
        (
            "--attn-configure=x=1 y=2",
            "'attn-configure' has no option 'x': allowed are target, tile-n,",
        ),
        ("--attn-configure=tile-n=64 tile-n=128", "options hold option 'tile-n' twice"),
        ("--mlir-print-ir-before=cse,cze", "unknown pass or pipeline 'cze': did you mean cse?"),
    ],
)
def test_usage_errors_say_what_to_write(
    good: str, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
):
    assert main([good, arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        "tile-n=64,exp2-period=8",
        "tile-n=64 exp2-period=8",
        "{tile-n=64 exp2-period=8}",
        "'tile-n=64 exp2-period=8'",
        " { tile-n=64  exp2-period=8 } ",
    ],
)
def test_options_of_a_pass_in_every_usual_form(
    good: str, options: str, capsys: pytest.CaptureFixture[str]
):
    assert main([good, f"--attn-configure={options}", "--dump-pass-pipeline"]) == 0
    assert capsys.readouterr().err == (
        "builtin.module(attn-configure{target={} tile-n=64 kv-stages=0 exp2-period=8 q-tiles=0 "
        "tile-order={} num-qk-stages=0 num-pv-stages=0 ordered-softmax=false})\n"
    )


@pytest.mark.parametrize("flag", ["--cse", "-cse"])
@pytest.mark.parametrize("verify", ["-verify-each=false", "--verify-each", "--verify-each=1"])
def test_one_dash_is_as_good_as_two(
    good: str, flag: str, verify: str, capsys: pytest.CaptureFixture[str]
):
    assert main([flag, verify, "-mlir-print-op-generic", good, "-o=-"]) == 0
    assert '"func.func"' in capsys.readouterr().out


def dumps(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Titles of the dumps that a run prints."""
    main(arguments)
    lines = capsys.readouterr().err.splitlines()
    return [line[19:-11] for line in lines if line.startswith("// -----// IR Dump ")]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-before-all"], ["Before cse", "Before canonicalize"]),
        (["-after-all"], ["After cse", "After canonicalize"]),
        (["-after-change"], ["After cse"]),
        (["-before=canonicalize"], ["Before canonicalize"]),
        (["-after=cse"], ["After cse"]),
        (["-after=canonicalize", "-after-change"], []),
        (
            ["-before=cse", "-after=cse,canonicalize"],
            ["Before cse", "After cse", "After canonicaliz"],
        ),
        (["-after-failure"], []),
    ],
)
def test_dumps_are_of_the_passes_asked_for(
    good: str, flags: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
):
    arguments = [good, "--cse", "--canonicalize", *(f"--mlir-print-ir{flag}" for flag in flags)]
    assert [title[:16] for title in dumps(arguments, capsys)] == [text[:16] for text in expected]


@pytest.mark.parametrize("flag", ["after-failure", "after-all"])
def test_what_a_failed_pass_left_is_printed(
    attention: str, flag: str, capsys: pytest.CaptureFixture[str]
):
    titles = dumps([attention, "--cse", WRONG, f"--mlir-print-ir-{flag}"], capsys)
    before = [] if flag == "after-failure" else ["After cse"]
    assert titles == [*before, "After attn-configure Failed"]


WRONG = "--attn-configure=tile-n=65"
ATTENTION = """
func.func @f(%q: tensor<?x?x2x64xbf16>, %scale: f32) -> tensor<?x?x2x64xbf16> {
  %o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
  ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%score) : (f32) -> ()
  }) {mask = #attn.null}
    : (tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, tensor<?x?x2x64xbf16>, f32)
      -> (tensor<?x?x2x64xbf16>, tensor<?x2x?xf32>)
  func.return %o : tensor<?x?x2x64xbf16>
}
"""


@pytest.fixture
def attention(tmp_path: Path) -> str:
    """A file with attention, of which `WRONG` is refused."""
    file = tmp_path / "attention.mlir"
    file.write_text(ATTENTION)
    return str(file)


@pytest.mark.parametrize("local", [False, True])
def test_a_reproducer_repeats_the_failure(
    attention: str, tmp_path: Path, local: bool, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "reproducer.mlir"
    flags = [f"--mlir-pass-pipeline-crash-reproducer={file}"]
    flags += ["--mlir-pass-pipeline-local-reproducer"] * local
    assert main([attention, "--canonicalize", WRONG, "--cse", *flags]) == 1
    complaint = capsys.readouterr().err
    assert (
        f"note: pipeline failed while executing 'attn-configure': reproducer generated at '{file}'"
        in complaint
    )
    assert ("canonicalize" in file.read_text()) != local
    assert main([str(file), "--run-reproducer"]) == 1
    assert "error: 'attn.mha' op expects tile_n to be 64 or 128, got 65" in capsys.readouterr().err
    assert main([str(file)]) == 0, "without the flag it is a module like others"


def test_a_reproducer_goes_when_all_went_well_unless_it_is_wanted(good: str, tmp_path: Path):
    file = tmp_path / "reproducer.mlir"
    assert main([good, "--cse", f"--mlir-pass-pipeline-crash-reproducer={file}"]) == 0
    assert not file.exists()
    assert main([good, "--cse", "--verify-each=0", f"--mlir-generate-reproducer={file}"]) == 0
    assert 'pipeline: "builtin.module(cse)"' in file.read_text()
    assert "verify_each: false" in file.read_text()


def test_a_reproducer_is_there_when_a_pass_ends_the_process(good: str, tmp_path: Path):
    file = tmp_path / "reproducer.mlir"
    code = (
        "import os, sys\nfrom attn_mlir.passes.infrastructure import legality\n"
        "legality.CheckStage.run = lambda self, module: os.abort()\n"
        "from attn_mlir.passes.attn_opt import main\nsys.exit(main(sys.argv[1:]))"
    )
    arguments = [good, "--attn-check-stage", f"--mlir-pass-pipeline-crash-reproducer={file}"]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    message = f"{good}:1:1: error: the process ended by SIGABRT in 'attn-check-stage', which"
    assert result.stderr.startswith(message)
    assert "attn-check-stage{stage=attn}" in file.read_text()


def test_what_ends_the_backend_is_a_diagnosed_failure(tmp_path: Path):
    file = tmp_path / "wrong.mlir"
    file.write_text(
        'gpu.module @m [#nvvm.target<chip = "+ptx88", features = "sm_100a">] {\n'
        "  llvm.func @k() attributes {nvvm.kernel} {\n"
        "    %x = llvm.mlir.constant(0 : i32) : i32\n"
        "    %m = llvm.mlir.constant(-1 : i32) : i32\n"
        "    %y = nvvm.shfl.sync idx %m, %x, %x, %m : i32 -> i32\n"
        "    %p = llvm.mlir.zero : !llvm.ptr\n"
        "    llvm.store %y, %p : i32, !llvm.ptr\n"
        "    llvm.return\n  }\n}\n"
    )
    command = [sys.executable, "-m", "attn_mlir.passes.attn_opt", str(file)]
    flags = ["--pass-pipeline=builtin.module(gpu-module-to-binary{format=isa})"]
    result = subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "error: the process ended by SIGABRT in 'gpu-module-to-binary{" in result.stderr


def test_statistics_and_times(good: str, capsys: pytest.CaptureFixture[str]):
    flags = ["--mlir-pass-statistics", "--mlir-timing", "--mlir-timing-display=list"]
    assert main([good, "--cse", "--canonicalize", *flags]) == 0
    output = capsys.readouterr().err
    assert "cse\n  (S)       4 operations before the pass\n" in output
    assert "  (S)      -1 arith.addf\n" in output
    assert "wall time by pass" in output and "Total" in output


def test_a_roundtrip_is_verified(good: str, attention: str, tmp_path: Path):
    assert main([good, "--verify-roundtrip"]) == 0
    assert main([attention, "--verify-roundtrip", "--attn-configure"]) == 0


def test_printing_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "aliases.mlir"
    file.write_text(
        "#map = affine_map<(i) -> (i + 1)>\n"
        "func.func @f() attributes {a = #map, b = dense<[1, 2, 3]> : tensor<3xi32>} {\n"
        '  func.return loc("here")\n}\n'
    )
    expected = {
        "--mlir-print-local-scope": "a = affine_map<",
        "--mlir-print-skip-regions": "{...}",
        "--mlir-elide-elementsattrs-if-larger=2": "dense_resource<__elided__>",
        "--mlir-print-debuginfo": 'loc("here")',
        "--mlir-pretty-debuginfo": '"here"',
    }
    for flag, text in expected.items():
        assert main([str(file), flag]) == 0
        assert text in capsys.readouterr().out, flag
    assert main([str(file), "--emit-bytecode", "-o", str(tmp_path / "bytecode")]) == 0
    assert (tmp_path / "bytecode").read_bytes()[:4] == b"ML\xefR"


def test_other_markers_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "two.mlir"
    file.write_text(f"{GOOD}// ---\n{GOOD}")
    assert main([str(file), "--split-input-file=// ---"]) == 0
    assert capsys.readouterr().out.count("// ---\n") == 1
    assert main([str(file), "--split-input-file=// ---", "--output-split-marker=// here"]) == 0
    assert "// here\n" in capsys.readouterr().out


def test_versions(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("attn-mlir 0")


def test_input_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe")
    assert main([str(file)]) == 2
    assert "is not text in UTF-8" in capsys.readouterr().err


def test_passes_are_listed_with_what_their_options_mean(capsys: pytest.CaptureFixture[str]):
    assert main(["--list-passes"]) == 0
    output = capsys.readouterr().out
    assert "--attn-configure" in output
    assert re.search(r"target=.. +the chip whose limits apply; the module's", output)


def test_help_costs_no_mlir():
    code = (
        "import sys\nfrom attn_mlir.passes.attn_opt import run as main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as stop:\n    status = stop.code\n"
        "print(status, [name for name in sys.modules if name.startswith('numba_cuda_mlir') or 'dialect' in name])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "0 []"
    assert "--split-input-file" in result.stdout
