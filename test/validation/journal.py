"""Results on disk, so that a long run that was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Journal:
    """Results in a file, each found by the texts that name it. A result is forgotten when a source that judges changes.

    Args:
      path: a line of JSON for each result, made when missing.
      judges: folders whose Python files decide what the results are.
    """

    def __init__(self, path: Path, judges: Sequence[Path]):
        self.path = path
        digest = hashlib.sha256()
        for folder in judges:
            for source in sorted(folder.rglob("*.py")):
                digest.update(source.read_bytes())
        self._judges = digest.hexdigest()
        self._known: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._known.update(json.loads(line) for line in path.read_text().splitlines())

    def _key(self, of: tuple[str, ...]) -> str:
        return hashlib.sha256("\n".join((self._judges, *of)).encode()).hexdigest()

    def find(self, *of: str) -> dict[str, Any] | None:
        """The result that was added under these texts with the sources as they are, or None."""
        return self._known.get(self._key(of))

    def add(self, fields: dict[str, Any], *of: str) -> None:
        """Adds a result under the texts that name it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps([self._key(of), fields]) + "\n")
