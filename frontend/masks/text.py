"""Masks as text, for command lines: `causal`, `window:127,0`, `causal&chunked:512`, `~(a|b)`.

    mask   = part { "|" part }
    part   = factor { "&" factor }
    factor = "~" factor | "(" mask ")" | name [ ":" number { "," number } ]
    number = digits | "inf"

The text of a mask, `str(mask)`, is what `parse_mask` reads. Python's names are read as well:
`sliding_window:127`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Generator
from typing import cast

from attn_mlir.dialect.attn.masks import Kind, Mask, public
from attn_mlir.errors import SpecError, no_kernel, shown

MAX_DIGITS = 10  # of a number
MAX_DEPTH = 64  # of nested ~ and ( )

_TOKEN = re.compile(r"\s*(?:(?P<sign>[&|~()])|(?P<name>[a-z_]+)(?::(?P<numbers>[0-9a-z,]*))?)")


def allowed() -> str:
    """The syntax of masks as text."""
    return f"{', '.join(kind.usage for kind in public())}, joined by &, |, ~ and ( )"


def examples() -> str:
    """Masks as text, for the help of a command."""
    texts = [
        f"{kind.example} ({kind.note})" if kind.note else str(kind.example) for kind in public()
    ]
    return f"such as {', '.join(texts)}, a&b, a|b, ~a"


def parse_mask(text: str) -> Mask:
    """Parses the text of a mask.

    Raises:
      SpecError: no mask; the message quotes the text and lists what is allowed.
    """
    if not isinstance(cast(object, text), str):
        raise SpecError(f"mask must be text, got {shown(text)}: supported are {allowed()}")
    return _parsed(text)


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Mask:
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
        kind = None if token is None else self._kind(token["name"])
        if token is None or kind is None or kind.make is None:
            raise self._error()
        words = [] if token["numbers"] is None else token["numbers"].split(",")
        numbers = [self._number(word) for word in words]
        if len(numbers) not in kind.counts:
            raise self._error()
        self._token = self._next()
        return kind.make(*numbers)

    def _kind(self, name: str) -> Kind | None:
        """The entry of the mask with this name."""
        return next((kind for kind in public() if name in kind.names), None)

    @contextlib.contextmanager
    def _deeper(self) -> Generator[None]:
        """A context one level of `~` or `( )` deeper; refuses too deep nesting."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"it is nested more than {MAX_DEPTH} deep")
        yield
        self._depth -= 1

    def _number(self, word: str) -> int | None:
        if word == "inf":
            return None
        if not word.isdecimal() or len(word) > MAX_DIGITS:
            raise self._error()
        return int(word)

    def _error(self, reason: str = "") -> SpecError:
        reason = reason or f"supported are {allowed()}"
        return SpecError(no_kernel(f"mask {shown(self._text)}", reason))
