"""A program that tells a trace before and after each segment that a warp runs."""

from collections.abc import Callable
from typing import Any, Protocol

from ..isa.translate import Translation
from ..ptx.ast import Instruction, Kernel, Module
from ..ptx.program import Generated, Segment
from .costs import instruction_steps


class SegmentClock(Protocol):
    """Is told when segments run."""

    def ran(self, s: Any, segment: int, next_segment: int, steps: int) -> None:
        """A context ran a segment; `next_segment` is what the segment's function returned."""


class TimedProgram(Translation):
    """A program whose segments report to a clock. One per launch: it is never shared.

    Attributes:
      steps: for which a warp is busy, by segment.
      leading: the instruction that a segment is named after: the one that takes longest, and of
        equals the first.
    """

    def __init__(self, module: Module, kernel: Kernel, clock: SegmentClock, *, native: bool = True):
        super().__init__(module, kernel, native=native)
        self.clock = clock
        self.steps: list[int] = []
        self.leading: list[Instruction | None] = []
        for segment in self.segments:
            inside = kernel.instructions[segment.first : segment.last]
            self.steps.append(sum(map(instruction_steps, inside)))
            self.leading.append(max(inside, key=instruction_steps, default=None))

    def generate(self, segment: Segment, masked: bool) -> Generated:
        made = super().generate(segment, masked)
        made.function = self._timed(segment.number, made.function)
        return made

    def _timed(
        self, number: int, function: Callable[[Any, list[Any]], int]
    ) -> Callable[[Any, list[Any]], int]:
        clock, steps = self.clock, self.steps[number]

        def timed(s: Any, registers: list[Any]) -> int:
            next_segment = function(s, registers)
            clock.ran(s, number, next_segment, steps)
            return next_segment

        return timed
