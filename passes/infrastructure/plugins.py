"""Passes of other projects, which `attn-opt` runs by their names as it runs ours.

A plug-in is a module whose import registers passes and pipelines (`registry.register`). An
installed package names it as an entry point of the group `attn_mlir.passes`;
`attn-opt --load-pass-plugin` names a module or a file of Python. Compiling loads none. The
functions here find and run plug-ins; `registry` calls them.
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
      SpecError: one of them cannot be loaded; names it and its package.
    """
    for point in importlib.metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else "a package"
        _load(f"{point.value} of {package}", point.load)


def load(named: str) -> None:
    """Loads a plug-in.

    Args:
      named: a module, as `import` finds it, or a file, whose name ends in `.py`.

    Raises:
      SpecError: there is none, its code fails, or it registers what is no pass or has a name that
        another has.
    """
    path = Path(named)
    make = (
        functools.partial(_run, path)
        if path.suffix == SUFFIX
        else functools.partial(importlib.import_module, named)
    )
    _load(named, make)


def _load(named: str, make: Callable[[], object]) -> None:
    """Calls what loads a plug-in, whose code may raise anything.

    Raises:
      SpecError: it failed.
    """
    try:
        make()
    except Exception as error:
        told = str(error) if isinstance(error, AttnError) else f"{type(error).__name__}: {error}"
        raise SpecError(f"the plug-in {named} cannot be loaded: {told}") from error


def _run(path: Path) -> None:
    """Runs a file as a module of its own; dataclasses look it up in `sys.modules`."""
    module = ModuleType(f"{GROUP}.plugin_{path.stem}")
    module.__file__ = str(path)
    code = compile(read_file(path), str(path), "exec")
    sys.modules[module.__name__] = module
    exec(code, vars(module))
