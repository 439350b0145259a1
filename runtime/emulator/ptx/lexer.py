"""PTX text to tokens.

A word is an identifier, an opcode or a directive with all of its dot and `::` parts, so that
`tcgen05.wait::ld.sync.aligned` and `.shared::cta` are one token each.
"""

import re
from typing import Any, NamedTuple

from .errors import PtxError

_TOKEN = re.compile(
    r"""
    [ \t\r]*(?:
    (?P<word>[.%$A-Za-z_][\w$]*(?:(?:\.|::)[\w$]+)*)
  | (?P<mark>[{}()\[\]<>,;:@!+\-|=*])
  | (?P<lines>\n[ \t\r\n]*)
  | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
             |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<string>"[^"]*")
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<end>\Z)
  | (?P<wrong>.)
    )
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """One token: kind is "word", "int", "float", "string", "mark" or "end"."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """All tokens of a PTX text, closed by one of kind "end".

    Raises:
      PtxError: a character that starts no token.
    """
    tokens: list[Token] = []
    line = 1
    new: Any = tuple.__new__  # pyright: ignore  # quicker by a third
    for match in _TOKEN.finditer(text):
        kind: Any = match.lastgroup
        body = match[kind]
        if kind in ("lines", "comment"):
            line += body.count("\n")
        elif kind == "wrong":
            raise PtxError.at(text, line, f"unexpected character {body!r}")
        elif kind != "end":
            tokens.append(new(Token, (kind, body, line)))
    tokens.append(Token("end", "", line))
    return tokens
