"""`attn-mlir prebuild`: run a program where the compiler is, and keep every bundle that it asks for.

The folder serves machines without a compiler, see `prebuilt`. Files are written one by one and whole,
as they are asked for: what a stopped run has written stays, and the next one takes the kernels from
the compile cache.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attn_mlir.compiling.compiler import (
    TMA_COPY,
    Asked,
    compile,
    compile_tma_copy,
    missing_compiler,
    recording,
)
from attn_mlir.compiling.operations import request_of
from attn_mlir.compiling.prebuilt import file_name
from attn_mlir.errors import AttnError, SpecError, TargetError
from attn_mlir.files import make_folder, write_file
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

Say = Callable[[str], None]


@dataclass
class Collector:
    """Writes the bundles that are asked for to a folder.

    Attributes:
      folder: where they go.
      targets: chips to keep bundles for; none keeps those that are asked for. A kernel that is
        asked for one chip is compiled for all of these.
      say: is told a line per bundle.
      written: names of the files, in the order in which they were first asked for.
      failed: a line per kernel that there is not for a target.
    """

    folder: Path
    targets: Sequence[str] = ()
    say: Say = print
    written: dict[str, int] = field(default_factory=dict[str, int])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    _since: float = field(default_factory=time.perf_counter)

    def __call__(self, asked: Asked) -> None:
        """A kernel was asked for."""
        if not self.targets or asked.target in self.targets:
            self._keep(asked)
        for target in self.targets:
            if target != asked.target:
                self._compile_for(asked, target)

    def _keep(self, asked: Asked) -> None:
        name = file_name(asked.kernel, asked.request, asked.target)
        if name in self.written:
            return
        path, data = self.folder / name, asked.bundle.data
        is_there = path.is_file() and path.read_bytes() == data
        if not is_there:
            write_file(path, data)
        self.written[name] = len(data)
        seconds, self._since = time.perf_counter() - self._since, time.perf_counter()
        what = "already there" if is_there else f"{len(data)} bytes"
        self.say(f"{len(self.written):4d}  {name}  {what}, after {seconds:.1f} s")

    def _compile_for(self, asked: Asked, target: str) -> None:
        """The same kernel for another chip; asking for it comes back as a call of `_keep`."""
        name = file_name(asked.kernel, asked.request, target)
        if name in self.written or name in self.failed:
            return
        try:
            if asked.request == TMA_COPY:
                bundle = compile_tma_copy(target)
            else:
                bundle = compile(request_of(json.loads(asked.request)), target=target)
            self._keep(Asked(asked.kernel, asked.request, target, bundle))
        except AttnError as error:
            self.failed[name] = f"{asked.kernel}: {type(error).__name__}: {error}"
            self.say(f"   -  {self.failed[name]}")


def prebuild(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    *,
    targets: Sequence[str] = (),
    runs: bool = True,
    say: Say = print,
) -> Collector:
    """Run a Python program as `python SCRIPT ARGUMENTS` does, and keep its bundles.

    Args:
      script, arguments: of the program.
      folder, targets, say: see `Collector`.
      runs: whether kernels run, on the device that the program asks for or that is there; else no
        call launches anything, and results hold arbitrary numbers.

    Raises:
      SpecError: there is no such program, the folder cannot be written, or the program failed.
      TargetError: there is no compiler.
    """
    if (missing := missing_compiler()) is not None:
        raise TargetError(f"prebuild compiles, but {missing}: run it where attn-mlir is installed")
    if not script.is_file():
        raise SpecError(f"there is no program {script}")
    collector = Collector(make_folder(folder), targets, say)
    saved_argv, saved_path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with (
            recording(collector),
            contextlib.nullcontext() if runs else launching_on(IdleDevice()),
        ):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise _failed(script, f"exit {error.code}", collector) from error
    except AttnError:
        raise
    except Exception as error:
        raise _failed(script, f"{type(error).__name__}: {error}", collector) from error
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return collector


def _failed(script: Path, why: str, collector: Collector) -> SpecError:
    return SpecError(
        f"{script} failed ({why:.300}); the {len(collector.written)} bundles that it had asked for "
        f"are in {collector.folder}"
    )
