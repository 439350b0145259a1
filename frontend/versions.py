"""Versions of a host package that an adapter was written for, and plug-ins beside others."""

from __future__ import annotations

from collections.abc import Callable

from attn_mlir import env

Bound = tuple[int, ...]
PARTS = 3  # of a version that bounds may tell apart


def check_version(package: str, version: str, least: Bound, below: Bound) -> None:
    """Refuses a version of a package outside of its bounds.

    Args:
      package: its name, as that of our module.
      version: of what is installed.
      least, below: the first version that is allowed, and the first that is not.

    Raises:
      ImportError: says which is needed.
    """
    parts = version.split(".")[:PARTS]
    numbers = tuple(int(digits) for digits in parts if digits.isdecimal())
    if not least <= numbers < below:
        first, end = (".".join(map(str, bound)) for bound in (least, below))
        raise ImportError(
            f"attn_mlir.{package} needs {package} {first} or newer, below {end}, got {version}"
        )


def register_or_warn(register: Callable[[], None], name: str) -> None:
    """Registers a name of ours at an engine, or says in the log once why it is not registered.

    An engine calls its plug-ins wherever both packages are installed, whether or not it is told to
    use this one.
    """
    try:
        register()
    except ImportError as error:
        env.log_once("warning", f"{error}: {name} is not registered")
