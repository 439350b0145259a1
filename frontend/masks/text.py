"""Masks as text, for command lines: `causal`, `window:127,0`, `causal&chunked:512`, `~(a|b)`.

    mask   = part { "|" part }
    part   = factor { "&" factor }
    factor = "~" factor | "(" mask ")" | name [ ":" number { "," number } ]
    number = digits | "inf"

The text of a mask, `str(mask)`, is what `parse_mask` reads. Python's names are read as well: `sliding_window:127`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator
from typing import cast

from attn_mlir.dialect.attn.masks import PYTHON_NAMES
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask, causal, chunked, full, prefix_lm, sliding_window

ALLOWED = "full, causal, window:LEFT or window:LEFT,RIGHT, chunked:SIZE, prefix:LENGTH, joined by &, |, ~ and ( )"

MAX_DIGITS = 10  # of a number
MAX_DEPTH = 64  # of nested ~ and ( )

_TOKEN = re.compile(r"\s*(?:(?P<sign>[&|~()])|(?P<name>[a-z_]+)(?::(?P<numbers>[0-9a-z,]*))?)")
_NAMES: dict[
    str, tuple[tuple[int, ...], Callable[..., Mask]]
] = {  # names, with their numbers of parameters
    "null": ((0,), full),
    "causal": ((0,), causal),
    "window": ((1, 2), sliding_window),
    "chunked": ((1,), chunked),
    "prefix": ((1,), prefix_lm),
}
_NAMES.update({name: _NAMES[keyword] for name, keyword in PYTHON_NAMES.items()})


def parse_mask(text: str) -> Mask:
    """Parses the text of a mask.

    Raises:
      SpecError: no mask; the message quotes the text and lists what is allowed.
    """
    if not isinstance(cast(object, text), str):
        raise SpecError(f"mask must be text, got {shown(text)}: supported are {ALLOWED}")
    return _Parser(text).parse()


class _Parser:
    """A recursive-descent parser for one text."""

    def __init__(self, text: str):
        self._text = text
        self._at = 0
        self._depth = 0
        self._token = self._next()

    def parse(self) -> Mask:
        """The whole text."""
        mask = self._union()
        if self._token is not None or self._text[self._at :].strip():
            raise self._error()
        return mask

    def _next(self) -> re.Match[str] | None:
        match = _TOKEN.match(self._text, self._at)
        self._at = self._at if match is None else match.end()
        return match

    def _takes(self, sign: str) -> bool:
        """Consumes the next token if it is this sign; returns whether it was."""
        if self._token is None or self._token["sign"] != sign:
            return False
        self._token = self._next()
        return True

    def _union(self) -> Mask:
        mask = self._intersection()
        while self._takes("|"):
            mask = mask | self._intersection()
        return mask

    def _intersection(self) -> Mask:
        mask = self._factor()
        while self._takes("&"):
            mask = mask & self._factor()
        return mask

    def _factor(self) -> Mask:
        if self._takes("~"):
            with self._deeper():
                return ~self._factor()
        if self._takes("("):
            with self._deeper():
                mask = self._union()
            if not self._takes(")"):
                raise self._error()
            return mask
        token = self._token
        if token is None or token["name"] not in _NAMES:
            raise self._error()
        counts, make = _NAMES[token["name"]]
        words = [] if token["numbers"] is None else token["numbers"].split(",")
        numbers = [self._number(word) for word in words]
        if len(numbers) not in counts:
            raise self._error()
        self._token = self._next()
        return make(*numbers)

    @contextlib.contextmanager
    def _deeper(self) -> Generator[None]:
        """A context one level of `~` or `( )` deeper; refuses too deep nesting."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SpecError(
                f"mask {shown(self._text)} has no kernel: it is nested more than {MAX_DEPTH} deep"
            )
        yield
        self._depth -= 1

    def _number(self, word: str) -> int | None:
        if word == "inf":
            return None
        if not word.isdecimal() or len(word) > MAX_DIGITS:
            raise self._error()
        return int(word)

    def _error(self) -> SpecError:
        return SpecError(f"mask {shown(self._text)} has no kernel: supported are {ALLOWED}")
