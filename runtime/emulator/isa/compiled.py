"""Compiles statements once for all that differ only in numbers and bound values.

A kernel has hundreds of segments like one another: the same calls for other registers, constants
and goals. The compiler of Python takes longer for one than the emitters do. So numbers and names of
bound values become parameters of a function around the segment's, which is compiled once and called
for each.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from .families import RUNTIME

MOST_LINES = 16  # longer segments are seldom alike
_TOKEN = re.compile(r"'[^']*'|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\b\d+\b|[A-Za-z_]\w*")


def compiled(
    name: str, parameters: str, lines: list[str], namespace: dict[str, Any]
) -> Callable[..., Any]:
    """The function of some statements.

    Args:
      name: of its file: line i + 2 there is lines[i].
      parameters: of the function.
      namespace: its globals; those that are not in `RUNTIME` belong to one kernel.
    """
    if len(lines) > MOST_LINES:
        scope: dict[str, Any] = {}
        text = "\n".join([f"def segment({parameters}):", *lines, ""])
        exec(compile(text, name, "exec"), namespace, scope)
        return scope["segment"]
    values: list[Any] = []

    def token(match: re.Match[str]) -> str:
        text = match[0]
        if text.isdigit():
            values.append(int(text))
        elif text in namespace and text not in RUNTIME:
            values.append(namespace[text])
        else:
            return text
        return f"_{len(values)}"

    body = _TOKEN.sub(token, "\n".join(lines))
    function = _maker(parameters, body, len(values))(*values)
    function.__code__ = function.__code__.replace(co_filename=name, co_firstlineno=1)
    return function


@cache
def _maker(parameters: str, body: str, count: int) -> Callable[..., Any]:
    """Makes functions of statements in which _1, _2, ... stand for its arguments."""
    names = ", ".join(f"_{number + 1}" for number in range(count))
    inner = body.replace("\n", "\n ")
    scope: dict[str, Any] = {}
    text = f"def make({names}):\n def segment({parameters}):\n {inner}\n return segment\n"
    exec(compile(text, "<segments>", "exec"), RUNTIME, scope)
    return scope["make"]
