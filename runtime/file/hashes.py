"""Hashes of programs, remembered together with the file's attributes.

Reading the 50 MB of an assembler takes longer than a cache hit. A file that was replaced or changed
has another inode or another ctime, which cannot be set back, even if its size and mtime are the
same; then it is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from attn_mlir.errors import SpecError
from attn_mlir.files import open_regular, write_file
from attn_mlir.runtime.file.trust import read_regular

HASH_LENGTH = 64  # characters of a sha256 in hex
SETTLED_SECONDS = 2.0  # ns; a file that changed more recently may change again with the same ctime

_hashes: dict[tuple[str, ...], str] = {}  # hashes found in this process


def remembered_hash(path: Path, memory: Callable[[], Path | None]) -> str:
    """sha256 of a file's content, in hex.

    Args:
      memory: returns a trusted folder that processes share for hashes, or None.

    Raises:
      OSError: there is no such file, or it cannot be read.
    """
    status = path.stat()
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    identity = (os.fspath(path), *map(str, numbers))
    if identity not in _hashes:
        is_settled = time.time() - status.st_ctime > SETTLED_SECONDS
        folder = memory() if is_settled else None
        digest = None if folder is None else _recall(folder, identity)
        if digest is None:
            with open(open_regular(path), "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if folder is not None:
                _store(folder, identity, digest)
        if not is_settled:
            return digest
        _hashes[identity] = digest
    return _hashes[identity]


def _name(identity: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _recall(folder: Path, identity: tuple[str, ...]) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        text = read_regular(folder / _name(identity), HASH_LENGTH).decode()
        return text if len(text) == HASH_LENGTH else None
    return None


def _store(folder: Path, identity: tuple[str, ...], digest: str) -> None:
    with contextlib.suppress(SpecError):
        write_file(folder / _name(identity), digest)
