"""Segments to Python functions over lane arrays, by the instruction table."""

from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.errors import LaunchError

from ..machine.faults import Fault
from ..native import Weaver, machine
from ..ptx.ast import Instruction, Kernel, Module
from ..ptx.cfg import EXIT, branch_targets, is_exit
from ..ptx.emit import FINISHED, Emitter
from ..ptx.normal import normal_registers
from ..ptx.program import NO_SEGMENT, Generated, Program, Segment
from . import registry
from .compiled import compiled
from .families import RUNTIME
from .targets import check_target


class Translation(Program):
    """A program whose functions come from the instruction table.

    Args:
      marks: registers, by instruction, of which the inspector is told when it reads them.
      native: arithmetic runs as native blocks where that is possible.

    Raises:
      PtxError: the table or the module's target has no such instruction.
    """

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        marks: Mapping[int, str] | None = None,
        *,
        native: bool = True,
    ):
        boundaries: list[bool] = []
        for instruction in kernel.instructions:
            boundaries.append(registry.find(module.text, instruction).boundary)
            check_target(module.text, instruction, module.target)
        super().__init__(module, kernel, boundaries)
        self._marks = marks or {}
        self._normal = normal_registers(kernel)
        self._namespace: dict[str, Any] = dict(RUNTIME)
        self.native = native
        self._weaver: Weaver | None = None
        if native and (target_machine := machine()) is not None:
            self._weaver = Weaver(
                target_machine, self.storage, self._namespace, self._compile_block
            )

    def generate(self, segment: Segment, masked: bool) -> Generated:
        emitter = Emitter(self.module.text, self.storage, self._normal, self._namespace, masked)
        code = self.kernel.instructions
        is_closed = False
        for at in range(segment.first, segment.last):
            instruction = code[at]
            is_last = at == segment.last - 1
            with emitter.instruction(instruction):
                if at in self._marks:
                    self._emit_mark(emitter, instruction, self._marks[at])
                if at in self.kernel.calls:
                    is_closed = self._emit_call(emitter, segment, at)
                elif at in self.kernel.ends:
                    emitter.line("return return_from(s)")
                    is_closed = True
                elif instruction.parts[0] in ("bra", "brx"):
                    assert is_last
                    self._emit_branch(emitter, instruction, segment, masked)
                    is_closed = True
                elif is_exit(instruction):
                    is_closed = self._emit_exit(emitter, instruction, segment)
                else:
                    self._emit_plain(emitter, instruction)
        if not is_closed:
            emitter.line(f"return {self._next(segment)}")
        name = f"<ptx {self.kernel.name} {segment.number}{'m' if masked else ''}>"
        lines, ptx_lines = emitter.lines, emitter.ptx_lines
        if self._weaver is not None:
            lines, ptx_lines = self._weaver.weave(lines, ptx_lines)
        return self._compiled(name, "s, R", lines, ptx_lines)

    def _compiled(
        self, name: str, parameters: str, lines: list[str], ptx_lines: list[int]
    ) -> Generated:
        """A function of some statements."""
        function = compiled(name, parameters, lines, self._namespace)
        source = "\n".join([f"def segment({parameters}):", *lines]) + "\n"
        return Generated(name, function, ptx_lines, source)

    def _compile_block(
        self, lines: list[str], ptx_lines: list[int], arguments: str
    ) -> Callable[..., Any]:
        """A native block in Python, for operands that it does not take."""
        name = f"<ptx {self.kernel.name} block {len(self._generated)}>"
        made = self._compiled(name, f"s, R{arguments}", lines, ptx_lines)
        self._generated[name] = made
        return made.function

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
        is_trap = head == "trap"
        if instruction.guard is None:
            jump = f"trap(s, None, {instruction.line})" if is_trap else "exit_lanes(s, None)"
            emitter.line(f"return {jump}")
            return True
        with emitter.effect():
            emitter.line(
                f"trap(s, {emitter.k}, {instruction.line})"
                if is_trap
                else f"if exit_lanes(s, {emitter.k}) == {FINISHED}: return {FINISHED}"
            )
        # Lanes that stay go on in the masked form, from the start of the next segment.
        emitter.line(f"return {self._next(segment)}")
        return True

    def _emit_call(self, emitter: Emitter, segment: Segment, at: int) -> bool:
        site = self.kernel.calls[at]
        name = emitter.bind("SITE", site)
        if site.start < 0:
            emitter.line(f"call_outside(s, {emitter.k}, {name}, {emitter.line_number})")
            return False
        start, after = self.segment_of(site.start), self.segment_of(segment.last)
        emitter.line(f"return enter(s, {name}, {start}, {after})")
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
            jump = str(goal) if goal >= 0 else "exit_lanes(s, None)"
            emitter.line(f"if {condition}: return {jump}")
        emitter.line(f"return diverge(s, g, {taken}, {other}, {meet_segment})")
