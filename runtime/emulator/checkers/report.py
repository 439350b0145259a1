"""From actors and ticks back to words: who did something, on which line of the PTX."""

import inspect
from typing import Any

from ..ptx.translate import Program
from .clocks import Actors, WarpClocks
from .findings import Access

GENERATED = "segment"  # name of the functions that `ptx.translate` makes


def current_line() -> Any:
    """Where the generated code is that called us: resolved by `Lines.number` when needed."""
    frame: Any = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != GENERATED:
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lineno)


def line_number(program: Program, line: Any) -> int:
    """The PTX line of what `current_line` returned, or of a number; 0 when unknown."""
    if isinstance(line, int):
        return line
    return 0 if line is None else program.ptx_line(*line) or 0


class Chronicle:
    """Remembers where every step of every actor of a cluster happened.

    Attributes:
      warps: by CTA rank and warp. steps: lines of engine steps, by actor and step.
    """

    def __init__(self, program: Program, actors: Actors, threads_per_cta: int):
        self.program = program
        self.actors = actors
        self.threads_per_cta = threads_per_cta
        self.warps: list[list[WarpClocks]] = []
        self.steps: dict[tuple[int, int], tuple[Any, str]] = {}

    def note(self, actor: int, step: int, line: Any, who: str) -> None:
        """An engine's step begins at a PTX line, issued by `who`; the first note stays."""
        self.steps.setdefault((actor, step), (line, who))

    def access(self, actor: int, step: int, is_write: bool) -> Access:
        """The access of an actor at a step."""
        action = "writes" if is_write else "reads"
        if actor < self.actors.first_engine:
            rank, thread = divmod(actor - 1, self.threads_per_cta)
            warp = self.warps[rank][thread // 32]
            line = warp.lines[step] if step < len(warp.lines) else None
            return self.spell(f"{warp.where} lane {thread % 32}", action, line)
        line, who = self.steps.get((actor, step), (None, "an engine"))
        return self.spell(
            f"{engine_name(self.actors.key_of(actor))}, issued by {who},", action, line
        )

    def spell(self, who: str, action: str, line: Any) -> Access:
        """An access with the text of its line."""
        number = line_number(self.program, line)
        return Access(who, action, number, self.program.line_text(number) if number else "")


def engine_name(key: Any) -> str:
    """An engine's actor in words."""
    kind = key[0]
    if kind == "mbarrier":
        return f"the copy engine (completes on mbarrier 0x{key[2]:x} of CTA rank {key[1]})"
    names = {
        "tensor": "the tensor core",
        "tmem-load": "tcgen05.ld",
        "tmem-store": "tcgen05.st",
        "bulk-read": "the copy engine (bulk group)",
        "bulk-write": "the copy engine (bulk group)",
        "copy": "cp.async",
        "wgmma": "the tensor core (wgmma)",
    }
    return names.get(kind, str(kind))
