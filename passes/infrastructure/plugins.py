"""Plug-ins: passes of other projects, which `attn-opt` runs by name like ours.

A plug-in is a module whose import registers passes and pipelines (`registry.register`). An
installed package declares it as an entry point of the group `attn_mlir.passes`;
`attn-opt --load-pass-plugin` names a module or a file of Python. Compiling loads none. `registry`
calls the functions here.
"""

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from attn_mlir.errors import AttnError, SpecError
from attn_mlir.files import read_file

GROUP = "attn_mlir.passes"
SUFFIX = ".py"


@functools.cache
def load_installed() -> None:
    """Loads the plug-ins of all installed packages, once.

    Raises:
      SpecError: one of them cannot be loaded; the message names it and its package.
    """
    for point in importlib.metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else "a package"
        _load(f"{point.value} of {package}", point.load)


def load(plugin: str) -> None:
    """Loads a plug-in.

    Args:
      plugin: a module, as `import` finds it, or a file, whose name ends in `.py`.

    Raises:
      SpecError: there is none, its code fails, or it registers something that is no pass or has a
        name that is taken.
    """
    path = Path(plugin)
    make = (
        functools.partial(_run, path)
        if path.suffix == SUFFIX
        else functools.partial(importlib.import_module, plugin)
    )
    _load(plugin, make)


def _load(plugin: str, make: Callable[[], object]) -> None:
    """Calls the loader of a plug-in, whose code may raise anything.

    Raises:
      SpecError: the loader failed.
    """
    try:
        make()
    except Exception as error:
        message = str(error) if isinstance(error, AttnError) else f"{type(error).__name__}: {error}"
        raise SpecError(f"the plug-in {plugin} cannot be loaded: {message}") from error


def _run(path: Path) -> None:
    """Runs a file as a separate module; dataclasses look it up in `sys.modules`."""
    module = ModuleType(f"{GROUP}.plugin_{path.stem}")
    module.__file__ = str(path)
    code = compile(read_file(path), str(path), "exec")
    sys.modules[module.__name__] = module
    exec(code, vars(module))
