"""The text of `attn-opt --list-passes`: every pass and pipeline with its options,
from docstrings.
"""

import inspect
import re
from dataclasses import MISSING
from typing import Any

from attn_mlir.passes.infrastructure import registry

_ENTRY = re.compile(r"^  ([\w, ]+): (.*(?:\n   .*)*)", re.MULTILINE)


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
    """The line for each field under `Attributes:` in the docstring of a pass or pipeline."""
    _, _, fields = (inspect.getdoc(entry) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for names, text in _ENTRY.findall(fields):
        found |= dict.fromkeys((name.strip() for name in names.split(",")), " ".join(text.split()))
    return found


def _summary(entry: Any) -> str:
    """The first line of the docstring of a pass or pipeline."""
    summary = (inspect.getdoc(entry) or "").partition("\n\n")[0]
    return getattr(entry, "help", None) or " ".join(summary.split())
