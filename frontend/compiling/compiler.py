"""From a request to a bundle: `compile`, with a cache in front of the compiler.

A hit imports neither MLIR nor numpy. The key has the request, the target and everything that
affects the code: a hash of the compiler's sources (which contain the pipelines), the version of
MLIR, and a hash of the ptxas that would run, or that none runs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from attn_mlir import env
from attn_mlir._version import __version__
from attn_mlir.compiling.options import check_target
from attn_mlir.compiling.prebuilt import file_name, find
from attn_mlir.compiling.request import Request
from attn_mlir.dialect import _mlir
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, TARGETS
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.extensions import noted
from attn_mlir.files import make_folder, write_file
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.cache import Cache, Key, default_root
from attn_mlir.runtime.file.fat_bundle import FatBundle
from attn_mlir.tools import disassemble, find_ptxas, makes_machine_code
from attn_mlir.waiting import waiting_for

Progress = Callable[[str], None]

TMA_COPY = '{"op":"tma_copy"}'  # stands for the canonical text in keys of the copy kernel
COMPILER_PACKAGES = tuple(f"attn_mlir.{x}" for x in ("dialect", "schedules", "passes", "lowering"))

_memory: dict[tuple[str, ...], Bundle] = {}  # that this process has compiled or read, by key
_recorders: list[Callable[[RequestedKernel], None]] = []
_collecting: list[bool] = []  # whether each of the contexts of `recording` is for other sizes too


@overload
def compile(
    spec: Request, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle: ...


@overload
def compile(
    spec: Request, *, target: Sequence[str], progress: Progress | None = None
) -> FatBundle: ...


def compile(
    spec: Request, *, target: str | Sequence[str] = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle | FatBundle:
    """Compiles a kernel, or takes it from the cache.

    Args:
      spec: the request, such as `mha(...)`.
      target: the chip, `sm_90a` or `sm_100a`; or several, whose code then is in one fat bundle.
      progress: called with each stage's name when it begins; not called for a hit.

    Raises:
      SpecError: not a request, or one target twice.
      TargetError: no kernel for that chip, or ptxas is missing.
      ResourceError: the kernel does not fit the chip.
    """
    if not isinstance(spec, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"compile takes what mha(...) returns, got {type(spec).__qualname__}")

    def bundle_for(chip: str) -> Bundle:
        def make() -> bytes:
            return _compile_request(spec, chip, progress)

        if env.settings().dump:
            return compile_afresh(spec, target=chip, progress=progress)
        return cached(spec.kernel_name, spec.canonical_json(), chip, make)

    return for_targets(target, bundle_for)


def compile_afresh(
    spec: Request, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> Bundle:
    """Compiles a kernel without the cache, and writes the dumps that ATTN_MLIR_DUMP names.

    Arguments and errors as `compile`, for one target.
    """
    check_target(target)
    bundle = Bundle.from_bytes(_compile_request(spec, target, progress))
    _dump(bundle, env.settings())
    return bundle


def for_targets(target: str | Sequence[str], made: Callable[[str], Bundle]) -> Bundle | FatBundle:
    """The bundle of one target, or a fat bundle of several.

    Raises:
      SpecError: one target twice.
      TargetError: no such target, or none at all.
    """
    is_one = isinstance(target, str)
    if is_one or not isinstance(target, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        return made(check_target(target))
    chips = [check_target(chip) for chip in target]
    if not chips:
        raise TargetError(f"target names no chip: supported are {', '.join(TARGETS)}")
    if len(set(chips)) < len(chips):
        raise SpecError(f"target names a chip twice: {', '.join(chips)}")
    return FatBundle.of([made(chip) for chip in chips])


def compile_tma_copy(target: str) -> Bundle:
    """The small TMA copy kernel that `attn-mlir doctor` runs, for `sm_90a` or `sm_100a`; cached."""

    def make() -> bytes:
        with waiting_for(f"compiling tma_copy for {target}"):
            return _call_compiler("compile_named", "tma_copy", target=target)

    return cached("tma_copy", TMA_COPY, target, make)


def _compile_request(spec: Request, target: str, progress: Progress | None) -> bytes:
    """Compiles a request, and says so unless `progress` does."""
    note = waiting_for(f"compiling {spec.kernel_name} for {target}")
    with note if progress is None else contextlib.nullcontext():
        return _call_compiler("compile_request", spec, target=target, progress=progress)


_is_first = True  # whether nothing has been compiled in this process yet


def _call_compiler(name: str, *arguments: Any, **options: Any) -> bytes:
    """Calls a function of the compiler, with garbage collection off meanwhile.

    A kernel's objects live until it is compiled, and searching them for cycles took a tenth of a
    cold compile (`bench/compile.py`). After the first compile the remaining objects are modules and
    classes, which are moved to the permanent generation without a search of 35 ms. After later ones
    they are garbage in cycles, which has to be collected.
    """
    global _is_first
    was_first, _is_first = _is_first, False
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return getattr(_pipeline(), name)(*arguments, **options)
    finally:
        if was_enabled:
            if (
                was_first and not gc.get_freeze_count()
            ):  # otherwise unfreezing would affect others' objects
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _pipeline() -> Any:
    """The compiler module, imported when something has to be compiled.

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
    """A bundle from this process's memory, from the disk cache, or from `make`.

    Without a compiler it is a prebuilt one (`prebuilt`).

    Args:
      kernel: its entry name.
      request: canonical text of the request.
      make: returns the bytes of the bundle file.

    Raises:
      TargetError: there is neither a compiler nor a prebuilt bundle.
    """
    missing = missing_compiler()
    if missing is not None:
        folder = env.settings().bundles
        key = (str(folder), file_name(kernel, request, target))
        if key not in _memory:
            _memory[key] = find(folder, kernel, request, target, missing)
        return _memory[key]
    bundle = _compiled(request, target, make)
    for record in _recorders:
        record(RequestedKernel(kernel, request, target, bundle))
    return bundle


@dataclass(frozen=True)
class RequestedKernel:
    """A call of `cached` with its arguments and the bundle it returned."""

    kernel: str
    request: str
    target: str
    bundle: Bundle


@contextlib.contextmanager
def recording(
    record: Callable[[RequestedKernel], None], *, for_other_sizes: bool = False
) -> Generator[None]:
    """A context in which `record` is called for every requested kernel, cached ones included.

    Args:
      for_other_sizes: whether calls also request the kernels that they would with another batch or
        number of keys (`Choice.for_other_sizes`).
    """
    _recorders.append(record)
    _collecting.append(for_other_sizes)
    try:
        yield
    finally:
        _recorders.remove(record)
        _collecting.pop()


def collects_for_other_sizes() -> bool:
    """Whether calls are to request kernels for other sizes too."""
    return any(_collecting)


def is_recorded() -> bool:
    """Whether requested kernels are recorded at present."""
    return bool(_recorders)


def missing_compiler() -> str | None:
    """Why this installation cannot compile; None if it can."""
    if _mlir_identity() == "none":
        return f"{_mlir.PROVIDER_PACKAGE} is missing"
    try:
        if makes_machine_code():
            _ptxas(env.settings().ptxas)
    except TargetError as error:
        return f"there is {error}"
    return None


def _compiled(request: str, target: str, make: Callable[[], bytes]) -> Bundle:
    """A bundle from memory, the disk cache or the installed compiler."""
    settings = env.settings()
    if settings.no_cache:
        return Bundle.from_bytes(make())
    cache = Cache(settings.cache_dir or default_root())
    key = cache_key(request, target, cache)
    name = (str(cache.root), key.target, *key.parts.values())
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
    """The cache key of a request in this environment; `cache` remembers the hashes of programs."""
    parts = {
        "request": request,
        "sources": source_hash(),
        "mlir": _mlir_identity(),
        "ptxas": _ptxas_identity(cache),
    }
    if noted():
        parts["extensions"] = extension_hash()
    return Key(version=__version__, target=target, parts=parts)


@functools.cache
def source_hash() -> str:
    """sha256 of the names and contents of the compiler's files."""
    digest = hashlib.sha256()
    for package in COMPILER_PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations if spec else None) or ():
            for name in sorted(_python_files(root)):
                digest.update(name.encode() + b"\0")
                digest.update(Path(root, name).read_bytes())
    return digest.hexdigest()


def extension_hash() -> str:
    """sha256 of the sources of other projects' schedules, masks and targets, with their packages'
    files.
    """
    digest = hashlib.sha256()
    for name in noted():
        module = sys.modules[name]
        file = Path(module.__file__ or "")
        for source in sorted(file.parent.glob("*.py")) if module.__package__ else (file,):
            digest.update(f"{name} {source.name}\0".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _python_files(root: str) -> Iterable[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                yield os.path.relpath(os.path.join(folder, file), root)


@functools.cache
def _mlir_identity() -> str:
    """The identity of the installed MLIR, without importing it; `none` without one."""
    return _mlir.provider_identity()


def _ptxas_identity(cache: Cache) -> str:
    """A hash of the ptxas that would run; `none` if there is none.

    Kernels without machine code have an identity of their own.
    """
    if not makes_machine_code():
        return "no machine code"
    try:
        return cache.hash_of(_ptxas(env.settings().ptxas))
    except (TargetError, OSError):
        return "none"


@functools.cache
def _ptxas(setting: object) -> Path:
    """`find_ptxas`, with its result kept for this setting."""
    return find_ptxas()


def _dump(bundle: Bundle, settings: env.Settings) -> None:
    """Writes those files that ATTN_MLIR_DUMP names and a bundle has; the compiler writes the IR.

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
