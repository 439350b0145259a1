"""How much memory and time a case may take."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from collections.abc import Generator
from pathlib import Path


def address_space(beyond: int) -> int:
    """Bytes of address space that the process uses now, plus `beyond`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize() + beyond


@contextlib.contextmanager
def time_limit(seconds: int) -> Generator[None]:
    """Ends a case that hangs, where the process lets us.

    Raises:
      TimeoutError: in the case.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"the case takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
