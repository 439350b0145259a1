"""A kernel to segments, each one generated Python function over lane arrays.

A segment is a run of instructions without a jump into it and with at most one place, its start,
where a strand may block: so a strand's position is always the number of a segment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from attn_mlir.errors import LaunchError

from ..isa import registry
from ..isa.targets import check_target
from ..machine.faults import Fault
from .ast import Instruction, Kernel, Module
from .cfg import EXIT, Graph, branch_targets, build_graph, is_exit
from .emit import FINISHED, Emitter
from .errors import source_line
from .kinds import zeros
from .normal import normal_registers
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
    """A compiled segment: `ptx_lines[i]` is the PTX line of its Python line i + 2."""

    function: SegmentFunction
    ptx_lines: list[int]
    source: str


class Program:
    """One kernel, translated on demand.

    Attributes:
      segments: all segments in text order; execution starts at segment 0.
      counts: instructions in each segment.
      sources: texts of the source files that the PTX names, for messages.
      initial: the registers of a new warp (a list to copy).
      full, masked: the functions by segment for all lanes active and for some; None until used.
      marks: registers, by instruction, of which the inspector is told when it reads them.
    """

    def __init__(self, module: Module, kernel: Kernel, marks: Mapping[int, str] | None = None):
        self.module = module
        self.kernel = kernel
        self.marks = marks or {}
        self.sources: Mapping[str, str] = {}
        self._boundaries: list[bool] = []
        for instruction in kernel.instructions:
            self._boundaries.append(registry.find(module.text, instruction).boundary)
            check_target(module.text, instruction, module.target)
        self.graph: Graph = build_graph(kernel)
        self.storage = choose_storage(kernel)
        self._normal = normal_registers(kernel)
        self.initial = [zeros(storage) for storage in self.storage]
        self.segments: list[Segment] = []
        self._segment_at: dict[int, int] = {}
        self._namespace: dict[str, Any] = dict(registry.RUNTIME)
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
        """What a PTX line was made from, such as `kernel.mlir:12: "ws.wait"(...)`, or nothing."""
        found = self.module.lines.of(line)
        if found is None:
            return ""
        file, number = found
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
        found = table[number]
        if found is None:
            generated = self._generate(self.segments[number], masked)
            found = table[number] = generated.function
        return found

    def ptx_line(self, code: CodeType, python_line: int) -> int | None:
        """The PTX line behind a line of generated code, or None for other code."""
        generated = self._generated.get(code.co_filename)
        if generated is None:
            return None
        return generated.ptx_lines[python_line - 2]

    def _generate(self, segment: Segment, masked: bool) -> Generated:
        emitter = Emitter(self.module.text, self.storage, self._normal, self._namespace, masked)
        code = self.kernel.instructions
        ended = False
        for at in range(segment.first, segment.last):
            instruction = code[at]
            is_last = at == segment.last - 1
            with emitter.instruction(instruction):
                if at in self.marks:
                    self._emit_mark(emitter, instruction, self.marks[at])
                if instruction.parts[0] in ("bra", "brx"):
                    assert is_last
                    self._emit_branch(emitter, instruction, segment, masked)
                    ended = True
                elif is_exit(instruction):
                    ended = self._emit_exit(emitter, instruction, segment)
                else:
                    self._emit_plain(emitter, instruction)
        if not ended:
            emitter.line(f"return {self._next(segment)}")
        name = f"<ptx {self.kernel.name} {segment.number}{'m' if masked else ''}>"
        source = "\n".join(["def segment(s, R):", *emitter.lines]) + "\n"
        scope: dict[str, Any] = {}
        exec(compile(source, name, "exec"), self._namespace, scope)
        generated = Generated(scope["segment"], emitter.ptx_lines, source)
        self._generated[name] = generated
        return generated

    @staticmethod
    def _emit_mark(emitter: Emitter, instruction: Instruction, names: str) -> None:
        text = f"read_unwritten(s, {names!r})"
        if instruction.guard is not None and instruction.guard.name in names.split(", "):
            emitter.line(text)  # whatever the guard happens to be
        else:
            with emitter.effect():
                emitter.line(text)

    def _emit_plain(self, emitter: Emitter, instruction: Instruction) -> None:
        entry = registry.find(self.module.text, instruction)
        emitter.may_block = entry.boundary
        try:
            entry.emit(emitter, instruction)
        except Fault as fault:  # of a rule of the machine that the opcode alone breaks
            raise emitter.error(str(fault)) from fault
        except LaunchError:
            raise
        except Exception as error:  # an emitter sees the instruction alone: its operands are wrong
            count = len(instruction.operands)
            raise emitter.error(
                f"'{instruction.opcode}' does not take these {count} operands"
            ) from error

    def _next(self, segment: Segment) -> str:
        number = self.segment_of(segment.last)
        return "exit_lanes(s, None)" if number == NO_SEGMENT else str(number)

    def _emit_exit(self, emitter: Emitter, instruction: Instruction, segment: Segment) -> bool:
        head = instruction.parts[0]
        leave = f"trap(s, {instruction.line})" if head == "trap" else None
        if instruction.guard is None:
            emitter.line(f"return {leave or 'exit_lanes(s, None)'}")
            return True
        with emitter.effect():
            emitter.line(leave or f"if exit_lanes(s, {emitter.k}) == {FINISHED}: return {FINISHED}")
        # Lanes that stay go on in the masked form, from the start of the next segment.
        emitter.line(f"return {self._next(segment)}")
        return True

    def _emit_branch(
        self, emitter: Emitter, instruction: Instruction, segment: Segment, masked: bool
    ) -> None:
        targets = [self.segment_of(at) for at in branch_targets(self.kernel, instruction)]
        blocks = self.graph.blocks
        meet = blocks[segment.block].reconvergence
        meet_segment = NO_SEGMENT if meet == EXIT else self.segment_of(blocks[meet].first)
        if instruction.parts[0] == "brx":
            index = emitter.src(instruction.operands[0], "u32")
            after = self.segment_of(segment.last) if instruction.guard is not None else NO_SEGMENT
            emitter.line(
                f"return branch_indexed(s, {emitter.k}, {index}, {tuple(targets)}, {after}, "
                f"{meet_segment})"
            )
            return
        taken = targets[0]
        if instruction.guard is None:
            emitter.line(f"return {taken}" if taken >= 0 else "return exit_lanes(s, None)")
            return
        other = self.segment_of(segment.last)
        emitter.line("b = g.tobytes()")
        full = "s.lane_bytes" if masked else "ALL_BYTES"
        for condition, goal in ((f"b == {full}", taken), ("b == NO_BYTES", other)):
            leave = str(goal) if goal >= 0 else "exit_lanes(s, None)"
            emitter.line(f"if {condition}: return {leave}")
        emitter.line(f"return diverge(s, g, {taken}, {other}, {meet_segment})")
