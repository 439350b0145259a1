"""`--verify-diagnostics`: compares the diagnostics of a test file with those it expects.

An expectation is a comment: `// expected-error @below {{text}}`. Kinds are error, warning, remark
and note; with `-re` the parts of the text in further braces are regular expressions, as in
`// expected-error-re @below {{got {{[0-9]+}} bytes}}`; the line is `@above`, `@below` (the nearest
line without an expectation), `@+2`, `@-1`, `@unknown`, or the line of the comment itself. The text
must occur in the message. Each diagnostic must be expected, and each expectation must be met.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attn_mlir.dialect.diagnostics import Diagnostic

_POSITION = r"[ \t]*(?:@(above|below|unknown|[+-]\d+))?[ \t]*"
_PATTERN = r"\{\{(.*?)\}\}(?=\}\}(?!\})|(?!\}))"  # a regular expression within the text
_EXPECTATION = re.compile(
    rf"expected-(error|warning|remark|note)"
    rf"(?:{_POSITION}\{{\{{(.*?)\}}\}}(?!\}})|-re{_POSITION}"
    rf"\{{\{{((?:\{{\{{.*?\}}\}}(?=\}}\}}(?!\}})|(?!\}}))|(?!\}}\}}(?!\}})).)*)\}}\}}(?!\}}))"
)


@dataclass(frozen=True)
class Expectation:
    """One `expected-*` comment.

    Attributes:
      severity: kind of the diagnostic.
      line: 1-based line on which it is expected, None for `@unknown`.
      text: what the message must hold, as it is written.
      is_regex: whether the parts of `text` in braces are regular expressions.
      written: line of the comment.
    """

    severity: str
    line: int | None
    text: str
    is_regex: bool
    written: int

    def accepts(self, diagnostic: Diagnostic) -> bool:
        """Whether a diagnostic is the expected one."""
        if diagnostic.severity != self.severity or line_of(diagnostic) != self.line:
            return False
        if self.is_regex:
            return re.search(_regex(self.text), diagnostic.message) is not None
        return self.text in diagnostic.message


def _regex(text: str) -> str:
    """The regular expression for a text whose parts in braces are regular expressions."""
    parts = re.split(_PATTERN, text)
    return "".join(f"(?:{p})" if n % 2 else re.escape(p) for n, p in enumerate(parts))


def line_of(diagnostic: Diagnostic) -> int | None:
    """Returns the 1-based line of a diagnostic; None without a location in the input."""
    match = re.fullmatch(r".*:(\d+):\d+", diagnostic.location or "")
    line = int(match.group(1)) if match else 0
    return line or None


def expectations(text: str) -> list[Expectation]:
    """Returns the expectations of a chunk, in order."""
    lines = text.splitlines()
    marked = {number for number, line in enumerate(lines, 1) if _EXPECTATION.search(line)}
    expected: list[Expectation] = []
    for number, line in enumerate(lines, 1):
        for match in _EXPECTATION.finditer(line):
            severity, position, message, regex_position, regex = match.groups()
            target = _target(position or regex_position, number, marked)
            text_of = message if regex is None else regex
            expected.append(Expectation(severity, target, text_of, regex is not None, number))
    return expected


def _target(position: str | None, line: int, marked: set[int]) -> int | None:
    """Returns the line that `@below`, `@+2` and the like mean, given the line of the comment."""
    if position is None:
        return line
    if position == "unknown":
        return None
    if position in ("above", "below"):
        step = 1 if position == "below" else -1
        line += step
        while line in marked:
            line += step
        return line
    return line + int(position)


def _flat(diagnostics: Sequence[Diagnostic]) -> Iterator[Diagnostic]:
    for diagnostic in diagnostics:
        yield diagnostic
        yield from _flat(diagnostic.notes)


def check(
    text: str, diagnostics: Sequence[Diagnostic], *, only_expected: bool = False
) -> list[Diagnostic]:
    """Compares a chunk's diagnostics with its expectations.

    Args:
      text: the chunk, with the line numbers that the diagnostics use.
      diagnostics: its diagnostics.
      only_expected: ignore diagnostics that no comment expects.

    Returns:
      One error per diagnostic that no comment expected and per expectation without a diagnostic;
      empty where all match.
    """
    waiting = expectations(text)
    complaints: list[Diagnostic] = []
    for diagnostic in _flat(diagnostics):
        match = next((item for item in waiting if item.accepts(diagnostic)), None)
        if match is not None:
            waiting.remove(match)
        elif not only_expected:
            message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
            complaints.append(Diagnostic("error", diagnostic.location, message))
    for item in waiting:
        message = f'expected {item.severity} "{item.text}" was not produced'
        complaints.append(Diagnostic("error", f"-:{item.written}:1", message))
    return complaints
