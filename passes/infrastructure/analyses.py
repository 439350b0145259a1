"""Results of analyses that outlive the pass that asked for them, as long as nothing has changed.

`ws-verify-rings` proves the rings and `ws-plan-memory` needs the runs of that proof: whoever comes
first makes it, and it is kept until a pass that rewrites the module has run.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")
_Kept = list[tuple[Callable[[Any], Any], Any, Any]]  # analysis, operation, result

_current: ContextVar[_Kept | None] = ContextVar("analyses", default=None)


@contextmanager
def kept() -> Generator[None]:
    """Keeps results while passes run; within another one, that one's."""
    if _current.get() is not None:
        yield
        return
    token = _current.set([])
    try:
        yield
    finally:
        _current.reset(token)


def forget() -> None:
    """Drops all results: something has been rewritten."""
    if (found := _current.get()) is not None:
        found.clear()


def analysed(analysis: Callable[[Any], _T], op: Any) -> _T:
    """What an analysis says of an operation, from the last time if nothing has changed since.

    Args:
      analysis: a function of the operation alone; what it raises is not kept.
      op: the operation.
    """
    found = _current.get()
    for known, operation, result in found or ():
        if known is analysis and operation == op.operation:
            return result
    result = analysis(op)
    if found is not None:
        found.append((analysis, op.operation, result))
    return result
