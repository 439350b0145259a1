"""Which folders can be trusted: their files are code,
which runs with the rights of who loads it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from attn_mlir import files

ROOT_USER = 0
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # which Windows lacks


def distrust(folder: Path) -> str | None:
    """Why files in a folder may be from another user; None if they cannot.

    The owner of a folder and, unless its sticky bit is set, everybody with write permission can
    replace its files. Group permission is ignored, as many systems give each user their own group.

    Raises:
      OSError: there is no such folder, or it cannot be read.
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
    """Opens a regular file, neither a link nor a pipe, and returns its descriptor.

    Args:
      flags: as in `os.open`; a new file is accessible to its owner only.

    Raises:
      OSError: it cannot be opened, or is no regular file.
    """
    return files.open_regular(path, flags | _NO_LINK)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The contents of a regular file of at most `most_bytes`.

    Raises:
      OSError, ValueError: it cannot be read, is no regular file, or is larger.
    """
    with open(open_regular(path, os.O_RDONLY), "rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"{path.name} has more than {most_bytes} bytes")
    return data
