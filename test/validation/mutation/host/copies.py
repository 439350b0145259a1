"""Copies of the repository in which faults are planted and tests are run; the repository itself stays as it is."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_mlir.bench.measuring.checkout import linked
from attn_mlir.validation.mutation.host.faults import Fault

IGNORED = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info", "out", "dist")
CACHE = Path("build", "test-cache")
PLUGIN = "attn_mlir.validation.mutation.host.alarm"
OPTIONS = ("-q", "-x", "-rfE", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-p", PLUGIN)
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\[\s]+(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """What came of a run of pytest.

    Attributes:
      passed: whether every test did.
      failed: the first test that did not; empty if all did, or if pytest itself did not start.
      in_time: whether it ended by itself.
    """

    passed: bool
    failed: str
    in_time: bool


class Copy:
    """A copy of the repository.

    Args:
      root: the repository.
      folder: for the copy; it is empty.
    """

    def __init__(self, root: Path, folder: Path):
        self._root, self._folder = root, folder
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False
        shutil.copytree(root, folder, ignore=IGNORED, symlinks=True, dirs_exist_ok=True)
        if (root / CACHE).exists():
            shutil.copytree(root / CACHE, folder / CACHE)
        self._names = linked(folder, folder / "build")

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Generator[None]:
        """Within it the copy has a fault, and a cache of its own: what faulty code caches is forgotten."""
        path = self._folder / fault.path
        right = path.read_bytes()
        cache = self._folder / CACHE
        kept = cache.with_name("kept-cache")
        if cache.exists():
            shutil.copytree(cache, kept)
        path.write_bytes(fault.apply(right))
        try:
            yield
        finally:
            path.write_bytes(right)
            shutil.rmtree(cache, ignore_errors=True)
            if kept.exists():
                kept.rename(cache)

    def run(self, tests: Sequence[str], seconds: float) -> Ran:
        """Runs tests in the copy until one fails."""
        environment = {**os.environ, "PYTHONPATH": str(self._names), "OMP_NUM_THREADS": "1"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *OPTIONS, *tests],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running = process
        if self._stopped:
            self.stop()
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._kill(process)
            return Ran(passed=False, failed="", in_time=False)
        return Ran(process.returncode == 0, failed_test(output), in_time=True)

    def stop(self) -> None:
        """Ends what runs in the copy, with all processes that it started, and whatever is run later."""
        self._stopped = True
        if self._running is not None:
            self._kill(self._running)

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failed_test(output: str) -> str:
    """The first test that failed by what pytest printed, or the file that it could not read; empty for none."""
    found = _FAILED.search(output)
    return "" if found is None else found[1]


@contextlib.contextmanager
def copies_of(root: Path, count: int) -> Generator[list[Copy]]:
    """So many copies, which are removed afterwards, however it ends."""
    with tempfile.TemporaryDirectory(prefix="attn-mlir-faults-") as folder:
        made = [Copy(root, Path(folder, str(number))) for number in range(count)]
        try:
            yield made
        finally:
            for copy in made:
                copy.stop()
