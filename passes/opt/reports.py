"""Texts that `attn-opt` prints: the list of passes, and times and statistics of a run."""

import inspect
import re
import time
from collections import Counter
from dataclasses import MISSING, dataclass, field
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.passes.infrastructure import registry
from attn_mlir.passes.infrastructure.pipeline import Step

_ENTRY = re.compile(r"^  ([\w, ]+): (.*(?:\n   .*)*)", re.MULTILINE)


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
    """Operations that each pass has added or removed, by name."""

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


def list_passes() -> str:
    """One line per pass and pipeline, with a line for the meaning of each option below it."""
    lines: list[str] = []
    for title, entries in (("Passes", registry.passes()), ("Pipelines", registry.pipelines())):
        lines.append(f"{title}:")
        for name, entry in entries.items():
            lines.append(f"  --{name:<28} {_summary(entry)}")
            if isinstance(entry, type):
                meanings = option_texts(entry)
                for option, spec in registry.option_fields(entry).items():
                    default = "required" if spec.default is MISSING else repr(spec.default)
                    text = f"      {option}={default}"
                    meaning = meanings.get(spec.name, "")
                    lines.append(f"{text:<32} {meaning}".rstrip())
    return "\n".join(lines)


def option_texts(entry: type[Any]) -> dict[str, str]:
    """The text of each field under `Attributes:` in the docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(entry.__mro__):
        _, _, fields = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for names, text in _ENTRY.findall(fields):
            one_line = " ".join(text.split())
            texts |= dict.fromkeys((name.strip() for name in names.split(",")), one_line)
    return texts


def _summary(entry: Any) -> str:
    """The first line of the docstring of a pass or pipeline."""
    summary = (inspect.getdoc(entry) or "").partition("\n\n")[0]
    return getattr(entry, "help", None) or " ".join(summary.split())
