"""Which line of which source file a PTX line was made from: what `.file` and `.loc` say."""

from bisect import bisect_right
from dataclasses import dataclass, field

_BEGIN, _END = "// begin inline asm", "// end inline asm"  # as LLVM writes them


def inline_assembly(text: str) -> frozenset[int]:
    """The PTX lines of inline assembly.

    LLVM counts source lines on while it prints the lines of an inline assembly statement: a `.loc`
    in there names no line that the statement came from. It was named before the statement.
    """
    positions: list[int] = []
    is_inside = False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        is_inside = stripped == _BEGIN or (is_inside and stripped != _END)
        if is_inside:
            positions.append(number)
    return frozenset(positions)


@dataclass(slots=True)
class SourceLines:
    """The line table of a PTX text.

    Attributes:
      files: file names by the number that `.file` gives them.
      marks: (PTX line, file number, source line) of every `.loc`, in the order of the text. A mark
        holds up to the next one; source line 0 is for code without a source (PTX ISA, `.loc`).
    """

    files: dict[int, str] = field(default_factory=dict[int, str])
    marks: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def mark(self, ptx_line: int, file: int, line: int) -> None:
        """From a PTX line on, code comes from a line of a file."""
        self.marks.append((ptx_line, file, line))

    def of(self, ptx_line: int) -> tuple[str, int] | None:
        """File name and 1-based line behind a PTX line, or None where there is none."""
        number = bisect_right(self.marks, ptx_line, key=lambda mark: mark[0]) - 1
        if number < 0:
            return None
        _, file, line = self.marks[number]
        return (self.files[file], line) if line and file in self.files else None
