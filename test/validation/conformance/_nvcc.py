"""Compiles kernels that a package ships as CUDA C++ and records what their host code launches.

Runs in the environment of the peers. nvcc makes a library of a launcher (`programs/launchers/NAME.cu`, which includes
the package's headers) or of the package's own sources, for PTX alone; `_cuda_runtime.c` takes the place of the CUDA
runtime in it. Libraries lie in `build/conformance/nvcc`, one per set of sources and macros.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.peers.fa4_record import parameter_bytes

from ._recording import Recorder

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE.parents[2] / "build" / "conformance" / "nvcc"
LAUNCHERS = HERE / "programs" / "launchers"
RUNTIME = HERE / "_cuda_runtime.c"
FLAGS = (
    *("-O3", "-DNDEBUG", "-use_fast_math", "--expt-relaxed-constexpr"),
    *("-static-global-template-stub=false", "-cudart=none", "-Xcompiler=-fPIC,-w", "-w"),
    *(f"-DFLASHINFER_ENABLE_{kind}" for kind in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2")),
)
STANDARD = "-std=c++17"


def _folder(package: str) -> Path:
    """Where a package lies, without importing it."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"the package {package} is not installed")
    return Path(next(iter(found.submodule_search_locations)))


def toolkit() -> Path:
    """The folder of nvcc's packages: `bin/nvcc` and `include`."""
    return _folder("nvidia") / "cu13"


def data() -> Path:
    """FlashInfer's sources: `csrc`, `include`, and the headers of CUTLASS and CCCL that it ships."""
    return _folder("flashinfer") / "data"


def includes() -> list[str]:
    """Options that find the headers; CCCL's come before the toolkit's."""
    root = data()
    first = (root / "cccl" / part for part in ("cub", "libcudacxx/include", "thrust"))
    then = (
        toolkit() / "include",
        *(root / part for part in ("include", "csrc", "cutlass/include")),
        root / "cutlass" / "tools" / "util" / "include",
        root / "spdlog" / "include",
        _folder("tvm_ffi") / "include",
    )
    return [f"-I{path}" for path in first] + [f"-isystem={path}" for path in then]


@dataclass(frozen=True)
class Library:
    """A library of host code without CUDA, and the PTX of its kernels.

    Attributes:
      multiprocessors: that the host code is told of; 0 for those of the device.
    """

    recorder: Recorder
    folder: Path
    multiprocessors: int = 0

    @cached_property
    def path(self) -> Path:
        """The library, linked with the stand-in for the runtime."""
        library = self.recorder.dump / f"{self.folder.name}.so"
        command = ["c++", "-shared", "-Wl,-Bsymbolic", "-o", library, *self.folder.glob("*.o")]
        runtime = self.recorder.dump / "runtime.o"
        include = f"-I{toolkit() / 'include'}"
        _run("cc", "-c", "-fPIC", include, RUNTIME, "-o", runtime)
        _run(*command, runtime)
        return library

    def call(self, function: str, *arguments: Any) -> None:
        """Call an `extern "C"` function that returns a CUDA error, and record what it launches.

        Args:
          arguments: tensors go as addresses on the device, lists of integers as arrays in the host's
            memory, integers as int, floats as double.

        Raises:
          RuntimeError: the function reports an error.
        """
        library = ctypes.CDLL(str(self.path))
        events = self._begin(library)
        status = getattr(library, function)(*map(self._word, arguments))
        if status:
            raise RuntimeError(f"{function} returns the CUDA error {status}")
        self._end(events)

    def call_packed(
        self, function: str, *arguments: Any, known: Sequence[tuple[Any, list[int]]] = ()
    ) -> None:
        """Call a function that TVM-FFI exports, and record what it launches.

        Args:
          known: tensors of int32 that the host code reads from the device, with their values.
        """
        import tvm_ffi

        loaded = ctypes.CDLL(str(self.path))
        events = self._begin(loaded)
        for tensor, values in known:
            loaded.lies_at(self._word(tensor), self._word(values), ctypes.c_size_t(4 * len(values)))
        tvm_ffi.load_module(str(self.path))[function](*map(self.recorder._pass, arguments))
        self._end(events)

    def _texts(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("*.ptx"))]

    def _begin(self, library: ctypes.CDLL) -> Path:
        sizes = {
            entry: widths
            for text in self._texts()
            for entry, widths in parameter_bytes(text).items()
        }
        line = ";".join(f"{entry}:{','.join(map(str, widths))}" for entry, widths in sizes.items())
        handle, name = tempfile.mkstemp(dir=self.recorder.dump)
        os.close(handle)
        device = self.recorder.device
        count = self.multiprocessors or device.sm_count
        library.record_to(name.encode(), line.encode(), count, device.major)
        return Path(name)

    def _end(self, events: Path) -> None:
        """Gives the recorder the launches, each with the writes in front of it."""
        texts = self._texts()
        writes: list[dict[str, Any]] = []
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if "alloc" in event:
                self.recorder.buffers[event["alloc"]] = {
                    "address": event["alloc"],
                    "bytes": event["bytes"],
                    "name": f"allocated{event['alloc']:x}",
                    "zeroed": False,
                }
                continue
            if "write" in event:
                writes.append(event)
                continue
            (text,) = (text for text in texts if f".entry {event['entry']}(" in text)
            self.recorder.add(text, {**event, "writes": writes})
            writes = []

    def _word(self, value: Any) -> Any:
        if value is None:
            return ctypes.c_void_p(0)
        if isinstance(value, float):
            return ctypes.c_double(value)
        if isinstance(value, list):
            return (ctypes.c_int * len(value))(*value)
        if isinstance(value, int):
            return ctypes.c_int(value) if abs(value) < 1 << 31 else ctypes.c_int64(value)
        offset = value.storage_offset() * value.element_size()
        return ctypes.c_void_p(self.recorder.address(value) + offset)


def library(
    recorder: Recorder,
    *sources: str | Path,
    options: Sequence[str] = (),
    **macros: object,
) -> Library:
    """The library of these sources, compiled unless it is there.

    Args:
      sources: names of launchers, or files.
      macros: for the sources, named CASE_ and so.

    Raises:
      RuntimeError: nvcc refuses them; the end of what it said.
    """
    files = [LAUNCHERS / f"{one}.cu" if isinstance(one, str) else one for one in sources]
    architecture = f"compute_{recorder.target.removeprefix('sm_')}"
    standard = () if any(option.startswith("-std=") for option in options) else (STANDARD,)
    flags = [
        *standard,
        *FLAGS,
        f"-gencode=arch={architecture},code={architecture}",
        *(f"-DCASE_{name}={value}" for name, value in macros.items()),
        *options,
    ]
    digest = hashlib.sha256(repr((flags, [path.name for path in files])).encode())
    for path in files:
        digest.update(path.read_bytes())
    folder = LIBRARIES / digest.hexdigest()[:20]
    if not (folder / "complete").exists():
        _compile(files, flags, folder)
    return Library(recorder, folder)


def _compile(files: Sequence[Path], flags: Sequence[str], folder: Path) -> None:
    """Leaves an object and a PTX text per file."""
    folder.mkdir(parents=True, exist_ok=True)
    nvcc = toolkit() / "bin" / "nvcc"
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for position, path in enumerate(files):
            target = folder / f"{position}.o"
            keep = ("--keep", f"--keep-dir={name}")
            _run("nice", nvcc, *flags, *includes(), *keep, "-c", path, "-o", target)
            shutil.move(Path(name) / f"{path.stem}.ptx", folder / f"{position}.ptx")
    (folder / "complete").touch()


def _run(*command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stderr or done.stdout)[-4000:]}")
