"""Statements beside the program: what is for the debugger, and pragmas."""

from .cursor import Cursor
from .lines import SourceLines, inline_assembly

SKIPPED_STATEMENTS = frozenset((".section", ".pragma", ".alias"))  # .pragma: in front of kernels
LINE_STATEMENTS = frozenset((".loc", ".file"))
_USED_BYTES = "used_bytes_mask"


class DebugDirectives:
    """Parses them.

    Args:
      cursor: behind their first word.
      lines: what they say about the source is added here.
    """

    def __init__(self, cursor: Cursor, lines: SourceLines):
        self._cursor = cursor
        self._lines = lines
        self._inline = inline_assembly(cursor.text)

    def skip(self) -> None:
        """Skip a debug or pragma directive: to ';', over its block, or to the end of its line.

        The block of a `.section` may begin on the next line.
        """
        cursor = self._cursor
        directive = cursor.tokens[cursor.at - 1]
        has_block = directive.text == ".section"
        while cursor.tokens[cursor.at].kind != "end":
            if cursor.tokens[cursor.at].line != directive.line and not (
                has_block and cursor.peek() == "{"
            ):
                return
            text = cursor.next().text
            if text == ";":
                return
            if text == "{":
                depth = 1
                while depth:
                    text = cursor.next().text
                    depth += (text == "{") - (text == "}")
                return

    def pragma(self) -> int | None:
        """The mask of a pragma `used_bytes_mask`, of a load's bytes; None of other pragmas."""
        used: int | None = None
        while not self._cursor.accept(";"):
            token = self._cursor.next()
            name, _, mask = token.text.strip('"').partition(" ")
            if name != _USED_BYTES:
                continue
            try:
                used = int(mask, 0)
            except ValueError:
                used = -1
            if used not in range(1 << 32):
                raise self._cursor.error(
                    f"{_USED_BYTES} takes an integer of 32 bits, got '{mask}'", token
                )
        return used

    def line(self) -> None:
        """A `.file` or `.loc`: the source of the statements that follow."""
        cursor = self._cursor
        directive = cursor.tokens[cursor.at - 1]
        number = cursor.integer()
        lines = self._lines
        if directive.text == ".file":
            lines.files[number] = cursor.next().text.strip('"')
        elif directive.line not in self._inline:
            lines.mark(directive.line, number, cursor.integer())
        while cursor.tokens[cursor.at].line == directive.line and cursor.peek() not in ("", "}"):
            cursor.next()  # a file's time and size, a column, what an inlined function says
