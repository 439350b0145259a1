"""Who else could change a folder's files: what is kept there is code, and runs as who loads it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

ROOT_USER = 0
# Neither follow a link that somebody put there nor wait for a pipe; flags that Windows lacks are 0.
_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))


def distrust(folder: Path) -> str | None:
    """Why what lies in a folder may be somebody else's, or None.

    Its owner and, unless its sticky bit is set, everybody who may write to it can replace what it
    holds. Groups are left out: many systems give each user a group of his own and write to it.

    Raises:
      OSError: there is no such folder, or it cannot be looked at.
    """
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (os.geteuid(), ROOT_USER):
        return f"it belongs to user {status.st_uid}, who could put other code there"
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return "everybody may write to it and could put other code there: chmod o-w"
    return None


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file, neither a link nor a pipe, and return its descriptor.

    Args:
      flags: of `os.open`; a file that is made is its owner's alone.

    Raises:
      OSError: it cannot be opened, or is something else.
    """
    descriptor = os.open(path, flags | _SAFE, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_regular(path: Path, most_bytes: int) -> bytes:
    """What is in a regular file of at most so many bytes.

    Raises:
      OSError, ValueError: it cannot be read, is something else, or is larger.
    """
    with open(open_regular(path, os.O_RDONLY), "rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"{path.name} has more than {most_bytes} bytes")
    return data
