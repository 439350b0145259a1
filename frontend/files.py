"""Files that are written completely or not at all, and temporary folders; imports only leaves.

Every failure of the file system becomes a typed error with the path and what to do.
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

FILE_MODE = 0o644  # temporary files are created for their owner only
SCRATCH_PREFIX = "attn-mlir-"
LEFTOVER_SECONDS = 24 * 3600.0  # longer than any compilation: the process that made it was killed


def reason(error: OSError | ValueError) -> str:
    """The system's message for a failure, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def make_folder(path: Path) -> Path:
    """Makes a folder with its parents unless it exists, and returns it.

    Raises:
      SpecError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot make the folder '{path}': {reason(error)}") from error
    return path


def write_file(path: Path, data: bytes | str) -> Path:
    """Writes a file through a temporary file beside it and a rename; returns its path.

    Raises:
      SpecError: it cannot be written; an existing file is unchanged.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        # a short name, as the file's own with a suffix could be too long
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
    """The contents of a file of at most `most_bytes`; never reads more.

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

    The first one in a process also removes folders that killed processes have left.

    Raises:
      TargetError: the folder for temporary files is not writable; also raised within the context.
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
    """Removes old folders of ours within a folder, which killed processes have left.

    Args:
      is_ours: whether a folder is ours, by its name.
      seconds: least age since the last change; younger folders may still be in use.
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
