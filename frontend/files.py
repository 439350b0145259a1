"""Files that are written completely or not at all, and temporary folders; imports only leaves.

Every failure of the file system becomes a typed error with the path and what to do. A path that a
user names may lead to a pipe or a device: reading refuses them, and nothing waits for them.
"""

from __future__ import annotations

import contextlib
import errno
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
# Flags that other systems lack are 0. A pipe is opened without waiting for its other end.
_AT_ONCE = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY"))
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


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Opens a regular file, or a link to one, and returns its descriptor.

    The file is asked for its kind when it is open, so that nobody can replace it in between.

    Args:
      flags: as in `os.open`; a new file is accessible to its owner only.

    Raises:
      OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | _AT_ONCE, 0o600)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def write_file(path: Path, data: bytes | str) -> Path:
    """Writes a file through a temporary file beside it and a rename; returns its path.

    A device or a pipe, such as `/dev/null` or `/dev/stdout`, is written to and stays what it is.

    Raises:
      SpecError: it cannot be written; an existing file is unchanged.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        if _is_special(path):
            _write_through(path, content)
            return path
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


def _is_special(path: Path) -> bool:
    """Whether a path leads to something that is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _write_through(path: Path, content: bytes) -> None:
    """Writes to a device or a pipe; raises OSError for a pipe that nobody reads."""
    descriptor = os.open(path, os.O_WRONLY | _AT_ONCE)
    with os.fdopen(descriptor, "wb") as stream:
        os.set_blocking(descriptor, True)
        stream.write(content)


def read_file(path: Path, *, most_bytes: int | None = None) -> bytes:
    """The contents of a regular file of at most `most_bytes`; never reads more.

    Raises:
      OSError, ValueError: it cannot be read, is no regular file, or is larger.
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        data = stream.read() if most_bytes is None else stream.read(most_bytes + 1)
    if most_bytes is not None and len(data) > most_bytes:
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
