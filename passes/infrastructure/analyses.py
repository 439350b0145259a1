"""A cache of analyses from pass to pass, until a pass changes the module.

`ws-verify-rings` proves the rings and `ws-plan-memory` needs the runs of that proof: the first of
them computes the proof, the other one reuses it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")
_Cache = list[tuple[Callable[[Any], Any], Any, Any]]  # analysis, operation, result

_current: ContextVar[_Cache | None] = ContextVar("analyses", default=None)


@contextmanager
def cached() -> Generator[None]:
    """A context with a cache of results; nested contexts share the outer cache."""
    if _current.get() is not None:
        yield
        return
    token = _current.set([])
    try:
        yield
    finally:
        _current.reset(token)


def forget(op: Any = None) -> None:
    """Drops results: all, after a rewrite, or those of an operation that is about to be erased."""
    if (results := _current.get()) is not None:
        results[:] = [entry for entry in results if op is not None and entry[1] != op.operation]


def analysed(analysis: Callable[[Any], _T], op: Any) -> _T:
    """The result of an analysis of an operation, from the cache if it is there.

    Args:
      analysis: a function of the operation alone; errors are not cached.
      op: the operation.
    """
    results = _current.get()
    for cached_analysis, operation, result in results or ():
        if cached_analysis is analysis and operation == op.operation:
            return result
    result = analysis(op)
    if results is not None:
        results.append((analysis, op.operation, result))
    return result
