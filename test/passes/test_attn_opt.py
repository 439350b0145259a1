"""attn-opt as a program: exit status, output, what it imports; in process where that is enough."""

import subprocess
import sys
from pathlib import Path

import pytest

from attn_mlir.passes.attn_opt import main

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
    ],
)
def test_a_usage_error_is_2(good: str, arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([good, *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("attn-opt: error: ")


def test_a_value_that_argparse_refuses_is_2(good: str):
    with pytest.raises(SystemExit) as caught:
        main([good, "--verify-each=maybe"])
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


def test_help_costs_no_mlir():
    code = (
        "import sys\nfrom attn_mlir.passes.attn_opt import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as stop:\n    status = stop.code\n"
        "print(status, [name for name in sys.modules if name.startswith('numba_cuda_mlir') or 'dialect' in name])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "0 []"
    assert "--split-input-file" in result.stdout
