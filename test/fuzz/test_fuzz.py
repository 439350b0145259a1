"""A slice of every kind of drawn cases; `run.py` runs all of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


def _load_run() -> ModuleType:
    """`run.py`, which stands beside this file and in no package."""
    spec = importlib.util.spec_from_file_location("fuzz_run", HERE / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


run: Any = _load_run()
SLICES = {"calls": 60}  # cases of `make test`, some 10 s; other kinds bring their own test
WAYS = 3  # so that several processes may share a slice


@pytest.mark.slow
class TestFirst:
    """Classes, so that processes may share the cases."""

    @pytest.mark.parametrize("kind", SLICES)
    def test_slice(self, kind: str) -> None:
        _passes(kind, 0)


@pytest.mark.slow
class TestSecond:
    """The next part."""

    @pytest.mark.parametrize("kind", SLICES)
    def test_slice(self, kind: str) -> None:
        _passes(kind, 1)


@pytest.mark.slow
class TestThird:
    """The rest."""

    @pytest.mark.parametrize("kind", SLICES)
    def test_slice(self, kind: str) -> None:
        _passes(kind, 2)


def _passes(kind: str, part: int) -> None:
    outcomes = [run.outcome(kind, number) for number in range(part, SLICES[kind], WAYS)]
    assert not (wrong := [line for passed, line in outcomes if not passed]), "\n".join(wrong)


@pytest.mark.parametrize("kind", run.kinds())
def test_kinds_draw_cases(kind: str) -> None:
    module = run.load(kind)
    assert module.COUNT > 0 and callable(module.attempt)


def test_cases_are_repeatable() -> None:
    assert run.outcome("calls", 11) == run.outcome("calls", 11)


def test_a_failure_prints_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.load("calls"), "attempt", lambda number: 1 / 0)
    passed, text = run.outcome("calls", 7)
    assert not passed and text.startswith("python test/fuzz/run.py calls --first 7 --count 1\n")
    assert text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("arguments", [["calls", "--first", "11", "--count", "1"]])
def test_the_command(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), *arguments], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0 and "calls: 1 cases, 1 " in done.stdout, done.stderr
