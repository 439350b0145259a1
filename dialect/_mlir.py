"""The one import of MLIR: every other module writes `from attn_mlir.dialect._mlir import ir, ext`.

The provider is the binding inside `numba-cuda-mlir`, pinned because that subpackage is private, and
refused in another version. The official `mlir` package is used only where that is not installed: it
carries no version that could be checked. Nothing is imported until a name is read, so that
`--help`, the runtime and cache hits do not load MLIR.

The provider's own top-level `__init__` starts its Numba front end. It is not executed: a module
object that only knows the package's folder takes its place in `sys.modules`, and runs the real
`__init__` when one of its names is first read. Measured on two cores, files in the
page cache, numba-cuda-mlir 0.6.0: `ir` 0.12 s instead of 0.48 s, `ir` with all the dialect
modules below 0.20 s instead of 0.59 s; a context 3-10 ms, one of our dialects in it 1-3 ms.

Rules for every user of the binding:

* An operation, block or value does not keep its module alive. Hold the `ir.Module`; reading
  `ir.Module.parse(text).body.operations[0]` is a segmentation fault.
* With context threads on, Python verifiers deadlock; `make_context` turns them off.
* A dialect loaded twice into one context is a segmentation fault; only `load_dialects` loads.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.machinery
import io
import os
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from attn_mlir.dialect._guard import Guard
from attn_mlir.errors import TargetError

OFFICIAL_PACKAGE = "mlir"
PROVIDER_PACKAGE = "numba_cuda_mlir"
PROVIDER_VERSION = "0.6.0"  # the pin of pyproject.toml; `_mlir` is a private name of the package

_MODULES = {
    "ir": "ir",
    "passmanager": "passmanager",
    "rewrite": "rewrite",
    **{
        name: f"dialects.{name}"
        for name in (
            "arith",
            "builtin",
            "cf",
            "ext",
            "func",
            "gpu",
            "irdl",
            "llvm",
            "math",
            "memref",
            "nvgpu",
            "nvvm",
            "scf",
            "tensor",
            "vector",
        )
    },
}

_INTEGERS = {"I1": 1, "I32": 32, "I64": 64}
"""Constraints for the fields of operations: `count: ext.Operand[I32]`."""

_DIALECTS = {"attn": "attn_mlir.dialect.attn", "ws": "attn_mlir.dialect.ws"}
"""Our dialects, in load order: namespace -> package that exposes `DIALECT` (an ext.Dialect)."""

_T = TypeVar("_T")
_lock = threading.RLock()
_root: str | None = None
_libraries: list[object] = []
_kept: list[object] = []
_attributes_readable = False


class _DeferredPackage(ModuleType):
    """A package whose submodules can be imported before its `__init__` has run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__version__", "__all__"):
            raise AttributeError(name)
        spec = self.__spec__
        assert spec is not None and spec.loader is not None
        self.__class__ = ModuleType  # pyright: ignore[reportAttributeAccessIssue]
        spec.loader.exec_module(self)
        return getattr(self, name)


class _DeferredModule(ModuleType):
    """A placeholder for a module, which is imported when one of its names is first read."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _numpy_deferred() -> Generator[None]:
    """A context in which `import numpy` gives a placeholder, imported when one of its names is
    read.

    The binding imports numpy for four attribute builders only, and numpy takes 35 ms, with 60 ms
    more of CPU time in the threads that it starts. The placeholder works for any other importer,
    too.
    """
    with _lock:
        deferred = sys.modules.setdefault("numpy", _DeferredModule("numpy"))
    try:
        yield
    finally:
        with _lock:
            if isinstance(deferred, _DeferredModule) and sys.modules.get("numpy") is deferred:
                del sys.modules["numpy"]


def _find(package: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of an installed package that has a folder, without importing it."""
    spec = importlib.machinery.PathFinder.find_spec(package)
    return spec if spec is not None and spec.submodule_search_locations else None


def _folder(spec: importlib.machinery.ModuleSpec) -> Path:
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def _installed() -> importlib.machinery.ModuleSpec | None:
    """The provider that is used: the pinned package before the official one; None if neither is
    there.
    """
    if (pinned := _find(PROVIDER_PACKAGE)) is not None:
        return pinned
    official = _find(OFFICIAL_PACKAGE)
    has_binding = official is not None and (_folder(official) / "_mlir_libs").is_dir()
    return official if has_binding else None


def _check_version(folder: Path) -> None:
    """Raises TargetError unless the installed provider has the pinned version."""
    found = provider_version(folder)
    if found != PROVIDER_VERSION:
        raise TargetError(
            f"numba-cuda-mlir {found} is installed, this version of attn-mlir works with "
            f"{PROVIDER_VERSION}; run: pip install numba-cuda-mlir=={PROVIDER_VERSION}"
        )


def _bind_libraries_locally(libraries: Path) -> None:
    """Opens the binding's shared library so that it prefers its own LLVM symbols.

    Another LLVM in the process (Triton's or JAX's) may export the same names; RTLD_DEEPBIND at the
    first opening keeps the two apart. Linux only, like the flag.
    """
    if not sys.platform.startswith("linux") or not hasattr(os, "RTLD_DEEPBIND"):
        return
    import ctypes

    library = libraries / "libMLIRPythonCAPI.so"
    if library.exists():
        mode = os.RTLD_LAZY | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        _libraries.append(ctypes.CDLL(str(library), mode=mode))


def _provider() -> str:
    """Returns the dotted name of the package with `ir`; the first call makes it importable.

    Raises:
      TargetError: no provider is installed, or one of another version than the pinned one.
    """
    global _root
    with _lock:
        if _root is not None:
            return _root
        spec = _installed()
        if spec is None:
            raise TargetError(
                f"no MLIR is installed: neither numba-cuda-mlir nor the package 'mlir'; "
                f"run: pip install numba-cuda-mlir=={PROVIDER_VERSION}"
            )
        if spec.name == OFFICIAL_PACKAGE:
            _root = OFFICIAL_PACKAGE
            return _root
        folder = _folder(spec)
        _check_version(folder)
        if PROVIDER_PACKAGE not in sys.modules:
            _bind_libraries_locally(folder / "_mlir" / "_mlir_libs")
            package = _DeferredPackage(PROVIDER_PACKAGE)
            package.__spec__ = spec
            package.__path__ = list(spec.submodule_search_locations or ())
            package.__file__ = spec.origin
            package.__loader__ = spec.loader
            sys.modules[PROVIDER_PACKAGE] = package
        _root = f"{PROVIDER_PACKAGE}._mlir"
        return _root


def provider_version(folder: Path | None = None) -> str:
    """Returns the version of the installed provider, without importing it.

    Args:
      folder: the provider's package folder; looked up when absent.

    Returns:
      For example `0.6.0`; `official` for the package `mlir`, which carries no version.
    """
    if folder is None:
        if _provider() == OFFICIAL_PACKAGE:
            return "official"
        spec = _find(PROVIDER_PACKAGE)
        assert spec is not None
        folder = _folder(spec)
    file = folder / "VERSION"
    return file.read_text().strip() if file.exists() else "unknown"


def provider_identity() -> str:
    """The identity of the MLIR provider for cache keys; does not import it, and it may be missing.

    Returns:
      The pinned package with its version; `mlir` with a digest of its libraries' file attributes,
      since it has no version; or `none`.
    """
    spec = _installed()
    if spec is None:
        return "none"
    if spec.name == PROVIDER_PACKAGE:
        return f"{PROVIDER_PACKAGE} {provider_version(_folder(spec))}"
    libraries = _folder(spec) / "_mlir_libs"
    found = sorted(
        (path.name, (status := path.stat()).st_size, status.st_mtime_ns, status.st_ctime_ns)
        for path in libraries.iterdir()
    )
    return f"{OFFICIAL_PACKAGE} {libraries} {hashlib.sha256(repr(found).encode()).hexdigest()}"


def __getattr__(name: str) -> Any:
    """Resolves MLIR's modules, `Pure`, and `I32` and its like, at their first use (PEP 562)."""
    if name == "Pure":
        value: Any = _make_pure()
    elif name in _INTEGERS:
        value = __getattr__("ir").IntegerType[_INTEGERS[name]]
    elif name in _MODULES:
        with _numpy_deferred():
            value = importlib.import_module(f"{_provider()}.{_MODULES[name]}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "ir":
        # The binding looks for a module named after the namespace at every value of one of our
        # types,
        # and searches the disk each time, 2500 times per verified kernel, unless it finds one.
        value._globals.append_dialect_search_prefix(__package__)
    globals()[name] = value
    return value


def _make_pure() -> Any:
    """Builds the trait `Pure`: operations with it may be CSE'd, hoisted or erased."""
    from attn_mlir.dialect._mlir import ir  # through the lazy names of this module

    class Pure(ir.MemoryEffectsOpInterface):
        """Memory effects of an operation that has none."""

        @staticmethod
        def get_effects(op: Any, effects: Any) -> None:
            """Adds nothing to `effects`: the operation reads and writes no memory."""

    return Pure


def make_context(*, dialects: Sequence[str] | None = None) -> Any:
    """Returns a context with threads off in which unregistered operations are errors.

    Args:
      dialects: which of our dialects it knows; all when absent. Upstream's are always known.
    """
    from attn_mlir.dialect._mlir import ir

    context = ir.Context()
    context.enable_multithreading(False)
    _make_attributes_readable(context)
    ours = [name for name in _DIALECTS if dialects is None or name in dialects]
    if ours:
        load_dialects(context, *ours)
    return context


def _make_attributes_readable(context: Any) -> None:
    """Makes all attributes readable, those without a class of their own as plain `ir.Attribute`.

    The binding chooses the Python class of an attribute when it is read. It raises TypeError for a
    location (whose classes are not attribute classes) and for dense elements that are neither
    integers nor floats. Input text may have both in place of any attribute.
    """
    global _attributes_readable
    ir: Any = __getattr__("ir")
    with _lock:
        if _attributes_readable:
            return
        _attributes_readable = True
        for name in ("FileLineColLoc", "NameLoc", "CallSiteLoc", "FusedLoc", "UnknownLoc"):
            kind = getattr(ir, name)
            ir.register_type_caster(kind.static_typeid, replace=True)(_location_caster(ir, kind))
        with context:
            dense = ir.Attribute.parse("dense<0> : tensor<1xi32>").typeid
        ir.register_type_caster(dense, replace=True)(_cast_dense)


def _location_caster(ir: Any, kind: Any) -> Any:
    """The caster for locations: gives an operation's its class,
    and leaves attributes as they are.
    """

    def cast(found: Any) -> Any:
        return kind(found) if isinstance(found, ir.Location) else found

    return cast


def _cast_dense(found: Any) -> Any:
    """Casts dense elements to the class for their element type, if there is one."""
    ir: Any = __getattr__("ir")
    for kind in (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr):
        try:
            return kind(found)
        except ValueError:
            pass
    return found


def dialect_names(context: Any) -> list[str]:
    """Returns the namespaces known to a context, of ours and of upstream's listed here; sorted."""
    names: list[str] = []
    for name in {*_DIALECTS, *_MODULES}:
        try:
            context.get_dialect_descriptor(name)
        except ValueError:
            continue
        names.append(name)
    return sorted(names)


def parameterised_names(namespace: str) -> list[str]:
    """The attributes and types of one of our dialects as text begins them: `#attn.window`,
    `!ws.tile`.
    """
    if namespace not in _DIALECTS:
        return []
    dialect: Any = importlib.import_module(_DIALECTS[namespace]).DIALECT
    attributes = [f"#{attribute.attr_name}" for attribute in dialect.attributes]
    return attributes + [f"!{kind.type_name}" for kind in dialect.types]


def register_dialect(namespace: str, package: str) -> None:
    """Adds a dialect to those that `load_dialects` loads.

    Args:
      namespace: the prefix of its operations, such as `attn`.
      package: import name of a package whose `DIALECT` is the ext.Dialect class and whose import
        defines all its operations, types and attributes.
    """
    _DIALECTS[namespace] = package


def load_dialects(context: Any, *namespaces: str) -> None:
    """Loads our dialects into a context; those that are already loaded are skipped.

    Their verifiers (`verify_invariants`) are only called for operations that fit the fields of
    their class (see `_guard.py`), so they may use these without checks.

    Args:
      context: the ir.Context; contexts of this process share the Python classes.
      namespaces: names of registered dialects to load; all if none is given.
    """
    from attn_mlir.dialect._mlir import ext, ir, irdl

    guard = Guard(ir, ext, irdl)
    with _lock, context:
        for namespace in namespaces or tuple(_DIALECTS):
            dialect: Any = importlib.import_module(_DIALECTS[namespace]).DIALECT
            for operation in dialect.operations:
                guard.apply(operation)
            if context.is_registered_operation(dialect.operations[0].OPERATION_NAME):
                continue
            is_first = not hasattr(dialect, "_mlir_module")
            dialect.load(reload=not is_first)
            if is_first:
                _keep_definitions(dialect)


def _keep_definitions(dialect: Any) -> None:
    """Makes further contexts read a loaded dialect's definitions: 0.7 ms for ours instead of 4."""
    data = io.BytesIO()
    dialect._mlir_module.operation.write_bytecode(data)
    parse = __getattr__("ir").Module.parse
    dialect._emit_module = functools.partial(parse, data.getvalue())


def attach_pure(op: Any) -> None:
    """Marks an operation class of a loaded dialect as free of memory effects, in this context.

    Prefer `traits=[Pure]` in the class: `load_dialects` then does it in every context.
    """
    from attn_mlir.dialect._mlir import Pure

    Pure.attach(op.OPERATION_NAME)


def keep_alive(value: _T) -> _T:
    """Holds an object for the life of the process and returns it.

    The binding holds no reference to callables given to `TypeConverter.add_conversion`, and after
    their collection calls whatever object took their place. Use this for module functions, not for
    closures made per compilation, as kept objects are never released.
    """
    if not any(kept is value for kept in _kept):
        _kept.append(value)
    return value
