"""Locks between processes: who waits, for how long, and what a lock file may not do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.runtime.file import locks
from attn_mlir.runtime.file.locks import Lock


def test_held_by_one_at_a_time_and_removed(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "k.lock", [0], [0]

    def work() -> None:
        for _ in range(20):
            with Lock(path, 30.0):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and list(tmp_path.iterdir()) == []


def test_a_lock_held_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k.lock"
    code = (
        "import sys, time, pathlib; from attn_mlir.runtime.file.locks import Lock\n"
        "with Lock(pathlib.Path(sys.argv[1]), 1.0): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    monkeypatch.setattr(locks, "WORD_SECONDS", 0.1)
    begin = time.monotonic()
    with Lock(path, 0.4):
        assert 0.4 < time.monotonic() - begin < 10.0
    first, second = capsys.readouterr().err.splitlines()
    assert f"waiting for process {holder.pid} on {os.uname().nodename}, which compiles" in first
    assert f"for process {holder.pid} on" in second and "going on without the lock" in second
    assert path.exists(), "the lock of another is left alone"
    holder.kill()
    holder.wait()
    with Lock(path, 5.0):
        assert f"process {os.getpid()} on" in path.read_text()


@pytest.mark.parametrize("kind", ["link", "hard link", "dangling link", "pipe", "folder"])
def test_no_file_is_touched_through_a_lock(kind: str, tmp_path: Path, capsys: Any) -> None:
    path, precious = tmp_path / "k.lock", tmp_path / "precious"
    precious.write_text("thesis")
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "hard link":
        path.hardlink_to(precious)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "made by the lock")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = sorted(os.listdir(tmp_path))
    with Lock(path, 5.0):
        pass
    assert f"the lock {path} is not used" in capsys.readouterr().err
    assert precious.read_text() == "thesis" and sorted(os.listdir(tmp_path)) == before
