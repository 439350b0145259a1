"""A lock between processes: a locked file, which names the process that holds it.

The holder removes the file when it releases the lock. If the file system has no locks, or the path
is no regular file, there is a warning and no lock: two processes may then do the same work.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from attn_mlir import env
from attn_mlir.files import reason
from attn_mlir.runtime.file.trust import open_regular

LOCK_SUFFIX = ".lock"
WORD_SECONDS = 2.0  # seconds after which a waiting process says what it waits for
PAUSES_SECONDS = (0.005, 0.1)  # seconds between two attempts to lock: at first, and at most


class Lock:
    """`with Lock(path, seconds):` holds a lock, or continues without it after `seconds`."""

    def __init__(self, path: Path, seconds: float):
        self.path = path
        self.seconds = seconds
        self._descriptor: int | None = None

    def __enter__(self) -> None:
        try:
            self._descriptor = self._acquire()
        except OSError as error:
            env.log("warning", f"the lock {self.path} is not used: {reason(error)}")

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            _remove(self.path, self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _acquire(self) -> int | None:
        """The descriptor of the locked file, or None without locks or after a long wait.

        Raises:
          OSError: the file cannot be made, or is not one that this process may write to.
        """
        begin = time.monotonic()
        pause, longest_pause = PAUSES_SECONDS
        has_reported = False
        while True:
            descriptor, holder = _try(self.path)
            if descriptor is not None or holder is None:
                return descriptor
            waited = time.monotonic() - begin
            if waited > self.seconds:
                env.log(
                    "warning",
                    f"waited {waited:.0f} s for {holder}, which holds {self.path}: going on "
                    "without the lock",
                )
                return None
            if waited > WORD_SECONDS and not has_reported:
                has_reported = True
                env.log(
                    "warning",
                    f"waiting for {holder}, which compiles the same kernel (it holds {self.path}), "
                    f"for at most {self.seconds:.0f} s",
                )
            time.sleep(pause)
            pause = min(2 * pause, longest_pause)


def _try(path: Path) -> tuple[int | None, str | None]:
    """The descriptor of the locked file, or the holder of the lock; neither if there are no locks.

    Raises:
      OSError: see `Lock`.
    """
    try:
        import fcntl
    except ImportError:
        return None, None
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        status = os.fstat(descriptor)
        if status.st_nlink > 1 or status.st_uid != os.geteuid():
            raise PermissionError(0, "it has another name or another owner", str(path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            content = os.read(descriptor, 200).decode(errors="replace").strip()
            return None, content or "another process"
        except OSError:
            return None, None
        if not _is_at(path, descriptor):
            return (
                None,
                "another process",
            )  # the holder released the lock and removed the file: try again
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        lock, descriptor = descriptor, -1
        return lock, None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still names the opened file."""
    mine = os.fstat(descriptor)
    with contextlib.suppress(OSError):
        status = os.stat(path, follow_symlinks=False)
        return (status.st_dev, status.st_ino) == (mine.st_dev, mine.st_ino)
    return False


def _remove(path: Path, descriptor: int) -> None:
    """Removes the file of a lock that this process holds."""
    with contextlib.suppress(OSError):
        if _is_at(path, descriptor):
            os.unlink(path)


def remove_old_locks(folder: Path, seconds: float) -> None:
    """Removes lock files older than `seconds` that no process holds,
    as their owners were killed.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_old = time.time() - status.st_mtime > seconds
                if entry.name.endswith(LOCK_SUFFIX) and is_old and stat.S_ISREG(status.st_mode):
                    descriptor, _ = _try(Path(entry.path))
                    if descriptor is not None:
                        _remove(Path(entry.path), descriptor)
                        os.close(descriptor)
