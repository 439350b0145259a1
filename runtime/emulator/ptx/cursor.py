"""A place in the tokens of a PTX text, and what is read there: single tokens and numbers."""

import struct
from collections.abc import Generator
from contextlib import contextmanager

from .ast import Imm
from .errors import PtxError
from .lexer import Token, tokenize

_MAX_DEPTH = 64  # braces within braces; more than any compiler writes, less than Python recurses
_MAX_DIGITS = 66  # of an integer: 0b and 64 bits


class Cursor:
    """Goes through the tokens of a text.

    Attributes:
      at: number of the current token.
      depth: levels of braces and operands around it.
    """

    def __init__(self, text: str):
        self.text = text
        self.tokens = tokenize(text)
        self.at = 0
        self.depth = 0

    def error(self, message: str, token: Token | None = None) -> PtxError:
        """A PtxError at a token (the current one when not given)."""
        return PtxError.at(self.text, (token or self.tokens[self.at]).line, message)

    def peek(self) -> str:
        return self.tokens[self.at].text

    def next(self) -> Token:
        token = self.tokens[self.at]
        if token.kind == "end":
            raise self.error("the text ends in the middle of a statement")
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.next()
        if token.text != text:
            raise self.error(f"expected '{text}', got '{token.text}'", token)
        return token

    @contextmanager
    def nested(self) -> Generator[None]:
        """Parses one level deeper.

        Raises:
          PtxError: that is too deep.
        """
        if self.depth == _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} levels of braces or operands")
        self.depth += 1
        yield
        self.depth -= 1

    def integer(self) -> int:
        negative = self.accept("-")
        token = self.next()
        if token.kind != "int":
            raise self.error(f"expected an integer, got '{token.text}'", token)
        value = self.integer_of(token)
        return -value if negative else value

    def integer_of(self, token: Token) -> int:
        """The value of an integer token: decimal, 0x, 0b, or octal with a leading 0."""
        text = token.text.rstrip("U")
        base = 8 if text[0] == "0" and text.isdigit() else 0
        try:
            value = int(text, base) if len(text) <= _MAX_DIGITS else 1 << 64
        except ValueError:
            raise self.error(f"'{token.text}' is no octal number", token) from None
        if value >> 64:
            raise self.error(f"'{token.text}' does not fit into 64 bits", token)
        return value

    def count(self, what: str, *, least: int = 1) -> int:
        """An integer that may not be less than `least`."""
        token = self.tokens[self.at]
        value = self.integer()
        if value < least:
            raise self.error(f"{what} must be at least {least}, got {value}", token)
        return value

    def number(self) -> Imm | None:
        """A numeric literal at the cursor, or None."""
        start = self.at
        negative = self.accept("-")
        token = self.tokens[self.at]
        if token.kind == "int":
            self.at += 1
            value = self.integer_of(token)
            return Imm(-value if negative else value)
        if token.kind == "float":
            self.at += 1
            text = token.text
            if text[:2] in ("0f", "0F", "0d", "0D"):
                width = 32 if text[1] in "fF" else 64
                bits = int(text[2:], 16)
                if negative:
                    bits ^= 1 << (width - 1)
                form = "<f" if width == 32 else "<d"
                raw = bits.to_bytes(width // 8, "little")
                return Imm(struct.unpack(form, raw)[0], bits, width)
            value = float(text)
            return Imm(-value if negative else value)
        self.at = start
        return None
