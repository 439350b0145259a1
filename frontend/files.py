"""Files that are written whole or not at all, and temporary folders: a leaf, as `errors` and `env`.

Every failure of the disk becomes a typed error that names the place and what to do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

from attn_mlir.errors import SpecError, TargetError

FILE_MODE = 0o644  # temporary files begin as their owner's alone
SCRATCH_PREFIX = "attn-mlir-"
LEFTOVER_SECONDS = 24 * 3600.0  # no compilation takes as long: whoever made it was killed


def reason(error: OSError | ValueError) -> str:
    """What the system says about a failure, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def make_folder(path: Path) -> Path:
    """The folder itself, made with its parents where it is missing.

    Raises:
      SpecError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot make the folder '{path}': {reason(error)}") from error
    return path


def write_file(path: Path, data: bytes | str) -> Path:
    """Write a file through a temporary neighbour and a rename, and return its path.

    Raises:
      SpecError: it cannot be written; what was there is untouched.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        # a name of its own: with the file's in it, it could be too long
        descriptor, temporary = tempfile.mkstemp(prefix=".attn-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            os.chmod(temporary, FILE_MODE)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot write '{path}': {reason(error)}") from error
    return path


def read_file(path: Path, *, most_bytes: int) -> bytes:
    """A file of at most so many bytes; never more of it is in memory.

    Raises:
      OSError, ValueError: it cannot be read, or is larger.
    """
    with path.open("rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    return data


@contextlib.contextmanager
def scratch_folder() -> Generator[Path]:
    """A temporary folder for one run of a program, removed at the end.

    What killed processes left of theirs is removed with the first of a process.

    Raises:
      TargetError: nothing can be written where temporary files go, also from within.
    """
    try:
        _remove_scratch()
        with tempfile.TemporaryDirectory(
            prefix=SCRATCH_PREFIX, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)
    except OSError as error:
        raise TargetError(
            f"temporary files cannot be written to {tempfile.tempdir or os.environ.get('TMPDIR')}: "
            f"{reason(error)}; make room there, or name another folder by TMPDIR"
        ) from error


@functools.cache
def _remove_scratch() -> None:
    remove_leftovers(
        Path(tempfile.gettempdir()), lambda name: name.startswith(SCRATCH_PREFIX), LEFTOVER_SECONDS
    )


def remove_leftovers(folder: Path, is_ours: Callable[[str], bool], seconds: float) -> None:
    """Remove what processes that were killed left in a folder: folders of ours, old enough.

    Args:
      is_ours: tells by the name.
      seconds: since their last change; younger ones may still be in use.
    """
    mine = getattr(os, "geteuid", lambda: None)()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not is_ours(entry.name):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_mine = mine is None or status.st_uid == mine
                is_old = time.time() - status.st_mtime > seconds
                if stat.S_ISDIR(status.st_mode) and is_mine and is_old:
                    shutil.rmtree(entry.path, ignore_errors=True)
