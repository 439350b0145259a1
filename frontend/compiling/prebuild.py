"""`attn-mlir prebuild`: runs a program where the compiler is, and keeps every bundle it requests.

The folder is for machines without a compiler, see `prebuilt`. Each file is written when it is
requested: the files of a stopped run stay, and the next run takes their kernels from the compile
cache.
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
    RequestedKernel,
    compile,
    compile_tma_copy,
    missing_compiler,
    recording,
)
from attn_mlir.compiling.operations import request_of
from attn_mlir.compiling.prebuilt import file_name
from attn_mlir.errors import AttnError, SpecError, TargetError
from attn_mlir.files import make_folder, read_file, write_file
from attn_mlir.runtime.devices.base import Device
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

Say = Callable[[str], None]


@dataclass
class Collector:
    """Writes requested bundles to a folder.

    Attributes:
      folder: where they are written.
      targets: chips to keep bundles for: each requested kernel is compiled for all of these. If
        empty, bundles are kept for the chip they are requested for.
      say: called with a line for each bundle.
      written: names of the files, in the order of their first request.
      failed: a line for each kernel that cannot be compiled for a target.
    """

    folder: Path
    targets: Sequence[str] = ()
    say: Say = print
    written: dict[str, int] = field(default_factory=dict[str, int])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    _since: float = field(default_factory=time.perf_counter)

    def __call__(self, requested: RequestedKernel) -> None:
        """Called for each requested kernel."""
        if not self.targets or requested.target in self.targets:
            self._keep(requested)
        for target in self.targets:
            if target != requested.target:
                self._compile_for(requested, target)

    def _keep(self, requested: RequestedKernel) -> None:
        name = file_name(requested.kernel, requested.request, requested.target)
        if name in self.written:
            return
        path, data = self.folder / name, requested.bundle.data
        is_there = _holds(path, data)
        if not is_there:
            write_file(path, data)
        self.written[name] = len(data)
        seconds, self._since = time.perf_counter() - self._since, time.perf_counter()
        what = "already there" if is_there else f"{len(data)} bytes"
        self.say(f"{len(self.written):4d}  {name}  {what}, after {seconds:.1f} s")

    def _compile_for(self, requested: RequestedKernel, target: str) -> None:
        """Compiles the same kernel for another chip; that request then reaches `_keep`."""
        name = file_name(requested.kernel, requested.request, target)
        if name in self.written or name in self.failed:
            return
        try:
            if requested.request == TMA_COPY:
                bundle = compile_tma_copy(target)
            else:
                bundle = compile(request_of(json.loads(requested.request)), target=target)
            self._keep(RequestedKernel(requested.kernel, requested.request, target, bundle))
        except AttnError as error:
            self.failed[name] = f"{requested.kernel}: {type(error).__name__}: {error}"
            self.say(f"   -  {self.failed[name]}")


def _holds(path: Path, data: bytes) -> bool:
    """Whether a file has these bytes."""
    try:
        return read_file(path, most_bytes=len(data)) == data
    except (OSError, ValueError):
        return False


def prebuild(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    *,
    targets: Sequence[str] = (),
    runs: bool = True,
    say: Say = print,
) -> Collector:
    """Runs a Python program as `python SCRIPT ARGUMENTS` does, and keeps its bundles.

    Args:
      script, arguments: the program and its arguments.
      folder, say: see `Collector`.
      targets: chips to keep bundles for. The program runs once for each of them, on the emulator,
        whatever device it names, as calls choose their kernels by the machine. If there are none,
        it runs once, and bundles are kept for the chips that they are requested for.
      runs: whether kernels run; otherwise nothing is launched, and results have arbitrary numbers.

    Raises:
      SpecError: there is no such program, the folder cannot be written, or the program failed.
      TargetError: there is no compiler.
    """
    if (missing := missing_compiler()) is not None:
        raise TargetError(f"prebuild compiles, but {missing}: run it where attn-mlir is installed")
    if not script.is_file():
        raise SpecError(f"there is no program {script}")
    collector = Collector(make_folder(folder), say=say)
    for target in targets or (None,):
        collector.targets = () if target is None else (target,)
        _run(script, arguments, collector, _device(target, runs=runs))
    return collector


def _device(target: str | None, *, runs: bool) -> Device | None:
    """The device for all calls, as calls choose kernels by the machine; None keeps theirs."""
    if not runs:
        return IdleDevice(target)
    return None if target is None else EmulatorDevice(target=target)


def _run(
    script: Path, arguments: Sequence[str], collector: Collector, device: Device | None
) -> None:
    """Runs the program once."""
    saved_argv, saved_path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with (
            recording(collector, for_other_sizes=True),
            contextlib.nullcontext() if device is None else launching_on(device),
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


def _failed(script: Path, why: str, collector: Collector) -> SpecError:
    return SpecError(
        f"{script} failed ({why:.300}); the {len(collector.written)} bundles that it had asked for "
        f"are in {collector.folder}"
    )
