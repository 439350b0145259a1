"""docs/reference/coverage.md: the table of instruction families is true, and the page is current."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import coverage_page
import pytest
from coverage_page import (
    EXAMPLE_LINE,
    TARGETS,
    Family,
    families,
    kernel_text,
    refusal,
    status,
)

from attn_mlir.errors import TargetError
from attn_mlir.runtime.emulator.isa.targets import extension_of
from attn_mlir.runtime.emulator.machine.chips import CHIPS
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.tools import find_ptxas
from attn_mlir.validation.emulator.signatures import signature

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
PAGE = ROOT / "docs" / "reference" / "coverage.md"
NOT_EXECUTED = 5  # im2col maps, single-bit products, multicast objects of several devices


def test_the_page_is_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Make it again with: python docs/tools/coverage_page.py -o docs/reference/coverage.md."""
    assert coverage_page.main(["-o", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()
    assert coverage_page.main([]) == 0
    assert capsys.readouterr().out.startswith("# What the emulator executes")


def test_what_the_table_says_is_executed_and_nothing_else() -> None:
    assert len({row.example for row in families()}) == len(families()) > 270
    refused = [row for row in families() if row.reason]
    assert len(refused) == NOT_EXECUTED
    for row in families():
        for target in row.targets:
            assert (status(row, target) == "no") == bool(row.reason), (row.example, target)


def test_a_refusal_quotes_the_line() -> None:
    for row in families():
        for target in TARGETS:
            text = refusal(row.example, target)
            if target not in row.targets:
                assert text is not None, f"{target} has no {row.example}"
                assert f"{target} has no '" in text or row.reason
            if text is not None:
                assert f"line {EXAMPLE_LINE}" in text and row.example.rstrip(";") in text


def _ptxas(program: Path, texts: list[str], target: str, folder: Path) -> str:
    """What ptxas says of a module with one kernel per text; empty when it accepts it."""
    head, _, _ = kernel_text("", target).partition(".visible")
    kernels = [
        text.partition(".shared .align 1024 .b8 tile[1024];")[2].replace("entry k(", f"entry k{n}(")
        for n, text in enumerate(texts)
    ]
    source = folder / "k.ptx"
    source.write_text(head.replace(".version 9.0", ".version 9.3") + "\n".join(kernels))
    command = [program, f"-arch={target}", "-O0", source, "-o", folder / "k.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def _ptxas_agrees(target: str, there: list[str], lacking: list[str], folder: Path) -> bool:
    """Whether ptxas takes the former examples for a target and refuses each of the latter."""
    try:
        program = find_ptxas()
    except TargetError as error:
        pytest.skip(str(error))
    taken = _ptxas(program, [kernel_text(text, target) for text in there], target, folder)
    said = _ptxas(program, [kernel_text(text, target) for text in lacking], target, folder)
    lines = {
        int(line.split("line ")[1].split(";")[0]) for line in said.splitlines() if "line " in line
    }
    return "error" not in taken and len(lines) == len(lacking)


@pytest.mark.ptxas
@pytest.mark.parametrize("target", TARGETS)
def test_ptxas_agrees_which_target_has_what(target: str, tmp_path: Path) -> None:
    there = [row.example for row in families() if target in row.targets]
    lacking = [row.example for row in families() if target not in row.targets]
    assert lacking and _ptxas_agrees(target, there, lacking, tmp_path)


@pytest.mark.ptxas
def test_ptxas_agrees_what_sm_103a_has_of_sm_100a(tmp_path: Path) -> None:
    def lacks(example: str) -> bool:
        code = parse(kernel_text(example, "sm_103a")).kernels["k"].instructions
        extension = extension_of(code[0])
        return extension is not None and extension not in CHIPS["sm_103a"].extensions

    rows = [row.example for row in families() if "sm_100a" in row.targets]
    lacking = [example for example in rows if lacks(example)]
    there = [example for example in rows if not lacks(example)]
    assert lacking and _ptxas_agrees("sm_103a", there, lacking, tmp_path)


@pytest.mark.ptxas
def test_ptxas_agrees_what_code_for_several_chips_has(tmp_path: Path) -> None:
    """A chip without a row of its own: sm_90 has what is neither of sm_90a nor of sm_100a alone."""
    try:
        program = find_ptxas()
    except TargetError as error:
        pytest.skip(str(error))
    rows = [row.example for row in families() if not row.reason]
    refused = {n for n, row in enumerate(rows) if "sm_90 has no '" in (refusal(row, "sm_90") or "")}
    there = [kernel_text(row, "sm_90") for n, row in enumerate(rows) if n not in refused]
    assert "error" not in _ptxas(program, there, "sm_90", tmp_path)
    said = _ptxas(program, [kernel_text(rows[n], "sm_90") for n in refused], "sm_90", tmp_path)
    assert len(set(re.findall(r"line (\d+); error", said))) == len(refused)


def _example_signature(example: str) -> str:
    """The signature of an example."""
    return signature(parse(kernel_text(example, TARGETS[0])).kernels["k"].instructions[0])


def _named(rows: tuple[Family, ...]) -> dict[str, set[str]]:
    """Signatures by the test that is to execute them."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.test:
            found.setdefault(row.test, set()).add(_example_signature(row.example))
    return found


def test_the_named_tests_execute_what_they_are_named_for(tmp_path: Path) -> None:
    """Runs them once more, with a plugin that notes every instruction of every test."""
    named = _named(families())
    files = sorted({name.partition("::")[0] + ".py" for name in named})
    nodes = sorted({f"{n.replace('::', '.py::')}" for n in named})
    result = tmp_path / "executed.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "attn_mlir.validation.emulator.executed",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "EXECUTED_TO": str(result)}
    done = subprocess.run(
        [*command, *nodes], cwd=FOLDER, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{files}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    executed = json.loads(result.read_text())
    for test, signatures in named.items():
        for family in signatures:
            assert test in executed.get(family, []), f"{test} does not execute {family}"
