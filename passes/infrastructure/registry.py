"""The table of passes and named pipelines.

MLIR cannot register Python passes by name, so names are ours: a pass is a frozen dataclass whose
fields are its options, registered by `@register`; a named pipeline is text, or a frozen dataclass
with `expand`, registered by `register_pipeline`. `BUILTIN_MODULES` lists the modules that register
ours by name, so that nothing here imports the layers above; `plugins` loads those of other
projects.
"""

import dataclasses
import importlib
import re
import typing
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from attn_mlir.dialect._mlir import ir, passmanager
from attn_mlir.errors import SpecError

BUILTIN_MODULES = [
    "attn_mlir.passes.configure",
    "attn_mlir.passes.infrastructure.legality",
    "attn_mlir.passes.check_names",
    "attn_mlir.passes.record_clocks",
    "attn_mlir.passes.convert_attn_to_ws",
    "attn_mlir.lowering",
]
"""Modules whose import registers passes and pipelines; imported when a name is first needed."""

UPSTREAM_NAMES = (
    "arith-expand",
    "canonicalize",
    "convert-arith-to-llvm",
    "convert-cf-to-llvm",
    "convert-func-to-llvm",
    "convert-gpu-to-nvvm",
    "convert-index-to-llvm",
    "convert-math-to-llvm",
    "convert-nvgpu-to-nvvm",
    "convert-nvvm-to-llvm",
    "convert-scf-to-cf",
    "convert-vector-to-llvm",
    "convert-vector-to-scf",
    "cse",
    "ensure-debug-info-scope-on-llvm-func",
    "expand-strided-metadata",
    "finalize-memref-to-llvm",
    "gpu-kernel-outlining",
    "gpu-module-to-binary",
    "inline",
    "loop-invariant-code-motion",
    "lower-affine",
    "nvvm-attach-target",
    "reconcile-unrealized-casts",
    "sccp",
    "strip-debuginfo",
    "symbol-dce",
)
"""Upstream passes that are suggested for misspelled names; any other upstream pass works as well.
"""


@runtime_checkable
class Pass(Protocol):
    """A rewrite of one `builtin.module`.

    An implementation is a frozen dataclass. Its fields are its options: bool, int, float, str,
    a Literal of strings, or a tuple of one of these, each with a default. `num_stages` is spelled
    `num-stages` in text. A pass that changes nothing declares `is_analysis: ClassVar[bool] = True`,
    and the module is not verified again after it.
    """

    name: ClassVar[str]

    def run(self, module: ir.Module) -> None:
        """Rewrites the module in place, or raises an AttnError and leaves it unusable."""
        ...


@runtime_checkable
class Pipeline(Protocol):
    """A named sequence of passes; options as those of a Pass."""

    name: ClassVar[str]

    def expand(self) -> str:
        """Returns the sequence as pipeline text, without its `builtin.module(...)`."""
        ...


@dataclasses.dataclass(frozen=True)
class TextPipeline:
    """A pipeline without options."""

    name: str  # pyright: ignore[reportIncompatibleVariableOverride]
    text: str
    help: str

    def expand(self) -> str:
        """Returns the text."""
        return self.text


_NAME = re.compile(r"[\w-]+")

_PassT = TypeVar("_PassT", bound=type[Any])

_passes: dict[str, type[Any]] = {}
_pipelines: dict[str, type[Any] | TextPipeline] = {}
_builtin_loaded = False


def register(cls: _PassT) -> _PassT:
    """Class decorator: makes a Pass known under its name.

    Raises:
      SpecError: it is no Pass, or another has the name.
    """
    _check_entry(cls, "pass", "run")
    registered = _passes.setdefault(cls.name, cls)
    if registered.__qualname__ != cls.__qualname__:
        raise _taken(cls.name)
    return cls


def _check_entry(cls: type[Any], kind: str, method: str) -> None:
    """Refuses a class that is no pass or pipeline, which other projects may register.

    Raises:
      SpecError: the message names the class.
    """
    name: object = getattr(cls, "name", None)
    if not (isinstance(name, str) and callable(getattr(cls, method, None))):
        raise SpecError(f"a {kind} has a name and a method {method}, {cls.__qualname__} lacks one")
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"the name of a {kind} consists of letters, digits and dashes, got '{name}'"
        )
    if not hasattr(cls, "__dataclass_fields__"):
        raise SpecError(f"a {kind} is a frozen dataclass, {cls.__qualname__} is none")
    if name in UPSTREAM_NAMES:
        raise _taken(name)


def _taken(name: str) -> SpecError:
    return SpecError(
        f"there is a pass or pipeline '{name}' already: give the other one another name"
    )


def register_pipeline(
    pipeline: type[Any] | str, text: str | None = None, *, help: str = ""
) -> type[Any] | str:
    """Makes a named pipeline known.

    Args:
      pipeline: a Pipeline class (also as a decorator), or the name of a pipeline without options.
      text: with a name: the passes, such as `attn-configure,canonicalize,gpu.module(cse)`.
      help: with a name: one line for `--list-passes`.

    Raises:
      SpecError: it is no Pipeline, or another has the name.
    """
    if isinstance(pipeline, str):
        assert text is not None
        entry, name = TextPipeline(pipeline, text, help), pipeline
    else:
        _check_entry(pipeline, "pipeline", "expand")
        entry, name = pipeline, pipeline.name
    registered = _pipelines.setdefault(name, entry)
    if getattr(registered, "__qualname__", registered) != getattr(entry, "__qualname__", entry):
        raise _taken(name)
    return pipeline


def _load_builtin() -> None:
    global _builtin_loaded
    if not _builtin_loaded:
        _builtin_loaded = True
        for module in BUILTIN_MODULES:
            importlib.import_module(module)


def _load_all() -> None:
    """Loads our modules and the installed plug-ins."""
    from attn_mlir.passes.infrastructure import plugins

    _load_builtin()
    plugins.load_installed()


def load_plugin(plugin: str) -> None:
    """Loads a plug-in, after our modules and the installed plug-ins, whose names have priority.

    Args:
      plugin: a module or a file, as of `plugins.load`.

    Raises:
      SpecError: it cannot be loaded, or registers something else than new passes and pipelines.
    """
    from attn_mlir.passes.infrastructure import plugins

    _load_all()
    plugins.load(plugin)


def passes() -> dict[str, type[Any]]:
    """Returns every registered pass class by name, sorted."""
    _load_all()
    return dict(sorted(_passes.items()))


def pipelines() -> dict[str, type[Any] | TextPipeline]:
    """Returns every registered pipeline by name, sorted."""
    _load_all()
    return dict(sorted(_pipelines.items()))


def find(name: str) -> type[Any] | TextPipeline | None:
    """Returns the pass class, pipeline class or text pipeline of a name; None for other names.

    Plug-ins are loaded only for names that are not ours, so that compiling uses none.
    """
    if not _NAME.fullmatch(name):
        return None  # the operation on which a nest of a pipeline is anchored
    for load in (_load_builtin, _load_all):
        if name in _passes or name in _pipelines or name in UPSTREAM_NAMES:
            break
        load()
    return _passes.get(name) or _pipelines.get(name)


def unknown(kind: str, name: str, known: Iterable[str]) -> SpecError:
    """Returns the error for a name that does not exist, with names that are spelled like it."""
    import difflib  # only needed for errors

    near = difflib.get_close_matches(name, sorted(known), n=4, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "see attn-opt --list-passes"
    return SpecError(f"unknown {kind} '{name}': {hint}")


def unknown_pass(name: str, *, flags: Iterable[str] = ()) -> SpecError:
    """Returns the error for a name that neither we nor upstream have.

    Args:
      name: the name.
      flags: further names to suggest, where the name was given as a command-line flag.
    """
    kind = "flag, pass or pipeline" if flags else "pass or pipeline"
    return unknown(kind, name, {*passes(), *pipelines(), *UPSTREAM_NAMES, *flags})


def is_known(name: str) -> bool:
    """Whether we or upstream have a pass or pipeline of this name."""
    if name in UPSTREAM_NAMES or find(name) is not None:
        return True
    with ir.Context():
        try:
            passmanager.PassManager.parse(f"any({name})")
        except ValueError as error:
            return f"'{name}' does not refer to a registered pass" not in str(error)
    return True


def option_fields(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Returns the options of a pass or pipeline class: spelled name -> dataclass field."""
    return {field.name.replace("_", "-"): field for field in dataclasses.fields(cls)}


def make(entry: type[Any] | TextPipeline, options: dict[str, str]) -> Any:
    """Builds a pass or pipeline from the text of its options.

    Args:
      entry: what `find` returned.
      options: spelled name -> text of the value; `""` for a flag without a value.

    Raises:
      SpecError: an option that does not exist, or a value of another type.
    """
    if isinstance(entry, TextPipeline):
        if options:
            raise SpecError(f"'{entry.name}' takes no options, got {', '.join(options)}")
        return entry
    fields = option_fields(entry)
    hints = typing.get_type_hints(entry)
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in fields:
            allowed = ", ".join(fields) or "none"
            raise SpecError(f"'{entry.name}' has no option '{name}': allowed are {allowed}")
        field = fields[name]
        try:
            values[field.name] = _value(hints[field.name], text)
        except ValueError as error:
            hint = f": write {name}=VALUE" if not text else ""
            raise SpecError(f"option '{name}' of '{entry.name}' expects {error}{hint}") from error
    return entry(**values)


def spelled(instance: Any) -> str:
    """The pipeline text of a pass of ours with all options, from which `make` rebuilds it."""
    options: list[str] = []
    for field in dataclasses.fields(instance):
        text = _spelled_value(getattr(instance, field.name))
        text = text if text and " " not in text else f"{{{text}}}"
        options.append(f"{field.name.replace('_', '-')}={text}")
    return f"{instance.name}{{{' '.join(options)}}}" if options else instance.name


def _spelled_value(value: Any) -> str:
    """The inverse of `_value`."""
    if isinstance(value, tuple):
        return ",".join(map(_spelled_value, typing.cast("tuple[Any, ...]", value)))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(kind: Any, text: str) -> Any:
    """Converts the text of one option; a ValueError says what was expected and got."""
    if kind is bool:
        if text.lower() not in ("", "1", "0", "true", "false"):
            raise ValueError(f"true or false, got '{text}'")
        return text.lower() in ("", "1", "true")
    if typing.get_origin(kind) is Literal:
        allowed = typing.get_args(kind)
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}, got '{text}'")
        return text
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(_value(inner, part) for part in text.split(",")) if text else ()
    for number, words in ((int, "an integer"), (float, "a number")):
        if kind is number:
            try:
                return number(text)
            except ValueError:
                raise ValueError(f"{words}, got '{text}'") from None
    assert kind is str, kind
    return text
