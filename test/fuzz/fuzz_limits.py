"""How much memory a case may take."""

from __future__ import annotations

import resource
from pathlib import Path


def address_space(beyond: int) -> int:
    """Bytes of address space: those that the process has, and so many more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize() + beyond
