"""Which versions of a host package an adapter was written for."""

from __future__ import annotations

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
