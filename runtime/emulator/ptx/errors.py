"""The error of a PTX text that the emulator cannot take."""

from functools import lru_cache

from attn_mlir.errors import LaunchError


class PtxError(LaunchError):
    """PTX text that is malformed, or that says something the emulator does not know.

    Attributes:
      line: 1-based line of the PTX text.
    """

    def __init__(self, message: str, *, line: int, text: str = ""):
        quoted = f"\n  {line:>5} | {text.strip()}" if text else ""
        super().__init__(f"PTX line {line}: {message}{quoted}")
        self.line = line

    @classmethod
    def at(cls, ptx_text: str, line: int, message: str) -> "PtxError":
        """The error that quotes a line of the PTX text."""
        return cls(message, line=line, text=source_line(ptx_text, line))


@lru_cache(maxsize=4)  # the findings of a kernel quote lines of one text
def _lines(text: str) -> list[str]:
    return text.splitlines()


def source_line(ptx_text: str, line: int) -> str:
    """Line number `line` (1-based) of a PTX text, or an empty string."""
    lines = _lines(ptx_text)
    return lines[line - 1] if 1 <= line <= len(lines) else ""
