"""The cache of compiled kernels on disk: `<root>/<version>/<arch>/<sha256 of the key>/`.

An entry is a folder with `kernel.attn` (a bundle file) and `key.json`, which has the key and the
sha256 of the bundle. Both are checked on reading, so that a file of another kernel is never used.
An entry is created by one rename, so that readers see all of it or nothing; a lock per key keeps
two processes from compiling the same kernel at the same time. A bundle is code: folders that other
users could write to are not used (`trust`). Any failure of the file system is a miss and a warning,
never an error: the kernel is compiled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attn_mlir import env
from attn_mlir.errors import AttnError
from attn_mlir.files import reason, remove_leftovers
from attn_mlir.runtime.file.bundle import MAX_BUNDLE_BYTES, Bundle
from attn_mlir.runtime.file.hashes import remembered_hash
from attn_mlir.runtime.file.locks import LOCK_SUFFIX, Lock, remove_old_locks
from attn_mlir.runtime.file.trust import distrust, read_regular

BUNDLE_FILE = "kernel.attn"
KEY_FILE = "key.json"
HASH_FOLDER = "programs"
MAX_KEY_BYTES = 1 << 24  # bytes; far above a request with the largest traced modifier
LEFTOVER_SECONDS = 3600.0  # a folder takes milliseconds from its creation to its rename
FOLDER_MODE = 0o700


@functools.cache
def warn(text: str) -> None:
    """Prints to stderr, once per process, why nothing is cached."""
    env.log("warning", text)


@dataclass(frozen=True)
class Key:
    """Everything that a compiled kernel depends on.

    Attributes:
      version: version of attn-mlir.
      target: the chip.
      parts: everything else that affects the code, by name.
    """

    version: str
    target: str
    parts: Mapping[str, str]

    @property
    def fields(self) -> dict[str, object]:
        """All of it as JSON values."""
        return {"version": self.version, "target": self.target, "parts": dict(self.parts)}

    def canonical_json(self) -> str:
        """Text that is the same for equal keys."""
        return json.dumps(self.fields, sort_keys=True, indent=1)

    def digest(self) -> str:
        """sha256 of the canonical text, in hex."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


def default_root() -> Path | None:
    """`$XDG_CACHE_HOME/attn-mlir`, else `~/.cache/attn-mlir`; None without a home folder."""
    return _root_of(os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME"))


@functools.cache
def _root_of(base: str, home: str | None) -> Path | None:
    """`default_root` by these variables; `Path.home` reads the second."""
    del home
    if os.path.isabs(base):
        return Path(base) / "attn-mlir"
    try:
        return Path.home() / ".cache" / "attn-mlir"
    except RuntimeError:
        return None


@dataclass(frozen=True)
class Cache:
    """A cache below `root`, or one that keeps nothing if that is None; folders are made when
    needed.

    Attributes:
      lock_seconds: how long to wait for another process that compiles the same kernel.
    """

    root: Path | None
    lock_seconds: float = 60.0

    def directory(self, key: Key) -> Path | None:
        """The folder of a key's entry, which may not exist."""
        return None if self.root is None else self.root / key.version / key.target / key.digest()

    def get(self, key: Key) -> Bundle | None:
        """The cached bundle for a key, or None."""
        entry = self.directory(key)
        if entry is None or not self._is_trusted(entry):
            return None
        try:
            return _read(entry, key)
        except FileNotFoundError:
            return None
        except (AttnError, OSError, ValueError) as error:
            problem = reason(error) if isinstance(error, OSError | ValueError) else str(error)
            warn(f"the cache entry {entry} is not used: {problem}")
            return None

    def put(self, key: Key, data: bytes) -> Path | None:
        """Stores a bundle file, replacing an old one; returns the entry, or None with a warning."""
        target = self.directory(key)
        if target is None or not self._is_trusted(target):
            return None
        try:
            self._make_folders(target.parent)
            temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
            try:
                (temporary / BUNDLE_FILE).write_bytes(data)
                (temporary / KEY_FILE).write_text(_key_text(key, data))
                if os.path.lexists(target):
                    old = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
                    os.rename(target, old / "entry")
                    shutil.rmtree(old, ignore_errors=True)
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        except OSError as error:
            warn(f"the kernel is not kept in {self.root}: {reason(error)}")
            return None
        _remove_leftovers(target.parent)
        return target

    def get_or_make(self, key: Key, make: Callable[[], bytes]) -> tuple[Bundle, bool]:
        """The cached bundle or a new one, and whether it was a hit.

        Args:
          make: returns the bytes of the bundle file; called at most once, by one process at a time.
        """
        if (bundle := self.get(key)) is not None:
            return bundle, True
        with self._locked(key):
            if (bundle := self.get(key)) is not None:
                return bundle, True
            bundle = Bundle.from_bytes(make())
            entry = self.put(key, bundle.data)
            path = entry / BUNDLE_FILE if entry is not None else None
            return dataclasses.replace(bundle, path=path), False

    def hash_of(self, program: Path) -> str:
        """The hash of a program's contents, which is shared by processes through this cache.

        Raises:
          OSError: there is no such file.
        """
        return remembered_hash(program, self._hash_folder)

    def _hash_folder(self) -> Path | None:
        """The folder for hashes of programs, created if necessary; None if nothing is cached."""
        if self.root is None:
            return None
        folder = self.root / HASH_FOLDER
        with contextlib.suppress(OSError):
            if self._is_trusted(folder):
                self._make_folders(folder)
                return folder
        return None

    def _locked(self, key: Key) -> contextlib.AbstractContextManager[object]:
        """Holds the key's lock; if locking is impossible, several processes may compile."""
        entry = self.directory(key)
        if entry is None or not self._is_trusted(entry):
            return contextlib.nullcontext()
        try:
            self._make_folders(entry.parent)
        except OSError:  # `put` will warn
            return contextlib.nullcontext()
        return Lock(entry.with_name(entry.name + LOCK_SUFFIX), self.lock_seconds)

    def _is_trusted(self, entry: Path) -> bool:
        """Whether no other user can write to the entry and the folders above it, up to the root."""
        for path in self._down_to(entry):
            try:
                problem = distrust(path)
            except FileNotFoundError:
                return True
            except (OSError, ValueError) as error:
                problem = reason(error)
            if problem is not None:
                warn(f"the cache {self.root} is not used, at {path}: {problem}")
                return False
        return True

    def _down_to(self, folder: Path) -> list[Path]:
        """The folders from the root down to `folder`."""
        assert self.root is not None
        inner = folder.relative_to(self.root).parts
        return [self.root.joinpath(*inner[:count]) for count in range(len(inner) + 1)]

    def _make_folders(self, folder: Path) -> None:
        """Makes a folder of the cache, for its owner only; folders above the root as usual."""
        assert self.root is not None
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for path in self._down_to(folder):
            path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def _key_text(key: Key, data: bytes) -> str:
    """The contents of `key.json` for an entry with this bundle file."""
    fields = {**key.fields, "sha256": hashlib.sha256(data).hexdigest()}
    return json.dumps(fields, sort_keys=True, indent=1) + "\n"


def _read(entry: Path, key: Key) -> Bundle:
    """The bundle of an entry.

    Raises:
      OSError, ValueError: it cannot be read, or is for another key.
      AttnError: it is damaged.
    """
    data = read_regular(entry / BUNDLE_FILE, MAX_BUNDLE_BYTES)
    key_text = read_regular(entry / KEY_FILE, MAX_KEY_BYTES)
    if key_text != _key_text(key, data).encode():
        raise ValueError(f"{KEY_FILE} is not that of this kernel and this {BUNDLE_FILE}")
    return Bundle.from_bytes(data, path=entry / BUNDLE_FILE, is_checked=True)


def _remove_leftovers(folder: Path) -> None:
    """Removes temporary folders of processes that were killed while they wrote an entry."""
    remove_leftovers(folder, lambda name: name.startswith((".new-", ".old-")), LEFTOVER_SECONDS)
    remove_old_locks(folder, LEFTOVER_SECONDS)
