"""Files that commands write."""

import contextlib
import os
from pathlib import Path

from attn_mlir.errors import SpecError


def check_svg(option: str, path: Path) -> None:
    """Refuses a name that is not that of a picture, such as that of the file to draw.

    Raises:
      SpecError: the path does not end in `.svg`; names the option.
    """
    if path.suffix.lower() != ".svg":
        raise SpecError(
            f"{option} must end in .svg, got {str(path)!r}: pictures are SVG, which browsers show "
            "and other programs convert"
        )


def check_new(option: str, path: Path, read: Path) -> None:
    """Refuses to write where the input is.

    Raises:
      SpecError: both paths lead to one file; names the option.
    """
    is_same = False
    with contextlib.suppress(OSError, ValueError):  # a path leads nowhere: its user says so
        is_same = os.path.samefile(path, read)
    if is_same:
        raise SpecError(f"{option} names the input {str(read)!r}, which it would replace")
