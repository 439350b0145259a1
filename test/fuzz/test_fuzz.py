"""A slice of every kind of drawn cases; `fuzz.py` runs all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from attn_mlir.validation.fuzz import fuzz

SLICES = {"calls": 24, "bundles": 15, "modules": 15, "ptx": 60}  # cases of `make test`, some 10 s
WAYS = 3  # so that several processes may share a slice
ASSEMBLED = pytest.mark.ptxas  # what is damaged in bundles is also machine code
KINDS = [pytest.param(kind, marks=ASSEMBLED if kind == "bundles" else ()) for kind in SLICES]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(WAYS))
@pytest.mark.parametrize("kind", KINDS)
def test_slice(kind: str, part: int) -> None:
    outcomes = [fuzz.outcome(kind, number) for number in range(part, SLICES[kind], WAYS)]
    assert not (wrong := [line for passed, line in outcomes if not passed]), "\n".join(wrong)


@pytest.mark.parametrize("kind", fuzz.kinds())
def test_kinds_draw_cases(kind: str) -> None:
    module = fuzz.load(kind)
    assert module.COUNT > 0 and callable(module.attempt)


@pytest.mark.parametrize(
    ("kind", "number"), [("calls", 11), pytest.param("bundles", 3, marks=ASSEMBLED), ("ptx", 5)]
)
def test_cases_are_repeatable(kind: str, number: int) -> None:
    assert fuzz.outcome(kind, number) == fuzz.outcome(kind, number)


def test_a_failure_prints_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz.load("calls"), "attempt", lambda number: 1 / 0)
    passed, text = fuzz.outcome("calls", 7)
    assert not passed and text.startswith(
        "python test/validation/fuzz/fuzz.py calls --first 7 --count 1\n"
    )
    assert text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("arguments", [["calls", "--first", "11", "--count", "1"]])
def test_the_command(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", fuzz.__name__, *arguments], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0 and "calls: 1 cases, 1 " in done.stdout, done.stderr
