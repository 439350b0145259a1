"""Compiled kernels kept on disk: `<root>/<version>/<arch>/<sha256 of the key>/`.

An entry is a directory with `kernel.attn` (a bundle file) and `key.json` (what was asked, for
people). It appears by one rename, so that a reader sees all of it or nothing; a lock per key keeps
two processes from compiling the same kernel at once. A damaged entry is a miss and a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attn_mlir import env
from attn_mlir.errors import AttnError
from attn_mlir.runtime.bundle import Bundle

BUNDLE_FILE = "kernel.attn"
KEY_FILE = "key.json"


@dataclass(frozen=True)
class Key:
    """What a compiled kernel depends on.

    Attributes:
      version: of attn-mlir.
      target: the chip.
      parts: everything else that changes the code, by name.
    """

    version: str
    target: str
    parts: Mapping[str, str]

    def canonical_json(self) -> str:
        """The same text for the same key."""
        fields = {"version": self.version, "target": self.target, "parts": dict(self.parts)}
        return json.dumps(fields, sort_keys=True, indent=1)

    def digest(self) -> str:
        """sha256 of the canonical text, in hex."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


def default_root() -> Path:
    """`$XDG_CACHE_HOME/attn-mlir`, else `~/.cache/attn-mlir`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "attn-mlir"


@dataclass(frozen=True)
class Cache:
    """A cache below `root`; nothing is made on disk before something is kept."""

    root: Path

    def directory(self, key: Key) -> Path:
        """Where a key's entry lies, whether it exists or not."""
        return self.root / key.version / key.target / key.digest()

    def get(self, key: Key) -> Bundle | None:
        """The bundle that was kept for a key, or None."""
        path = self.directory(key) / BUNDLE_FILE
        if not path.is_file():
            return None
        try:
            return Bundle.load(path)
        except AttnError as error:
            env.log("warning", f"the cache entry {path.parent} is not used: {error}")
            return None

    def put(self, key: Key, data: bytes) -> Path | None:
        """Keep a bundle file, in place of what was there; the entry, or None with a warning."""
        target = self.directory(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
            try:
                (temporary / BUNDLE_FILE).write_bytes(data)
                (temporary / KEY_FILE).write_text(key.canonical_json() + "\n")
                if target.exists():
                    old = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
                    os.rename(target, old / "entry")
                    shutil.rmtree(old, ignore_errors=True)
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        except OSError as error:
            env.log("warning", f"the kernel is not kept in {self.root}: {error}")
            return None
        return target

    def get_or_make(self, key: Key, make: Callable[[], bytes]) -> tuple[Bundle, bool]:
        """The kept bundle, or a new one; and whether it was a hit.

        Args:
          make: gives the bytes of the bundle file; called at most once, by one process at a time.
        """
        if (bundle := self.get(key)) is not None:
            return bundle, True
        with self._locked(key):
            if (bundle := self.get(key)) is not None:
                return bundle, True
            data = make()
            entry = self.put(key, data)
            path = entry / BUNDLE_FILE if entry is not None else None
            return Bundle.from_bytes(data, path=path), False

    @contextlib.contextmanager
    def _locked(self, key: Key) -> Generator[None]:
        """Hold the key's lock; where a file system has no locks, two processes both compile."""
        path = self.directory(key).with_suffix(".lock")
        try:
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("w")
        except (ImportError, OSError):
            yield
            return
        with stream:
            with contextlib.suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield
