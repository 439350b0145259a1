"""From a request to a bundle: `compile`, with the cache in front of the compiler.

A hit touches neither MLIR nor numpy. The key holds the request, the target and everything that
turns one into the other: a hash of the compiler's sources (which contain the pipelines), the
versions of MLIR and ptxas, and a ptxas that was chosen by hand.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attn_mlir import env
from attn_mlir._version import __version__
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.cache import Cache, Key, default_root
from attn_mlir.spec import MhaSpec, check_target
from attn_mlir.splits import CombineSpec

Progress = Callable[[str], None]

DEFAULT_TARGET = "sm_100a"
COMPILER_PACKAGES = ("attn_mlir.dialect", "attn_mlir.passes", "attn_mlir.lowering")
MLIR_PACKAGES = ("mlir", "mlir_python_bindings", "numba_cuda_mlir")  # in order of preference

_memory: dict[tuple[str, str], Bundle] = {}  # what this process has compiled or read, by key


def compile(
    spec: MhaSpec, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle:
    """Compile attention, or take it from the cache.

    Args:
      spec: what to compile, from `mha(...)`.
      target: the chip, `sm_100a`.
      progress: called with each stage's name when the stage begins; not called on a hit.

    Raises:
      SpecError: not a request.
      TargetError: no kernel for that chip, or ptxas is missing.
      ResourceError: the kernel does not fit the chip.
    """
    if not isinstance(spec, MhaSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"compile takes what mha(...) returns, got {type(spec).__qualname__}")
    check_target(target)
    settings = env.settings()
    if settings.no_cache or settings.dump:
        return compile_afresh(spec, target=target, progress=progress)

    def make() -> bytes:
        return _made("compile_mha", spec, target=target, progress=progress)

    return cached("mha", spec.canonical_json(), target, make)


def compile_afresh(
    spec: MhaSpec, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle:
    """Compile attention without a look at the cache, and leave what ATTN_MLIR_DUMP asks for.

    Arguments and errors as `compile`.
    """
    check_target(target)
    data = _made("compile_mha", spec, target=target, progress=progress)
    bundle = Bundle.from_bytes(data)
    _dump(bundle, env.settings())
    return bundle


def compile_combine(
    spec: CombineSpec, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle:
    """The kernel that combines the parts of a split, compiled or from the cache; as `compile`."""
    check_target(target)

    def make() -> bytes:
        return _made("compile_combine", spec, target=target, progress=progress)

    return cached("combine", spec.canonical_json(), target, make)


def compile_tma_copy(target: str) -> Bundle:
    """The small TMA copy kernel that `attn-mlir doctor` runs, for `sm_90a` or `sm_100a`; cached."""
    return cached("tma-copy", target, target, lambda: _made("compile_tma_copy", target))


def _made(name: str, *arguments: Any, **options: Any) -> bytes:
    """What a function of the compiler makes, without garbage collection meanwhile.

    The objects of a kernel live to the end, and looking through them again and again for cycles
    took a tenth of a cold compile (`bench/compile.py`).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return getattr(_pipeline(), name)(*arguments, **options)
    finally:
        if was_enabled:
            gc.enable()


def _pipeline() -> Any:
    """The compiler, imported when something has to be compiled.

    Raises:
      TargetError: MLIR is not installed.
    """
    try:
        return importlib.import_module("attn_mlir.lowering.pipeline")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("attn_mlir"):
            raise
        raise TargetError(
            f"this installation cannot compile, {error.name} is missing: pip install attn-mlir "
            "with its dependencies, or use a bundle that was compiled elsewhere"
        ) from error


def cached(operation: str, request: str, target: str, make: Callable[[], bytes]) -> Bundle:
    """A bundle from this process's memory, from the disk, or from `make`.

    Args:
      operation: names the compiler's entry point.
      request: canonical text of what is asked.
      make: gives the bytes of the bundle file.
    """
    settings = env.settings()
    key = cache_key(operation, request, target, settings)
    name = (str(settings.cache_dir), key.digest())
    bundle = _memory.get(name)
    if bundle is None:
        cache = Cache(settings.cache_dir or default_root())
        start = time.perf_counter()
        bundle, hit = cache.get_or_make(key, make)
        took = f"{(time.perf_counter() - start) * 1e3:.1f} ms"
        done = "found in the cache" if hit else "compiled"
        env.log("info", f"{operation} {request} for {target}: {done} in {took}, {bundle.path}")
        _memory[name] = bundle
    return bundle


def cache_key(operation: str, request: str, target: str, settings: env.Settings) -> Key:
    """The key of a request in this environment."""
    parts = {
        "operation": operation,
        "request": request,
        "sources": source_hash(),
        "mlir": _first_installed(MLIR_PACKAGES),
        "ptxas": _ptxas_identity(settings),
    }
    return Key(version=__version__, target=target, parts=parts)


@functools.cache
def source_hash() -> str:
    """sha256 over the compiler's own files, names and contents."""
    digest = hashlib.sha256()
    for package in COMPILER_PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations if spec else None) or ():
            for name in sorted(_python_files(root)):
                digest.update(name.encode() + b"\0")
                digest.update(Path(root, name).read_bytes())
    return digest.hexdigest()


def _python_files(root: str) -> Iterable[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                yield os.path.relpath(os.path.join(folder, file), root)


@functools.cache
def _first_installed(packages: tuple[str, ...]) -> str:
    """`name-version` of the first of these distributions, from the names of their metadata.

    `importlib.metadata` gives the same and takes 17 ms to import, a tenth of a warm start.
    """
    for package in packages:
        for entry in sys.path:
            with_version = f"{package}-"
            try:
                names = os.listdir(entry or ".")
            except OSError:
                continue
            for name in names:
                if name.startswith(with_version) and name.endswith(".dist-info"):
                    return name.removesuffix(".dist-info")
    return "none"


def _ptxas_identity(settings: env.Settings) -> str:
    if settings.ptxas is None:
        return _first_installed(("nvidia_cuda_nvcc",))
    try:
        status = settings.ptxas.stat()
    except OSError:
        return f"{settings.ptxas} (missing)"
    return f"{settings.ptxas} {status.st_size} {status.st_mtime_ns}"


def _dump(bundle: Bundle, settings: env.Settings) -> None:
    """Write what ATTN_MLIR_DUMP asks for and a finished bundle can give; the IR is the compiler's."""
    if not settings.dump - {"ir"}:
        return
    from attn_mlir.tools import disassemble

    folder = settings.dump_dir
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{bundle.entry}.{bundle.target}.{bundle.manifest.sha256[:8]}"
    if "ptx" in settings.dump:
        (folder / f"{stem}.ptx").write_text(bundle.ptx)
    if "cubin" in settings.dump:
        (folder / f"{stem}.cubin").write_bytes(bundle.cubin)
    if "sass" in settings.dump:
        (folder / f"{stem}.sass").write_text(disassemble(bundle.cubin))
