"""Runs the tool in a child process, so that a crash becomes a diagnosed failure.

Much of MLIR and LLVM assumes valid input and aborts the process otherwise, and hand-written text
may be invalid. Without `fork` the tool runs in this process.
"""

import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_NAME_BYTES = 256  # bytes for the name of the running pass, shared by the two processes
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class Progress:
    """An observer that keeps the name of the running pass in memory that both processes share."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _NAME_BYTES)

    def before(self, step: Any, module: Any) -> None:
        """A pass begins."""
        self._write(step.name)

    def after(self, step: Any, module: Any) -> None:
        """A pass has ended."""
        self._write("")

    failed = after

    def _write(self, name: str) -> None:
        data = name.encode(errors="replace")[: _NAME_BYTES - 1]
        self._shared[: len(data) + 1] = data + b"\0"

    @property
    def name(self) -> str:
        """The name of the running pass; empty between passes."""
        return bytes(self._shared[:]).split(b"\0")[0].decode(errors="replace")


def recovered(work: Callable[[Progress], int], file: str) -> int:
    """Does the work in a child process and returns its exit status, 1 if it dies.

    Args:
      work: gets an observer for its passes; returns an exit status.
      file: name of the input, for the diagnostic.
    """
    progress = Progress()
    if not hasattr(os, "fork"):
        return work(progress)
    child = os.fork()
    if not child:
        _in_child(work, progress)
    status = _wait(child)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        return 128 + number
    where = f"in '{progress.name}'" if progress.name else "outside of any pass"
    print(
        f"{file}:1:1: error: the process ended by {signal.Signals(number).name} {where}, which "
        f"takes its input for sound; --mlir-pass-pipeline-crash-reproducer=FILE keeps that input",
        file=sys.stderr,
    )
    return 1


def _wait(child: int) -> int:
    """Waits for the child, and leaves keyboard interrupts, which reach both processes, to it."""
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:
            continue


def _in_child(work: Callable[[Progress], int], progress: Progress) -> None:
    """Does the work and ends the process."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    status = 1
    try:
        status = work(progress)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
