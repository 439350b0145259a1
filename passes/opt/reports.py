"""Reports of `attn-opt` after all passes: time per pass, and operations added and removed."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.passes.infrastructure.pipeline import Step


@dataclass
class Times:
    """Wall time by pass, summed over the modules of the input."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _start: float = 0.0

    def before(self, step: Step, module: Any) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def after(self, step: Step, module: Any) -> None:
        """Adds the time since `before`."""
        elapsed = time.perf_counter() - self._start
        self.seconds[step.name] = self.seconds.get(step.name, 0.0) + elapsed

    failed = after

    def table(self, *, by_time: bool) -> str:
        """One line per pass, in the order of the pipeline or the longest first."""
        total = sum(self.seconds.values())
        rows = list(self.seconds.items())
        if by_time:
            rows.sort(key=lambda row: -row[1])
        lines = ["===-- attn-opt: wall time by pass --==="]
        for name, seconds in [*rows, ("Total", total)]:
            share = 100.0 * seconds / total if total else 0.0
            lines.append(f"{seconds:9.4f} s ({share:5.1f}%)  {name}")
        return "\n".join(lines)


@dataclass
class Statistics:
    """How many operations of each name every pass has added or removed."""

    lines: list[str] = field(default_factory=list[str])
    _counted: Counter[str] = field(default_factory=Counter[str])

    def before(self, step: Step, module: Any) -> None:
        """Counts the operations before the pass."""
        self._counted = _operations(module)

    def after(self, step: Step, module: Any) -> None:
        """Counts the operations after the pass, and notes the differences."""
        now = _operations(module)
        rows = [
            (self._counted.total(), "operations before the pass"),
            (now.total(), "operations after the pass"),
        ]
        for name in sorted({*now, *self._counted}):
            change = now[name] - self._counted[name]
            if change:
                rows.append((change, name))
        self.lines.append(step.name)
        self.lines += [
            f"  (S) {number:{'+' if i > 1 else ''}7} {text}"
            for i, (number, text) in enumerate(rows)
        ]

    failed = after

    def table(self) -> str:
        """The lines of all passes, under a title."""
        return "\n".join(["===-- attn-opt: pass statistics --===", *self.lines])


def _operations(module: Any) -> Counter[str]:
    counted: Counter[str] = Counter()

    def visit(operation: Any) -> Any:
        counted[operation.name] += 1
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return counted
