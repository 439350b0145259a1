"""A format of lit's tests in which programs in Python are forks of a process that has imported them.

To start, `attn-opt` takes 0.15 s, for the import of MLIR, and PyPI's `filecheck` 0.06 s: more than most
tests need. lit's own shell still carries out the RUN lines, with its pipes, `not` and reports; only where
it would start an interpreter for one of these programs, the process that it forks calls the program.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lit.formats
import lit.TestRunner
from filecheck.main import main as filecheck

from attn_mlir import env
from attn_mlir.dialect import _mlir
from attn_mlir.passes import attn_opt
from attn_mlir.passes.infrastructure import registry

Program = Callable[[Sequence[str]], int | None]


def run_filecheck(arguments: Sequence[str]) -> None:
    """`filecheck` with arguments; it exits by itself."""
    filecheck(["filecheck", *arguments])


# By the first words of a command line: what is called with the words after them.
PROGRAMS: dict[tuple[str, ...], Program] = {
    (sys.executable, "-m", "attn_mlir.passes.attn_opt"): attn_opt.main,
    (os.path.join(os.path.dirname(sys.executable), "filecheck"),): run_filecheck,
}


class ForkedTest(lit.formats.ShTest):
    """lit's format of shell tests, whose shell starts processes by `start`."""

    def __init__(self) -> None:
        super().__init__(execute_external=False)
        registry.passes()  # imports the modules of all passes
        _mlir.make_context()
        gc.freeze()

    def execute(self, test: Any, litConfig: Any) -> Any:
        """Runs one test."""
        shell: Any = lit.TestRunner
        shell.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": start})
        return super().execute(test, litConfig)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """`subprocess.Popen` of a command, which is a call in the forked process if it is in `PROGRAMS`."""
    for words, program in PROGRAMS.items():
        if tuple(command[: len(words)]) == words:
            rest = command[len(words) :]
            options["preexec_fn"] = functools.partial(become, program, rest, options["env"])
    return subprocess.Popen(command, **options)


def become(program: Program, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Ends this process, whose pipes are in place, as that program would end."""
    # Ends of other pipes; `Popen` waits until one of them is closed, as it is where a program starts.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    env.settings.cache_clear()
    sys.stdin, sys.stdout = open(0), open(1, "w")
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")
    gc.enable()
    status = 1
    try:
        status = program(arguments) or 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(status)
