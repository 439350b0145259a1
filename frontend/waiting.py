"""Says on stderr what a caller waits for; a leaf.

On a terminal a line tells of work that takes longer than a second, counts its seconds, and goes
when it ends. Elsewhere, and besides, `ATTN_MLIR_LOG=info` gives one line when the work begins.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator

from attn_mlir import env

PATIENCE_SECONDS = 1.0  # from the begin of work to the first line, and from one to the next

_shown = threading.Lock()  # held while a line is shown: work within work has none of its own


@contextlib.contextmanager
def waiting_for(what: str, state: Callable[[], str] = str) -> Generator[None]:
    """A context in which work is done for which the caller waits.

    Args:
      what: the work, such as `compiling attn_mha_causal_bf16_h16k16_d128 for sm_90a`.
      state: returns how far it is, in words; called from another thread.
    """
    env.log("info", what)
    if not _on_terminal() or not _shown.acquire(blocking=False):
        yield
        return
    done = threading.Event()
    writer = threading.Thread(target=_write_line, args=(what, state, done), daemon=True)
    try:
        writer.start()
        yield
    finally:
        done.set()
        writer.join()
        _shown.release()


def _on_terminal() -> bool:
    stream: object = sys.stderr  # None where a program has no window
    return stream is not None and sys.stderr.isatty()


def _write_line(what: str, state: Callable[[], str], done: threading.Event) -> None:
    """Writes the line anew each second, and blanks it at the end."""
    start, written = time.monotonic(), 0
    while not done.wait(PATIENCE_SECONDS):
        line = f"attn-mlir: {what}, {time.monotonic() - start:.0f} s"
        line = ", ".join(filter(None, (line, state())))
        line = line[: shutil.get_terminal_size().columns - 1]  # a longer one cannot be taken back
        _write("\r" + line.ljust(written))
        written = len(line)
    if written:
        _write("\r" + " " * written + "\r")


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed stream stops no work
        sys.stderr.write(text)
        sys.stderr.flush()
