"""Another commit of this repository, checked out beside it and imported as it would be installed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path

from attn_mlir.bench.measuring.stats import ROOT

PACKAGE = "attn_mlir"


def folders(checkout: Path = ROOT) -> dict[str, str]:
    """The packages of a checkout and their folders, as its pyproject.toml has them."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())
    return project["tool"]["setuptools"]["package-dir"]


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
    package = folder / "package" / PACKAGE
    package.mkdir(parents=True)
    named = folders(checkout)
    for place in (checkout / named.pop(PACKAGE)).iterdir():
        if place.name != "__pycache__":
            (package / place.name).symlink_to(place)
    for name, place in named.items():
        if (checkout / place).exists():
            (package / name.removeprefix(f"{PACKAGE}.")).symlink_to(checkout / place)
    return package.parent
