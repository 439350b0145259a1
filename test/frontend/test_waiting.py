"""What a caller is told while something takes long: on a terminal, by ATTN_MLIR_LOG, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir import cli, env, waiting
from attn_mlir.compiling import compiler
from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.emulator.core.scheduler import Scheduler
from attn_mlir.waiting import waiting_for

Pack = Callable[..., bytes]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What stood in the line at one time or another, without blanks that cover it, as of second 0."""
        shown = [text.rstrip() for text in self.getvalue().split("\r") if text.strip()]
        return [re.sub(r", \d+ s", ", 0 s", text) for text in shown]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, where a second takes 20 ms."""
    made = Terminal()
    monkeypatch.setattr(waiting, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.02)
    return made


def log_level(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    settings = env.read({**os.environ, "ATTN_MLIR_LOG": level})
    monkeypatch.setattr(env, "settings", lambda: settings)


def test_a_line_counts_the_seconds_and_goes(terminal: Terminal) -> None:
    with waiting_for("compiling k for sm_90a", lambda: "3 clusters to begin"):
        time.sleep(0.2)
    shown = terminal.lines()
    assert len(shown) > 1
    assert set(shown) == {"attn-mlir: compiling k for sm_90a, 0 s, 3 clusters to begin"}
    assert terminal.getvalue().endswith(f"\r{' ' * len(shown[-1])}\r")


def test_what_is_done_at_once_is_not_told(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 1.0)
    with waiting_for("compiling k"):
        pass
    assert terminal.getvalue() == ""


def test_the_line_goes_also_when_work_fails(terminal: Terminal) -> None:
    with pytest.raises(ZeroDivisionError), waiting_for("compiling k"):
        time.sleep(0.1)
        raise ZeroDivisionError
    assert terminal.getvalue().endswith(" \r")


def test_work_within_work_has_no_line_of_its_own(terminal: Terminal) -> None:
    with waiting_for("outer"), waiting_for("inner"):
        time.sleep(0.1)
    with waiting_for("later"):
        time.sleep(0.1)
    told = {line.partition(",")[0] for line in terminal.lines()}
    assert told == {"attn-mlir: outer", "attn-mlir: later"}


def test_a_line_is_no_longer_than_the_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    with waiting_for("compiling " + "k" * 100):
        time.sleep(0.1)
    assert {len(line) for line in terminal.lines()} == {29}


@pytest.mark.parametrize("level", ["warning", "info"])
def test_where_there_is_no_terminal_the_log_tells(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_level(monkeypatch, level)
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.01)
    with waiting_for("compiling k"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ("attn-mlir: compiling k\n" if level == "info" else "")


def slowly(result: object) -> Callable[..., Any]:
    """A function that takes a few of the terminal's seconds."""

    def call(*_: Any, **__: Any) -> Any:
        time.sleep(0.1)
        return result

    return call


@pytest.fixture
def slow_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pack: Pack) -> None:
    """A compiler that gives a small bundle, and a cache without it."""
    settings = env.read({**os.environ, "ATTN_MLIR_CACHE_DIR": str(tmp_path / "cache")})
    monkeypatch.setattr(env, "settings", lambda: settings)
    monkeypatch.setattr(compiler, "_memory", {})
    monkeypatch.setattr(compiler, "_call_compiler", slowly(pack()))


@pytest.mark.usefixtures("slow_compiler")
def test_the_first_call_says_that_it_compiles(terminal: Terminal) -> None:
    spec = am.mha(heads=2, head_dim=64)
    am.compile(spec)
    what = f"attn-mlir: compiling {spec.kernel_name} for sm_100a, 0 s"
    assert set(terminal.lines()) == {what}
    told = terminal.getvalue()
    am.compile(spec)
    assert terminal.getvalue() == told, "found in the cache"
    compiler.compile_tma_copy("sm_90a")
    assert terminal.lines()[-1] == "attn-mlir: compiling tma_copy for sm_90a, 0 s"


@pytest.mark.usefixtures("slow_compiler")
def test_a_caller_that_shows_stages_is_told_nothing_else(terminal: Terminal) -> None:
    am.compile(am.mha(heads=2, head_dim=64), progress=lambda stage: None)
    assert terminal.getvalue() == ""


def test_runs_on_the_emulator_show_how_far_they_are(
    terminal: Terminal,
    tma_bundles: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`doctor --emulator`, and every other launch there, as that of `run --trace`."""
    launch = Emulator.launch

    def late(self: Emulator, *arguments: Any, **options: Any) -> Any:
        done = launch(self, *arguments, **options)
        time.sleep(0.1)
        return done

    monkeypatch.setattr(Emulator, "launch", late)
    path = tmp_path / "copy.attn"
    path.write_bytes(tma_bundles["sm_90a"])
    assert cli.main(["doctor", "--emulator", "--bundle", str(path)]) == 0
    assert {line.partition(",")[0] for line in terminal.lines()} == {
        "attn-mlir: emulating copy_boxes"
    }


def test_the_state_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = Emulator(target="sm_90a")
    run, states = Scheduler.run, [emulator.state()]

    def seen(self: Scheduler) -> None:
        states.append(emulator.state())
        run(self)
        states.append(emulator.state())

    monkeypatch.setattr(Scheduler, "run", seen)
    ptx = ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k() { ret; }"
    emulator.launch(ptx, "k", grid=(3, 1, 1), block=(32, 1, 1))
    states.append(emulator.state())
    assert states == ["", "0 warp-instructions, 3 clusters to begin", "3 warp-instructions", ""]


def test_on_a_real_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.02)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with waiting_for("compiling k"):
            time.sleep(0.1)
        monkeypatch.undo()
        assert os.read(master, 40).startswith(b"\rattn-mlir: compiling k, 0 s")
    os.close(master)
