"""Results of analyses that are kept from pass to pass, until a pass changes the module.

`ws-verify-rings` proves the rings and `ws-plan-memory` needs the runs of that proof: whichever runs
first computes it, and the other one finds it here.
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
    """A context in which results are kept; a nested one shares the results of the outer one."""
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
    if (found := _current.get()) is not None:
        found[:] = [one for one in found if op is not None and one[1] != op.operation]


def analysed(analysis: Callable[[Any], _T], op: Any) -> _T:
    """The result of an analysis of an operation, computed only where it is not kept from before.

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
