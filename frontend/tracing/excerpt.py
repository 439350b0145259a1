"""Messages that point at a line of the user's source, with the line and a caret below it."""

from __future__ import annotations

import inspect
import itertools
import linecache
import types
from collections.abc import Container
from typing import NamedTuple


class Spot(NamedTuple):
    """A place in Python code: the line, and the bytecode offset there, -1 where unknown."""

    code: types.CodeType
    line: int
    offset: int = -1


def spot_of_caller(codes: Container[types.CodeType]) -> Spot | None:
    """Where the innermost of these functions that is being executed stands."""
    frame = inspect.currentframe()  # the call stack is where the line is
    while frame is not None:
        if frame.f_code in codes:
            return Spot(frame.f_code, frame.f_lineno, frame.f_lasti)
        frame = frame.f_back
    return None


def spot_of_error(error: BaseException, codes: Container[types.CodeType]) -> Spot | None:
    """Where in the innermost of these functions an exception was raised or passed through."""
    spot = None
    trail = error.__traceback__
    while trail is not None:
        if trail.tb_frame.f_code in codes:
            spot = Spot(trail.tb_frame.f_code, trail.tb_lineno, trail.tb_lasti)
        trail = trail.tb_next
    return spot


def located(message: str, spot: Spot | None) -> str:
    """`file:line: message`, then the line and carets below the expression where it is known."""
    if spot is None:
        return message
    text = f"{spot.code.co_filename}:{spot.line}: {message}"
    line = linecache.getline(spot.code.co_filename, spot.line).rstrip()
    if not line.strip():
        return text
    indent = len(line) - len(line.lstrip())
    text += f"\n    {line.lstrip()}"
    if spot.offset < 0:
        return text
    positions = next(itertools.islice(spot.code.co_positions(), spot.offset // 2, None), None)
    if positions is None or None in positions or positions[0] != spot.line:
        return text
    begin = positions[2] or 0
    end = (positions[3] or 0) if positions[1] == spot.line else len(line)
    return f"{text}\n    {' ' * (begin - indent)}{'^' * max(end - begin, 1)}"
