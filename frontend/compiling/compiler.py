"""From a request to a bundle: `compile`, with the cache in front of the compiler.

A hit touches neither MLIR nor numpy. The key holds the request, the target and everything that
turns one into the other: a hash of the compiler's sources (which contain the pipelines), which
MLIR there is, and a hash of the ptxas that would be run, or that none is to be.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_mlir import env
from attn_mlir._version import __version__
from attn_mlir.compiling.options import check_target
from attn_mlir.compiling.prebuilt import file_name, find
from attn_mlir.compiling.request import Request
from attn_mlir.dialect import _mlir
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.files import make_folder, write_file
from attn_mlir.passes.target.limits import DEFAULT_TARGET
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.cache import Cache, Key, default_root
from attn_mlir.tools import disassemble, find_ptxas, makes_machine_code

Progress = Callable[[str], None]

TMA_COPY = '{"op":"tma_copy"}'  # canonical text of the request for the copy kernel
COMPILER_PACKAGES = ("attn_mlir.dialect", "attn_mlir.passes", "attn_mlir.lowering")

_memory: dict[tuple[str, str], Bundle] = {}  # what this process has compiled or read, by key
_recorders: list[Callable[[Asked], None]] = []


def compile(
    spec: Request, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle:
    """Compile a kernel, or take it from the cache.

    Args:
      spec: what to compile, from `mha(...)`.
      target: the chip, `sm_100a`; there is no schedule of attention for others yet.
      progress: called with each stage's name when the stage begins; not called on a hit.

    Raises:
      SpecError: not a request.
      TargetError: no kernel for that chip, or ptxas is missing.
      ResourceError: the kernel does not fit the chip.
    """
    if not isinstance(spec, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"compile takes what mha(...) returns, got {type(spec).__qualname__}")
    check_target(target)
    if env.settings().dump:
        return compile_afresh(spec, target=target, progress=progress)

    def make() -> bytes:
        return _made("compile_request", spec, target=target, progress=progress)

    return cached(spec.kernel_name, spec.canonical_json(), target, make)


def compile_afresh(
    spec: Request, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle:
    """Compile a kernel without a look at the cache, and leave what ATTN_MLIR_DUMP asks for.

    Arguments and errors as `compile`.
    """
    check_target(target)
    data = _made("compile_request", spec, target=target, progress=progress)
    bundle = Bundle.from_bytes(data)
    _dump(bundle, env.settings())
    return bundle


def compile_tma_copy(target: str) -> Bundle:
    """The small TMA copy kernel that `attn-mlir doctor` runs, for `sm_90a` or `sm_100a`; cached."""
    return cached("tma_copy", TMA_COPY, target, lambda: _made("compile_tma_copy", target))


_is_first = True  # whether nothing has been compiled in this process


def _made(name: str, *arguments: Any, **options: Any) -> bytes:
    """What a function of the compiler makes, without garbage collection meanwhile.

    The objects of a kernel live to the end, and looking through them again and again for cycles
    took a tenth of a cold compile (`bench/compile.py`). What the first one leaves are modules and
    classes: they join the oldest generation without a look at each, which took 35 ms. What later
    ones leave is garbage in cycles, which has to stay where it is looked for.
    """
    global _is_first
    was_first, _is_first = _is_first, False
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return getattr(_pipeline(), name)(*arguments, **options)
    finally:
        if was_enabled:
            if was_first and not gc.get_freeze_count():  # else it would unfreeze others' objects
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _pipeline() -> Any:
    """The compiler, imported when something has to be compiled.

    Raises:
      TargetError: MLIR is not installed.
    """
    try:
        return importlib.import_module("attn_mlir.lowering.compile")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("attn_mlir"):
            raise
        raise TargetError(
            f"this installation cannot compile, {error.name} is missing: pip install attn-mlir "
            "with its dependencies, or use a bundle that was compiled elsewhere"
        ) from error


def cached(kernel: str, request: str, target: str, make: Callable[[], bytes]) -> Bundle:
    """A bundle from this process's memory, from the disk, or from `make`.

    Where there is no compiler it is one that was made elsewhere (`prebuilt`).

    Args:
      kernel: its entry name.
      request: canonical text of what is asked.
      make: gives the bytes of the bundle file.

    Raises:
      TargetError: there is no compiler and no bundle either.
    """
    missing = missing_compiler()
    if missing is not None:
        place = env.settings().bundles
        key = (str(place), file_name(kernel, request, target))
        if key not in _memory:
            _memory[key] = find(place, kernel, request, target, missing)
        return _memory[key]
    bundle = _compiled(request, target, make)
    for record in _recorders:
        record(Asked(kernel, request, target, bundle))
    return bundle


@dataclass(frozen=True)
class Asked:
    """A kernel that somebody asked for, as `cached` has it, and what was found or made."""

    kernel: str
    request: str
    target: str
    bundle: Bundle


@contextlib.contextmanager
def recording(record: Callable[[Asked], None]) -> Generator[None]:
    """Within it, `record` is told every kernel that is asked for, also when it was kept."""
    _recorders.append(record)
    try:
        yield
    finally:
        _recorders.remove(record)


def is_recorded() -> bool:
    """Whether somebody is told which kernels are asked for."""
    return bool(_recorders)


def missing_compiler() -> str | None:
    """What this installation lacks to compile, in words; None where it can."""
    if _mlir_identity() == "none":
        return f"{_mlir.PROVIDER_PACKAGE} is missing"
    try:
        if makes_machine_code():
            _ptxas(env.settings().ptxas)
    except TargetError as error:
        return f"there is {error}"
    return None


def _compiled(request: str, target: str, make: Callable[[], bytes]) -> Bundle:
    """From memory, the disk, or the compiler that there is."""
    settings = env.settings()
    if settings.no_cache:
        return Bundle.from_bytes(make())
    cache = Cache(settings.cache_dir or default_root())
    key = cache_key(request, target, cache)
    name = (str(cache.root), key.digest())
    bundle = _memory.get(name)
    if bundle is None:
        start = time.perf_counter()
        bundle, hit = cache.get_or_make(key, make)
        took = f"{(time.perf_counter() - start) * 1e3:.1f} ms"
        done = "found in the cache" if hit else "compiled"
        env.log("info", f"{request} for {target}: {done} in {took}, {bundle.path}")
        _memory[name] = bundle
    return bundle


def cache_key(request: str, target: str, cache: Cache) -> Key:
    """The key of a request in this environment; the cache remembers the hashes of programs."""
    parts = {
        "request": request,
        "sources": source_hash(),
        "mlir": _mlir_identity(),
        "ptxas": _ptxas_identity(cache),
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
def _mlir_identity() -> str:
    """Which MLIR would compile, without importing it; `none` where there is none."""
    return _mlir.provider_identity()


def _ptxas_identity(cache: Cache) -> str:
    """A hash of the ptxas that would be run; `none` where there is none, and nothing was kept.

    Kernels without machine code have an identity of their own.
    """
    if not makes_machine_code():
        return "no machine code"
    try:
        return cache.hash_of(_ptxas(env.settings().ptxas))
    except (TargetError, OSError):
        return "none"


@functools.cache
def _ptxas(named: object) -> Path:
    """`find_ptxas` with this setting, looked for once."""
    return find_ptxas()


def _dump(bundle: Bundle, settings: env.Settings) -> None:
    """Write what ATTN_MLIR_DUMP asks for and a finished bundle can give; the IR is the compiler's.

    Raises:
      SpecError: ATTN_MLIR_DUMP_DIR cannot be written to.
    """
    stem = f"{bundle.entry}.{bundle.target}.{bundle.manifest.sha256_ptx[:8]}"
    makers: dict[str, Callable[[], bytes | str]] = {
        "ptx": lambda: bundle.ptx,
        "cubin": lambda: bundle.cubin,
        "sass": lambda: disassemble(bundle.cubin),
    }
    for kind, make in makers.items():
        if kind in settings.dump:
            try:
                text = make()
            except TargetError as error:
                env.log("warning", f"ATTN_MLIR_DUMP={kind} leaves nothing: {error}")
            else:
                write_file(make_folder(settings.dump_dir) / f"{stem}.{kind}", text)
