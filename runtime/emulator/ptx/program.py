"""A kernel as segments: where each begins, and the functions that execute them once they are made.

A segment is a run of instructions without a jump into it and with at most one place, its start,
where a context may block: so a context's position is always the number of a segment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .ast import Kernel, Module
from .cfg import Graph, build_graph
from .errors import source_line
from .kinds import zeros
from .storage import choose_storage

SegmentFunction = Callable[[Any, list[Any]], int]
NO_SEGMENT = -9  # where lanes never meet: they leave the kernel first


@dataclass(slots=True)
class Segment:
    """Instructions [first, last); `after` is the segment that follows in the text."""

    number: int
    first: int
    last: int
    block: int
    line: int


@dataclass(slots=True)
class Generated:
    """A compiled segment: `ptx_lines[i]` is the PTX line of line i + 2 of file `name`."""

    name: str
    function: SegmentFunction
    ptx_lines: list[int]
    source: str


class Program(ABC):
    """One kernel; a subclass writes the functions of its segments (`generate`) on demand.

    Args:
      boundaries: whether each instruction begins a segment, though no jump may lead to it.

    Attributes:
      segments: all segments in text order; execution starts at segment 0.
      counts: instructions in each segment.
      sources: texts of the source files that the PTX names, for messages.
      initial: the registers of a new warp (a list to copy).
      full, masked: the functions by segment for all lanes active and for some; None until used.
      native: whether what runs it may use native code.
    """

    native = False

    def __init__(self, module: Module, kernel: Kernel, boundaries: Sequence[bool]):
        self.module = module
        self.kernel = kernel
        self.sources: Mapping[str, str] = {}
        self._boundaries = boundaries
        self.graph: Graph = build_graph(kernel)
        self.storage = choose_storage(kernel)
        self.initial = [zeros(storage) for storage in self.storage]
        self.segments: list[Segment] = []
        self._segment_at: dict[int, int] = {}
        self._split()
        count = len(self.segments)
        # An empty one leaves the kernel, which counts like the exit that nobody wrote there.
        self.counts = [max(1, segment.last - segment.first) for segment in self.segments]
        self.full: list[SegmentFunction | None] = [None] * count
        self.masked: list[SegmentFunction | None] = [None] * count
        self._generated: dict[str, Generated] = {}

    def _split(self) -> None:
        for number, block in enumerate(self.graph.blocks):
            start = block.first
            for at in range(block.first, block.last):
                if self._boundaries[at] and at > start:
                    self._add_segment(start, at, number)
                    start = at
            self._add_segment(start, block.last, number)

    def _add_segment(self, first: int, last: int, block: int) -> None:
        number = len(self.segments)
        code = self.kernel.instructions
        line = code[first].line if first < len(code) else self.kernel.line
        self._segment_at.setdefault(first, number)
        self.segments.append(Segment(number, first, last, block, line))

    def segment_of(self, position: int) -> int:
        """The segment that starts at an instruction index; the end of the text is NO_SEGMENT."""
        return self._segment_at.get(position, NO_SEGMENT)

    def line_text(self, line: int) -> str:
        """The PTX text of a line, stripped."""
        return source_line(self.module.text, line).strip()

    def origin(self, line: int) -> str:
        """The source of a PTX line, such as `kernel.mlir:12: "ws.wait"(...)`, or nothing."""
        source = self.module.lines.of(line)
        if source is None:
            return ""
        file, number = source
        text = source_line(self.sources.get(file, ""), number).strip()
        return f"{file}:{number}: {text}" if text else f"{file}:{number}"

    def translate_all(self) -> None:
        """Translate every segment in both forms (they are otherwise made when first run)."""
        for number in range(len(self.segments)):
            self.function(number, masked=False)
            self.function(number, masked=True)

    def function(self, number: int, masked: bool) -> SegmentFunction:
        """The function of a segment, made when it is first asked for.

        Raises:
          PtxError: an instruction cannot be translated.
        """
        table = self.masked if masked else self.full
        function = table[number]
        if function is None:
            generated = self.generate(self.segments[number], masked)
            self._generated[generated.name] = generated
            function = table[number] = generated.function
        return function

    def ptx_line(self, code: CodeType, python_line: int) -> int | None:
        """The PTX line behind a line of generated code, or None for other code."""
        generated = self._generated.get(code.co_filename)
        if generated is None:
            return None
        return generated.ptx_lines[python_line - 2]

    @abstractmethod
    def generate(self, segment: Segment, masked: bool) -> Generated:
        """The function of a segment for all lanes, or (masked) for some.

        Raises:
          PtxError: an instruction cannot be translated.
        """
