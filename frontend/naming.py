"""Errors that name the arguments of a call as its caller does.

A function with another library's names passes its arguments on under ours, and a kernel has names for
what lies in a cache. What refuses an argument knows the name that it got; the one who called is told
the name that was written.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.errors import SpecError


def in_words(message: str, names: Mapping[str, str]) -> str:
    """A message with the caller's names in the place of others, wherever they are whole words."""
    if not names:
        return message
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"\b(?:{words})\b", lambda found: names[found[0]], message)


def rename(error: SpecError, names: Mapping[str, str]) -> None:
    """Puts the caller's names into an error, which is to be raised on.

    Args:
      names: the caller's name of an argument, by the name under which it was refused.
    """
    error.args = (in_words(str(error), names),)


def renamed(function: Callable[..., Any], **names: str) -> Callable[..., Any]:
    """A function whose caller has other names for its arguments.

    Its messages must not use these names as words of another meaning.

    Args:
      names: the caller's name of an argument, by the function's own.
    """

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except SpecError as error:
            rename(error, names)
            raise

    return call
