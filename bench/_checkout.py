"""Another commit of this repository, checked out beside it and imported as it would be installed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from attn_mlir.bench._stats import ROOT

_FOLDERS = ("bench", "dialect", "lowering", "passes", "runtime", "validation")


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Generator[Path]:
    """A checkout in a new folder of `folder`, removed in the end.

    Raises:
      SystemExit: git has no such commit.
    """
    other = folder / "checkout"
    git = ("git", "-C", str(ROOT), "worktree")
    command = [*git, "add", "--quiet", "--detach", other, commit]
    if subprocess.run(command, check=False).returncode:
        sys.exit(2)
    try:
        yield other
    finally:
        subprocess.run([*git, "remove", "--force", other], check=True)


def linked(checkout: Path, folder: Path) -> Path:
    """Links a checkout's folders as the packages that they are.

    Returns:
      The folder in `folder` that PYTHONPATH has to name.
    """
    package = folder / "package" / "attn_mlir"
    package.mkdir(parents=True)
    places = [*(checkout / "frontend").iterdir(), *(checkout / name for name in _FOLDERS)]
    for place in places:
        if place.exists() and place.name != "__pycache__":
            (package / place.name).symlink_to(place)
    return package.parent
